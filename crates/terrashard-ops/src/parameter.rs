//! Lazily created parameters and where their first values come from.

use crate::random::{mix, part, stream, uniform};
use burn::module::{Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};

/// How a parameter starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initial {
    /// All zeros.
    Zeros,
    /// All ones.
    Ones,
    /// Normal with this standard deviation, cut off at two of them.
    Normal {
        /// The standard deviation before the cut.
        deviation: f64,
    },
}

impl Initial {
    /// The `count` values of the parameter called `name`.
    ///
    /// Each value follows from the seed, the name and its index alone, so any rank can make any part of any parameter.
    pub fn values(self, name: &str, count: usize, seed: u64) -> Vec<f32> {
        match self {
            Self::Zeros => vec![0.0; count],
            Self::Ones => vec![1.0; count],
            Self::Normal { deviation } => {
                let key = stream(name, seed);
                (0..count as u64)
                    .map(|index| (normal(key, index) * deviation) as f32)
                    .collect()
            }
        }
    }
}

/// A standard normal value cut off at +-2, by Box and Muller's method with as many attempts as it takes.
fn normal(key: u64, index: u64) -> f64 {
    let mut state = part(key, index);
    loop {
        let (radius, angle) = (uniform(state), uniform(mix(state ^ 1)));
        let value = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
        if value.abs() <= 2.0 {
            return value;
        }
        state = mix(state);
    }
}

/// A parameter of which only the shape exists until it is used.
pub(crate) fn lazy<const D: usize>(
    shape: [usize; D],
    initial: Initial,
    device: &Device,
) -> Param<Tensor<D>> {
    let make = move |device: &Device, tracked: bool| {
        let values = initial.values("", shape.iter().product(), 0);
        let tensor = Tensor::from_data(TensorData::new(values, shape), device);
        if tracked {
            tensor.require_grad()
        } else {
            tensor
        }
    };
    Param::uninitialized(ParamId::new(), make, device.clone(), true, shape.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_values_are_keyed_and_have_their_moments() {
        let initial = Initial::Normal { deviation: 0.02 };
        let values = initial.values("a.weight", 20_000, 7);
        assert_eq!(values, initial.values("a.weight", 20_000, 7));
        assert_ne!(values[..8], initial.values("b.weight", 8, 7)[..]);
        assert_ne!(values[..8], initial.values("a.weight", 8, 8)[..]);
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / 20_000.0;
        let square = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / 20_000.0;
        // A normal distribution cut at two deviations keeps 0.8796 of its deviation.
        assert!(mean.abs() < 5e-4, "{mean}");
        assert!(
            (square.sqrt() / 0.02 - 0.8796).abs() < 0.02,
            "{}",
            square.sqrt()
        );
        assert!(values.iter().all(|v| v.abs() <= 0.04));
    }

    #[test]
    fn a_lazy_parameter_has_a_shape_and_no_value() {
        let parameter = lazy([3, 4], Initial::Ones, &Device::flex());
        assert_eq!(parameter.lazy_shape().as_slice(), [3, 4]);
        assert!(!parameter.is_initialized());
        assert_eq!(
            parameter.val().into_data().try_to_vec::<f32>().unwrap(),
            [1.0; 12]
        );
    }
}
