//! What users of sharded training ran into, where one known gradient shows it: each test has its id in the catalogue of
//! such reports.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Shape, Tensor};
use terrashard_collectives::{Communicator, local};
use terrashard_layout::Stage;
use terrashard_zero::{
    Error, Initial, Offload, Optimizer, Reduction, Sgd, StateKind, ZeroConfig, ZeroOptimizer,
};

const STAGES: [Stage; 4] = [Stage::Zero, Stage::One, Stage::Two, Stage::Three];
const SIZES: [usize; 8] = [0, 1, 2, 3, 5, 7, 31, 1025];

/// Vectors of all sizes.
#[derive(Module, Debug)]
struct Parts {
    parts: Vec<Param<Tensor<1>>>,
}

fn part(size: usize) -> Param<Tensor<1>> {
    let init = move |device: &Device, _: bool| Tensor::zeros([size], device);
    let shape = Shape::from([size]);
    Param::uninitialized(ParamId::new(), init, Device::flex(), true, shape)
}

/// First values, exact in any float type.
fn initial(_name: &str, shape: &[usize]) -> Vec<f32> {
    (0..shape[0])
        .map(|i| (i % 64) as f32 * 0.25 - 3.0)
        .collect()
}

struct Rank {
    parts: Parts,
    optimizer: ZeroOptimizer,
    rank: usize,
}

impl Rank {
    fn new(config: ZeroConfig, communicator: impl Communicator + 'static) -> Result<Self, Error> {
        let parts = Parts {
            parts: SIZES.map(part).into(),
        };
        let rank = communicator.rank();
        let first = Initial::Keyed(&initial);
        let communicator = Arc::new(communicator);
        let optimizer = ZeroOptimizer::new(&parts, config, first, communicator, &Device::flex())?;
        Ok(Self {
            parts,
            optimizer,
            rank,
        })
    }

    /// Backward of a loss whose gradient is `weight(i)` in each element of part `i`; parts without a weight are not
    /// entered.
    fn backward(&self, weight: impl Fn(usize) -> Option<f64>) -> Result<(), Error> {
        let anchor = Tensor::<1>::zeros([1], &Device::flex().autodiff());
        let mut loss = anchor.clone();
        for (index, part) in self.parts.parts.iter().enumerate() {
            if let Some(weight) = weight(index) {
                let value = self.optimizer.enter(part, &anchor).val();
                if SIZES[index] > 0 {
                    loss = loss + value.sum().mul_scalar(weight);
                }
            }
        }
        self.optimizer.backward(loss)
    }

    fn values(&self) -> Result<Vec<Vec<f32>>, Error> {
        let states = self.optimizer.whole_states(StateKind::Parameter)?;
        let values = |index: usize| {
            let name = format!("parts.{index}");
            let (_, data) = states.iter().find(|(found, _)| *found == name).unwrap();
            data.clone().try_to_vec::<f32>().unwrap()
        };
        Ok((0..SIZES.len()).map(values).collect())
    }
}

fn config(stage: Stage, reduction: Reduction) -> ZeroConfig {
    ZeroConfig {
        stage,
        reduction,
        optimizer: Optimizer::Sgd(Sgd {
            momentum: 0.0,
            ..Sgd::default()
        }),
        bucket_bytes: Some(64),
        ..ZeroConfig::default()
    }
}

/// Every element of part `i` has moved by `-moved(i)`.
fn moved(values: &[Vec<f32>], moved: impl Fn(usize) -> f32, what: &str) {
    for (index, values) in values.iter().enumerate() {
        assert_eq!(values.len(), SIZES[index], "{what}");
        let expected = initial("", &[SIZES[index]])
            .into_iter()
            .map(|p| p - moved(index));
        assert!(values.iter().copied().eq(expected), "{what}: part {index}");
    }
}

#[test]
fn d4_n12_parameters_of_every_size_on_every_rank_count_take_an_exact_step() {
    for ranks in 1..=5 {
        for stage in STAGES {
            for offload in [Offload::None, Offload::Optimizer] {
                if stage == Stage::Zero && offload != Offload::None {
                    continue;
                }
                let results = local::run(ranks, |communicator| -> Result<_, Error> {
                    let config = ZeroConfig {
                        accumulate: 4,
                        offload,
                        ..config(stage, Reduction::Mean)
                    };
                    let mut rank = Rank::new(config, communicator)?;
                    // A constant gradient of one, however many micro-batches and ranks have it.
                    for _ in 0..4 {
                        rank.backward(|_| Some(1.0))?;
                    }
                    rank.optimizer.step(1.0, &[])?;
                    rank.values()
                });
                for values in results.unwrap() {
                    moved(&values, |_| 1.0, &format!("{ranks} ranks, stage {stage}"));
                }
            }
        }
    }
}

#[test]
fn n10_the_mean_is_over_all_ranks_also_where_one_alone_uses_a_parameter() {
    for stage in STAGES {
        let results = local::run(4, |communicator| -> Result<_, Error> {
            let mut rank = Rank::new(config(stage, Reduction::Mean), communicator)?;
            let alone = rank.rank == 2;
            rank.backward(|index| match (index % 2, alone) {
                (0, _) | (_, true) => Some(2.0),
                // At stage 3, entering is a call that all ranks make.
                _ => (stage == Stage::Three).then_some(0.0),
            })?;
            rank.optimizer.step(1.0, &[])?;
            rank.values()
        });
        for values in results.unwrap() {
            moved(
                &values,
                |index| if index % 2 == 0 { 2.0 } else { 0.5 },
                &format!("stage {stage}"),
            );
        }
    }
}

#[test]
fn h3_a_branch_of_some_ranks_adds_up_over_those_that_use_it() {
    for stage in [Stage::Zero, Stage::One, Stage::Two] {
        let results = local::run(5, |communicator| -> Result<_, Error> {
            let mut rank = Rank::new(config(stage, Reduction::Sum), communicator)?;
            let odd = rank.rank % 2 == 1;
            rank.backward(|index| (index < 6 || odd).then_some(0.25))?;
            rank.optimizer.step(1.0, &[])?;
            rank.values()
        });
        for values in results.unwrap() {
            moved(
                &values,
                |index| if index < 6 { 1.25 } else { 0.5 },
                &format!("stage {stage}"),
            );
        }
    }
}

#[test]
fn h3_at_stage_3_ranks_that_leave_a_block_out_are_refused_at_once() {
    let results = local::run(2, |communicator| -> Result<_, Error> {
        let rank = Rank::new(config(Stage::Three, Reduction::Sum), communicator)?;
        let odd = rank.rank == 1;
        let failed = rank.backward(|index| (index != 5 || odd).then_some(1.0));
        assert!(
            matches!(failed, Err(Error::Collective { .. })),
            "{failed:?}"
        );
        Ok(())
    });
    results.unwrap();
}
