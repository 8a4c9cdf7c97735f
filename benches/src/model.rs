//! `bench model`: forward and backward of one model on one device, without an optimizer, beside PyTorch's; and the memory of one
//! training step.

use std::path::PathBuf;
use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use terrashard_models::{Labels, Loss, ModelConfig, Normalizers, Plain, S2s2Net, Targets, assign};
use terrashard_tests::hash;

use crate::torch::{self, Network, TorchModel};

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// burn's own, for the CPU.
    Flex,
    /// LibTorch on the CPU.
    #[cfg(feature = "tch")]
    Tch,
}

impl Backend {
    /// Its name in a row.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flex => "flex",
            #[cfg(feature = "tch")]
            Self::Tch => "tch",
        }
    }

    /// Its plain device, computing on as many threads as asked.
    pub fn device(self, threads: usize) -> Device {
        match self {
            Self::Flex => {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
                // The pool is the process's, and of so many threads already where it was asked for before.
                let _ = pool.build_global();
                Device::flex()
            }
            #[cfg(feature = "tch")]
            Self::Tch => {
                terrashard_torch::tch::set_num_threads(threads.try_into().unwrap_or(i32::MAX));
                terrashard_torch::cpu()
            }
        }
    }
}

/// Where PyTorch's side is found.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The folder that holds `model.py`.
    pub folder: PathBuf,
    /// A Python that has torch.
    pub python: PathBuf,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct ModelBench {
    /// The model's name in the record, and for the peer.
    pub name: String,
    /// The model.
    pub config: ModelConfig,
    /// Input height and width in pixels.
    pub px: usize,
    /// Samples in a batch.
    pub batch: usize,
    /// Threads of each side.
    pub threads: usize,
}

/// One measurement. What was not measured is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelRow {
    /// Who ran.
    pub who: String,
    /// Which benchmark.
    pub bench: String,
    /// What computed.
    pub backend: String,
    /// The model's name.
    pub model: String,
    /// Input height and width in pixels.
    pub px: usize,
    /// Samples in a batch.
    pub batch: usize,
    /// Threads of each side.
    pub threads: usize,
    /// Median of forward and backward together, milliseconds.
    pub ms: Option<f64>,
    /// The fastest, milliseconds.
    pub fastest_ms: Option<f64>,
    /// Median of forward alone, with the losses, milliseconds.
    pub forward_ms: Option<f64>,
    /// PyTorch's median.
    pub peer_ms: Option<f64>,
    /// PyTorch's fastest.
    pub peer_fastest_ms: Option<f64>,
    /// PyTorch's median of forward alone.
    pub peer_forward_ms: Option<f64>,
    /// Our median by PyTorch's.
    pub ratio: Option<f64>,
    /// Our fastest by PyTorch's.
    pub fastest_ratio: Option<f64>,
    /// Growth of a process's resident size over one training step, bytes.
    pub peak_bytes: Option<u64>,
    /// PyTorch's.
    pub peer_peak_bytes: Option<u64>,
    /// Our growth by PyTorch's.
    pub mem_ratio: Option<f64>,
    /// The most nodes that a transformer block adds to the graph of a training step, parameters included.
    pub nodes_per_block: Option<u64>,
    /// The loss, so that equal work can be compared.
    pub loss: Option<f64>,
    /// PyTorch's.
    pub peer_loss: Option<f64>,
}

impl ModelRow {
    /// The columns of [`cells`](Self::cells).
    pub const HEAD: [&'static str; 16] = [
        "model",
        "backend",
        "px",
        "batch",
        "ms",
        "fastest",
        "forward ms",
        "PyTorch ms",
        "fastest",
        "forward ms",
        "ratio",
        "of the fastest",
        "peak MiB",
        "PyTorch's",
        "ratio",
        "nodes a block",
    ];

    /// The row for a table.
    pub fn cells(&self) -> Vec<String> {
        let mebibytes =
            |bytes: Option<u64>| optional(bytes.map(|bytes| bytes as f64 / f64::from(1 << 20)), 0);
        vec![
            self.model.clone(),
            self.backend.clone(),
            self.px.to_string(),
            self.batch.to_string(),
            optional(self.ms, 1),
            optional(self.fastest_ms, 1),
            optional(self.forward_ms, 1),
            optional(self.peer_ms, 1),
            optional(self.peer_fastest_ms, 1),
            optional(self.peer_forward_ms, 1),
            optional(self.ratio, 2),
            optional(self.fastest_ratio, 2),
            mebibytes(self.peak_bytes),
            mebibytes(self.peer_peak_bytes),
            optional(self.mem_ratio, 2),
            self.nodes_per_block
                .map_or("-".into(), |nodes| nodes.to_string()),
        ]
    }

    pub(crate) fn of(bench: &ModelBench, backend: Backend) -> Self {
        Self {
            who: "terrashard".into(),
            bench: "model".into(),
            backend: backend.name().into(),
            model: bench.name.clone(),
            px: bench.px,
            batch: bench.batch,
            threads: bench.threads,
            ..Self::default()
        }
    }
}

/// Why a model could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is none of a model.
    #[error(transparent)]
    Model(#[from] terrashard_models::Error),
    /// PyTorch's side failed.
    #[error(transparent)]
    Torch(#[from] torch::Error),
}

impl ModelBench {
    /// PyTorch's side of the same.
    pub fn network<'a>(&'a self, peer: &'a Peer) -> Network<'a> {
        Network {
            python: &peer.python,
            peers: &peer.folder,
            name: &self.name,
            px: self.px,
            batch: self.batch,
            threads: self.threads,
        }
    }

    /// The batch of the first samples, on this plain device; the image beside a graph if `device` is an autodiff one.
    pub(crate) fn batch(&self, device: &Device) -> (Tensor<4>, Targets) {
        let (n, px, large) = (self.batch, self.px, self.px * self.config.scale);
        let batch = hash::batch(px, 0..n);
        let tensor = |values: Vec<f32>, shape: [usize; 4], device: &Device| {
            Tensor::<4>::from_data(TensorData::new(values, shape), device)
        };
        let plain = device.clone().inner();
        let targets = Targets {
            labels: Labels::new(batch.mask, [n, large, large], device),
            superres: self
                .config
                .superres
                .then(|| tensor(batch.hres, [n, 4, large, large], &plain).into()),
        };
        let image = tensor(batch.image, [n, self.config.bands, px, px], device);
        (image, targets)
    }
}

/// One side that runs when it is its turn.
enum Side {
    Ours(Box<Ours>),
    Peer(Box<TorchModel>),
}

struct Ours {
    model: S2s2Net,
    image: Tensor<4>,
    targets: Targets,
    normalizers: Normalizers,
}

impl Side {
    fn ours(bench: &ModelBench, backend: Backend) -> Result<Self, Error> {
        let device = backend.device(bench.threads).autodiff();
        let model = assign(bench.config.init(&device)?, &mut |name, shape| {
            TensorData::new(hash::initial(name, shape), shape.to_vec())
        });
        let (image, targets) = bench.batch(&device);
        Ok(Self::Ours(Box::new(Ours {
            model,
            normalizers: Normalizers::of(&targets),
            image,
            targets,
        })))
    }

    /// Milliseconds of forward with the losses, of forward and backward together, and the loss.
    fn turn(&mut self) -> Result<[f64; 3], Error> {
        match self {
            Self::Peer(peer) => Ok(peer.turn()?),
            Self::Ours(ours) => {
                let Ours {
                    model,
                    image,
                    targets,
                    normalizers,
                } = ours.as_ref();
                let start = Instant::now();
                let maps = model.forward(image.clone(), &Plain::training());
                let losses = Loss::Focal.of(&maps, targets, normalizers, &Plain::training());
                drop(maps);
                let loss = losses.total.clone().into_scalar::<f64>();
                let middle = start.elapsed();
                let gradients = losses.total.backward();
                let end = start.elapsed();
                drop(gradients);
                Ok([middle.as_secs_f64() * 1e3, end.as_secs_f64() * 1e3, loss])
            }
        }
    }
}

/// The times of one side.
#[derive(Default)]
struct Times {
    forward: Vec<f64>,
    whole: Vec<f64>,
    loss: Option<f64>,
}

impl Times {
    fn median(values: &[f64]) -> Option<f64> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }

    fn fastest(&self) -> Option<f64> {
        self.whole.iter().copied().min_by(f64::total_cmp)
    }
}

fn optional(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".into(), |value| format!("{value:.digits$}"))
}

fn ratio(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    Some(a? / b?)
}

/// Times every backend and the peer, which take turns, and gives a row for each backend. A fifth as many turns before are not
/// counted.
///
/// # Errors
/// [`Error`].
pub fn time(
    bench: &ModelBench,
    backends: &[Backend],
    peer: Option<&Peer>,
    repetitions: usize,
) -> Result<Vec<ModelRow>, Error> {
    let mut sides = Vec::new();
    for backend in backends {
        sides.push(Side::ours(bench, *backend)?);
    }
    if let Some(peer) = peer {
        sides.push(Side::Peer(Box::new(bench.network(peer).start()?)));
    }
    let mut times: Vec<Times> = sides.iter().map(|_| Times::default()).collect();
    let warm_up = repetitions.div_ceil(5);
    for repetition in 0..warm_up + repetitions {
        for (side, times) in sides.iter_mut().zip(&mut times) {
            let [forward, whole, loss] = side.turn()?;
            times.loss.get_or_insert(loss);
            if repetition >= warm_up {
                times.forward.push(forward);
                times.whole.push(whole);
            }
        }
    }
    let peer = peer.and_then(|_| times.pop());
    let rows = backends.iter().zip(&times).map(|(backend, own)| {
        let of_peer = |of: fn(&Times) -> Option<f64>| peer.as_ref().and_then(of);
        let (ms, fastest_ms) = (Times::median(&own.whole), own.fastest());
        let peer_ms = of_peer(|times| Times::median(&times.whole));
        let peer_fastest_ms = of_peer(Times::fastest);
        ModelRow {
            ms,
            fastest_ms,
            forward_ms: Times::median(&own.forward),
            peer_ms,
            peer_fastest_ms,
            peer_forward_ms: of_peer(|times| Times::median(&times.forward)),
            ratio: ratio(ms, peer_ms),
            fastest_ratio: ratio(fastest_ms, peer_fastest_ms),
            loss: own.loss,
            peer_loss: of_peer(|times| times.loss),
            ..ModelRow::of(bench, *backend)
        }
    });
    Ok(rows.collect())
}
