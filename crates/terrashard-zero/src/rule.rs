//! The update of a flat piece of parameters: AdamW or SGD, and the moving average of the weights.

use burn::tensor::{DType, Element, Tensor, TensorData};
use half::{bf16, f16};
use terrashard_layout::ElementType;

use crate::config::{AdamW, Optimizer, Sgd};
use crate::error::Result;
use crate::host::{
    self, AdamWUpdate, Average, ComputeCopy, Gradient, MomentSlices, Piece, SgdUpdate,
};
use crate::parameters;

/// The states of a flat piece of parameters, as tensors on the device or as data in host memory.
#[derive(Clone, Debug)]
pub(crate) struct Part<X> {
    /// Master weights, where they are not the parameters themselves.
    pub(crate) master: Option<X>,
    /// AdamW's first moment or SGD's momentum.
    pub(crate) m: Option<X>,
    /// AdamW's second moment.
    pub(crate) v: Option<X>,
    /// Moving average of the weights.
    pub(crate) ema: Option<X>,
}

impl<X> Default for Part<X> {
    fn default() -> Self {
        Self {
            master: None,
            m: None,
            v: None,
            ema: None,
        }
    }
}

impl<X> Part<X> {
    /// The part with each state mapped.
    pub(crate) fn map<Y>(self, mut f: impl FnMut(X) -> Y) -> Part<Y> {
        Part {
            master: self.master.map(&mut f),
            m: self.m.map(&mut f),
            v: self.v.map(&mut f),
            ema: self.ema.map(&mut f),
        }
    }

    /// The states that are there.
    pub(crate) fn states(&self) -> impl Iterator<Item = &X> {
        [&self.master, &self.m, &self.v, &self.ema]
            .into_iter()
            .flatten()
    }
}

/// Elements in host memory, whoever's it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elements<'a> {
    /// Their type.
    pub(crate) dtype: DType,
    /// Their bytes, as aligned as the type asks for.
    pub(crate) bytes: &'a [u8],
}

impl<'a> From<&'a TensorData> for Elements<'a> {
    fn from(data: &'a TensorData) -> Self {
        Self {
            dtype: data.dtype(),
            bytes: data.as_bytes(),
        }
    }
}

/// The numbers of one update.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    pub(crate) rule: Optimizer,
    /// Learning rate of the group.
    pub(crate) lr: f64,
    /// Weight decay of the group.
    pub(crate) weight_decay: f64,
    /// The step being taken, counted from 1: for the bias corrections.
    pub(crate) step: u64,
    /// Factor on the gradient: clipping, averaging and unscaling.
    pub(crate) gradient_factor: f64,
    /// Decay of the moving average.
    pub(crate) ema: Option<f64>,
    /// Element type of the parameters' copy for the computation.
    pub(crate) compute: ElementType,
    /// What the device decides the update by, in place of the factor, where the host does not know yet.
    #[cfg(feature = "tch")]
    pub(crate) gate: Option<crate::gate::Gate>,
}

impl Update {
    /// Updates a part in host memory and returns the parameters in the type of the computation.
    ///
    /// `parameter` is updated in place where the part has no master weights of its own. Element-wise only, so the
    /// result of an element does not depend on how the buckets are cut: that makes stages equal bit by bit. Padding,
    /// where everything is zero, stays zero.
    pub(crate) fn in_host_memory(
        &self,
        part: &mut Part<TensorData>,
        parameter: Option<TensorData>,
        gradient: Elements<'_>,
    ) -> TensorData {
        let separate = part.master.is_some();
        let mut weights = part
            .master
            .take()
            .or(parameter)
            .expect("a part without master weights comes with its parameters");
        let compute = parameters::dtype(self.compute);
        let mut copy = separate.then(|| host_zeros(weights.num_elements(), compute));
        let bytes = copy.as_mut().map(|copy| match copy.dtype() {
            DType::F64 => bytemuck::cast_slice_mut(elements_mut::<f64>(copy)),
            DType::BF16 => bytemuck::cast_slice_mut(elements_mut::<bf16>(copy)),
            DType::F16 => bytemuck::cast_slice_mut(elements_mut::<f16>(copy)),
            _ => bytemuck::cast_slice_mut(elements_mut::<f32>(copy)),
        });
        self.host_update(part, &mut weights, gradient, bytes);
        match copy {
            None => weights,
            Some(copy) => {
                part.master = Some(weights);
                copy
            }
        }
    }

    /// The same for a part with master weights of its own, whose copy for the computation goes into `copy`.
    #[cfg(feature = "tch")]
    pub(crate) fn update_host_buffer(
        &self,
        part: &mut Part<TensorData>,
        gradient: Elements<'_>,
        copy: &mut [u8],
    ) {
        let mut weights = part.master.take().expect("the caller has looked");
        self.host_update(part, &mut weights, gradient, Some(copy));
        part.master = Some(weights);
    }

    fn host_update(
        &self,
        part: &mut Part<TensorData>,
        weights: &mut TensorData,
        gradient: Elements<'_>,
        copy: Option<&mut [u8]>,
    ) {
        match weights.dtype() {
            DType::F64 => self.host_update_of::<f64>(part, weights, gradient, copy),
            _ => self.host_update_of::<f32>(part, weights, gradient, copy),
        }
    }

    /// Updates `weights`, and makes `copy` theirs in the type of the computation.
    fn host_update_of<T: host::Element + Element + bytemuck::Pod>(
        &self,
        part: &mut Part<TensorData>,
        weights: &mut TensorData,
        gradient: Elements<'_>,
        copy: Option<&mut [u8]>,
    ) {
        let piece = Piece {
            master: elements_mut::<T>(weights),
            gradient: match gradient.dtype {
                DType::BF16 => Gradient::Bf16(bytemuck::cast_slice(gradient.bytes)),
                DType::F16 => Gradient::F16(bytemuck::cast_slice(gradient.bytes)),
                _ => Gradient::Full(bytemuck::cast_slice(gradient.bytes)),
            },
            copy: match (copy, self.compute) {
                (None, _) => ComputeCopy::None,
                (Some(copy), ElementType::Bf16) => {
                    ComputeCopy::Bf16(bytemuck::cast_slice_mut(copy))
                }
                (Some(copy), ElementType::F16) => ComputeCopy::F16(bytemuck::cast_slice_mut(copy)),
                (Some(copy), _) => ComputeCopy::Full(bytemuck::cast_slice_mut(copy)),
            },
            average: match (self.ema, &mut part.ema) {
                (Some(decay), Some(ema)) => Some(Average {
                    values: elements_mut(ema),
                    decay,
                }),
                _ => None,
            },
        };
        match self.rule {
            Optimizer::AdamW(rule) => {
                let update = AdamWUpdate {
                    beta1: rule.beta1,
                    beta2: rule.beta2,
                    epsilon: rule.epsilon,
                    lr: self.lr,
                    weight_decay: self.weight_decay,
                    step: self.step,
                    gradient_factor: self.gradient_factor,
                };
                let (Some(m), Some(v)) = (&mut part.m, &mut part.v) else {
                    unreachable!("AdamW has two moments")
                };
                let (m, v) = (elements_mut(m), elements_mut(v));
                update.apply::<T>(piece, MomentSlices { m, v });
            }
            Optimizer::Sgd(rule) => {
                let update = SgdUpdate {
                    lr: self.lr,
                    momentum: rule.momentum,
                    weight_decay: self.weight_decay,
                    nesterov: rule.nesterov,
                    gradient_factor: self.gradient_factor,
                };
                update.apply::<T>(piece, part.m.as_mut().map(elements_mut));
            }
        }
    }

    /// The same on the device, by operations on tensors, or on LibTorch in place: the result is then the weights themselves.
    ///
    /// # Shapes
    /// All `[n]`.
    ///
    /// # Errors
    /// [`crate::Error::Compute`].
    pub(crate) fn on_device(
        &self,
        part: &mut Part<Tensor<1>>,
        parameter: Option<Tensor<1>>,
        gradient: Tensor<1>,
    ) -> Result<Tensor<1>> {
        let separate = part.master.is_some();
        let weights = part
            .master
            .take()
            .or(parameter)
            .expect("a part without master weights comes with its parameters");
        let gradient = gradient.cast(weights.dtype());
        let in_place = self.in_place(part, &weights, &gradient)?;
        let weights = match self.rule {
            _ if in_place => weights,
            Optimizer::AdamW(rule) => self.adamw(rule, part, weights, self.scaled(gradient)),
            Optimizer::Sgd(rule) => self.sgd(rule, part, weights, self.scaled(gradient)),
        };
        if let (Some(decay), Some(ema)) = (self.ema, part.ema.take()) {
            part.ema = Some(ema.mul_scalar(decay) + weights.clone().mul_scalar(1.0 - decay));
        }
        let copy = match in_place {
            true => weights.clone(),
            false => weights.clone().cast(parameters::dtype(self.compute)),
        };
        if separate {
            part.master = Some(weights);
        }
        Ok(copy)
    }

    fn scaled(&self, gradient: Tensor<1>) -> Tensor<1> {
        match self.gradient_factor {
            1.0 => gradient,
            factor => gradient.mul_scalar(factor),
        }
    }

    /// Updates weights and moments in one pass in place, if the device has that.
    #[cfg(feature = "tch")]
    fn in_place(
        &self,
        part: &Part<Tensor<1>>,
        weights: &Tensor<1>,
        gradient: &Tensor<1>,
    ) -> Result<bool> {
        match (self.rule, &part.m, &part.v) {
            (Optimizer::AdamW(rule), Some(m), Some(v)) if crate::libtorch::is_gpu(weights) => {
                crate::libtorch::adamw(self, rule, weights, gradient, [m, v])
            }
            _ => Ok(false),
        }
    }

    #[cfg(not(feature = "tch"))]
    fn in_place(&self, _: &Part<Tensor<1>>, _: &Tensor<1>, _: &Tensor<1>) -> Result<bool> {
        Ok(false)
    }

    fn adamw(
        &self,
        rule: AdamW,
        part: &mut Part<Tensor<1>>,
        weights: Tensor<1>,
        gradient: Tensor<1>,
    ) -> Tensor<1> {
        let AdamW {
            beta1,
            beta2,
            epsilon,
            ..
        } = rule;
        let moment = |state: &mut Option<Tensor<1>>| state.take().expect("AdamW has two moments");
        let (m, v) = (moment(&mut part.m), moment(&mut part.v));
        let step = i32::try_from(self.step).unwrap_or(i32::MAX);
        let correction1 = 1.0 - beta1.powi(step);
        let correction2 = 1.0 - beta2.powi(step);
        let m = m.mul_scalar(beta1) + gradient.clone().mul_scalar(1.0 - beta1);
        let v = v.mul_scalar(beta2) + (gradient.clone() * gradient).mul_scalar(1.0 - beta2);
        let denominator = v
            .clone()
            .sqrt()
            .div_scalar(correction2.sqrt())
            .add_scalar(epsilon);
        let direction = (m.clone() / denominator).mul_scalar(self.lr / correction1);
        part.m = Some(m);
        part.v = Some(v);
        weights.mul_scalar(1.0 - self.lr * self.weight_decay) - direction
    }

    fn sgd(
        &self,
        rule: Sgd,
        part: &mut Part<Tensor<1>>,
        weights: Tensor<1>,
        gradient: Tensor<1>,
    ) -> Tensor<1> {
        let gradient = match self.weight_decay {
            0.0 => gradient,
            decay => gradient + weights.clone().mul_scalar(decay),
        };
        let direction = match part.m.take() {
            None => gradient,
            Some(sum) => {
                let sum = sum.mul_scalar(rule.momentum) + gradient.clone();
                part.m = Some(sum.clone());
                if rule.nesterov {
                    gradient + sum.mul_scalar(rule.momentum)
                } else {
                    sum
                }
            }
        };
        weights - direction.mul_scalar(self.lr)
    }
}

/// Zeros in host memory of the kind that updates are fast in, `[len]`.
pub(crate) fn host_zeros(len: usize, dtype: DType) -> TensorData {
    fn zeros<T: Element + bytemuck::Zeroable>(len: usize) -> TensorData {
        TensorData::new(host::zeroed::<T>(len), [len])
    }
    match dtype {
        DType::F64 => zeros::<f64>(len),
        DType::BF16 => zeros::<bf16>(len),
        DType::F16 => zeros::<f16>(len),
        _ => zeros::<f32>(len),
    }
}

/// A copy of a state, `[n]`, in host memory of the kind that updates are fast in.
pub(crate) fn host_copy(state: &TensorData) -> TensorData {
    fn copy<T: Element + bytemuck::Zeroable>(state: &TensorData) -> TensorData {
        let mut values = host::zeroed::<T>(state.num_elements());
        values.copy_from_slice(elements(state));
        TensorData::new(values, [state.num_elements()])
    }
    match state.dtype() {
        DType::F64 => copy::<f64>(state),
        _ => copy::<f32>(state),
    }
}

fn elements<T: Element>(data: &TensorData) -> &[T] {
    data.as_slice()
        .expect("the element type was chosen by the data's own")
}

fn elements_mut<T: Element>(data: &mut TensorData) -> &mut [T] {
    data.as_mut_slice()
        .expect("the element type was chosen by the data's own")
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn values(count: usize, factor: usize) -> Vec<f64> {
        let value = |i: usize| ((i * factor) % 17) as f64 * 0.25 - 2.0;
        (0..count).map(value).collect()
    }

    /// Three updates by operations on tensors are those in host memory, which other tests compare with the rule by hand.
    #[track_caller]
    fn check(rule: Optimizer, compute: ElementType, separate: bool) {
        let (count, device) = (37, Device::flex());
        let master = match compute {
            ElementType::F64 => DType::F64,
            _ => DType::F32,
        };
        let data = |values: Vec<f64>| TensorData::from(values.as_slice()).convert_dtype(master);
        let state = |there: bool, values: Vec<f64>| there.then(|| data(values));
        let (m, v) = match rule {
            Optimizer::AdamW(_) => (true, true),
            Optimizer::Sgd(rule) => (rule.momentum > 0.0, false),
        };
        let mut host = Part {
            master: state(separate, values(count, 5)),
            m: state(m, vec![0.0; count]),
            v: state(v, vec![0.0; count]),
            ema: Some(data(values(count, 5))),
        };
        let lift = |data: TensorData| {
            let element = data.dtype();
            Tensor::<1>::from_data(data, (&device, element))
        };
        let mut tensors = host.clone().map(lift);
        let mut parameter = (!separate).then(|| data(values(count, 5)));
        for step in 1..=3 {
            let update = Update {
                rule,
                lr: 0.05,
                weight_decay: rule.weight_decay(),
                step,
                gradient_factor: if step == 2 { 0.5 } else { 1.0 },
                ema: Some(0.75),
                compute,
                #[cfg(feature = "tch")]
                gate: None,
            };
            let gradient = data(values(count, 7 + step as usize));
            let before = parameter.clone().map(lift);
            let on_device = update
                .on_device(&mut tensors, before, lift(gradient.clone()))
                .unwrap();
            let in_host = update.in_host_memory(&mut host, parameter.take(), (&gradient).into());
            assert_eq!(on_device.dtype(), parameters::dtype(compute));
            let what = format!("{rule:?}, {compute:?}, step {step}");
            close(&on_device.into_data(), &in_host, &what);
            let states = host.states().zip(tensors.states());
            for (host, tensor) in states {
                close(&tensor.clone().into_data(), host, &what);
            }
            assert_eq!(host.states().count(), tensors.states().count(), "{what}");
            parameter = (!separate).then_some(in_host);
        }
    }

    fn close(got: &TensorData, expected: &TensorData, what: &str) {
        assert_eq!(got.dtype(), expected.dtype(), "{what}");
        let bound = match got.dtype() {
            DType::F64 => 1e-14,
            DType::F32 => 1e-6,
            // A last bit, where masters differ in theirs.
            _ => 8e-3,
        };
        for (got, expected) in got.iter::<f64>().zip(expected.iter::<f64>()) {
            let far = (got - expected).abs();
            assert!(
                far <= bound * (1.0 + expected.abs()),
                "{what}: {got}, not {expected}"
            );
        }
    }

    #[test]
    fn operations_on_tensors_update_as_host_memory_does() {
        let sgd = |momentum, nesterov, weight_decay| {
            Optimizer::Sgd(Sgd {
                momentum,
                nesterov,
                weight_decay,
            })
        };
        for rule in [
            Optimizer::AdamW(AdamW::default()),
            sgd(0.0, false, 0.0),
            sgd(0.0, false, 0.125),
            sgd(0.75, false, 0.0),
            sgd(0.75, true, 0.125),
        ] {
            check(rule, ElementType::F64, false);
            check(rule, ElementType::F32, false);
            // As where states are offloaded and parameters are not.
            check(rule, ElementType::F32, true);
            check(rule, ElementType::Bf16, true);
            check(rule, ElementType::F16, true);
        }
    }
}
