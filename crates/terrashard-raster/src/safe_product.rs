//! Sentinel-2 products as the agency delivers them: SAFE folders.
//!
//! <https://sentiwiki.copernicus.eu/web/s2-products>

use std::path::{Path, PathBuf};

use crate::band_files::{finest, rasters_in, share};
use crate::band_set::BandSet;
use crate::jp2_source::Jp2Source;
use crate::opening::{ReadLimits, file_bytes, open_file};
use crate::xml::{attribute, elements, text_of};
use crate::{Error, Georeference, Metadata, RasterSource, Result, Transform};

/// Names of a product's metadata file.
const PRODUCT_FILES: [&str; 2] = ["MTD_MSIL1C.xml", "MTD_MSIL2A.xml"];
/// Name of a granule's metadata file.
const GRANULE_FILE: &str = "MTD_TL.xml";
/// Bytes of a metadata file that are accepted.
const MAX_XML: u64 = 64 << 20;
/// "No data" in every band and in the scene classification.
const NODATA: f64 = 0.0;
/// Bands by the numbers that the metadata give them.
const BAND_IDS: [&str; 13] = [
    "B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B10", "B11", "B12",
];
/// What the metadata say of the whole product, under the names that they use themselves.
const TAGS: [&str; 7] = [
    "PRODUCT_URI",
    "PROCESSING_LEVEL",
    "PROCESSING_BASELINE",
    "PRODUCT_START_TIME",
    "GENERATION_TIME",
    "SPACECRAFT_NAME",
    "SENSING_ORBIT_NUMBER",
];

/// Where a product's parts lie.
struct Product {
    /// Of the product; a granule alone has none.
    product: Option<PathBuf>,
    /// The granule's folder.
    granule: PathBuf,
}

/// Whether `folder` is a product or a granule of one.
pub(crate) fn is_product(folder: &Path) -> bool {
    PRODUCT_FILES
        .iter()
        .chain([&GRANULE_FILE])
        .any(|name| folder.join(name).is_file())
}

/// Opens all bands of a product, each on the finest grid that there is of it, as one raster on the finest of those grids.
pub(crate) fn open(folder: &Path, limits: ReadLimits) -> Result<Box<dyn RasterSource>> {
    let product = Product::find(folder)?;
    let said = match &product.product {
        Some(path) => read_xml(path)?,
        None => String::new(),
    };
    let granule_file = product.granule.join(GRANULE_FILE);
    let grids = match granule_file.is_file() {
        true => Grids::parse(&granule_file, &read_xml(&granule_file)?)?,
        false => Grids::default(),
    };
    let images = product.granule.join("IMG_DATA");
    let mut files = rasters_in(&images)?;
    for resolution in ["R10m", "R20m", "R60m"] {
        let folder = images.join(resolution);
        if folder.is_dir() {
            files.extend(rasters_in(&folder)?);
        }
    }
    let limits = share(limits, &files);
    let bands = finest(folder, files, |path| {
        if path
            .extension()
            .is_none_or(|e| !e.eq_ignore_ascii_case("jp2"))
        {
            return open_file(path, limits);
        }
        let source = Jp2Source::open(path, file_bytes(path)?, limits)?;
        let georeference = match grids.of(source.metadata()) {
            Some(georeference) => georeference,
            None => source.metadata().georeference,
        };
        Ok(Box::new(source.described(georeference, Some(NODATA))))
    })?;
    if bands.is_empty() {
        return Err(Error::Ambiguous {
            path: images,
            what: "no band".to_owned(),
            remedy: "download the product again".to_owned(),
        });
    }
    let names: Vec<String> = bands.iter().map(|band| band.name.clone()).collect();
    let set = BandSet::new(folder, bands)?;
    Ok(Box::new(set.annotated(|annotations| {
        for tag in TAGS {
            if let Some(value) = text_of(&said, tag) {
                annotations.tags.insert(tag.to_owned(), value.to_owned());
            }
        }
        for (index, name) in names.iter().enumerate() {
            if let Some((scale, offset)) = scaling(&said, name) {
                annotations.scales[index] = scale;
                annotations.offsets[index] = offset;
            }
        }
    })))
}

impl Product {
    fn find(folder: &Path) -> Result<Self> {
        let in_folder = |folder: &Path| {
            let paths = PRODUCT_FILES.iter().map(|name| folder.join(name));
            paths.into_iter().find(|path| path.is_file())
        };
        if folder.join(GRANULE_FILE).is_file() {
            let product = folder.parent().and_then(Path::parent).and_then(in_folder);
            return Ok(Self {
                product,
                granule: folder.to_owned(),
            });
        }
        let granules = folder.join("GRANULE");
        let entries = std::fs::read_dir(&granules).map_err(|e| Error::io(&granules, "list", e))?;
        let mut found = Vec::new();
        for entry in entries {
            let path = entry.map_err(|e| Error::io(&granules, "list", e))?.path();
            if path.join("IMG_DATA").is_dir() {
                found.push(path);
            }
        }
        found.sort();
        match found.len() {
            1 => Ok(Self {
                product: in_folder(folder),
                granule: found.remove(0),
            }),
            count => Err(Error::Ambiguous {
                path: granules,
                what: format!("{count} granules"),
                remedy: match found.first() {
                    Some(first) => format!("name one of them: {}", first.display()),
                    None => "download the product again".to_owned(),
                },
            }),
        }
    }
}

fn read_xml(path: &Path) -> Result<String> {
    let bytes = file_bytes(path)?;
    if bytes > MAX_XML {
        return Err(Error::TooLarge {
            path: path.to_owned(),
            what: "a metadata file".to_owned(),
            needed: bytes,
            limit: MAX_XML,
        });
    }
    let text = std::fs::read(path).map_err(|e| Error::io(path, "read", e))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Sizes and places of a granule's grids, one for each resolution.
#[derive(Default)]
struct Grids {
    grids: Vec<((usize, usize), Georeference)>,
}

impl Grids {
    fn parse(path: &Path, text: &str) -> Result<Self> {
        let damaged = |what: String| Error::Damaged {
            path: path.to_owned(),
            source: what.into(),
        };
        let code = text_of(text, "HORIZONTAL_CS_CODE").unwrap_or_default();
        let epsg = code
            .strip_prefix("EPSG:")
            .and_then(|code| code.parse().ok())
            .ok_or_else(|| damaged(format!("HORIZONTAL_CS_CODE is {code:?}")))?;
        let mut grids = Vec::new();
        for (attributes, size) in elements(text, "Size") {
            let resolution = attribute(attributes, "resolution");
            let place = elements(text, "Geoposition")
                .find(|(attributes, _)| attribute(attributes, "resolution") == resolution);
            let count = |name| text_of(size, name)?.parse::<usize>().ok();
            let number = |name| text_of(place?.1, name)?.parse::<f64>().ok();
            let grid = || -> Option<_> {
                let transform = Transform {
                    a: number("XDIM")?,
                    b: 0.0,
                    c: number("ULX")?,
                    d: 0.0,
                    e: number("YDIM")?,
                    f: number("ULY")?,
                };
                Some(((count("NCOLS")?, count("NROWS")?), transform))
            };
            let (size, transform) = grid()
                .filter(|(_, transform)| transform.is_invertible())
                .ok_or_else(|| damaged(format!("the grid of {resolution:?} m lacks a number")))?;
            let transform = Some(transform);
            let epsg = Some(epsg);
            grids.push((size, Georeference { epsg, transform }));
        }
        Ok(Self { grids })
    }

    /// The grid whose size a band has.
    fn of(&self, metadata: &Metadata) -> Option<Georeference> {
        let size = (metadata.width, metadata.height);
        let grid = self.grids.iter().find(|(grid, _)| *grid == size)?;
        Some(grid.1)
    }
}

/// Scale and offset that make reflectance of a band's samples; since processing baseline 04.00 there is an offset.
fn scaling(said: &str, band: &str) -> Option<(f64, f64)> {
    let id = BAND_IDS.iter().position(|name| *name == band)?.to_string();
    let (divisor, offsets) = match text_of(said, "BOA_QUANTIFICATION_VALUE") {
        Some(divisor) => (divisor, "BOA_ADD_OFFSET"),
        None => (text_of(said, "QUANTIFICATION_VALUE")?, "RADIO_ADD_OFFSET"),
    };
    let divisor: f64 = divisor.parse().ok().filter(|divisor| *divisor > 0.0)?;
    let offset = elements(said, offsets)
        .find(|(attributes, _)| attribute(attributes, "band_id") == Some(&id))
        .and_then(|(_, text)| text.trim().parse::<f64>().ok())
        .unwrap_or(0.0);
    Some((1.0 / divisor, offset / divisor))
}
