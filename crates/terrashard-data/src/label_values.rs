//! What the values of a label stand for.

use terrashard_raster::{DataType, Metadata, RasterSource, Samples, Window};

use crate::scene::IGNORE;
use crate::{Error, Result};

/// What one value stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// A class.
    Class(u8),
    /// Neither trained on nor counted.
    Ignored,
    /// Nothing that a label may say.
    Unknown,
}

/// The values of one label.
///
/// A declared nodata value is ignored, unless it is a class: files often declare the background, 0, so that it is drawn transparent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LabelValues {
    classes: usize,
    /// The declared nodata value that is no class.
    nodata: Option<f64>,
    single: bool,
}

impl LabelValues {
    pub(crate) fn new(label: &Metadata, classes: usize) -> Self {
        let mut values = Self {
            classes,
            nodata: None,
            single: label.data_type == DataType::F32,
        };
        let is_class = |value: &f64| matches!(values.meaning(*value), Meaning::Class(_));
        values.nodata = label.nodata.filter(|nodata| !is_class(nodata));
        values
    }

    /// The largest class.
    pub(crate) fn largest(&self) -> usize {
        self.classes - 1
    }

    pub(crate) fn meaning(&self, value: f64) -> Meaning {
        if value >= 0.0 && value < self.classes as f64 && value.fract() == 0.0 {
            return Meaning::Class(value as u8);
        }
        // The declared text has more digits than single precision keeps.
        let declared = |nodata: f64| match self.single {
            _ if nodata.is_nan() => value.is_nan(),
            true => value as f32 == nodata as f32,
            false => value == nodata,
        };
        match value == f64::from(IGNORE) || self.nodata.is_some_and(declared) {
            true => Meaning::Ignored,
            false => Meaning::Unknown,
        }
    }
}

/// The classes of a window of a label, [`IGNORE`] where it has no data: by a mask beside it, or its nodata value.
///
/// # Errors
/// [`Error::MaskValue`] for the first value with data that is no class; [`Error::Raster`].
pub(crate) fn read(label: &dyn RasterSource, window: Window, classes: usize) -> Result<Vec<u8>> {
    let samples = label.read_window(window)?.into_samples();
    let data = label.read_mask(window)?;
    let values = LabelValues::new(label.metadata(), classes);
    let has_data = |at: usize| data.as_ref().is_none_or(|data| data[at]);
    let class = |at: usize, meaning: Meaning| match meaning {
        _ if !has_data(at) => Ok(IGNORE),
        Meaning::Class(class) => Ok(class),
        Meaning::Ignored => Ok(IGNORE),
        Meaning::Unknown => Err(Error::MaskValue {
            path: label.path().to_owned(),
            value: samples.get(at),
            column: window.col + at % window.width,
            row: window.row + at / window.width,
            classes,
        }),
    };
    match &samples {
        Samples::U8(bytes) => {
            let meanings: Vec<Meaning> = (0..=u8::MAX)
                .map(|byte| values.meaning(f64::from(byte)))
                .collect();
            let each = bytes.iter().enumerate();
            each.map(|(at, &byte)| class(at, meanings[usize::from(byte)]))
                .collect()
        }
        other => (0..other.len())
            .map(|at| class(at, values.meaning(other.get(at))))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declared_value_is_ignored_unless_it_is_a_class() {
        let label = |data_type: DataType, nodata: Option<f64>| Metadata {
            width: 1,
            height: 1,
            bands: 1,
            data_type,
            georeference: terrashard_raster::Georeference::default(),
            nodata,
            descriptions: vec![None],
            overviews: Vec::new(),
            block: (1, 1),
        };
        let check = |data_type, nodata, value: f64, expected: Meaning| {
            let values = LabelValues::new(&label(data_type, nodata), 2);
            assert_eq!(values.meaning(value), expected, "{nodata:?}, {value}");
        };
        use Meaning::{Class, Ignored, Unknown};
        check(DataType::U8, None, 1.0, Class(1));
        check(DataType::U8, None, 255.0, Ignored);
        check(DataType::U8, None, 2.0, Unknown);
        check(DataType::U8, Some(2.0), 2.0, Ignored);
        check(DataType::U8, Some(0.0), 0.0, Class(0));
        check(DataType::I16, Some(-9999.0), -9999.0, Ignored);
        check(DataType::I16, Some(-9999.0), -1.0, Unknown);
        check(
            DataType::F32,
            Some(-3.4e38),
            f64::from(-3.4e38_f32),
            Ignored,
        );
        check(DataType::F32, None, f64::NAN, Unknown);
        check(DataType::F64, Some(f64::NAN), f64::NAN, Ignored);
        check(DataType::F32, Some(-1.0), 0.5, Unknown);
    }
}
