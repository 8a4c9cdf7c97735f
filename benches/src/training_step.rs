//! One training step in a process of its own: how far its resident size grows, and what a transformer block adds to the graph.

use std::cell::Cell;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use burn::backend::autodiff::NodeId;
use burn::module::Module;
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use terrashard_collectives::local;
use terrashard_layout::Stage;
use terrashard_models::{Loss, Mode, ModelConfig, Normalizers, Pass, Scope};
use terrashard_tests::hash;
use terrashard_tests::training::block;
use terrashard_zero::{Initial, ZeroConfig, ZeroOptimizer};

use crate::memory;
use crate::model::{Backend, ModelBench, ModelRow, Peer};

/// What the child process answers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingStep {
    /// Growth of the resident size, bytes.
    pub peak_bytes: u64,
    /// The most nodes of the graph that a transformer block made.
    pub nodes_per_block: u64,
    /// The loss.
    pub loss: f64,
}

/// Why a step could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Part of it failed.
    #[error("the training step failed: {what}")]
    Step {
        /// What happened.
        what: String,
    },
    /// The system does not tell a process's resident size.
    #[error("this system has no /proc/self/status, which tells the resident size")]
    Resident,
    /// The child process did not answer.
    #[error("failed to run {program} for a training step: {what}")]
    Child {
        /// The program.
        program: String,
        /// What happened.
        what: String,
    },
    /// PyTorch's side failed.
    #[error(transparent)]
    Torch(#[from] crate::torch::Error),
}

/// Blocks that get their parameters from an optimizer, and are counted.
struct Counted<'a> {
    optimizer: &'a ZeroOptimizer,
    nodes: Cell<u64>,
}

impl Scope for Counted<'_> {
    fn block<M, const D: usize, const E: usize, F>(
        &self,
        name: &str,
        module: &M,
        inputs: Vec<Tensor<D>>,
        forward: F,
    ) -> Tensor<E>
    where
        M: Module + Sync + 'static,
        F: Fn(&M, Vec<Tensor<D>>, &Pass) -> Tensor<E> + Send + Sync + 'static,
    {
        // Every node of any graph gets the next number.
        let before = NodeId::new().value;
        let output = block(self.optimizer, self.pass(), module, inputs, forward);
        let nodes = NodeId::new().value - before - 1;
        if name.contains(".blocks.") {
            self.nodes.set(self.nodes.get().max(nodes));
        }
        output
    }

    fn pass(&self) -> Pass {
        Pass::new(Mode::Training)
    }
}

/// One training step in this process, which has done nothing before.
///
/// # Errors
/// [`Error::Step`], [`Error::Resident`].
pub fn run(bench: &ModelBench, backend: Backend) -> Result<TrainingStep, Error> {
    let before = memory::resident().ok_or(Error::Resident)?;
    let results = local::run(1, |communicator| {
        step(bench, backend, communicator).map_err(|error| error.to_string())
    });
    let mut results = results.map_err(|error| Error::Step {
        what: error.to_string(),
    })?;
    let (loss, nodes_per_block) = results.remove(0);
    let peak = memory::peak_resident().ok_or(Error::Resident)?;
    Ok(TrainingStep {
        peak_bytes: peak.saturating_sub(before),
        nodes_per_block,
        loss,
    })
}

fn step(
    bench: &ModelBench,
    backend: Backend,
    communicator: local::LocalCommunicator,
) -> Result<(f64, u64), Box<dyn std::error::Error>> {
    let device = backend.device(bench.threads);
    let model = bench.config.init(&device)?;
    let config = ZeroConfig {
        stage: Stage::Zero,
        ..ZeroConfig::default()
    };
    let initial = Initial::Keyed(&hash::initial);
    let communicator = Arc::new(communicator);
    let mut optimizer = ZeroOptimizer::new(&model, config, initial, communicator, &device)?;
    let (image, targets) = bench.batch(&device.autodiff());
    let scope = Counted {
        optimizer: &optimizer,
        nodes: Cell::new(0),
    };
    // What a loader counts when it cuts its samples.
    let normalizers = Normalizers::of(&targets);
    let maps = model.forward(image, &scope);
    let losses = Loss::Focal.of(&maps, &targets, &normalizers, &scope);
    drop(maps);
    let nodes = scope.nodes.get();
    let loss = losses.total.clone().into_scalar::<f64>();
    optimizer.backward(losses.total)?;
    optimizer.step(6e-5, &[])?;
    Ok((loss, nodes))
}

/// The row of one training step of each backend, in a process that `program` starts with `arguments`, and of the peer's.
///
/// # Errors
/// [`Error::Child`], [`Error::Torch`].
pub fn rows(
    bench: &ModelBench,
    backends: &[Backend],
    peer: Option<&Peer>,
    program: &Path,
) -> Result<Vec<ModelRow>, Error> {
    let peer = peer.map(|peer| bench.network(peer).training_step());
    let peer = peer.transpose()?;
    let row = |backend: &Backend| {
        let own = child(bench, *backend, program)?;
        let peer_peak_bytes = peer.map(|(bytes, _)| bytes);
        Ok(ModelRow {
            peak_bytes: Some(own.peak_bytes),
            peer_peak_bytes,
            mem_ratio: peer_peak_bytes.map(|peer| own.peak_bytes as f64 / peer as f64),
            nodes_per_block: Some(own.nodes_per_block),
            loss: Some(own.loss),
            peer_loss: peer.map(|(_, loss)| loss),
            ..ModelRow::of(bench, *backend)
        })
    };
    backends.iter().map(row).collect()
}

fn child(bench: &ModelBench, backend: Backend, program: &Path) -> Result<TrainingStep, Error> {
    let fail = |what: String| Error::Child {
        program: program.display().to_string(),
        what,
    };
    let output = Command::new(program)
        .args(["training-step", "--backend", backend.name()])
        .args(["--model", &bench.name])
        .args(["--px", &bench.px.to_string()])
        .args(["--batch", &bench.batch.to_string()])
        .args(["--threads", &bench.threads.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|source| fail(source.to_string()))?;
    if !output.status.success() {
        return Err(fail(output.status.to_string()));
    }
    serde_json::from_slice(&output.stdout).map_err(|source| fail(source.to_string()))
}

/// What the child process is asked for.
///
/// # Errors
/// [`terrashard_models::Error`] for a model without that name.
pub fn bench_of(
    name: &str,
    px: usize,
    batch: usize,
    threads: usize,
) -> Result<ModelBench, terrashard_models::Error> {
    Ok(ModelBench {
        name: name.into(),
        config: ModelConfig::preset(name)?,
        px,
        batch,
        threads,
    })
}
