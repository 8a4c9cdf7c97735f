//! The decision on a step where the device has its numbers first.

use burn::tensor::Tensor;
use terrashard_torch::tch;

use crate::error::Result;
use crate::libtorch::{burn, computed, torch};
use crate::zero_optimizer::EPSILON;

/// What an update on the device is decided by: the device's own numbers, which the host does not know yet.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    divisor: Tensor<1>,
    failed: Tensor<1>,
}

impl Gate {
    /// From what the ranks have added up by [`message`](crate::libtorch::message): the gradients are multiplied with `factor` and clipped to the norm `clip`, and
    /// nothing changes where one is not finite. `None` where the sums are not LibTorch's.
    ///
    /// In double precision and in the order of [`crate::ZeroOptimizer`]'s own decision, so that it comes to the same bits.
    ///
    /// # Errors
    /// [`Error::Compute`].
    pub(crate) fn of(sums: &Tensor<1>, factor: f64, clip: Option<f64>) -> Result<Option<Self>> {
        let Some(sums) = torch(sums) else {
            return Ok(None);
        };
        let number = |value: f64, kind| tch::Tensor::f_full([1], value, (kind, sums.device()));
        let gate = || -> Result<_, tch::TchError> {
            let divisor = match clip {
                None => number(1.0 / factor, tch::Kind::Float)?,
                Some(clip) => {
                    let norm = sums.f_narrow(0, 0, 1)?.f_sqrt()?.f_mul_scalar(factor)?;
                    let bound = norm.f_add_scalar(EPSILON)?;
                    let clip = number(clip, tch::Kind::Double)?.f_div(&bound)?;
                    let whole = clip.f_clamp_max(1.0)?.f_mul_scalar(factor)?;
                    let divisor = number(1.0, tch::Kind::Double)?.f_div(&whole)?;
                    divisor.f_to_kind(tch::Kind::Float)?
                }
            };
            let failed = sums.f_narrow(0, 1, 1)?.f_gt(0.0)?;
            let failed = failed.f_to_kind(tch::Kind::Float)?;
            Ok([divisor, failed])
        };
        let [divisor, failed] = computed(gate())?.map(burn);
        Ok(Some(Self { divisor, failed }))
    }
    /// As LibTorch's tensors.
    pub(crate) fn torch(&self) -> Option<terrashard_torch::Gate> {
        let [divisor, failed] = [&self.divisor, &self.failed].map(torch);
        let (divisor, failed) = divisor.zip(failed)?;
        Some(terrashard_torch::Gate { divisor, failed })
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Device, TensorData};
    use terrashard_layout::ElementType;

    use super::*;
    use crate::config::{AdamW, Optimizer};
    use crate::libtorch::adamw;
    use crate::rule::Update;

    fn tensor(values: &[f32], device: &Device) -> Tensor<1> {
        Tensor::from_data(TensorData::from(values), device)
    }

    /// To the bits of the host's own decision.
    #[test]
    fn the_device_decides_as_the_host_does() {
        let device = terrashard_torch::cpu();
        let rule = AdamW::default();
        let values = |tensor: &Tensor<1>| tensor.to_data().iter::<f32>().collect::<Vec<_>>();
        let step = |factor: f64, gate: Option<Gate>| {
            let update = Update {
                rule: Optimizer::AdamW(rule),
                lr: 0.1,
                weight_decay: 0.01,
                step: 3,
                gradient_factor: factor,
                ema: None,
                compute: ElementType::F32,
                gate,
            };
            let [weights, gradient, m, v] = [
                [1.0, -2.0, 0.3],
                [0.7, -3.0, 1e-3],
                [0.1, 0.0, 0.2],
                [0.01, 0.5, 0.0],
            ]
            .map(|values| tensor(&values, &device));
            assert!(adamw(&update, rule, &weights, &gradient, [&m, &v]).unwrap());
            [weights, gradient, m, v].map(|tensor| values(&tensor))
        };
        let gate = |sums: [f64; 3], factor, clip| {
            let sums = Tensor::from_data(TensorData::from(sums), (&device, DType::F64));
            Gate::of(&sums, factor, clip).unwrap()
        };
        for (squares, factor, clip) in [
            (7.3, 1.0, None),
            (7.3, 1.0 / 3.0, None),
            (7.3, 1.0 / 3.0, Some(0.7)),
            (1e-9, 0.1, Some(1.0)),
            (12345.678, 1.0 / 65536.0, Some(1e-4)),
        ] {
            let norm = f64::sqrt(squares) * factor;
            let clipped = clip.map_or(1.0, |clip: f64| (clip / (norm + EPSILON)).min(1.0));
            let by_host = step(factor * clipped, None);
            let by_device = step(99.0, gate([squares, 0.0, 5.0], factor, clip));
            assert_eq!(by_device, by_host, "{squares} {factor} {clip:?}");
            // One rank's gradient was not finite.
            let not = step(99.0, gate([squares, 1.0, 5.0], factor, clip));
            assert_eq!(
                not,
                [
                    vec![1.0, -2.0, 0.3],
                    vec![0.7, -3.0, 1e-3],
                    vec![0.1, 0.0, 0.2],
                    vec![0.01, 0.5, 0.0],
                ]
            );
        }
        assert!(
            Gate::of(&tensor(&[1.0, 0.0], &Device::flex()), 1.0, None)
                .unwrap()
                .is_none()
        );
    }
}
