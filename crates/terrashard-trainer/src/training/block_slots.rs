//! Where the model's operations and the optimizer meet: neither crate knows the other.

use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::module::ParamId;
use terrashard_ops::{ParameterSlots, Wanted};
use terrashard_zero::Slots;

/// The optimizer's slots of one use of a block, as operations of the model ask for them.
#[derive(Debug)]
pub struct BlockSlots(Slots);

impl BlockSlots {
    /// As a pass of the model takes them.
    pub fn of(slots: &Slots) -> terrashard_ops::Slots {
        terrashard_ops::Slots {
            token: slots.token().clone(),
            source: Arc::new(Self(slots.clone())),
        }
    }
}

impl ParameterSlots for BlockSlots {
    fn holds(&self, parameter: ParamId) -> bool {
        self.0.holds(parameter)
    }

    fn enter(&self, parameter: ParamId) -> Wanted {
        match self.0.enter(parameter) {
            true => Wanted::Yes,
            false => Wanted::No,
        }
    }

    fn value(&self, parameter: ParamId) -> DispatchTensor {
        self.0.value(parameter)
    }

    fn deliver(&self, parameter: ParamId, gradient: DispatchTensor) {
        self.0.deliver(parameter, gradient);
    }
}
