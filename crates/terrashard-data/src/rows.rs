//! Finished rows of a map, and what they are written as.

use terrashard_raster::{DataType, Metadata, Raster, RasterSpec, Samples, Window};

use crate::{IGNORE, Result};

/// Final rows of a mosaic.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// The first image row.
    pub row: usize,
    /// Image rows.
    pub height: usize,
    /// Image columns: those of the scene.
    pub width: usize,
    /// Map pixels per image pixel along one side.
    pub scale: usize,
    /// Channels.
    pub channels: usize,
    /// Blended values, `[channels, height * scale, width * scale]`.
    pub values: Vec<f32>,
    /// Which image pixels have data, `[height, width]`.
    pub valid: Vec<bool>,
}

impl Rows {
    /// Where the rows lie in the map.
    pub const fn window(&self) -> Window {
        Window::new(0, self.row, self.width, self.height).scaled(self.scale)
    }

    /// The same rows with these of the channels alone.
    ///
    /// # Panics
    /// Where there are fewer channels.
    pub fn of_channels(&self, channels: std::ops::Range<usize>) -> Self {
        let pixels = self.window().pixels();
        Self {
            channels: channels.len(),
            values: self.values[channels.start * pixels..channels.end * pixels].to_vec(),
            valid: self.valid.clone(),
            ..*self
        }
    }

    /// The map of classes, [`IGNORE`] where the image has no data.
    ///
    /// One channel is the probability of class 1, which it is where that is above `threshold`; of several channels the largest
    /// wins, the first of equal ones. A value that is NaN gives [`IGNORE`].
    pub fn classes(&self, threshold: f32) -> Result<Raster> {
        let pixels = self.window().pixels();
        let class = |at: usize| -> u8 {
            let channel = |c: usize| self.values[c * pixels + at];
            if !self.has_data(at) || (0..self.channels).any(|c| channel(c).is_nan()) {
                IGNORE
            } else if self.channels == 1 {
                u8::from(channel(0) > threshold)
            } else {
                (1..self.channels).fold(
                    0,
                    |best, c| if channel(c) > channel(best) { c } else { best },
                ) as u8
            }
        };
        Ok(Raster::new(
            self.window(),
            1,
            Samples::U8((0..pixels).map(class).collect()),
        )?)
    }

    /// The blended values, NaN where the image has no data.
    pub fn values(&self) -> Result<Raster> {
        let pixels = self.window().pixels();
        let value = |(at, &v): (usize, &f32)| {
            if self.has_data(at % pixels) {
                v
            } else {
                f32::NAN
            }
        };
        let values = self.values.iter().enumerate().map(value).collect();
        Ok(Raster::new(
            self.window(),
            self.channels,
            Samples::F32(values),
        )?)
    }

    /// Whether the image has data under a map pixel of these rows.
    fn has_data(&self, at: usize) -> bool {
        let line = self.width * self.scale;
        self.valid[at / line / self.scale * self.width + at % line / self.scale]
    }
}

/// The raster that the class map of an image is written to: `scale` times its size, its ground exactly, nodata [`IGNORE`].
pub fn prediction_spec(image: &Metadata, scale: usize) -> RasterSpec {
    RasterSpec::new(image.width * scale, image.height * scale, 1, DataType::U8)
        .georeference(image.georeference.scaled(scale as f64))
        .nodata(f64::from(IGNORE))
}

/// The raster that the super-resolved image of an image is written to: as [`prediction_spec`], this many bands of reflectance,
/// nodata NaN.
pub fn image_spec(image: &Metadata, scale: usize, bands: usize) -> RasterSpec {
    RasterSpec::new(
        image.width * scale,
        image.height * scale,
        bands,
        DataType::F32,
    )
    .georeference(image.georeference.scaled(scale as f64))
    .nodata(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mosaic;

    #[test]
    fn no_data_stays_no_data() {
        let mut mosaic = Mosaic::new(2, 2, 2, 0, 2).expect("sound");
        let values: Vec<f32> = (0..16)
            .map(|i| if i == 5 { f32::NAN } else { i as f32 / 16.0 })
            .collect();
        let valid = [true, false, true, true];
        let rows = mosaic
            .add_valid(Window::new(0, 0, 2, 2), &values, &valid)
            .expect("its own")
            .expect("complete");
        let classes = rows.classes(0.5).expect("filled");
        assert_eq!(
            classes.samples(),
            &Samples::U8(vec![
                0, 0, 255, 255, 0, 255, 255, 255, 0, 1, 1, 1, 1, 1, 1, 1
            ])
        );
        let values = rows.values().expect("filled");
        assert!(values.at(0, 2, 0).is_nan() && values.at(0, 1, 3) == 13.0 / 16.0);
    }

    #[test]
    fn of_several_classes_the_largest_wins() {
        let mut mosaic = Mosaic::new(2, 1, 2, 0, 1).expect("sound").with_channels(3);
        let values = [0.2, 0.4, 0.5, 0.4, 0.3, 0.2];
        let rows = mosaic
            .add(Window::new(0, 0, 2, 1), &values)
            .expect("its own")
            .expect("complete");
        assert_eq!(
            rows.classes(0.5).expect("filled").samples(),
            &Samples::U8(vec![1, 0])
        );
    }
}
