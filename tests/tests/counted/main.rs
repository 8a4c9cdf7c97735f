//! What a rank holds and sends, counted, against the formulas and the layout's predictions.

mod memory;
mod traffic;

use std::sync::Arc;

use burn::tensor::{DType, Device, Distribution, Tensor};
use terrashard_collectives::{Communicator, local};
use terrashard_layout::{Offload as Kept, ReduceType, ShardTable, Stage, StateConfig};
use terrashard_tests::chain::{Chain, Operations, initial};
use terrashard_zero::{
    Initial, Offload, Optimizer, Precision, Recompute, ReduceDtype, Result, ZeroConfig,
    ZeroOptimizer,
};

pub(crate) const STAGES: [Stage; 4] = [Stage::Zero, Stage::One, Stage::Two, Stage::Three];

/// One rank with its model.
pub(crate) struct Rank {
    pub(crate) chain: Chain,
    pub(crate) optimizer: ZeroOptimizer,
    pub(crate) recompute: Recompute,
    pub(crate) config: ZeroConfig,
}

impl Rank {
    pub(crate) fn new(
        widths: &[usize],
        config: &ZeroConfig,
        communicator: Arc<dyn Communicator>,
    ) -> Result<Self> {
        let chain = Chain::new(widths);
        let optimizer = ZeroOptimizer::new(
            &chain,
            config.clone(),
            Initial::Keyed(&initial),
            communicator,
            &Device::flex(),
        )?;
        optimizer.declare_blocks(&chain.blocks())?;
        Ok(Self {
            chain,
            optimizer,
            recompute: Recompute::Keep,
            config: config.clone(),
        })
    }

    /// One micro-batch.
    pub(crate) fn backward(&self) -> Result<()> {
        let device = Device::flex().autodiff();
        let compute = match self.config.precision {
            Precision::Bf16 => DType::BF16,
            _ => DType::F32,
        };
        let x = Tensor::<2>::random(
            [3, self.chain.layers[0].weight.lazy_shape()[1]],
            Distribution::Default,
            &device,
        )
        .cast(compute);
        let own = Operations::Own;
        let y = self
            .chain
            .forward(x, &self.optimizer, self.recompute, own, |_| ());
        self.optimizer.backward(y.cast(DType::F32).mean())
    }

    pub(crate) fn step(&mut self) -> Result<()> {
        for _ in 0..self.config.accumulate {
            self.backward()?;
        }
        self.optimizer.step(1e-3, &[]).map(drop)
    }
}

/// The settings as the layout's predictions take them.
pub(crate) fn state_config(config: &ZeroConfig, table: &ShardTable, chain: &Chain) -> StateConfig {
    let rows = |names: Vec<String>| {
        let rows = names.into_iter().map(|name| table.index(&name));
        rows.map(|row| row.expect("a parameter of the chain"))
            .collect()
    };
    StateConfig {
        reduce: match config.reduce_dtype {
            ReduceDtype::Full => ReduceType::Full,
            ReduceDtype::Compute => ReduceType::Compute,
        },
        moments: match config.optimizer {
            Optimizer::AdamW(_) => 2,
            Optimizer::Sgd(rule) => usize::from(rule.momentum > 0.0),
        },
        ema: config.ema.is_some(),
        offload: match config.offload {
            Offload::None => Kept::None,
            Offload::Optimizer => Kept::Optimizer,
            Offload::Parameters => Kept::Parameters,
        },
        offload_fraction: config.offload_fraction,
        accumulate: config.accumulate,
        prefetch: config.prefetch,
        blocks: chain.blocks().into_iter().map(rows).collect(),
    }
}

/// The results of all ranks.
pub(crate) fn ranks<T: Send>(
    ranks: usize,
    body: impl Fn(Arc<dyn Communicator>) -> Result<T> + Sync,
) -> Vec<T> {
    let results = local::run(ranks, |communicator| body(Arc::new(communicator)));
    results.unwrap_or_else(|error| panic!("{error}"))
}
