//! The branches of a transformer block on a GPU, against double precision on the CPU; and the time of the largest ones.
//!
//! Prints a line for each check that failed and ends with 1 then. Needs a GPU.

use std::process::ExitCode;

use terrashard_tests::gpu_program::{median, on_a_gpu};
use terrashard_torch::tch::{Device, Kind, Tensor};
use terrashard_torch::{
    AttentionBranch, BranchActivation, Error, FeedForwardBranch, Graphs, Saved, set_deterministic,
    set_tf32,
};

const EPSILON: f64 = 1e-6;

/// A branch with its channels and the shapes of its parameters.
#[derive(Clone, Copy, Debug)]
enum Branch {
    Attention(AttentionBranch, i64),
    FeedForward(FeedForwardBranch, i64),
}

impl Branch {
    fn attention(heads: usize, ratio: usize, grid: [usize; 2], channels: i64) -> Self {
        let branch = AttentionBranch {
            heads,
            grid,
            ratio,
            epsilon: EPSILON,
            reduced_epsilon: EPSILON,
        };
        Self::Attention(branch, channels)
    }

    fn feed_forward(activation: BranchActivation, grid: [usize; 2], channels: i64) -> Self {
        let branch = FeedForwardBranch {
            grid,
            activation,
            epsilon: EPSILON,
        };
        Self::FeedForward(branch, channels)
    }

    fn x(&self, samples: i64) -> [i64; 3] {
        let (grid, channels) = match self {
            Self::Attention(branch, channels) => (branch.grid, channels),
            Self::FeedForward(branch, channels) => (branch.grid, channels),
        };
        [samples, (grid[0] * grid[1]) as i64, *channels]
    }

    /// Weights, each followed by its bias.
    fn shapes(&self) -> Vec<Vec<i64>> {
        let weights = match self {
            Self::Attention(branch, c) => {
                let (c, r) = (*c, branch.ratio as i64);
                let mut weights = vec![vec![c], vec![c, c], vec![2 * c, c], vec![c, c]];
                if r > 1 {
                    weights.extend([vec![c, c, r, r], vec![c]]);
                }
                weights
            }
            Self::FeedForward(_, c) => {
                let (c, d) = (*c, 4 * c);
                vec![vec![c], vec![d, c], vec![d, 1, 3, 3], vec![c, d]]
            }
        };
        let with_bias = |weight: Vec<i64>| [weight.clone(), vec![weight[0]]];
        weights.into_iter().flat_map(with_bias).collect()
    }

    fn forward(&self, x: &Tensor, parameters: &[&Tensor]) -> Result<(Tensor, Saved), Error> {
        match self {
            Self::Attention(branch, _) => branch.forward(x, parameters, None),
            Self::FeedForward(branch, _) => branch.forward(x, parameters, None),
        }
    }

    fn backward(
        &self,
        gradient: &Tensor,
        x: &Tensor,
        parameters: &[&Tensor],
        saved: &Saved,
    ) -> Result<Vec<Option<Tensor>>, Error> {
        let saved: Vec<_> = saved.iter().map(Option::as_ref).collect();
        let wanted = vec![true; 1 + parameters.len()];
        match self {
            Self::Attention(branch, _) => {
                branch.backward(gradient, x, parameters, &saved, None, &wanted)
            }
            Self::FeedForward(branch, _) => {
                branch.backward(gradient, x, parameters, &saved, None, &wanted)
            }
        }
    }
}

/// x, the gradient of the result and the parameters, in this type on the GPU.
struct Inputs {
    x: Tensor,
    gradient: Tensor,
    parameters: Vec<Tensor>,
}

impl Inputs {
    fn new(branch: &Branch, samples: i64, kind: Kind) -> Self {
        let random = |shape: &[i64], deviation: f64, mean: f64| {
            let values = Tensor::randn(shape, (Kind::Float, Device::Cuda(0)));
            (values * deviation + mean).to_kind(kind)
        };
        let parameter = |shape: Vec<i64>, index: usize| {
            let inputs: i64 = shape[1..].iter().product();
            match (shape.len(), index % 2) {
                (1, 0) => random(&shape, 0.2, 1.0),
                (1, _) => random(&shape, 0.2, 0.0),
                _ => random(&shape, (inputs as f64).sqrt().recip(), 0.0),
            }
        };
        let shapes = branch.shapes().into_iter().enumerate();
        Self {
            x: random(&branch.x(samples), 1.0, 0.3),
            gradient: random(&branch.x(samples), 1.0, 0.0),
            parameters: shapes.map(|(i, shape)| parameter(shape, i)).collect(),
        }
    }

    fn wide(&self) -> Self {
        let wide = |tensor: &Tensor| tensor.to_device(Device::Cpu).to_kind(Kind::Double);
        Self {
            x: wide(&self.x),
            gradient: wide(&self.gradient),
            parameters: self.parameters.iter().map(wide).collect(),
        }
    }

    /// The result and all gradients.
    fn run(&self, branch: &Branch) -> Result<Vec<Tensor>, Error> {
        let parameters: Vec<&Tensor> = self.parameters.iter().collect();
        let (y, saved) = branch.forward(&self.x, &parameters)?;
        let gradients = branch.backward(&self.gradient, &self.x, &parameters, &saved)?;
        Ok([y]
            .into_iter()
            .chain(gradients.into_iter().flatten())
            .collect())
    }
}

/// The largest relative error of the result and the gradients, and whose it is.
fn check(branch: &Branch, samples: i64, kind: Kind) -> Result<(usize, f64), Error> {
    let inputs = Inputs::new(branch, samples, kind);
    let (got, expected) = (inputs.run(branch)?, inputs.wide().run(branch)?);
    if got.len() != expected.len() {
        return Ok((got.len(), f64::NAN));
    }
    let mut worst = (0, 0.0);
    for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let got = got.to_device(Device::Cpu).to_kind(Kind::Double);
        let off = (got - expected).norm().double_value(&[]);
        let off = off / expected.norm().double_value(&[]);
        if off.is_nan() || off > worst.1 {
            worst = (index, off);
        }
    }
    Ok(worst)
}

fn branches() -> Vec<Branch> {
    let mut branches = Vec::new();
    for (heads, ratio, channels) in [(1, 8, 32), (2, 4, 64), (5, 2, 160), (8, 1, 256), (2, 2, 40)] {
        branches.push(Branch::attention(heads, ratio, [16, 24], channels));
    }
    branches.push(Branch::attention(16, 2, [32, 64], 1024));
    for (grid, channels) in [
        ([16, 24], 32),
        ([7, 5], 64),
        ([9, 1], 160),
        ([32, 64], 640),
        ([16, 16], 10),
    ] {
        branches.push(Branch::feed_forward(BranchActivation::Gelu, grid, channels));
    }
    branches.push(Branch::feed_forward(BranchActivation::Mish, [16, 24], 64));
    branches
}

/// The same bits by graphs as without, for values that change in their places and for inputs that move about: the tensor that differs,
/// if one does.
fn by_graphs(branch: &Branch, kind: Kind) -> Result<Option<String>, Error> {
    const ROUNDS: usize = 12;
    let inputs: Vec<_> = (0..3).map(|_| Inputs::new(branch, 3, kind)).collect();
    let mut own = Inputs::new(branch, 3, kind);
    let before = Graphs::counts()?;
    let mut held = Vec::new();
    for round in 0..ROUNDS {
        let values = &inputs[round % inputs.len()];
        for (to, from) in own.parameters.iter_mut().zip(&values.parameters) {
            to.copy_(from);
        }
        match round {
            // Other places for what is no parameter.
            6.. => (own.x, own.gradient) = (values.x.copy(), values.gradient.copy()),
            _ => {
                own.x.copy_(&values.x);
                own.gradient.copy_(&values.gradient);
            }
        }
        let got = own.run(branch)?;
        Graphs::set(false)?;
        let expected = own.run(branch)?;
        Graphs::set(true)?;
        held.push((round, got, expected));
        // Some results are let go at once, some later.
        if round % 4 == 3 {
            for (round, got, expected) in held.drain(..) {
                let mut pairs = got.iter().zip(&expected);
                if let Some(tensor) = pairs.position(|(got, expected)| !got.equal(expected)) {
                    return Ok(Some(format!("tensor {tensor} of round {round}")));
                }
            }
        }
    }
    let runs = Graphs::counts()?.runs - before.runs;
    Ok((runs == 0).then(|| "no graph ran".to_owned()))
}

fn run() -> Result<usize, Error> {
    let (mut checks, mut failed) = (0, 0);
    // Elsewhere, attention adds up in another order each time.
    set_deterministic(true)?;
    for kind in [Kind::BFloat16, Kind::Float] {
        let small = |branch: &Branch| branch.x(3).iter().product::<i64>() <= 1 << 20;
        for branch in branches().into_iter().filter(small) {
            checks += 1;
            if let Some(what) = by_graphs(&branch, kind)? {
                failed += 1;
                println!("FAILED by graphs {kind:?} {branch:?}: {what}");
            }
        }
    }
    println!("gpu_branches: {:?}", Graphs::counts()?);
    set_deterministic(false)?;
    for (kind, allowed) in [
        (Kind::Float, 1e-4),
        (Kind::BFloat16, 5e-2),
        (Kind::Half, 1e-2),
    ] {
        for branch in branches() {
            let (index, worst) = check(&branch, 3, kind)?;
            checks += 1;
            if worst.is_nan() || worst > allowed {
                failed += 1;
                println!("FAILED {kind:?} {branch:?}: tensor {index} is {worst:.1e} off");
            }
        }
    }
    println!("gpu_branches: {checks} checks, {failed} failed");
    for (side, channels, heads, ratio) in [
        (128, 64, 1, 8),
        (64, 128, 2, 4),
        (32, 320, 5, 2),
        (16, 512, 8, 1),
    ] {
        let grid = [side; 2];
        time(
            "attention",
            &Branch::attention(heads, ratio, grid, channels),
        )?;
        let gelu = BranchActivation::Gelu;
        time("feed-forward", &Branch::feed_forward(gelu, grid, channels))?;
    }
    Ok(failed)
}

/// Prints milliseconds of forward, and of forward and backward, for 24 samples in `bf16`.
fn time(name: &str, branch: &Branch) -> Result<(), Error> {
    let inputs = Inputs::new(branch, 24, Kind::BFloat16);
    let parameters: Vec<&Tensor> = inputs.parameters.iter().collect();
    let forward = median(|| branch.forward(&inputs.x, &parameters).map(drop))?;
    let both = median(|| inputs.run(branch).map(drop))?;
    println!(
        "{name} {:?}: forward {forward:.3} ms, with backward {both:.3} ms",
        branch.x(24)
    );
    Ok(())
}

fn main() -> ExitCode {
    on_a_gpu("gpu_branches", || set_tf32(false).and_then(|()| run()))
}
