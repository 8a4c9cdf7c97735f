//! Why a checkpoint or a model file could not be written or read.

use std::ops::Range;
use std::path::PathBuf;

use crate::Kind;
use crate::tensor::shown;

/// Why a checkpoint or a model file could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("failed to {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// A path that holds no checkpoint.
    #[error(
        "no checkpoint at {}: expected a run folder, its `checkpoints` folder or one `step-NNNNNN` with a manifest.json",
        path.display()
    )]
    NoCheckpoint {
        /// The path as given.
        path: PathBuf,
    },
    /// `latest` does not name a complete checkpoint.
    #[error(
        "{} names {found:?}, which is no complete checkpoint there: write the name of one into it, or give that step's folder",
        path.display()
    )]
    Pointer {
        /// The pointer's path.
        path: PathBuf,
        /// What it says.
        found: String,
    },
    /// A file from a newer version of this software.
    #[error(
        "{} has format version {found}, this build reads up to {supported}: update terrashard",
        path.display()
    )]
    NewerVersion {
        /// The manifest or model file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The newest version that this build reads.
        supported: u64,
    },
    /// A manifest that is truncated, or is not one.
    #[error("{} is truncated or damaged: {}; use another step", path.display(), shown(source))]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What the parser met.
        #[source]
        source: serde_json::Error,
    },
    /// A manifest that parses but contradicts itself or the files beside it.
    #[error("{} is damaged: {}: {rule}", path.display(), shown(subject))]
    Malformed {
        /// The manifest, or the file with a header.
        path: PathBuf,
        /// The tensor or file it is about.
        subject: String,
        /// The rule that does not hold.
        rule: &'static str,
    },
    /// A file that the manifest names is not there.
    #[error("{} is missing, it holds {tensor} (and {others} more): restore it or use another step", path.display())]
    MissingFile {
        /// The file.
        path: PathBuf,
        /// The first tensor that it holds.
        tensor: String,
        /// How many others it holds.
        others: usize,
    },
    /// A file of another length than was written.
    #[error(
        "{} has {got} bytes instead of {expected}, it holds {tensor}: restore it or use another step",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its length when it was written.
        expected: u64,
        /// Its length now.
        got: u64,
        /// The first tensor that it holds.
        tensor: String,
    },
    /// Bytes that do not have the hash they were written with.
    #[error(
        "{} is damaged between bytes {} and {}, in {tensor}: restore it or use another step",
        path.display(), bytes.start, bytes.end
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The tensor, with its kind.
        tensor: String,
        /// The bytes of the file that were checked.
        bytes: Range<u64>,
    },
    /// A checkpoint of another project that cannot be read.
    #[error("failed to read {} as a checkpoint of another project: {}", path.display(), shown(reason))]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file whose safetensors header cannot be read.
    #[error("{} is no safetensors file: {}", path.display(), shown(reason))]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A safetensors file that says nothing of the model it holds.
    #[error("{} has no {key:?} in its metadata: write model files with `terrashard export`", path.display())]
    NotAModel {
        /// The file.
        path: PathBuf,
        /// The entry that it lacks or that cannot be read.
        key: &'static str,
    },
    /// A tensor that is not in the checkpoint or model file.
    #[error("{} has no {kind} `{}`", path.display(), shown(name))]
    UnknownTensor {
        /// The checkpoint or model file.
        path: PathBuf,
        /// The tensor's name.
        name: String,
        /// What was asked of it.
        kind: Kind,
    },
    /// Elements past the end of a tensor.
    #[error(
        "{kind} `{}` of {} has {numel} elements, asked for {}..{}",
        shown(name), path.display(), interval.start, interval.end
    )]
    Interval {
        /// The checkpoint or model file.
        path: PathBuf,
        /// The tensor's name.
        name: String,
        /// Its kind.
        kind: Kind,
        /// What was asked for.
        interval: Range<usize>,
        /// How many elements there are.
        numel: usize,
    },
    /// Tensors that do not fit what the reader expects.
    #[error("{} does not fit the model: {matching}", path.display())]
    Mismatch {
        /// The checkpoint or model file.
        path: PathBuf,
        /// The names.
        matching: crate::Matching,
    },
    /// Elements of a tensor that no rank wrote.
    #[error("{tensor}: no rank wrote elements {}..{}", interval.start, interval.end)]
    Gap {
        /// The tensor, with its kind.
        tensor: String,
        /// The missing elements.
        interval: Range<usize>,
    },
    /// Elements of a tensor that were written twice.
    #[error("{tensor}: elements {}..{} were written twice", interval.start, interval.end)]
    Overlap {
        /// The tensor, with its kind.
        tensor: String,
        /// The doubled elements.
        interval: Range<usize>,
    },
    /// Ranks that describe one tensor in different ways.
    #[error("ranks disagree on {tensor}: {first} and {second}")]
    Disagreement {
        /// The tensor, with its kind.
        tensor: String,
        /// Shape, element type and tie as the first rank gave them.
        first: String,
        /// The same from another rank.
        second: String,
    },
    /// A number of bytes to write, or to read into, that an interval of a tensor does not have.
    #[error("{tensor}: {expected} bytes are to be written or read, got {got}")]
    Length {
        /// The tensor, with its kind.
        tensor: String,
        /// Elements times bytes per element.
        expected: usize,
        /// What was given.
        got: usize,
    },
    /// A tensor whose bytes the caller could not give.
    #[error("failed to fetch {tensor}: {source}")]
    Fetch {
        /// The tensor, with its kind.
        tensor: String,
        /// The caller's reason.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Values that are too large for an element type.
    #[error(
        "{tensor} has values that are too large for {dtype}: choose another element type, such as bf16 or fp32"
    )]
    OutOfRange {
        /// The tensor, with its kind.
        tensor: String,
        /// The element type.
        dtype: crate::ElementType,
    },
    /// A rank that wrote nothing before the checkpoint was to be published.
    #[error("rank {rank} of {ranks} has not written its part of {}: put a barrier between write and publish", folder.display())]
    MissingRank {
        /// The rank.
        rank: usize,
        /// How many there are.
        ranks: usize,
        /// The folder of the unpublished step.
        folder: PathBuf,
    },
    /// A rank outside the run.
    #[error("rank {rank} is not among {ranks} ranks")]
    Rank {
        /// The rank.
        rank: usize,
        /// How many there are.
        ranks: usize,
    },
    /// A state that belongs to another step than the saver.
    #[error("the state is that of step {got}, the checkpoint that of step {expected}")]
    Step {
        /// The saver's step.
        expected: u64,
        /// The state's step.
        got: u64,
    },
    /// A state or description that JSON cannot hold.
    #[error("failed to write {what} as JSON: {source}")]
    Encode {
        /// What was to be written.
        what: &'static str,
        /// The reason.
        #[source]
        source: serde_json::Error,
    },
}

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
