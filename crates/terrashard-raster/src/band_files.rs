//! Sentinel-2 bands in files of their own: a folder of them, matched by the bands' names in those of the files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::band_set::{BandSet, NamedBand};
use crate::opening::{ReadLimits, open_file};
use crate::{Error, RasterSource, Result};

/// The bands in the order of their wavelengths, then the scene classification.
const NAMES: [&str; 14] = [
    "B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B10", "B11", "B12",
    "SCL",
];

/// The band that a file is of, such as `B02` for `T33UUU_20170216T102101_B02_10m.jp2`: the last word of its name that is one.
pub(crate) fn band_of(path: &Path) -> Option<&'static str> {
    let stem = path.file_stem()?.to_string_lossy().to_ascii_uppercase();
    let mut words = stem.rsplit(|c: char| !c.is_ascii_alphanumeric());
    words.find_map(|word| {
        NAMES.into_iter().find(|name| {
            // B2 is B02, and B08A is B8A.
            let short = name.strip_prefix("B0").map(|rest| format!("B{rest}"));
            word == *name
                || short.is_some_and(|short| word == short)
                || (word, *name) == ("B08A", "B8A")
        })
    })
}

/// The limits for each of the bands in a list of files, so that what they keep together is what one raster would.
pub(crate) fn share(limits: ReadLimits, files: &[PathBuf]) -> ReadLimits {
    let names: BTreeSet<&str> = files.iter().filter_map(|path| band_of(path)).collect();
    ReadLimits {
        cache_bytes: limits.cache_bytes / names.len().max(1),
        ..limits
    }
}

/// The bands of a list of files, each on the finest grid that there is of it, in the order of [`NAMES`]. Files of no band
/// are left out.
pub(crate) fn finest(
    folder: &Path,
    files: Vec<PathBuf>,
    open: impl Fn(&Path) -> Result<Box<dyn RasterSource>>,
) -> Result<Vec<NamedBand>> {
    let mut found: Vec<NamedBand> = Vec::new();
    for path in files {
        let Some(name) = band_of(&path) else {
            continue;
        };
        let source = open(&path)?;
        let metadata = source.metadata();
        if metadata.bands != 1 {
            return Err(Error::Ambiguous {
                path,
                what: format!("{} bands under the name of {name} alone", metadata.bands),
                remedy: "split it, or take it away".to_owned(),
            });
        }
        let size = |source: &dyn RasterSource| source.metadata().window().pixels();
        let Some(other) = found.iter_mut().find(|band| band.name == name) else {
            let name = name.to_owned();
            found.push(NamedBand {
                name,
                source,
                band: 0,
            });
            continue;
        };
        match size(&source).cmp(&size(&other.source)) {
            std::cmp::Ordering::Greater => other.source = source,
            std::cmp::Ordering::Less => {}
            std::cmp::Ordering::Equal => {
                let file = |path: &Path| path.file_name().map(|n| n.to_string_lossy().into_owned());
                return Err(Error::Ambiguous {
                    path: folder.to_owned(),
                    what: format!(
                        "{name} twice, {} and {}",
                        file(other.source.path()).unwrap_or_default(),
                        file(&path).unwrap_or_default()
                    ),
                    remedy: "keep the files of one scene in a folder".to_owned(),
                });
            }
        }
    }
    found.sort_by_key(|band| NAMES.iter().position(|name| *name == band.name));
    Ok(found)
}

/// The files of a folder whose names end like those of rasters, sorted.
pub(crate) fn rasters_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io(folder, "list", e))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| Error::io(folder, "list", e))?.path();
        let extension = path
            .extension()
            .map(|e| e.to_string_lossy().to_ascii_lowercase());
        if matches!(extension.as_deref(), Some("tif" | "tiff" | "jp2" | "npy")) && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Opens a folder of single-band files as one raster.
pub(crate) fn open(folder: &Path, limits: ReadLimits) -> Result<Box<dyn RasterSource>> {
    let files = rasters_in(folder)?;
    let limits = share(limits, &files);
    let bands = finest(folder, files, |path| open_file(path, limits))?;
    if bands.is_empty() {
        return Err(Error::Ambiguous {
            path: folder.to_owned(),
            what: "no file named after a band".to_owned(),
            remedy: "name a file, a .SAFE folder, or one with files such as B02.tif".to_owned(),
        });
    }
    Ok(Box::new(BandSet::new(folder, bands)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_are_found_in_names() {
        let check = |name: &str, band: Option<&str>| assert_eq!(band_of(Path::new(name)), band);
        check("T33UUU_20170216T102101_B02.jp2", Some("B02"));
        check(
            "GRANULE/x/R20m/T33UUU_20170216T102101_B8A_20m.jp2",
            Some("B8A"),
        );
        check(
            "S2A_MSIL2A_20170613T101031_N9999_R022_T33UUP_75_43_B12.tif",
            Some("B12"),
        );
        check("scene-b2.tiff", Some("B02"));
        check("B08A.tif", Some("B8A"));
        check("T33UUU_20170216T102101_SCL_20m.jp2", Some("SCL"));
        check("T33UUU_20170216T102101_TCI_10m.jp2", None);
        check("S2A_MSIL2A_T33UUP_reference_map.tif", None);
        check("B13.tif", None);
        check("AB02.tif", None);
        check("B002.tif", None);
    }

    #[test]
    fn what_is_kept_is_shared_by_the_bands() {
        let limits = ReadLimits {
            window_bytes: 7,
            cache_bytes: 100,
            ..ReadLimits::default()
        };
        let files = [
            "R10m/a_B02_10m.jp2",
            "R20m/a_B02_20m.jp2",
            "a_B11_20m.jp2",
            "a_TCI.jp2",
        ];
        let shared = share(limits, &files.map(PathBuf::from));
        assert_eq!((shared.cache_bytes, shared.window_bytes), (50, 7));
        assert_eq!(share(limits, &[]).cache_bytes, 100);
    }
}
