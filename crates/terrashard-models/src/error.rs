//! What can be wrong with a model's configuration or with values given to it.

/// Errors of this crate.
#[derive(Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A key of the configuration has a value that no model can have.
    #[error("`model.{key}` {problem}")]
    Config {
        /// The key.
        key: &'static str,
        /// What is wrong and what to do.
        problem: String,
    },
    /// There is no preset of this name.
    #[error("no model preset `{name}`: there are b0, b1, b2, b3, b4 and b5")]
    Preset {
        /// The name asked for.
        name: String,
    },
    /// No tensor has a name of the origin that was given.
    #[error("no tensor is named as `--from {origin}` names them: {remedy}")]
    Origin {
        /// What was given.
        origin: &'static str,
        /// What the names are.
        remedy: String,
    },
    /// A checkpoint was trained with an activation that models here do not have.
    #[error("the feed-forward parts have the activation `{name}`: there are gelu and silu")]
    ImportActivation {
        /// Its name there.
        name: String,
    },
    /// A configuration beside a checkpoint tells of another model than its tensors.
    #[error(
        "its config.json has {told} for `{key}`, its tensors have {found}: take both from one checkpoint"
    )]
    ImportContradiction {
        /// The configuration's key, with the stage behind it if it has a value for each.
        key: String,
        /// Its value.
        told: usize,
        /// That of the tensors.
        found: String,
    },
    /// A checkpoint has names of its origin, but nothing of the model.
    #[error(
        "the model has none of its tensors, such as `{example}`: give the checkpoint of a MiT or SegFormer"
    )]
    ImportNothing {
        /// One of them.
        example: String,
    },
    /// A tensor of another project's checkpoint does not fit the model that the others make.
    #[error(
        "`{source_name}` does not fit `{name}`: it gives {} rows of {} values, expected are {} of {}",
        got[0], got[1], expected[0], expected[1]
    )]
    ImportShape {
        /// The model's tensor.
        name: String,
        /// The source's first tensor for it.
        source_name: String,
        /// Rows and values in a row of the model's.
        expected: [usize; 2],
        /// Of the source's.
        got: [usize; 2],
    },
    /// A buffer that the model needs was not given.
    #[error(
        "buffer `{name}` is missing: load a checkpoint of a model with the same `model.head_norm`"
    )]
    BufferMissing {
        /// The buffer.
        name: String,
    },
    /// A buffer has another length than in this model.
    #[error(
        "buffer `{name}` has {got} values instead of {expected}: load a checkpoint of a model with the same dimensions"
    )]
    BufferLength {
        /// The buffer.
        name: String,
        /// Values that it has in this model.
        expected: usize,
        /// Values that were given.
        got: usize,
    },
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
