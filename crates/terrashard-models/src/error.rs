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
