//! A training step on tensors of which only the size is known.
//!
//! What a step takes besides the model's states follows from the order in which tensors are made and dropped. So the step is
//! run: every operation makes what it makes and keeps what it keeps, as the bodies in `terrashard-ops` and `terrashard-torch` do on
//! each backend, but of each tensor only the bytes are counted. Recomputation, offloading and the reduction of gradients are run
//! as well, and what counts is the most that there is at once.

mod branches;
mod encoder;
mod enlargement;
mod head;
mod ledger;
mod losses;
mod machine;
mod reduction;
mod tape;

use std::cell::RefCell;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use terrashard_layout::{ElementType, RankBytes, ShardTable, StateConfig};
use terrashard_models::{Loss, ModelConfig, Upsampling};
use terrashard_ops::Factor;

use crate::config::{Device, RecomputeChoice};
use encoder::Stage;
use enlargement::{Enlargement, Layout};
use head::Head;
use ledger::{Blank, Kind, Ledger};
use losses::{IMAGE_CHANNELS, Map, Maps};
use machine::Machine;
use reduction::Reduction;
use tape::{Tape, Var, block};

/// Channels of a branch between its two convolutions.
const BRANCH_CHANNELS: u64 = 8;

/// Workspace that LibTorch keeps for matrix products on a GPU (`CUBLAS_WORKSPACE_CONFIG`, 32 MiB on the current ones, once for
/// cuBLAS and once for cuBLASLt).
const LIBRARIES: u64 = 64 << 20;

/// A micro-batch's forward and backward.
#[derive(Debug, Clone)]
pub struct Step<'a> {
    /// The model.
    pub model: &'a ModelConfig,
    /// The loss of the segmentation.
    pub loss: Loss,
    /// Height and width of a sample in pixels of the image.
    pub side: usize,
    /// Samples of the micro-batch.
    pub micro_batch: usize,
    /// Element type of the computation.
    pub element: ElementType,
    /// What becomes of activations between forward and backward.
    pub recompute: &'a RecomputeChoice,
    /// What computes.
    pub device: Device,
    /// How a GPU computes losses.
    pub losses: Losses,
    /// Batches that are on the device before they are computed on.
    pub ahead: usize,
    /// Bytes of one value of an image at high resolution.
    pub target_bytes: usize,
    /// How a GPU starts the kernels of small branches.
    pub starts: Starts,
}

/// How a GPU starts the kernels of small branches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starts {
    /// One by one.
    Alone,
    /// By graphs, which hold what a branch gives out from one step to the next.
    InGraphs,
}

/// How a GPU computes losses of enlarged maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Losses {
    /// By kernels that are compiled where they run and need nothing beside the gradient.
    #[default]
    OnePass,
    /// Composed of LibTorch's kernels, piece by piece of the batch: where nothing can be compiled, and in earlier versions.
    Composed,
}

/// Pixels along one side of a block up to which there is a kernel for losses.
const LARGEST_ONE_PASS: usize = 16;

/// The most bytes that a step takes on a rank, and for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Footprint {
    /// The most at once: the sum of `at_peak`.
    pub peak: u64,
    /// What lives from forward to backward, the most of it.
    pub activations: u64,
    /// Images and targets of the micro-batch.
    pub batch: u64,
    /// Inputs of blocks that wait in host memory for backward.
    pub host: u64,
    /// What there is when there is most.
    pub at_peak: AtPeak,
}

/// What a rank holds on its device when it holds most, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AtPeak {
    /// Parameters and optimizer states.
    pub states: u64,
    /// Gradients.
    pub gradients: u64,
    /// Buckets on their way, and what is gathered.
    pub buckets: u64,
    /// Images and targets.
    pub batch: u64,
    /// What lives from forward to backward.
    pub activations: u64,
    /// What operations need while they run.
    pub workspace: u64,
}

/// What a rank holds of the model while the step is made.
#[derive(Debug, Clone)]
pub struct Held {
    /// Which parameters there are, and who owns them.
    pub table: Rc<ShardTable>,
    /// How they are trained.
    pub states: Rc<StateConfig>,
    /// What they take.
    pub bytes: RankBytes,
}

/// Graphs are made while this part of the memory is left, and hold at most the other.
const LEFT_FOR_GRAPHS: u64 = 8;
const SHARE_OF_GRAPHS: u64 = 32;

impl Footprint {
    /// Adds what graphs hold: `with` is the same step with them, `memory` what there is, if that is known.
    pub(super) fn add_graphs(&mut self, with: &Self, memory: Option<u64>) {
        let more = with.peak.saturating_sub(self.peak);
        let more = match memory {
            Some(memory) if self.peak > memory - memory / LEFT_FOR_GRAPHS => 0,
            Some(memory) => more.min(memory / SHARE_OF_GRAPHS),
            None => more,
        };
        self.peak += more;
        self.at_peak.workspace += more;
    }
}

/// Runs a step without its tensors.
pub fn footprint(step: &Step<'_>, held: &Held) -> Footprint {
    let ledger = Ledger::default();
    let RankBytes {
        parameters,
        gathered,
        ..
    } = held.bytes;
    let on_host = |bytes: u64| match step.device {
        // There, offloaded states are in the same memory.
        Device::Cpu | Device::CpuLibTorch => bytes,
        Device::Cuda => 0,
    };
    let libraries = match step.device {
        Device::Cuda => LIBRARIES,
        Device::Cpu | Device::CpuLibTorch => 0,
    };
    let _states = [
        ledger.hold(Kind::Parameters, parameters),
        ledger.hold(
            Kind::Optimizer,
            held.bytes.optimizer() + on_host(held.bytes.host),
        ),
        ledger.hold(Kind::Gathered, gathered),
        ledger.hold(Kind::Workspace, libraries),
    ];
    let reduction = Reduction::new(ledger.clone(), held.table.clone(), held.states.clone());
    let machine = Rc::new(Machine {
        ledger: ledger.clone(),
        device: step.device,
        element: step.element.bytes() as u64,
        losses: match step.model.scale <= LARGEST_ONE_PASS {
            true => step.losses,
            false => Losses::Composed,
        },
        reduction: RefCell::new(reduction),
        pieces: Rc::default(),
        starts: step.starts,
        in_graphs: RefCell::default(),
    });
    step.run(&machine);
    let peak = ledger.peak();
    let of = |kind| peak.of(kind);
    Footprint {
        peak: peak.total(),
        activations: ledger.most(Kind::Activations),
        batch: ledger.most(Kind::Batch),
        host: ledger.most(Kind::Host),
        at_peak: AtPeak {
            states: of(Kind::Parameters) + of(Kind::Optimizer),
            gradients: of(Kind::Gradients),
            buckets: of(Kind::Buckets) + of(Kind::Gathered),
            batch: of(Kind::Batch),
            activations: of(Kind::Activations),
            workspace: of(Kind::Workspace),
        },
    }
}

impl Step<'_> {
    fn images(&self) -> u64 {
        self.micro_batch as u64
    }

    /// Height and width of what the encoder gets.
    fn padded(&self) -> u64 {
        self.side.next_multiple_of(self.model.multiple()) as u64
    }

    fn run(&self, machine: &Rc<Machine>) {
        let hold = |bytes| machine.ledger.hold(Kind::Batch, bytes);
        let ahead = RefCell::new(Vec::new());
        let batch = |bytes| {
            ahead.borrow_mut().push(hold(bytes * self.ahead as u64));
            hold(bytes)
        };
        let (images, side) = (self.images(), self.side as u64);
        let large = side * self.model.scale as u64;
        let image = images * side * side * self.model.bands as u64 * machine.element;
        let image = batch(image);
        let labels = batch(images * large * large);
        let targets = self.model.superres.then(|| {
            let values = images * large * large * IMAGE_CHANNELS;
            batch(values * self.target_bytes as u64)
        });
        let tape = Tape::new(machine.clone());
        let maps = self.forward(&tape, image.clone());
        let roots = losses::losses(&tape, self.loss, &maps);
        drop(maps);
        drop(tape.backward(roots));
        // The caller has them until the step is over.
        drop((image, labels, targets));
        reduction::update(machine);
    }

    fn forward(&self, tape: &Tape, image: Blank) -> Maps {
        let (machine, images) = (tape.machine.clone(), self.images());
        let (side, padded) = (self.side as u64, self.padded());
        let x = match side == padded {
            true => image,
            false => machine.tensor(images * padded * padded * self.model.bands as u64),
        };
        let mut x = Var::plain(x);
        let (mut features, mut grids, mut extent) = (Vec::new(), [0; 4], padded);
        for (index, grid) in grids.iter_mut().enumerate() {
            let stage = Stage {
                config: self.model,
                recompute: self.recompute,
                index,
                images,
                side: extent,
            };
            x = stage.forward(tape, x);
            features.push(x.clone());
            *grid = stage.grid();
            extent = *grid;
        }
        drop(x);
        let head = Head::new(self.model, images, grids);
        let run = move |tape: &Tape, levels: &[Var]| head.forward(tape, levels);
        let recompute = self.recompute.of("tail.head");
        let head = block(tape, recompute, features.clone(), run);
        let segmentation = match self.model.upsampling {
            Upsampling::Direct => {
                self.branch(tape, &head, "tail.seg", self.model.classes as u64, grids[0])
            }
            Upsampling::Progressive => self.steps(tape, &head, grids[0]),
        };
        let superres = self
            .model
            .superres
            .then(|| self.branch(tape, &head, "tail.sr", IMAGE_CHANNELS, grids[0]));
        let low = superres
            .as_ref()
            .map(|superres| [segmentation.low.clone(), superres.low.clone()]);
        features.push(head);
        Maps {
            images,
            _others: features,
            low_side: segmentation.low_side,
            segmentation: segmentation.map,
            superres: superres.map(|superres| superres.map),
            low,
        }
    }

    /// Nearest x4, a convolution, nearest by the scale, a convolution.
    fn branch(&self, tape: &Tape, head: &Var, prefix: &str, outputs: u64, grid: u64) -> Enlarged {
        let first = Enlargement {
            images: self.images(),
            side: grid,
            inputs: self.model.head_outputs as u64,
            outputs: BRANCH_CHANNELS,
            factor: Factor::Whole(4),
            layout: Layout::Pixels,
            name: format!("{prefix}.conv0"),
        };
        let second = Enlargement {
            side: first.large_side(),
            inputs: BRANCH_CHANNELS,
            outputs,
            factor: Factor::Whole(self.model.scale),
            layout: Layout::Classes,
            name: format!("{prefix}.conv1"),
            ..first.clone()
        };
        let low = self.enlarge(tape, head.clone(), &first, false);
        let map = self.enlarge(tape, low.clone(), &second, false);
        let low_side = first.large_side();
        Enlarged::new(self, tape, (low, &first, low_side), (map, &second))
    }

    /// Step by step, an activation before each convolution but the first.
    fn steps(&self, tape: &Tape, head: &Var, grid: u64) -> Enlarged {
        let factors = self.model.enlargements();
        let channels = |step: usize| match step {
            0 => self.model.head_outputs,
            step if step == factors.len() => self.model.classes,
            step => (self.model.head_outputs >> step)
                .max(2)
                .max(self.model.classes),
        };
        let (mut x, mut side, mut low, mut last) = (head.clone(), grid, None, None);
        for (step, &factor) in factors.iter().enumerate() {
            let enlargement = Enlargement {
                images: self.images(),
                side,
                inputs: channels(step) as u64,
                outputs: channels(step + 1) as u64,
                factor,
                layout: Layout::Pixels,
                name: format!("tail.up.{step}"),
            };
            x = self.enlarge(tape, x, &enlargement, step > 0);
            side = enlargement.large_side();
            if step == 1 {
                low = Some((x.clone(), enlargement.clone(), side));
            }
            last = Some(enlargement);
        }
        let last = last.expect("four times any scale has steps");
        let (low, first, low_side) = low.unwrap_or_else(|| (x.clone(), last.clone(), side));
        Enlarged::new(self, tape, (low, &first, low_side), (x, &last))
    }

    fn enlarge(&self, tape: &Tape, x: Var, enlargement: &Enlargement, activated: bool) -> Var {
        let recompute = self.recompute.of(&enlargement.name);
        let own = enlargement.clone();
        block(tape, recompute, vec![x], move |tape, x| {
            let elements = own.images * own.side * own.side * own.inputs;
            match activated {
                true => own.forward(tape, &head::activate(tape, &x[0], elements)),
                false => own.forward(tape, &x[0]),
            }
        })
    }
}

/// A branch's maps: at the input's resolution, and the last.
struct Enlarged {
    low: (Var, u64),
    low_side: u64,
    map: Map,
}

impl Enlarged {
    fn new(
        step: &Step<'_>,
        tape: &Tape,
        (low, first, low_side): (Var, &Enlargement, u64),
        (map, second): (Var, &Enlargement),
    ) -> Self {
        let machine = tape.machine.clone();
        let (side, padded) = (step.side as u64, step.padded());
        // Where the input was padded, maps are cropped.
        let crop = |var: Var, elements: u64| match side == padded {
            true => (var, elements),
            false => {
                let cropped = elements * side * side / (padded * padded);
                let machine = machine.clone();
                let y = machine.tensor(cropped);
                let whole = move |_| vec![Some(machine.tensor(elements))];
                (tape.record(&[&var], y, whole), cropped)
            }
        };
        let low = crop(low, first.result(&tape.machine));
        let (var, elements) = crop(map, second.result(&tape.machine));
        let large = side * step.model.scale as u64;
        Self {
            low,
            low_side: low_side * side / padded,
            map: Map {
                var,
                elements,
                pixels: step.images() * large * large * second.outputs,
            },
        }
    }
}
