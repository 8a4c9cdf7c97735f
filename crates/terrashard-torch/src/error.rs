//! Why LibTorch did not compute something.

/// The result of a call into LibTorch.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in LibTorch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A C++ exception, with its text as far as it is one: shapes that do not fit, element types without a kernel,
    /// memory that is used up.
    #[error("libtorch cannot do {call}: {text}")]
    Exception {
        /// What was called.
        call: &'static str,
        /// What the exception says, without LibTorch's list of stack frames.
        text: String,
    },
    /// LibTorch returned no tensor where it has to.
    #[error("libtorch's {call} gave no tensor number {index}")]
    NoTensor {
        /// What was called.
        call: &'static str,
        /// Which of its results is missing, from 0.
        index: usize,
    },
    /// Another number of tensors or flags than the call takes.
    #[error("libtorch's {call} takes {expected} {what}, got {got}")]
    Count {
        /// What was called.
        call: &'static str,
        /// Of what there is another number.
        what: &'static str,
        /// How many it takes.
        expected: usize,
        /// How many there were.
        got: usize,
    },
}
