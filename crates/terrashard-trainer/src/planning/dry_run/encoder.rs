//! The encoder: patch embeddings, transformer blocks, norms.

use terrashard_models::{FeedForward, ModelConfig};

use super::branches::{self, Branch};
use super::machine::Machine;
use super::tape::{Tape, Var, block};
use crate::config::RecomputeChoice;

/// Values that an unfolded group of images has on burn's own backend.
const UNFOLDED: u64 = 4 << 20;

/// One stage of the encoder at its size.
pub(super) struct Stage<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) recompute: &'a RecomputeChoice,
    pub(super) index: usize,
    pub(super) images: u64,
    /// Height and width of its input.
    pub(super) side: u64,
}

/// A convolution that makes patches of a map.
#[derive(Debug, Clone)]
struct Patches {
    images: u64,
    side: u64,
    inputs: u64,
    grid: u64,
    outputs: u64,
    kernel: u64,
    /// Whether its input is an image, which lies channels first.
    first: bool,
    names: [String; 2],
}

impl Patches {
    fn input(&self) -> u64 {
        self.images * self.side * self.side * self.inputs
    }

    fn output(&self) -> u64 {
        self.images * self.grid * self.grid * self.outputs
    }

    fn columns(&self) -> u64 {
        self.grid * self.grid * self.kernel * self.kernel * self.inputs
    }

    fn group(&self) -> u64 {
        (UNFOLDED / self.columns().max(1)).clamp(1, self.images)
    }
}

impl Stage<'_> {
    /// Height and width of what it makes.
    pub(super) fn grid(&self) -> u64 {
        let (kernel, stride) = (
            self.config.patch[self.index] as u64,
            self.config.stride[self.index] as u64,
        );
        (self.side + 2 * (kernel / 2)).saturating_sub(kernel) / stride + 1
    }

    pub(super) fn forward(&self, tape: &Tape, x: Var) -> Var {
        let (config, index) = (self.config, self.index);
        let prefix = format!("stages.{index}");
        let (grid, dim) = (self.grid(), config.dims[index] as u64);
        let patches = Patches {
            images: self.images,
            side: self.side,
            inputs: match index {
                0 => config.bands as u64,
                _ => config.dims[index - 1] as u64,
            },
            grid,
            outputs: dim,
            kernel: config.patch[index] as u64,
            first: index == 0,
            names: [format!("{prefix}.embed"), format!("{prefix}.embed_norm")],
        };
        let recompute = |name: &str| self.recompute.of(name);
        let name = format!("{prefix}.embed");
        let mut x = block(tape, recompute(&name), vec![x], move |tape, x| {
            embed(tape, &x[0], &patches)
        });
        let tokens = grid * grid;
        let ratio = config.sr_ratios[index] as u64;
        for number in 0..config.depths[index] {
            let name = format!("{prefix}.blocks.{number}");
            let branch = |parts: [&str; 2]| Branch {
                images: self.images,
                tokens,
                reduced: (grid / ratio) * (grid / ratio),
                channels: dim,
                hidden: config.mlp_ratio as u64 * dim,
                heads: config.heads[index] as u64,
                drops: config.drop_path_at(index, number) > 0.0,
                gelu: config.activation == FeedForward::Gelu,
                names: parts.map(|part| format!("{name}.{part}")).to_vec(),
            };
            let (first, second) = (branch(["norm1", "attn"]), branch(["norm2", "ffn"]));
            x = block(tape, recompute(&name), vec![x], move |tape, x| {
                let x = branches::attention(tape, &x[0], first.clone());
                branches::feed_forward(tape, &x, second.clone())
            });
        }
        let name = format!("{prefix}.norm");
        let (elements, rows) = (self.images * tokens * dim, self.images * tokens);
        let names = vec![name.clone()];
        block(tape, recompute(&name), vec![x], move |tape, x| {
            norm(tape, &x[0], [elements, rows], names.clone())
        })
    }
}

/// A layer normalisation as an operation of its own.
fn norm(tape: &Tape, x: &Var, [elements, rows]: [u64; 2], names: Vec<String>) -> Var {
    let machine = tape.machine.clone();
    let y = {
        let _x = machine.widened(&x.value);
        machine.rounded(machine.norm(elements, rows).y)
    };
    let kept = x.value.kept();
    tape.record(&[x], y, move |gradient| {
        let x = machine.widened(&kept);
        let wide = machine.widened(&gradient);
        let again = (!machine.is_flex()).then(|| machine.norm(elements, rows));
        let gx = machine.norm_backward(elements);
        drop((again, wide, x, gradient));
        let gx = machine.rounded(gx);
        machine.deliver(&names);
        vec![Some(gx)]
    })
}

fn embed(tape: &Tape, x: &Var, patches: &Patches) -> Var {
    let map = convolution(tape, x, patches.clone());
    // Of an image, which lies channels first, LibTorch makes a map that does, and tokens are a copy of it.
    let tokens = match patches.first && !tape.machine.is_flex() {
        true => {
            let (machine, elements) = (tape.machine.clone(), patches.output());
            let copy = machine.tensor(elements);
            tape.record(&[&map], copy, move |gradient| vec![Some(gradient)])
        }
        false => map,
    };
    let rows = patches.images * patches.grid * patches.grid;
    norm(
        tape,
        &tokens,
        [patches.output(), rows],
        vec![patches.names[1].clone()],
    )
}

fn convolution(tape: &Tape, x: &Var, patches: Patches) -> Var {
    let machine = tape.machine.clone();
    let map = {
        let wide = machine.widened(&x.value);
        let workspace = workspace(&machine, &patches);
        let map = machine.inner(patches.output());
        drop((workspace, wide));
        machine.rounded(map)
    };
    let kept = x.value.kept();
    let wanted = x.is_tracked();
    tape.record(&[x], map, move |gradient| {
        let x = machine.widened(&kept);
        let wide = machine.widened(&gradient);
        drop(gradient);
        // LibTorch's kernels want the gradient as the image lies.
        let laid = (patches.first && !machine.is_flex()).then(|| machine.inner(patches.output()));
        let gx = wanted.then(|| machine.inner(patches.input()));
        let columns = machine.is_flex().then(|| machine.inner(patches.columns()));
        drop(columns);
        let workspace = workspace(&machine, &patches);
        drop((workspace, laid, wide, x));
        let gx = gx.map(|gx| machine.rounded(gx));
        machine.deliver(&patches.names[..1]);
        vec![gx]
    })
}

/// What a convolution needs beside its input and its result: on burn's own backend the unfolded input of some images, and an image
/// channels last.
fn workspace(machine: &Machine, patches: &Patches) -> Option<[super::ledger::Blank; 2]> {
    machine.is_flex().then(|| {
        let laid = if patches.first { patches.input() } else { 0 };
        [
            machine.inner(laid),
            machine.inner(patches.group() * patches.columns()),
        ]
    })
}
