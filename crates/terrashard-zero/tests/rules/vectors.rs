//! Vectors of awkward sizes with gradients that are known and exact in every float type.

use std::sync::Arc;

use burn::module::{Module, Param, ParamId};
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};
use terrashard_collectives::Communicator;
use terrashard_zero::{Error, Initial, Precision, StateKind, ZeroConfig, ZeroOptimizer};

/// Prime, empty, of one element, and larger than a bucket.
pub(crate) const SIZES: [usize; 5] = [37, 5, 0, 1, 130];

#[derive(Module, Debug)]
pub(crate) struct Vectors {
    pub(crate) parts: Vec<Param<Tensor<1>>>,
}

impl Vectors {
    pub(crate) fn new() -> Self {
        let part = |size: usize| {
            let init = move |device: &Device, _: bool| Tensor::zeros([size], device);
            let shape = Shape::from([size]);
            Param::uninitialized(ParamId::new(), init, Device::flex(), true, shape)
        };
        Self {
            parts: SIZES.map(part).into(),
        }
    }
}

/// Element `i` of a part before the first step.
pub(crate) fn first(part: usize, i: usize) -> f64 {
    ((i * 5 + part * 3) % 16) as f64 * 0.25 - 2.0
}

/// First values by a parameter's name.
pub(crate) fn initial(name: &str, shape: &[usize]) -> Vec<f32> {
    let part = name
        .strip_prefix("parts.")
        .and_then(|part| part.parse().ok());
    let part = part.expect("all parameters are parts");
    (0..shape[0]).map(|i| first(part, i) as f32).collect()
}

/// The gradient of element `i` of a part in a step, counted from 1: quarters from -1 to 1.
pub(crate) fn gradient(part: usize, i: usize, step: u64) -> f64 {
    ((i * 7 + part * 3 + step as usize * 5) % 9) as f64 * 0.25 - 1.0
}

/// One rank with its optimizer.
pub(crate) struct Rank {
    pub(crate) model: Vectors,
    pub(crate) optimizer: ZeroOptimizer,
    element: DType,
}

impl Rank {
    pub(crate) fn new(
        config: ZeroConfig,
        communicator: impl Communicator + 'static,
    ) -> Result<Self, Error> {
        let model = Vectors::new();
        let element = match config.precision {
            Precision::F32 => DType::F32,
            Precision::F64 => DType::F64,
            Precision::Bf16 => DType::BF16,
            Precision::F16 => DType::F16,
        };
        let optimizer = ZeroOptimizer::new(
            &model,
            config,
            Initial::Keyed(&initial),
            Arc::new(communicator),
            &Device::flex(),
        )?;
        Ok(Self {
            model,
            optimizer,
            element,
        })
    }

    /// Backward of a loss with this gradient in element `i` of each part.
    pub(crate) fn backward(&self, gradient: impl Fn(usize, usize) -> f64) -> Result<(), Error> {
        let device = Device::flex().autodiff();
        let anchor = Tensor::<1>::zeros([1], (&device, self.element));
        let mut loss = anchor.clone();
        for (part, parameter) in self.model.parts.iter().enumerate() {
            let value = self.optimizer.enter(parameter, &anchor).val();
            let factors: Vec<f64> = (0..SIZES[part]).map(|i| gradient(part, i)).collect();
            if factors.is_empty() {
                continue;
            }
            let shape = [factors.len()];
            let factors =
                Tensor::from_data(TensorData::new(factors, shape), (&device, self.element));
            loss = loss + (value * factors).sum();
        }
        self.optimizer.backward(loss)
    }

    /// A state of every part, in the order of parts; none where the run does not have it, or the part no element.
    pub(crate) fn state(&self, kind: StateKind) -> Result<Vec<Vec<f64>>, Error> {
        let states = self.optimizer.whole_states(kind)?.into_iter();
        let values = states.map(|(_, data)| data.iter::<f64>().collect());
        Ok(values.collect())
    }
}
