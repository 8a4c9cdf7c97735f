//! A rank whose memory and traffic are counted, on a chain of odd layers, and what the layout predicts of it.

use std::sync::Arc;

use burn::tensor::{DType, Device, Distribution, Tensor};
use terrashard_collectives::{Communicator, Traffic};
use terrashard_layout::{
    Offload as Kept, ReduceType, ShardTable, StateConfig, StepTraffic, VerbBytes,
};
use terrashard_zero::{
    Initial, Offload, Optimizer, Precision, Recompute, ReduceDtype, Result, ZeroConfig,
    ZeroOptimizer,
};

use crate::chain::{Chain, Operations, initial};

/// One rank with its model.
pub struct Rank {
    /// The model.
    pub chain: Chain,
    /// Its states.
    pub optimizer: ZeroOptimizer,
    /// What its blocks do with their activations.
    pub recompute: Recompute,
    /// The settings.
    pub config: ZeroConfig,
}

impl Rank {
    /// A rank of `communicator` with layers of `widths`.
    ///
    /// # Errors
    /// Those of [`ZeroOptimizer::new`].
    pub fn new(
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
    ///
    /// # Errors
    /// Those of the optimizer's `backward`.
    pub fn backward(&self) -> Result<()> {
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

    /// All micro-batches of a window, and the update.
    ///
    /// # Errors
    /// Those of [`Self::backward`] and of the optimizer's `step`.
    pub fn step(&mut self) -> Result<()> {
        for _ in 0..self.config.accumulate {
            self.backward()?;
        }
        self.optimizer.step(1e-3, &[]).map(drop)
    }
}

/// The settings as the layout's predictions take them.
///
/// # Panics
/// If `table` is not that of `chain`.
pub fn state_config(config: &ZeroConfig, table: &ShardTable, chain: &Chain) -> StateConfig {
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
        overlap: config.overlap,
        prefetch: config.prefetch,
        blocks: chain.blocks().into_iter().map(rows).collect(),
    }
}

/// What one step of one rank sends, and what it ought to.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Bytes counted, without the scalars of the decision.
    pub counted: StepTraffic,
    /// What the layout predicts.
    pub predicted: StepTraffic,
    /// Elements of the model.
    pub numel: u64,
    /// Elements of the padding of all shards.
    pub padding: u64,
}

/// Counts what the second step of a rank with layers of `widths` sends.
///
/// # Errors
/// Those of [`Rank`].
///
/// # Panics
/// If the decision of a hybrid group is not one all-reduce of two numbers, or something was broadcast.
pub fn sent(
    widths: &[usize],
    config: &ZeroConfig,
    recompute: Recompute,
    communicator: Arc<dyn Communicator>,
) -> Result<Sent> {
    let ranks = communicator.ranks();
    let mut rank = Rank::new(widths, config, communicator)?;
    rank.recompute = recompute;
    rank.step()?;
    let groups = rank.optimizer.groups().clone();
    let read = || {
        let replicas = groups.replicas.as_ref();
        let replicas = replicas.map_or(Traffic::default(), |replicas| replicas.traffic());
        (groups.world.traffic(), groups.shards.traffic(), replicas)
    };
    let before = read();
    rank.step()?;
    let after = read();
    let mut inside = verbs(after.1.since(&before.1));
    let decision = scalars(ranks as u64);
    if groups.replicas.is_none() {
        inside.all_reduce -= decision;
    } else {
        assert_eq!(after.0.since(&before.0).bytes(), decision);
    }
    let table = rank.optimizer.table();
    let padding = table.rows().iter().map(|row| {
        let padded = row.shard_len(table.ranks()) * table.ranks();
        (padded - row.numel()) as u64
    });
    Ok(Sent {
        counted: StepTraffic {
            inside,
            across: verbs(after.2.since(&before.2)),
        },
        predicted: table.step_traffic(
            &state_config(config, table, &rank.chain),
            ranks / table.ranks(),
        ),
        numel: rank.chain.numel() as u64,
        padding: padding.sum(),
    })
}

/// Bytes of the all-reduce by which ranks take one decision, of two numbers in double precision.
fn scalars(ranks: u64) -> u64 {
    2 * (ranks - 1) * 2u64.div_ceil(ranks) * 8
}

fn verbs(traffic: Traffic) -> VerbBytes {
    assert_eq!((traffic.broadcast.bytes, traffic.barrier.calls), (0, 0));
    VerbBytes {
        all_reduce: traffic.all_reduce.bytes,
        reduce_scatter: traffic.reduce_scatter.bytes,
        all_gather: traffic.all_gather.bytes,
    }
}
