//! Element types of parameters.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The type of a parameter's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ElementType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// The upper half of a binary32: 8 bits of exponent, 7 of fraction.
    Bf16,
    /// IEEE 754 binary16.
    F16,
}

impl ElementType {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 => 8,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// The type in which an optimizer keeps its states: at least single precision.
    pub fn state(self) -> Self {
        match self {
            Self::F64 => Self::F64,
            Self::F32 | Self::Bf16 | Self::F16 => Self::F32,
        }
    }

    /// Whether the optimizer keeps a master copy of the values in [`Self::state`], because this type is too
    /// coarse to add small updates to.
    pub fn needs_master(self) -> bool {
        self != self.state()
    }

    /// The name used in files: `f32`, `f64`, `bf16` or `f16`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
