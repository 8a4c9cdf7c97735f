//! One raster of bands that lie in files of their own.

use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::memory::check_window;
use crate::{
    Annotations, DataType, Error, Metadata, Raster, RasterSource, Result, Samples, Validity, Window,
};

/// A band under a name.
#[derive(Debug)]
pub struct NamedBand {
    /// The name, such as `B02`.
    pub name: String,
    /// The raster that it is in.
    pub source: Box<dyn RasterSource>,
    /// Its number there, from 0.
    pub band: usize,
}

/// Bands over the same ground as one raster, on the finest grid among them.
///
/// The pixels of a coarser band are repeated: 2 x 2 times for 20 m over 10 m. Grids have to share their corner, and a coarse
/// pixel has to be a whole number of fine ones.
#[derive(Debug)]
pub struct BandSet {
    name: PathBuf,
    metadata: Metadata,
    annotations: Annotations,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    source: Box<dyn RasterSource>,
    band: usize,
    /// Pixels of the set's grid along each side of one of this band.
    factor: usize,
}

impl BandSet {
    /// Puts bands together, in the order given, under the name by which messages speak of them.
    ///
    /// # Errors
    /// [`Error::Ambiguous`] where there is no band or a name occurs twice, [`Error::Misfit`] where a band does not lie on the
    /// ground of the finest one or has another nodata value.
    pub fn new(name: impl Into<PathBuf>, bands: Vec<NamedBand>) -> Result<Self> {
        let name = name.into();
        let ambiguous = |what: String, remedy: &str| Error::Ambiguous {
            path: name.clone(),
            what,
            remedy: remedy.to_owned(),
        };
        for (index, band) in bands.iter().enumerate() {
            if bands[..index].iter().any(|other| other.name == band.name) {
                return Err(ambiguous(format!("{} twice", band.name), "name it once"));
            }
        }
        let finest = bands
            .iter()
            .map(|band| &band.source)
            .rev()
            .max_by_key(|source| source.metadata().window().pixels())
            .ok_or_else(|| ambiguous("no band".to_owned(), "name at least one"))?;
        let (grid, first) = (finest.metadata().clone(), finest.path().to_owned());
        let mut annotations = Annotations::none(bands.len());
        let mut members = Vec::with_capacity(bands.len());
        let mut data_type = bands[0].source.metadata().data_type;
        let nodata = bands[0].source.metadata().nodata;
        let mut names = Vec::with_capacity(bands.len());
        for (index, NamedBand { name, source, band }) in bands.into_iter().enumerate() {
            let metadata = source.metadata();
            let misfit = |got: String, expected: String| Error::Misfit {
                path: source.path().to_owned(),
                got,
                expected,
                first: first.clone(),
                remedy: "resample it first",
            };
            if band >= metadata.bands {
                return Err(misfit(
                    format!("band {} of {}", band + 1, metadata.bands),
                    "its bands".to_owned(),
                ));
            }
            let Some(factor) = factor(metadata, &grid) else {
                return Err(misfit(describe(metadata), describe(&grid)));
            };
            if metadata.nodata.map(f64::to_bits) != nodata.map(f64::to_bits) {
                return Err(misfit(
                    format!("nodata {:?}", metadata.nodata),
                    format!("nodata {nodata:?}"),
                ));
            }
            data_type = common(data_type, metadata.data_type);
            let said = source.annotations();
            annotations.scales[index] = said.scales[band];
            annotations.offsets[index] = said.offsets[band];
            annotations.tags.extend(said.tags);
            names.push(Some(name));
            members.push(Member {
                source,
                band,
                factor,
            });
        }
        let metadata = Metadata {
            bands: members.len(),
            data_type,
            nodata,
            descriptions: names,
            overviews: Vec::new(),
            ..grid
        };
        annotations.validity = match metadata.validity() {
            Validity::AllValid if members.iter().any(Member::has_mask) => Validity::Mask,
            other => other,
        };
        Ok(Self {
            name,
            metadata,
            annotations,
            members,
        })
    }

    /// With names and values that belong to the whole set.
    pub(crate) fn annotated(mut self, change: impl FnOnce(&mut Annotations)) -> Self {
        change(&mut self.annotations);
        self
    }
}

impl Member {
    fn has_mask(&self) -> bool {
        matches!(
            self.source.annotations().validity,
            Validity::Mask | Validity::Alpha
        )
    }

    /// The pixels of this band that `window` of the set touches.
    const fn coarse(&self, window: Window) -> Window {
        let (col, row) = (window.col / self.factor, window.row / self.factor);
        Window::new(
            col,
            row,
            window.col_end().div_ceil(self.factor) - col,
            window.row_end().div_ceil(self.factor) - row,
        )
    }

    /// The samples of this band in `window` of the set.
    fn read(&self, window: Window, data_type: DataType) -> Result<Samples> {
        let coarse = self.coarse(window);
        let raster = self.source.read_bands(coarse, &[self.band])?;
        let mut samples = Samples::with_capacity(data_type, coarse.pixels());
        samples.extend_converted(raster.samples(), 0..coarse.pixels());
        if self.factor == 1 {
            return Ok(samples);
        }
        let places: Vec<usize> = places(window, coarse, self.factor).collect();
        Ok(samples.picked(&places))
    }
}

/// For each pixel of `window`, its place in `coarse`.
fn places(window: Window, coarse: Window, factor: usize) -> impl Iterator<Item = usize> {
    (window.row..window.row_end()).flat_map(move |row| {
        let line = (row / factor - coarse.row) * coarse.width;
        (window.col..window.col_end()).map(move |col| line + col / factor - coarse.col)
    })
}

impl RasterSource for BandSet {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn path(&self) -> &Path {
        &self.name
    }

    fn read_window(&self, window: Window) -> Result<Raster> {
        let all: Vec<usize> = (0..self.members.len()).collect();
        self.read_bands(window, &all)
    }

    fn read_bands(&self, window: Window, bands: &[usize]) -> Result<Raster> {
        check_window(&self.name, &self.metadata, window)?;
        let read = bands
            .par_iter()
            .map(|&band| self.members[band].read(window, self.metadata.data_type))
            .collect::<Result<Vec<_>>>()?;
        let mut samples =
            Samples::with_capacity(self.metadata.data_type, window.pixels() * bands.len());
        for band in &read {
            samples.extend_converted(band, 0..band.len());
        }
        Raster::new(window, bands.len(), samples)
    }

    fn annotations(&self) -> Annotations {
        self.annotations.clone()
    }

    /// Data where every band that has a mask says so.
    fn read_mask(&self, window: Window) -> Result<Option<Vec<bool>>> {
        check_window(&self.name, &self.metadata, window)?;
        let mut valid: Option<Vec<bool>> = None;
        for member in self.members.iter().filter(|member| member.has_mask()) {
            let coarse = member.coarse(window);
            if let Some(mask) = member.source.read_mask(coarse)? {
                let fine = places(window, coarse, member.factor).map(|at| mask[at]);
                valid = Some(match valid {
                    Some(others) => others.iter().zip(fine).map(|(a, b)| *a && b).collect(),
                    None => fine.collect(),
                });
            }
        }
        Ok(valid)
    }
}

/// How many pixels of `fine` lie along each side of one of `metadata`, if they cover the same ground.
fn factor(metadata: &Metadata, fine: &Metadata) -> Option<usize> {
    let factor = fine.width / metadata.width;
    let nests = factor > 0
        && metadata.width * factor == fine.width
        && metadata.height * factor == fine.height;
    let ground = match (metadata.georeference.transform, fine.georeference.transform) {
        (Some(coarse), Some(exact)) => {
            let size = |m: &Metadata| (m.width, m.height);
            coarse.corner_distance(size(metadata), &exact, size(fine)) <= 1e-6 * exact.pixel_size()
        }
        (None, None) => true,
        _ => false,
    };
    let system = metadata.georeference.epsg == fine.georeference.epsg;
    (nests && ground && system).then_some(factor)
}

fn describe(metadata: &Metadata) -> String {
    let Metadata {
        width,
        height,
        georeference,
        ..
    } = metadata;
    let system = match georeference.epsg {
        Some(code) => format!(" in EPSG:{code}"),
        None => String::new(),
    };
    match georeference.transform {
        Some(t) => format!(
            "{width} x {height} pixels at {:?}{system}",
            t.coefficients()
        ),
        None => format!("{width} x {height} pixels without georeference"),
    }
}

/// The smallest type that holds the values of both.
fn common(a: DataType, b: DataType) -> DataType {
    use DataType::{F32, F64, I8, I16, I32, U8, U16, U32};
    match (a, b) {
        (a, b) if a == b => a,
        (U8, U16) | (U16, U8) => U16,
        (U8 | I8, I16) | (I16, U8 | I8) | (U8, I8) | (I8, U8) => I16,
        (U8 | U16, U32) | (U32, U8 | U16) => U32,
        (U8 | U16 | I8 | I16, I32) | (I32, U8 | U16 | I8 | I16) => I32,
        (U16, I8 | I16) | (I8 | I16, U16) => I32,
        (U8 | U16 | I8 | I16 | F32, U8 | U16 | I8 | I16 | F32) => F32,
        _ => F64,
    }
}
