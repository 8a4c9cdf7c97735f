//! How samples differ from their chips, anew in each epoch and the same on any number of ranks.

use serde::{Deserialize, Serialize};
use terrashard_layout::counter::Stream;

use crate::{Error, Orientation, Result, Scaling};

/// Numbers are drawn from this key on: that of key 1 is 0 in every [`Stream`].
const FIRST: u64 = 2;

/// What is drawn for a sample in an epoch, by (seed, sample id, epoch) alone.
///
/// Labels turn with their image and are never invented: the pixels of each class are known before a chip is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Augmentation {
    /// The seed of the draws.
    pub seed: u64,
    /// Whether chips are flipped and turned by quarters.
    pub orientations: bool,
    /// How images are disturbed.
    pub jitter: Jitter,
}

/// How images are disturbed: what another sun, haze or sensor would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Jitter {
    /// Reflectance of a sample is multiplied by a factor between `1 - scale` and `1 + scale`, the same in all its bands. Default: 0.
    pub scale: f32,
    /// Each band of a sample is multiplied by a factor of its own, between `1 - band_scale` and `1 + band_scale`. Default: 0.
    pub band_scale: f32,
    /// Standard deviation of the noise that is added to the reflectance of each pixel. Default: 0.
    pub noise: f32,
}

impl Augmentation {
    /// Samples are their chips.
    pub const OFF: Self = Self {
        seed: 0,
        orientations: false,
        jitter: Jitter {
            scale: 0.0,
            band_scale: 0.0,
            noise: 0.0,
        },
    };

    /// Chips are flipped and turned by quarters, and nothing else.
    pub const fn turned(seed: u64) -> Self {
        Self {
            seed,
            orientations: true,
            ..Self::OFF
        }
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let Jitter {
            scale,
            band_scale,
            noise,
        } = self.jitter;
        for (key, value) in [
            ("scale", scale),
            ("band_scale", band_scale),
            ("noise", noise),
        ] {
            if !(0.0..1.0).contains(&value) {
                return Err(Error::Setting {
                    key,
                    what: format!("{value}; choose a jitter of at least 0 and below 1"),
                });
            }
        }
        Ok(())
    }

    /// What a sample is like in an epoch: the same on any rank and in any order of asking.
    pub fn draw(&self, sample: u64, epoch: u64) -> Draw {
        let orientation = match self.orientations {
            true => Orientation::draw(self.seed, sample, epoch),
            false => Orientation::IDENTITY,
        };
        let stream = Stream::new(self.seed, "jitter");
        let stream = stream.child(epoch + FIRST).child(sample + FIRST);
        Draw {
            orientation,
            jitter: self.jitter,
            stream,
        }
    }
}

/// What one sample is like in one epoch.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// How it lies.
    pub orientation: Orientation,
    jitter: Jitter,
    stream: Stream,
}

impl Draw {
    /// Disturbs model input in place: reflectance, or normalised reflectance.
    ///
    /// Pixels that hold 0 in every band, as those without data do, stay.
    ///
    /// # Shapes
    /// `[bands, pixels]`.
    pub fn disturb(&self, values: &mut [f32], bands: usize, scaling: &Scaling) {
        let Jitter {
            scale,
            band_scale,
            noise,
        } = self.jitter;
        if self.jitter == Jitter::default() || values.is_empty() {
            return;
        }
        let pixels = values.len() / bands;
        let empty: Vec<bool> = (0..pixels)
            .map(|pixel| (0..bands).all(|band| values[band * pixels + pixel] == 0.0))
            .collect();
        let (factors, noises) = (self.stream.child(FIRST), self.stream.child(FIRST + 1));
        let factor = |index: u64, jitter: f32| {
            1.0 + jitter * (2.0 * factors.uniform(index + FIRST) as f32 - 1.0)
        };
        let of_sample = factor(0, scale);
        for (band, plane) in values.chunks_exact_mut(pixels).enumerate() {
            let factor = of_sample * factor(band as u64 + 1, band_scale);
            let (mean, std) = match (scaling.mean.get(band), scaling.std.get(band)) {
                (Some(&mean), Some(&std)) => (mean, std),
                _ => (0.0, 1.0),
            };
            for (pixel, value) in plane
                .iter_mut()
                .enumerate()
                .filter(|(pixel, _)| !empty[*pixel])
            {
                let added = match noise > 0.0 {
                    true => noise * noises.normal((band * pixels + pixel) as u64 + FIRST) as f32,
                    false => 0.0,
                };
                let reflectance = *value * std + mean;
                *value = (reflectance * factor + added - mean) / std;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jitter(scale: f32, band_scale: f32, noise: f32) -> Augmentation {
        Augmentation {
            seed: 5,
            orientations: false,
            jitter: Jitter {
                scale,
                band_scale,
                noise,
            },
        }
    }

    fn disturbed(
        augmentation: Augmentation,
        sample: u64,
        epoch: u64,
        values: &[f32],
        scaling: &Scaling,
    ) -> Vec<f32> {
        let mut values = values.to_vec();
        augmentation
            .draw(sample, epoch)
            .disturb(&mut values, 2, scaling);
        values
    }

    #[test]
    fn scale_multiplies_all_bands_alike_and_noise_has_its_deviation() {
        let values: Vec<f32> = [[0.2; 5000], [0.4; 5000]].concat();
        let plain = Scaling::default();
        let got = disturbed(jitter(0.1, 0.0, 0.0), 3, 0, &values, &plain);
        let factor = got[0] / 0.2;
        assert!((0.9..=1.1).contains(&factor) && factor != 1.0);
        assert!(
            got[..5000].iter().all(|&v| v == got[0]) && (got[5000] / 0.4 - factor).abs() < 1e-6
        );
        let got = disturbed(jitter(0.0, 0.1, 0.0), 3, 0, &values, &plain);
        assert!(
            (got[0] / 0.2 - got[5000] / 0.4).abs() > 1e-4,
            "each band by itself"
        );

        let got = disturbed(jitter(0.0, 0.0, 0.01), 3, 0, &values, &plain);
        let noise: Vec<f64> = got
            .iter()
            .zip(&values)
            .map(|(a, b)| f64::from(a - b))
            .collect();
        let mean = noise.iter().sum::<f64>() / 1e4;
        let std = (noise.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / 1e4).sqrt();
        assert!(
            mean.abs() < 5e-4 && (std - 0.01).abs() < 5e-4,
            "{mean}, {std}"
        );
    }

    #[test]
    fn a_normalised_image_is_disturbed_as_reflectance() {
        let normal = Scaling {
            mean: vec![0.1, 0.2],
            std: vec![0.05, 0.5],
            ..Scaling::default()
        };
        let reflectance = [0.3, 0.05, 0.7, 0.25];
        let input = [4.0, -1.0, 1.0, 0.1];
        let augmentation = jitter(0.2, 0.1, 0.01);
        let expected = disturbed(augmentation, 1, 2, &reflectance, &Scaling::default());
        let got = disturbed(augmentation, 1, 2, &input, &normal);
        for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let (mean, std) = (normal.mean[at / 2], normal.std[at / 2]);
            assert!((got * std + mean - expected).abs() < 1e-6, "{at}");
        }
    }

    #[test]
    fn draws_depend_on_seed_sample_and_epoch_and_leave_gaps() {
        let values = [0.2, 0.0, 0.4, 0.0];
        let augmentation = jitter(0.1, 0.1, 0.01);
        let draw =
            |sample, epoch| disturbed(augmentation, sample, epoch, &values, &Scaling::default());
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(2, 0));
        assert_ne!(draw(1, 0), draw(1, 1));
        assert_eq!((draw(1, 0)[1], draw(1, 0)[3]), (0.0, 0.0));
        assert!(
            jitter(-0.1, 0.0, 0.0).validate().is_err()
                && jitter(0.0, 0.0, f32::NAN).validate().is_err()
        );
    }
}
