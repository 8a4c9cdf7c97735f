//! What can be wrong with a description of a model or of a run.

/// Why a layout could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two parameters have one name.
    #[error("parameter `{name}` is declared twice: give every parameter a name of its own")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A parameter is tied to a name that no parameter has.
    #[error("parameter `{name}` is tied to `{owner}`, which is no parameter of the model")]
    UnknownTie {
        /// The tied parameter.
        name: String,
        /// What it claims to share its values with.
        owner: String,
    },
    /// A parameter is tied to one that is tied itself, or to itself.
    #[error(
        "parameter `{name}` is tied to `{owner}`, which is tied as well: name the parameter that holds the values"
    )]
    TieOfTie {
        /// The tied parameter.
        name: String,
        /// The parameter that it names as owner.
        owner: String,
    },
    /// Two tied parameters cannot share their values.
    #[error(
        "parameter `{name}` is tied to `{owner}` but differs in {what}: expected {expected}, got {got}"
    )]
    TieMismatch {
        /// The tied parameter.
        name: String,
        /// The parameter that holds the values.
        owner: String,
        /// Which property differs.
        what: &'static str,
        /// The owner's property.
        expected: String,
        /// The tied parameter's property.
        got: String,
    },
    /// A shape with more elements or bytes than a `usize` counts.
    #[error("parameter `{name}` of shape {shape:?} has more bytes than can be counted")]
    TooLarge {
        /// The parameter.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// A run without ranks.
    #[error("a run needs at least one rank, got 0: set `ranks` to 1 or more")]
    NoRanks,
    /// A stage that ZeRO does not have.
    #[error("stage {got} is out of range: set `stage` to 0, 1, 2 or 3")]
    StageOutOfRange {
        /// The stage that was asked for.
        got: u8,
    },
    /// A sample order over nothing.
    #[error("there are no samples to order: the data set is empty")]
    NoSamples,
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
