//! Digital numbers to what a model takes.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// How digital numbers become the input of a model: reflectance `(DN + offset) * scale`, then, where given,
/// `(reflectance - mean) / std` for each band.
///
/// Sentinel-2 products of processing baseline 04.00 and later carry `offset = -1000`, older ones 0; `scale` is 1/10000.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scaling {
    /// Added to the digital number. Default: 0.
    #[serde(default)]
    pub offset: f32,
    /// Reflectance of one digital number. Default: 1/10000.
    #[serde(default = "one_ten_thousandth")]
    pub scale: f32,
    /// Mean reflectance of each selected band; with `std`, or neither. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mean: Vec<f32>,
    /// Standard deviation of the reflectance of each selected band. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub std: Vec<f32>,
}

const fn one_ten_thousandth() -> f32 {
    1e-4
}

impl Default for Scaling {
    fn default() -> Self {
        Self {
            offset: 0.0,
            scale: one_ten_thousandth(),
            mean: Vec::new(),
            std: Vec::new(),
        }
    }
}

impl Scaling {
    /// Checks the numbers against each other and the number of bands.
    ///
    /// # Errors
    /// [`Error::Setting`] naming the number that is wrong.
    pub fn validate(&self, bands: usize) -> Result<()> {
        let refuse = |key, what: String| Err(Error::Setting { key, what });
        if !self.offset.is_finite() {
            return refuse(
                "data.scaling.offset",
                format!("{} is not finite", self.offset),
            );
        }
        if !self.scale.is_finite() || self.scale == 0.0 {
            return refuse(
                "data.scaling.scale",
                format!("{} is not a finite number other than 0", self.scale),
            );
        }
        let (mean, std) = ("data.scaling.mean", "data.scaling.std");
        for (key, list) in [(mean, &self.mean), (std, &self.std)] {
            let other = if key == mean { &self.std } else { &self.mean };
            if list.len() != bands && !(list.is_empty() && other.is_empty()) {
                return refuse(
                    key,
                    format!(
                        "{} numbers for {bands} bands; give one for each, or neither mean nor std",
                        list.len()
                    ),
                );
            }
            if let Some(bad) = list
                .iter()
                .find(|v| !v.is_finite() || (key == std && **v <= 0.0))
            {
                return refuse(
                    key,
                    format!("{bad} cannot be used; std must be above 0 and both finite"),
                );
            }
        }
        Ok(())
    }

    /// Turns digital numbers of band `band` (its place among the selected bands) into model input, in place.
    pub fn apply(&self, band: usize, values: &mut [f32]) {
        let (offset, scale) = (self.offset, self.scale);
        match (self.mean.get(band), self.std.get(band)) {
            (Some(&mean), Some(&std)) => values
                .iter_mut()
                .for_each(|v| *v = ((*v + offset) * scale - mean) / std),
            _ => values.iter_mut().for_each(|v| *v = (*v + offset) * scale),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_by_hand() {
        let check = |scaling: Scaling, band: usize, dn: f32, expected: f32| {
            let mut values = [dn];
            scaling.apply(band, &mut values);
            assert!(
                (values[0] - expected).abs() < 1e-6,
                "{} instead of {expected}",
                values[0]
            );
        };
        check(Scaling::default(), 0, 27_968.0, 2.7968);
        check(
            Scaling {
                offset: -1000.0,
                ..Scaling::default()
            },
            3,
            1901.0,
            0.0901,
        );
        let normal = Scaling {
            mean: vec![0.1, 0.2],
            std: vec![0.5, 0.25],
            ..Scaling::default()
        };
        check(normal, 1, 4500.0, 1.0);
    }

    #[test]
    fn refuses_numbers_that_do_not_fit() {
        let check = |scaling: Scaling, key: &str| {
            let error = scaling.validate(2).map_err(|e| e.to_string());
            assert!(
                error
                    .as_ref()
                    .is_err_and(|e| e.starts_with(&format!("`{key}`"))),
                "{error:?}"
            );
        };
        let plain = Scaling::default();
        assert!(plain.validate(2).is_ok());
        check(
            Scaling {
                scale: 0.0,
                ..plain.clone()
            },
            "data.scaling.scale",
        );
        check(
            Scaling {
                offset: f32::NAN,
                ..plain.clone()
            },
            "data.scaling.offset",
        );
        check(
            Scaling {
                mean: vec![0.1, 0.2],
                ..plain.clone()
            },
            "data.scaling.std",
        );
        check(
            Scaling {
                std: vec![0.1; 3],
                mean: vec![0.1; 2],
                ..plain.clone()
            },
            "data.scaling.std",
        );
        check(
            Scaling {
                std: vec![0.1, 0.0],
                mean: vec![0.1; 2],
                ..plain
            },
            "data.scaling.std",
        );
    }
}
