//! Parameters and the shards they are cut into.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::ElementType;

/// What a model says about one of its parameters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ParameterSpec {
    /// The path of the parameter in the model, unique.
    pub name: String,
    /// Its shape; `[]` is a scalar, and a zero in it makes it empty.
    pub shape: Vec<usize>,
    /// The type in which its values are kept for forward and backward: the compute type.
    pub dtype: ElementType,
    /// The optimizer group it belongs to.
    pub group: usize,
    /// Whether it is trained. A frozen parameter has no gradient and no optimizer states.
    pub trainable: bool,
    /// The parameter whose values it shares, if it has none of its own.
    pub tied_to: Option<String>,
}

impl ParameterSpec {
    /// A trainable parameter of group 0 that is tied to nothing.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>, dtype: ElementType) -> Self {
        Self {
            name: name.into(),
            shape: shape.into(),
            dtype,
            group: 0,
            trainable: true,
            tied_to: None,
        }
    }

    /// Elements: the product of the shape, 1 for a scalar.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of all elements.
    pub fn bytes(&self) -> usize {
        self.numel() * self.dtype.bytes()
    }

    /// Whether it has a gradient of its own to reduce: trainable, tied to nothing, not empty.
    pub fn is_reduced(&self) -> bool {
        self.trainable && self.tied_to.is_none() && self.numel() > 0
    }
}

/// One parameter of a [`crate::ShardTable`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// What the model said.
    pub parameter: ParameterSpec,
    /// Its position in declared order, which is the order of forward.
    pub order: usize,
    /// At stage 3: the parameter is smaller than `persist_bytes`, so its value stays whole on every rank. Its
    /// gradient and optimizer states are sharded all the same. Always false below stage 3, where every value
    /// is whole anyway.
    pub replicated: bool,
}

impl Row {
    /// Elements of the whole parameter.
    pub fn numel(&self) -> usize {
        self.parameter.numel()
    }

    /// Elements of a rank's shard with its padding: `ceil(numel / ranks)`, the same for every rank.
    pub fn shard_len(&self, ranks: usize) -> usize {
        self.numel().div_ceil(ranks)
    }

    /// The flat elements that `rank` owns: its shard without padding, maybe shorter than [`Self::shard_len`],
    /// maybe empty.
    pub fn interval(&self, rank: usize, ranks: usize) -> Range<usize> {
        let (numel, len) = (self.numel(), self.shard_len(ranks));
        (rank * len).min(numel)..((rank + 1) * len).min(numel)
    }
}
