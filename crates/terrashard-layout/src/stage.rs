//! The stages of ZeRO, which is all that differs between them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Error;

/// How much of the model states is sharded, after the ZeRO paper (<https://arxiv.org/abs/1910.02054>).
///
/// | stage | parameters | gradients | optimizer states |
/// |---|---|---|---|
/// | 0 | whole | whole | whole |
/// | 1 | whole | whole | sharded |
/// | 2 | whole | sharded | sharded |
/// | 3 | sharded | sharded | sharded |
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(try_from = "u8", into = "u8")]
pub enum Stage {
    /// Nothing is sharded: plain data parallelism.
    #[default]
    Zero,
    /// Optimizer states are sharded.
    One,
    /// Optimizer states and gradients are sharded.
    Two,
    /// Optimizer states, gradients and parameters are sharded.
    Three,
}

impl Stage {
    /// Every stage, in order.
    pub const ALL: [Self; 4] = [Self::Zero, Self::One, Self::Two, Self::Three];

    /// Whether a rank keeps only its shard of the optimizer states.
    pub fn shards_optimizer(self) -> bool {
        self >= Self::One
    }

    /// Whether a rank keeps only its shard of the gradients between micro-batches.
    pub fn shards_gradients(self) -> bool {
        self >= Self::Two
    }

    /// Whether a rank keeps only its shard of the parameters between uses.
    pub fn shards_parameters(self) -> bool {
        self >= Self::Three
    }
}

impl TryFrom<u8> for Stage {
    type Error = Error;

    fn try_from(number: u8) -> Result<Self, Error> {
        Self::ALL
            .get(usize::from(number))
            .copied()
            .ok_or(Error::StageOutOfRange { got: number })
    }
}

impl From<Stage> for u8 {
    fn from(stage: Stage) -> Self {
        stage as Self
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        u8::from(*self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_name_stages() {
        for (number, stage) in Stage::ALL.into_iter().enumerate() {
            let number = u8::try_from(number).unwrap();
            assert_eq!(Stage::try_from(number), Ok(stage));
            assert_eq!(stage.to_string(), number.to_string());
        }
        assert!(Stage::try_from(4).is_err());
    }

    #[test]
    fn each_stage_shards_one_thing_more() {
        let sharded = Stage::ALL.map(|s| {
            [
                s.shards_optimizer(),
                s.shards_gradients(),
                s.shards_parameters(),
            ]
        });
        let expected = [
            [false, false, false],
            [true, false, false],
            [true, true, false],
            [true, true, true],
        ];
        assert_eq!(sharded, expected);
    }
}
