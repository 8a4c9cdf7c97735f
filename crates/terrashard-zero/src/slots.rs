//! Slots: how an operation that is a whole part of a block gets its parameters without one operation of the graph for each.
//!
//! It asks for the values in forward, holds none of them, asks again in backward, and hands over the gradients. So a parameter
//! costs the graph nothing, and at stage 3 it lives no longer than the call that uses it.

use std::fmt;
use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::module::ParamId;
use burn::tensor::Tensor;

use crate::anchor::Port;
use crate::entrance::Entry;
use crate::gather::Lease;
use crate::packing::reshaped;
use crate::sharded_parameters::Core;

/// The parameters of one use of a block.
#[derive(Clone)]
pub struct Slots {
    pub(crate) core: Arc<Core>,
    pub(crate) lease: Arc<Lease>,
    pub(crate) entry: Entry,
    pub(crate) token: Tensor<1>,
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slots")
    }
}

impl Slots {
    /// A tracked tensor of one element: an operation with it as a parent is part of the graph even where its input is not.
    pub fn token(&self) -> &Tensor<1> {
        &self.token
    }

    /// Whether the parameter is one of the model's.
    pub fn holds(&self, parameter: ParamId) -> bool {
        self.core.row(parameter).is_some()
    }

    /// Notes that an operation uses a parameter once, and returns whether it is trained: then one gradient is to be
    /// [delivered](Self::deliver).
    ///
    /// # Panics
    /// If the parameter is not one that is [held](Self::holds), as all the others.
    pub fn enter(&self, parameter: ParamId) -> bool {
        let row = self.row(parameter);
        let trainable = self.core.table.rows()[row].parameter.trainable;
        if trainable {
            if self.entry == Entry::Counted {
                self.core.reducer().entered(row);
            }
            self.lease.owe();
        }
        trainable
    }

    /// The value, a plain tensor. At stage 3 the whole block is gathered, if this use of it is not at the moment
    /// (collective).
    pub fn value(&self, parameter: ParamId) -> DispatchTensor {
        let row = self.row(parameter);
        match self.entry {
            Entry::Counted => self.core.value(row, &self.lease),
            // Forward and backward of a block that runs again share what was gathered for it.
            Entry::Repeated => match self.lease.look(row) {
                Some(flat) => {
                    let shape = &self.core.table.rows()[row].parameter.shape;
                    reshaped(flat.into_dispatch(), shape)
                }
                None => self.core.value(row, &self.lease),
            },
        }
    }

    /// Takes the gradient of a parameter that entered, a plain tensor of its shape.
    pub fn deliver(&self, parameter: ParamId, gradient: DispatchTensor) {
        let port: &dyn Port = self.core.as_ref();
        port.deliver(self.row(parameter), &self.lease, gradient);
    }

    fn row(&self, parameter: ParamId) -> usize {
        let row = self.core.row(parameter);
        row.expect("a slot is asked for what it holds")
    }
}
