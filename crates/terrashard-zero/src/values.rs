//! What one rank shares between its optimizer and the anchor operations in its graph: the parameters' values and the
//! reducer.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::{Shape, Tensor};

use crate::anchor::Port;
use crate::reducer::Reducer;

/// One parameter's value: flat, with the shape in which it enters the graph.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) flat: Tensor<1>,
    pub(crate) shape: Vec<usize>,
}

/// The values and the reducer of one rank.
pub(crate) struct RankState {
    values: RwLock<Vec<Value>>,
    reducer: Mutex<Reducer>,
}

impl fmt::Debug for RankState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RankState")
    }
}

impl RankState {
    pub(crate) fn new(values: Vec<Value>, reducer: Reducer) -> Self {
        Self {
            values: RwLock::new(values),
            reducer: Mutex::new(reducer),
        }
    }

    /// The reducer. Only the rank's own thread takes it, so a lock poisoned by a panic protects nothing.
    pub(crate) fn reducer(&self) -> MutexGuard<'_, Reducer> {
        self.reducer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of `row`, flat.
    pub(crate) fn flat(&self, row: usize) -> Tensor<1> {
        self.read()[row].flat.clone()
    }

    /// Replaces the value of `row`.
    pub(crate) fn set(&self, row: usize, flat: Tensor<1>) {
        self.values.write().unwrap_or_else(PoisonError::into_inner)[row].flat = flat;
    }

    /// The value of `row` in its shape.
    pub(crate) fn shaped<const D: usize>(&self, row: usize) -> Tensor<D> {
        Tensor::from_dispatch(self.value(row))
    }

    /// Bytes of parameters that this rank holds.
    pub(crate) fn held_bytes(&self) -> usize {
        let values = self.read();
        values
            .iter()
            .map(|value| value.flat.dims()[0] * value.flat.dtype().size())
            .sum()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Vec<Value>> {
        self.values.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Port for RankState {
    fn value(&self, slot: usize) -> DispatchTensor {
        let Value { flat, shape } = self.read()[slot].clone();
        Dispatch::float_reshape(flat.into_dispatch(), Shape::from(shape))
    }

    fn deliver(&self, slot: usize, gradient: DispatchTensor) {
        let numel = self.read()[slot].flat.dims()[0];
        let flat = Dispatch::float_reshape(gradient, Shape::from([numel]));
        self.reducer().deliver(slot, Tensor::from_dispatch(flat));
    }
}
