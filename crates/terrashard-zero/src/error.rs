//! What can go wrong while sharding, reducing and updating.

use terrashard_layout::ElementType;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a sharded optimizer could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The shard table could not be built from the module's parameters.
    #[error("failed to lay out the parameters: {source}")]
    Layout {
        /// What the layout found.
        #[from]
        source: terrashard_layout::Error,
    },
    /// A collective operation failed, most often because another rank did.
    #[error("failed in a collective operation: {source}")]
    Collective {
        /// What the communicator reports.
        #[from]
        source: terrashard_collectives::Error,
    },
    /// A value of the configuration cannot be used.
    #[error("invalid optimizer setting {key} = {value}: {expected}")]
    Setting {
        /// Name of the setting.
        key: &'static str,
        /// The value that was given.
        value: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// The ranks of one host need more host memory for offloaded states than it has.
    #[error(
        "offloading needs {needed} bytes of host memory on one host, {available} are available: use more ranks or hosts, or a smaller offload_fraction"
    )]
    HostMemory {
        /// Bytes that the ranks of the host need together.
        needed: u64,
        /// Bytes that it has.
        available: u64,
    },
    /// A block was declared with a parameter that the model does not have.
    #[error("no parameter is called {name}")]
    UnknownParameter {
        /// The name.
        name: String,
    },
    /// Trainable parameters got no gradient in a whole step, and the policy is to stop.
    #[error(
        "{count} trainable parameter(s) got no gradient in a step, first {name}: freeze them, or use unused = \"zero\""
    )]
    Unused {
        /// How many.
        count: usize,
        /// The first by name.
        name: String,
    },
    /// The ranks built different tables: another model, other settings or another rank count.
    #[error(
        "rank {rank} has another shard table than rank 0, first where it has {got} and rank 0 {expected}: every rank must build the same model with the same settings"
    )]
    TableMismatch {
        /// The first rank that differs.
        rank: usize,
        /// Its first row that rank 0 has otherwise.
        got: String,
        /// That row of rank 0.
        expected: String,
    },
    /// A module was entered whose parameters this optimizer does not hold.
    #[error(
        "a module with a parameter of shape {shape:?} was entered that does not belong to this optimizer: enter parts of the model it was built from"
    )]
    ForeignParameter {
        /// Shape of the parameter.
        shape: Vec<usize>,
    },
    /// The initial values of a parameter have another length than its shape says.
    #[error("initial values of {name}: expected {expected} elements, got {got}")]
    InitialLength {
        /// The parameter.
        name: String,
        /// Elements its shape holds.
        expected: usize,
        /// Elements that were given.
        got: usize,
    },
    /// More micro-batches ran than one optimizer step accumulates, or a step came before any.
    #[error("{got} micro-batches in a step that accumulates {expected}")]
    MicroBatches {
        /// Configured number of micro-batches.
        expected: usize,
        /// Number that ran.
        got: usize,
    },
    /// The loss of a model does not depend on its parameters through a graph.
    #[error(
        "the loss of a micro-batch is outside the graph: make batches on `Training::device`, and run what has parameters by `Blocks::run`"
    )]
    Detached,
    /// A gradient held NaN or infinity and the policy is to stop.
    #[error("non-finite gradient in step {step}{} after {skipped} skipped step(s): {origin}", .loss_scale.map(|scale| format!(" at loss scale {scale}")).unwrap_or_default())]
    NonFinite {
        /// The optimizer step, counted from 1.
        step: u64,
        /// Steps skipped in a row before it.
        skipped: u32,
        /// The loss scale, in f16.
        loss_scale: Option<f64>,
        /// Where it came from.
        origin: crate::Origin,
    },
    /// Saved bytes do not fit the place they are loaded into.
    #[error("state {kind:?} of {name}: expected {expected} bytes of {dtype:?}, got {got}")]
    StateLength {
        /// The parameter.
        name: String,
        /// Which state of it.
        kind: crate::StateKind,
        /// Element type of the state.
        dtype: ElementType,
        /// Bytes needed.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// Reading a saved state failed.
    #[error("failed to load state {kind:?} of {name}: {source}")]
    LoadState {
        /// The parameter.
        name: String,
        /// Which state of it.
        kind: crate::StateKind,
        /// What the reader reports.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The device could not compute something.
    #[error("failed to compute on the device: {reason}")]
    Compute {
        /// What the backend reports.
        reason: String,
    },
    /// Tensor data could not be read back from the device.
    #[error("failed to read a tensor from the device: {reason}")]
    Device {
        /// What the backend reports.
        reason: String,
    },
}
