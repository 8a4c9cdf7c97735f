//! One raster from files of single bands on one grid.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use terrashard_raster::{
    DataType, Metadata, Raster, RasterSource, ReadLimits, Samples, Window, keep_credentials,
};

use crate::error::{Error, Result};

/// A band of a file under a name: `B02=a.tif` or `B03=b.tif:1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BandFile {
    /// The name.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// The band's number in the file, from 1.
    pub band: usize,
}

impl FromStr for BandFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected =
            || format!("got `{text}`, expected NAME=FILE or NAME=FILE:BAND, such as B02=a.tif:1");
        let (name, file) = text.split_once('=').ok_or_else(expected)?;
        let (path, band) = match file.rsplit_once(':') {
            Some((path, band)) if band.bytes().all(|byte| byte.is_ascii_digit()) => {
                (path, band.parse().map_err(|_| expected())?)
            }
            _ => (file, 1),
        };
        match name.is_empty() || path.is_empty() || band == 0 {
            true => Err(expected()),
            false => Ok(Self {
                name: name.into(),
                path: keep_credentials(path.into()),
                band,
            }),
        }
    }
}

/// Puts bands together that lie on one grid. The limits are shared by all files.
///
/// # Errors
/// [`Error::Raster`] where a file cannot be read, [`Error::InvalidValue`] where a file lacks the band or differs from the first in
/// size, ground or nodata value.
pub fn open(bands: &[BandFile], limits: ReadLimits) -> Result<Box<dyn RasterSource>> {
    let limits = ReadLimits {
        cache_bytes: limits.cache_bytes / bands.len().max(1),
        ..limits
    };
    let sources = bands
        .iter()
        .map(|band| Ok(terrashard_raster::open_with(&band.path, limits)?))
        .collect::<Result<Vec<_>>>()?;
    let first = sources
        .first()
        .ok_or_else(|| Error::invalid("--bands", "nothing", "at least one band"))?;
    let metadata = first.metadata().clone();
    for (band, source) in bands.iter().zip(&sources) {
        let other = source.metadata();
        let refuse = |got: String, expected: String| {
            Err(Error::invalid(
                format!("--bands {}={}", band.name, band.path.display()),
                got,
                expected,
            ))
        };
        if band.band > other.bands {
            return refuse(
                format!("band {}", band.band),
                format!("1 to {}", other.bands),
            );
        }
        let grid = |m: &Metadata| (m.width, m.height, m.georeference, m.nodata);
        if grid(other) != grid(&metadata) {
            let got = format!(
                "{} x {} pixels with nodata {:?}",
                other.width, other.height, other.nodata
            );
            let expected = format!(
                "the grid and nodata value of {}: {} x {} pixels with nodata {:?}; resample it first",
                first.path().display(),
                metadata.width,
                metadata.height,
                metadata.nodata
            );
            return refuse(got, expected);
        }
    }
    let metadata = Metadata {
        bands: bands.len(),
        // Files may differ in type; a model takes single precision anyway.
        data_type: DataType::F32,
        descriptions: bands.iter().map(|band| Some(band.name.clone())).collect(),
        ..metadata
    };
    let bands = bands.iter().map(|band| band.band - 1).collect();
    Ok(Box::new(BandStack {
        metadata,
        sources,
        bands,
    }))
}

#[derive(Debug)]
struct BandStack {
    metadata: Metadata,
    sources: Vec<Box<dyn RasterSource>>,
    /// For each source, the band that is taken, from 0.
    bands: Vec<usize>,
}

impl RasterSource for BandStack {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn path(&self) -> &Path {
        self.sources[0].path()
    }

    fn read_window(&self, window: Window) -> terrashard_raster::Result<Raster> {
        let mut samples = Vec::with_capacity(window.pixels() * self.bands.len());
        for (source, band) in self.sources.iter().zip(&self.bands) {
            samples.extend(source.read_window(window)?.band_f32(*band));
        }
        Raster::new(window, self.bands.len(), Samples::F32(samples))
    }

    /// Data where every file that has a mask says so.
    fn read_mask(&self, window: Window) -> terrashard_raster::Result<Option<Vec<bool>>> {
        let mut all: Option<Vec<bool>> = None;
        for source in &self.sources {
            if let Some(data) = source.read_mask(window)? {
                let both =
                    |others: Vec<bool>| others.iter().zip(&data).map(|(a, b)| a & b).collect();
                all = Some(all.map(both).unwrap_or(data));
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrashard_raster::{GeoTiffSink, RasterSink, RasterSpec};

    #[test]
    fn names_files_and_numbers() {
        let band = |name: &str, path: &str, band| BandFile {
            name: name.into(),
            path: path.into(),
            band,
        };
        assert_eq!("B02=a.tif".parse(), Ok(band("B02", "a.tif", 1)));
        assert_eq!("B03=b=c.tif:2".parse(), Ok(band("B03", "b=c.tif", 2)));
        assert_eq!("B04=C:/b.tif".parse(), Ok(band("B04", "C:/b.tif", 1)));
        for wrong in ["a.tif", "=a.tif", "B02=", "B02=a.tif:0"] {
            assert!(
                wrong.parse::<BandFile>().unwrap_err().contains(wrong),
                "{wrong}"
            );
        }
    }

    #[test]
    fn bands_come_in_the_order_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, width, samples: Vec<u16>| {
            let path = folder.path().join(name);
            let spec = RasterSpec::new(width, 1, 2, DataType::U16).tile(16);
            let mut sink: Box<dyn RasterSink> = Box::new(GeoTiffSink::create(&path, spec).unwrap());
            let window = Window::new(0, 0, width, 1);
            sink.write(&Raster::new(window, 2, Samples::U16(samples)).unwrap())
                .unwrap();
            sink.finish().unwrap();
            path
        };
        let first = write("a.tif", 2, vec![1, 2, 3, 4]);
        let second = write("b.tif", 2, vec![5, 6, 7, 60_000]);
        let wide = write("c.tif", 3, vec![0; 6]);
        let band = |path: &PathBuf, band| BandFile {
            name: format!("B{band}"),
            path: path.clone(),
            band,
        };

        let stack = open(&[band(&second, 2), band(&first, 1)], ReadLimits::default()).unwrap();
        assert_eq!(
            stack.metadata().descriptions,
            [Some("B2".to_string()), Some("B1".to_string())]
        );
        let raster = stack.read_window(Window::new(0, 0, 2, 1)).unwrap();
        assert_eq!(
            *raster.samples(),
            Samples::F32(vec![7.0, 60_000.0, 1.0, 2.0])
        );

        let error = open(&[band(&first, 1), band(&wide, 1)], ReadLimits::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("c.tif") && error.contains("3 x 1 pixels"),
            "{error}"
        );
        let error = open(&[band(&first, 3)], ReadLimits::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("got band 3, expected 1 to 2"), "{error}");
    }
}
