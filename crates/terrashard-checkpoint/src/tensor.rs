//! What a stored tensor is: a name, a kind, a shape and an element type.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use terrashard_layout::{ElementType, ParameterSpec};

/// What the values of a tensor are to the parameter of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The parameter itself, in the precision that the optimizer updates.
    Parameter,
    /// AdamW's first moment (or the momentum of SGD).
    M,
    /// AdamW's second moment.
    V,
    /// The exponential moving average of the parameter.
    Ema,
    /// State of the model that is not trained, such as running statistics.
    Buffer,
}

impl Kind {
    /// The name used in files: `parameter`, `m`, `v`, `ema` or `buffer`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parameter => "parameter",
            Self::M => "m",
            Self::V => "v",
            Self::Ema => "ema",
            Self::Buffer => "buffer",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A whole tensor as it is known by name, however it is cut.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorSpec {
    /// The parameter's or buffer's path in the model.
    pub name: String,
    /// What its values are to that parameter.
    pub kind: Kind,
    /// The shape of the whole tensor: `[]` is a scalar, and a zero in it makes it empty.
    pub shape: Vec<usize>,
    /// The type of its elements.
    pub dtype: ElementType,
    /// The parameter of the same kind whose values it shares. It then has none of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tied_to: Option<String>,
}

impl TensorSpec {
    /// A tensor with values of its own.
    pub fn new(
        name: impl Into<String>,
        kind: Kind,
        shape: impl Into<Vec<usize>>,
        dtype: ElementType,
    ) -> Self {
        Self {
            name: name.into(),
            kind,
            shape: shape.into(),
            dtype,
            tied_to: None,
        }
    }

    /// The tensor of `kind` that belongs to a parameter. What the optimizer updates has [`ElementType::state`], a
    /// frozen parameter its own element type.
    pub fn of(parameter: &ParameterSpec, kind: Kind) -> Self {
        let dtype = match kind {
            Kind::Parameter if !parameter.trainable => parameter.dtype,
            Kind::Parameter | Kind::M | Kind::V | Kind::Ema => parameter.dtype.state(),
            Kind::Buffer => parameter.dtype,
        };
        Self {
            name: parameter.name.clone(),
            kind,
            shape: parameter.shape.clone(),
            dtype,
            tied_to: parameter.tied_to.clone(),
        }
    }

    /// The same tensor as an alias of `owner`.
    #[must_use]
    pub fn tied_to(self, owner: impl Into<String>) -> Self {
        Self {
            tied_to: Some(owner.into()),
            ..self
        }
    }

    /// Elements: the product of the shape, 1 for a scalar. `usize::MAX` where that is too large to count, which
    /// no file can hold.
    pub fn numel(&self) -> usize {
        // An empty tensor may have huge other dimensions.
        if self.shape.contains(&0) {
            return 0;
        }
        self.shape
            .iter()
            .fold(1, |numel: usize, &dim| numel.saturating_mul(dim))
    }

    /// Kind and name, as messages show them.
    pub(crate) fn label(&self) -> String {
        label(&self.name, self.kind)
    }

    /// Whether two descriptions of one name and kind agree.
    pub(crate) fn agrees(&self, other: &Self) -> bool {
        self.shape == other.shape && self.dtype == other.dtype && self.tied_to == other.tied_to
    }

    /// What [`Self::agrees`] compares, as messages show it.
    pub(crate) fn describe(&self) -> String {
        let tie = match &self.tied_to {
            Some(owner) => format!(" tied to `{owner}`"),
            None => String::new(),
        };
        format!("{:?} {}{tie}", self.shape, self.dtype)
    }
}

/// Kind and name, as messages show them.
pub(crate) fn label(name: &str, kind: Kind) -> String {
    format!("{kind} `{}`", shown(name))
}

/// A text of a file as a message shows it: in one line, and nothing in it steers a terminal.
pub(crate) fn shown(text: impl fmt::Display) -> String {
    let mut shown = String::new();
    for character in text.to_string().chars() {
        match character.is_control() {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    shown
}

/// The elements of one tensor that one rank writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// The whole tensor.
    pub tensor: TensorSpec,
    /// The rank's elements of it. An empty interval only makes the tensor known, which is all that a tied or
    /// an empty tensor needs.
    pub interval: Range<usize>,
}

/// The elements of one tensor that one rank writes, with their values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The whole tensor.
    pub tensor: TensorSpec,
    /// The first element in the flattened tensor.
    pub start: usize,
    /// The elements from there on, little-endian. None for a tied or an empty tensor.
    pub bytes: Cow<'a, [u8]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_elements_of_any_shape() {
        let check = |shape: &[usize], numel| {
            let tensor = TensorSpec::new("w", Kind::Parameter, shape, ElementType::F32);
            assert_eq!(tensor.numel(), numel, "{shape:?}");
        };
        check(&[], 1);
        check(&[3, 5], 15);
        check(&[0, 4], 0);
        check(&[usize::MAX, 2, 0], 0);
        check(&[usize::MAX, 2], usize::MAX);
    }

    #[test]
    fn what_is_updated_is_kept_in_fine_steps() {
        let trained = ParameterSpec::new("w", [2], ElementType::Bf16);
        let frozen = ParameterSpec {
            trainable: false,
            ..trained.clone()
        };
        let dtype = |parameter, kind| TensorSpec::of(parameter, kind).dtype;
        assert_eq!(dtype(&trained, Kind::Parameter), ElementType::F32);
        assert_eq!(dtype(&trained, Kind::M), ElementType::F32);
        assert_eq!(dtype(&frozen, Kind::Parameter), ElementType::Bf16);
    }
}
