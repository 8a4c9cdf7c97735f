//! Sharded safetensors checkpoints that load at any rank count and stage.
//!
//! Each rank writes the elements it owns to a safetensors file of its own, and one `manifest.json` says by
//! parameter name where every element is. [`Checkpoint::read`] gives any interval of any tensor back, so a checkpoint
//! of N ranks loads at M ranks by interval arithmetic and byte ranges, without a conversion.
//!
//! ```text
//! checkpoints/
//!   latest                        "step-000100", replaced last
//!   step-000100/
//!     manifest.json               tensors, intervals, byte ranges, hashes; the state of the run
//!     rank-00000.safetensors      1-D pieces under keys such as `m/stem.weight@0`
//!     rank-00001.safetensors
//! ```
//!
//! ```
//! use terrashard_checkpoint::{Checkpoint, ElementType, Kind, Piece, Saver, State, TensorSpec};
//!
//! # let run = tempfile::tempdir().expect("a temporary folder");
//! let root = run.path().join("checkpoints");
//! let weight = TensorSpec::new("head.weight", Kind::Parameter, [2, 3], ElementType::F32);
//! let savers = [0, 1].map(|rank| Saver::create(&root, 100, rank, 2));
//! for saver in savers.iter().flatten() {
//!     saver.prepare()?; // and a barrier
//! }
//! for (rank, saver) in savers.iter().flatten().enumerate() {
//!     let bytes = [rank as f32; 3].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
//!     let piece = Piece { tensor: weight.clone(), start: 3 * rank, bytes: bytes.into() };
//!     saver.write(&[piece])?; // and a barrier
//! }
//! for saver in savers.iter().flatten() {
//!     saver.publish(&State { step: 100, ..State::default() })?; // and a barrier
//! }
//!
//! let checkpoint = Checkpoint::open(run.path())?;
//! let bytes = checkpoint.read("head.weight", Kind::Parameter, 2..4)?;
//! assert_eq!(bytes, [0.0_f32.to_le_bytes(), 1.0_f32.to_le_bytes()].concat());
//! # Ok::<(), terrashard_checkpoint::Error>(())
//! ```
//!
//! Writing follows a protocol of three calls with barriers between them, see [`saver`]. A finished model is one
//! [`ModelFile`]; [`Source`] reads either.
//!
//! Invariants: this crate knows names, kinds, shapes, intervals and little-endian bytes. It knows nothing of burn, of
//! optimizers and of how ranks talk. A checkpoint is in force whole or not at all, whenever a process
//! dies. Nothing that is returned from a file has not been checked against its hash. No memory is allocated from
//! a size that a file declares before the file is seen to be that long, and no name in a file leads out of its
//! folder.

mod background;
mod checkpoint;
mod chunk;
mod container;
mod convert;
#[cfg(test)]
mod crash;
mod durable;
mod error;
#[cfg(feature = "faults")]
pub mod faults;
mod folder;
mod foreign;
mod manifest;
mod matching;
pub mod model_file;
pub mod saver;
mod source;
mod state;
mod tensor;

pub use background::Background;
pub use checkpoint::{Checkpoint, Fault};
pub use error::{Error, Result};
pub use folder::{
    FOLDER, Keep, clean, in_force, prune, ranking, remains, step_folder, steps, superfluous,
};
pub use foreign::ForeignFile;
pub use matching::Matching;
pub use model_file::{Export, ModelDescription, ModelFile, Weights, export};
pub use saver::Saver;
pub use source::Source;
pub use state::State;
pub use tensor::{Kind, Piece, Slot, TensorSpec};
pub use terrashard_layout::ElementType;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
