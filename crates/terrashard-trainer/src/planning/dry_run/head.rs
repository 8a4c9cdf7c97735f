//! The all-MLP head.

use terrashard_models::{HeadNorm, LevelActivation, ModelConfig};

use super::machine::{FLOAT, Machine};
use super::tape::{Tape, Var};

/// The head's sizes.
#[derive(Debug, Clone)]
pub(super) struct Head {
    images: u64,
    /// Tokens of each level.
    tokens: [u64; 4],
    dims: [u64; 4],
    channels: u64,
    outputs: u64,
    norm: HeadNorm,
    activated: bool,
    drops: bool,
}

impl Head {
    pub(super) fn new(config: &ModelConfig, images: u64, grids: [u64; 4]) -> Self {
        let default = match config.head_norm {
            HeadNorm::Batch => LevelActivation::None,
            HeadNorm::None => LevelActivation::Relu,
        };
        let activation = config.head_activation.unwrap_or(default);
        Self {
            images,
            tokens: grids.map(|grid| grid * grid),
            dims: config.dims.map(|dim| dim as u64),
            channels: config.head_channels as u64,
            outputs: config.head_outputs as u64,
            norm: config.head_norm,
            activated: activation != LevelActivation::None,
            drops: config.dropout > 0.0,
        }
    }

    /// Elements of the fused map.
    fn fused(&self) -> u64 {
        self.images * self.tokens[0] * self.channels
    }

    fn level(&self, level: usize) -> u64 {
        self.images * self.tokens[level] * self.channels
    }

    pub(super) fn forward(&self, tape: &Tape, features: &[Var]) -> Var {
        let mut sum = match self.activated {
            true => self.fuse_activated(tape, features),
            false => self.fuse_linear(tape, features),
        };
        if self.norm == HeadNorm::Batch {
            sum = self.batch_norm(tape, &sum);
        }
        let fused = self.fused();
        let x = activate(tape, &sum, fused);
        drop(sum);
        let elements = self.images * self.tokens[0] * self.outputs;
        let head = self.pointwise(tape, &x, elements);
        drop(x);
        match self.drops {
            true => {
                let machine = tape.machine.clone();
                let y = machine.tensor(elements);
                tape.record(&[&head], y, move |_| vec![Some(machine.tensor(elements))])
            }
            false => head,
        }
    }

    /// A level's linear layer and its part of the fusing convolution as one.
    fn fuse_linear(&self, tape: &Tape, features: &[Var]) -> Var {
        let mut sum: Option<Var> = None;
        for level in 0..features.len() {
            let tokens = self.linear(tape, features, level);
            let map = self.resized(tape, &tokens, level);
            drop(tokens);
            sum = Some(match sum {
                None => map,
                // Added in place.
                Some(sum) => tape.record(&[&sum, &map], sum.value.clone(), |gradient| {
                    vec![Some(gradient.clone()), Some(gradient)]
                }),
            });
        }
        sum.expect("there are four levels")
    }

    /// A linear layer on a level, with an activation behind it where there is one; then the fusing convolution of each.
    fn fuse_activated(&self, tape: &Tape, features: &[Var]) -> Var {
        let machine = tape.machine.clone();
        let level = |level| {
            let tokens = self.linear(tape, features, level);
            activate(tape, &tokens, self.level(level))
        };
        let levels: Vec<Var> = (0..features.len()).map(level).collect();
        let fused = self.fused();
        let sum = {
            // A level at its own size and enlarged, beside the sum.
            let sum = machine.inner(fused);
            let wide: Vec<_> = levels.iter().map(|it| machine.widened(&it.value)).collect();
            let own = machine.inner(self.level(1));
            drop(machine.inner(fused));
            drop((own, wide));
            machine.rounded(sum)
        };
        let kept: Vec<_> = levels.iter().map(|level| level.value.kept()).collect();
        let parents: Vec<&Var> = levels.iter().collect();
        let sizes: [u64; 4] = std::array::from_fn(|level| self.level(level));
        tape.record(&parents, sum, move |gradient| {
            let wide = machine.widened(&gradient);
            drop(gradient);
            let inputs: Vec<_> = kept.iter().map(|kept| machine.widened(kept)).collect();
            let results = sizes.map(|elements| {
                let own = machine.inner(elements);
                let gx = machine.inner(elements);
                drop(own);
                gx
            });
            drop((inputs, kept, wide));
            results.map(|gx| Some(machine.rounded(gx))).to_vec()
        })
    }

    /// `[N, tokens, dim]` to `[N, tokens, channels]`. Parameters enter the graph at the depth of a block's last input, so the layer of
    /// every level is behind the deepest.
    fn linear(&self, tape: &Tape, features: &[Var], level: usize) -> Var {
        let (feature, last) = (&features[level], &features[features.len() - 1]);
        let machine = tape.machine.clone();
        let (elements, inputs) = (
            self.level(level),
            self.images * self.tokens[level] * self.dims[level],
        );
        let y = {
            let _x = machine.widened(&feature.value);
            machine.rounded(machine.inner(elements))
        };
        let kept = feature.value.kept();
        tape.record(&[feature, last], y, move |gradient| {
            let (x, wide) = (machine.widened(&kept), machine.widened(&gradient));
            drop(gradient);
            let gx = machine.inner(inputs);
            drop((x, wide));
            let gx = machine.rounded(gx);
            // The first level comes last in backward; with it the gradients of all layers are whole.
            if level == 0 {
                machine.deliver(&["tail.head".into()]);
            }
            vec![Some(gx), None]
        })
    }

    /// A level enlarged to the size of the first.
    fn resized(&self, tape: &Tape, tokens: &Var, level: usize) -> Var {
        let machine = tape.machine.clone();
        let (own, fused) = (self.level(level), self.fused());
        let y = {
            let _x = machine.widened(&tokens.value);
            machine.rounded(machine.inner(fused))
        };
        tape.record(&[tokens], y, move |gradient| {
            let wide = machine.widened(&gradient);
            let gx = machine.inner(own);
            drop((wide, gradient));
            vec![Some(machine.rounded(gx))]
        })
    }

    fn batch_norm(&self, tape: &Tape, x: &Var) -> Var {
        let machine = tape.machine.clone();
        let fused = self.fused();
        // By operations on whole maps where LibTorch has no kernel for it: differences and their squares.
        let by_parts = !machine.is_flex() && !machine.is_gpu();
        let copies = move |machine: &Machine, count: u64| {
            let wide = if machine.is_narrow() {
                count + 1
            } else {
                count
            };
            by_parts.then(|| machine.bytes(wide * fused * FLOAT))
        };
        let y = {
            let wide = machine.widened(&x.value);
            drop(copies(&machine, 2));
            let y = machine.inner(fused);
            drop(copies(&machine, u64::from(machine.is_narrow())));
            drop(wide);
            machine.rounded(y)
        };
        let kept = x.value.kept();
        tape.record(&[x], y, move |gradient| {
            let (x, wide) = (machine.widened(&kept), machine.widened(&gradient));
            drop(gradient);
            let temporaries = copies(&machine, 2);
            let gx = machine.inner(fused);
            drop((temporaries, x, wide));
            vec![Some(machine.rounded(gx))]
        })
    }

    /// The last convolution, of single pixels.
    fn pointwise(&self, tape: &Tape, x: &Var, elements: u64) -> Var {
        computed_from(tape, x, self.fused(), elements)
    }
}

/// An activation as an operation of its own, which keeps its input.
pub(super) fn activate(tape: &Tape, x: &Var, elements: u64) -> Var {
    computed_from(tape, x, elements, elements)
}

/// An operation that keeps its input, of `inputs` elements, and widens it both ways.
fn computed_from(tape: &Tape, x: &Var, inputs: u64, elements: u64) -> Var {
    let machine = tape.machine.clone();
    let y = {
        let _x = machine.widened(&x.value);
        machine.rounded(machine.inner(elements))
    };
    let kept = x.value.kept();
    tape.record(&[x], y, move |gradient| {
        let (x, wide) = (machine.widened(&kept), machine.widened(&gradient));
        drop(gradient);
        let gx = machine.inner(inputs);
        drop((x, wide));
        vec![Some(machine.rounded(gx))]
    })
}
