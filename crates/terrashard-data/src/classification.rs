//! What is left out of a label by a scene classification or a cloud mask.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize, Serializer};
use terrashard_raster::{Metadata, RasterSource, Transform, Window};

use crate::affine::between;
use crate::{Error, Result};

/// Which classes are left out: `SCL:3,8,9,10` leaves out cloud shadow, clouds of two probabilities and cirrus of Sentinel-2's scene
/// classification.
///
/// <https://sentiwiki.copernicus.eu/web/s2-processing#S2Processing-ClassificationMaskGeneration>
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoreFrom {
    /// The band that holds the classes, in the file of the classification or in the image itself; a classification of one band may
    /// call it differently.
    pub band: String,
    /// The classes.
    pub classes: Vec<u32>,
}

impl FromStr for IgnoreFrom {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("\"{text}\" names no classes, write \"SCL:3,8,9,10\"");
        let (band, classes) = text.split_once(':').ok_or_else(expected)?;
        let classes: Option<Vec<u32>> = classes
            .split(',')
            .map(|class| class.trim().parse().ok())
            .collect();
        match (band.trim(), classes) {
            ("", _) | (_, None) => Err(expected()),
            (band, Some(classes)) => Ok(Self {
                band: band.to_owned(),
                classes,
            }),
        }
    }
}

impl fmt::Display for IgnoreFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let classes: Vec<String> = self.classes.iter().map(u32::to_string).collect();
        write!(f, "{}:{}", self.band, classes.join(","))
    }
}

impl Serialize for IgnoreFrom {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for IgnoreFrom {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

/// Classes over the ground of an image.
#[derive(Debug)]
pub(crate) struct Classification {
    /// A raster of its own, on any grid over the image's ground; none where the classes are a band of the image.
    source: Option<(Box<dyn RasterSource>, Transform)>,
    band: usize,
    classes: Vec<u32>,
}

impl Classification {
    /// # Errors
    /// [`Error::UnknownBand`] where there is no such band, [`Error::Classification`] where the raster does not cover the image.
    pub(crate) fn new(
        source: Option<Box<dyn RasterSource>>,
        ignore: &IgnoreFrom,
        image: &dyn RasterSource,
    ) -> Result<Self> {
        let holder = source.as_deref().unwrap_or(image);
        let metadata = holder.metadata();
        let band = match (metadata.band_named(&ignore.band), &source) {
            (Some(band), _) => band,
            (None, Some(_)) if metadata.bands == 1 => 0,
            (None, _) => {
                let names: Vec<&str> = metadata
                    .descriptions
                    .iter()
                    .flatten()
                    .map(String::as_str)
                    .collect();
                let available = match (names.is_empty(), &source) {
                    (true, _) => "bands without descriptions".to_owned(),
                    (false, _) => names.join(", "),
                };
                let remedy =
                    "; name the file of the classification with `classification` beside `image`";
                return Err(Error::UnknownBand {
                    path: holder.path().to_owned(),
                    band: ignore.band.clone(),
                    available: available + if source.is_none() { remedy } else { "" },
                });
            }
        };
        let source = match source {
            Some(source) => {
                let place = place(&*source, image)?;
                Some((source, place))
            }
            None => None,
        };
        Ok(Self {
            source,
            band,
            classes: ignore.classes.clone(),
        })
    }

    /// Which pixels of a window of the image are left out: those whose centre lies in a pixel of one of the classes, or in one that
    /// the mask of the classification leaves out.
    ///
    /// # Shapes
    /// `[window.height, window.width]`.
    pub(crate) fn ignored(&self, image: &dyn RasterSource, window: Window) -> Result<Vec<bool>> {
        let is_ignored = |value: f32| self.classes.iter().any(|&class| value == class as f32);
        let Some((source, place)) = &self.source else {
            let values = image.read_window(window)?.band_f32(self.band);
            return Ok(values.into_iter().map(is_ignored).collect());
        };
        let Metadata { width, height, .. } = *source.metadata();
        let pixel = |col: usize, row: usize| {
            let (col, row) = place.apply(col as f64 + 0.5, row as f64 + 0.5);
            // The ground was compared: what is outside is so by rounding.
            let within = |at: f64, length: usize| (at.max(0.0) as usize).min(length - 1);
            (within(col, width), within(row, height))
        };
        // An affine grid has its extremes in the corners.
        let (right, bottom) = (window.col_end() - 1, window.row_end() - 1);
        let corners = [
            (window.col, window.row),
            (right, window.row),
            (window.col, bottom),
            (right, bottom),
        ]
        .map(|(col, row)| pixel(col, row));
        let low = corners.iter().fold((width, height), |low, at| {
            (low.0.min(at.0), low.1.min(at.1))
        });
        let high = corners
            .iter()
            .fold((0, 0), |high, at| (high.0.max(at.0), high.1.max(at.1)));
        let read = Window::new(low.0, low.1, high.0 - low.0 + 1, high.1 - low.1 + 1);
        let values = source.read_window(read)?.band_f32(self.band);
        let data = source.read_mask(read)?;
        let mut ignored = Vec::with_capacity(window.pixels());
        for row in window.row..window.row_end() {
            for col in window.col..window.col_end() {
                let (col, row) = pixel(col, row);
                let at = (row - read.row) * read.width + col - read.col;
                // Of what its mask leaves out, a classification does not say that it is clear.
                let unknown = data.as_ref().is_some_and(|data| !data[at]);
                ignored.push(unknown || is_ignored(values[at]));
            }
        }
        Ok(ignored)
    }
}

/// Pixels of the image to pixels of the classification.
fn place(source: &dyn RasterSource, image: &dyn RasterSource) -> Result<Transform> {
    let (s, i) = (source.metadata(), image.metadata());
    let refuse = |what: String| {
        Err(Error::Classification {
            path: source.path().to_owned(),
            image: image.path().to_owned(),
            what,
        })
    };
    if let (Some(a), Some(b)) = (s.georeference.epsg, i.georeference.epsg)
        && a != b
    {
        return refuse(format!("it is in EPSG:{a}, the image in EPSG:{b}"));
    }
    let place = match s.georeference.transform.zip(i.georeference.transform) {
        Some((of_source, of_image)) => between(&of_image, &of_source),
        // Nothing says where they lie: over the same ground, if one is a multiple of the other.
        None => {
            let (across, down) = (
                s.width as f64 / i.width as f64,
                s.height as f64 / i.height as f64,
            );
            if across != down {
                let what = format!(
                    "of {} x {} pixels over {} x {}, without a georeference",
                    s.width, s.height, i.width, i.height
                );
                return refuse(what);
            }
            Transform {
                a: across,
                b: 0.0,
                c: 0.0,
                d: 0.0,
                e: down,
                f: 0.0,
            }
        }
    };
    let beyond = |(col, row): (f64, f64)| {
        let over = |at: f64, length: usize| (-at).max(at - length as f64);
        over(col, s.width).max(over(row, s.height))
    };
    let furthest = place
        .corners(i.width, i.height)
        .map(beyond)
        .into_iter()
        .fold(f64::NEG_INFINITY, f64::max);
    if furthest > 0.5 || furthest.is_nan() {
        return refuse(format!(
            "it ends {furthest:.1} of its pixels before the image does"
        ));
    }
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_it_is_written() {
        let ignore: IgnoreFrom = "SCL:3, 8,9,10".parse().expect("classes");
        assert_eq!(
            (ignore.band.as_str(), ignore.classes.as_slice()),
            ("SCL", &[3, 8, 9, 10][..])
        );
        assert_eq!(ignore.to_string(), "SCL:3,8,9,10");
        for wrong in ["SCL", "SCL:", ":3", "SCL:3,cloud", "SCL:-1"] {
            assert!(
                wrong
                    .parse::<IgnoreFrom>()
                    .is_err_and(|e| e.contains("SCL:3,8,9,10")),
                "{wrong}"
            );
        }
    }
}
