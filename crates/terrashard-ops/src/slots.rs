//! Parameters that are no tensors of the graph: an operation fetches them itself, in forward and again in backward, and hands over
//! their gradients.

use burn::backend::DispatchTensor;
use burn::module::ParamId;
use burn::tensor::Tensor;
use std::fmt::Debug;
use std::sync::Arc;

/// Where an operation finds the values of parameters, and leaves their gradients.
///
/// The operation holds no value between forward and backward, so whoever gathers parameters for a use may let them go in
/// between.
pub trait ParameterSlots: Debug + Send + Sync {
    /// Whether this parameter has a slot.
    fn holds(&self, parameter: ParamId) -> bool;

    /// Notes that an operation of the graph uses this parameter, which has a slot, once. Whether its gradient is wanted.
    fn enter(&self, parameter: ParamId) -> Wanted;

    /// The value of a parameter that has a slot, a plain tensor.
    fn value(&self, parameter: ParamId) -> DispatchTensor;

    /// Takes the gradient of a parameter that entered, a plain tensor of its shape. Called once for each use whose gradient is
    /// wanted, inside burn's backward, which cannot return an error.
    fn deliver(&self, parameter: ParamId, gradient: DispatchTensor);
}

/// Whether a gradient is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// It is.
    Yes,
    /// It is not: the parameter is frozen.
    No,
}

/// The slots of a pass, with what makes an operation part of its graph.
#[derive(Debug, Clone)]
pub struct Slots {
    /// A tracked tensor of one element: an operation with it as a parent is part of the graph even where its input is not.
    pub token: Tensor<1>,
    /// The slots.
    pub source: Arc<dyn ParameterSlots>,
}
