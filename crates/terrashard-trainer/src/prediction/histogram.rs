//! How many pixels of a map have each class.

use serde::Serialize;
use serde::ser::SerializeMap;
use terrashard_data::IGNORE;
use terrashard_raster::{Raster, Samples};

/// Pixels of each class, and of none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    classes: usize,
    counts: [u64; 256],
}

impl Histogram {
    /// Of this many classes, nothing counted.
    pub(crate) fn new(classes: usize) -> Self {
        Self {
            classes,
            counts: [0; 256],
        }
    }

    /// Counts the pixels of a map of classes.
    pub(crate) fn add(&mut self, map: &Raster) {
        if let Samples::U8(classes) = map.samples() {
            classes
                .iter()
                .for_each(|class| self.counts[usize::from(*class)] += 1);
        }
    }

    /// Adds a number of pixels of a class.
    pub(crate) fn add_count(&mut self, class: u8, pixels: u64) {
        self.counts[usize::from(class)] += pixels;
    }

    /// The classes that there are, 255 for no data, with their pixels.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (u8, u64)> {
        let counts = (0..=u8::MAX).zip(self.counts);
        counts.filter(|(_, pixels)| *pixels > 0)
    }

    /// Pixels of a class; 255 stands for no data.
    pub fn pixels(&self, class: u8) -> u64 {
        self.counts[usize::from(class)]
    }

    /// All pixels.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What a reader should be warned of, if anything: a map that tells nothing apart.
    pub fn warning(&self) -> Option<String> {
        let with_data = self.total() - self.pixels(IGNORE);
        if with_data == 0 {
            return Some(
                "100 % of the pixels have no data; check the image and its nodata value (`--nodata`)".into(),
            );
        }
        let (class, _) = self.counts().find(|(_, pixels)| *pixels == with_data)?;
        Some(format!(
            "100 % of the pixels with data are of class {class}; check the bands, the scaling and whether the model suits the scene"
        ))
    }

    /// Each class with its share, in one line.
    pub fn line(&self) -> String {
        let total = self.total().max(1) as f64;
        let share = |pixels: u64| format!("{:.2} %", 100.0 * pixels as f64 / total);
        let classes = (0..self.classes).map(|class| {
            let class = class as u8;
            format!("class {class} {}", share(self.pixels(class)))
        });
        let none = format!("no data {}", share(self.pixels(IGNORE)));
        classes.chain([none]).collect::<Vec<_>>().join(", ")
    }
}

/// `{"0": 12, "1": 3, "nodata": 1}`
impl Serialize for Histogram {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.classes + 1))?;
        for class in 0..self.classes {
            map.serialize_entry(&class.to_string(), &self.pixels(class as u8))?;
        }
        map.serialize_entry("nodata", &self.pixels(IGNORE))?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrashard_raster::Window;

    fn histogram(classes: &[u8]) -> Histogram {
        let window = Window::new(0, 0, classes.len(), 1);
        let mut histogram = Histogram::new(2);
        histogram.add(&Raster::new(window, 1, Samples::U8(classes.to_vec())).unwrap());
        histogram
    }

    #[test]
    fn geo_49_a_map_of_one_class_is_warned_of() {
        let mixed = histogram(&[0, 1, 1, 255]);
        assert_eq!(mixed.warning(), None);
        assert_eq!(
            mixed.line(),
            "class 0 25.00 %, class 1 50.00 %, no data 25.00 %"
        );
        assert_eq!(
            serde_json::to_string(&mixed).unwrap(),
            r#"{"0":1,"1":2,"nodata":1}"#
        );
        for (map, expected) in [
            (&[255, 255][..], "no data"),
            (&[1, 1], "of class 1"),
            (&[255, 0, 0], "of class 0"),
        ] {
            let warning = histogram(map).warning().unwrap();
            assert!(
                warning.contains("100 %") && warning.contains(expected),
                "{warning}"
            );
        }
    }
}
