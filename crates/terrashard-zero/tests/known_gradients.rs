//! What users of sharded training ran into, where one known gradient shows it: each test has its id in the catalogue of
//! such reports.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use burn::module::{Module, Param, ParamId};
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};
use terrashard_collectives::{Communicator, local};
use terrashard_layout::Stage;
use terrashard_zero::{
    Error, Initial, Offload, Optimizer, Precision, Reduction, Sgd, StateKind, StepOutcome,
    ZeroConfig, ZeroOptimizer,
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

    /// Backward of a loss whose gradient is `weight(i)` in each element of part `i`, where parts are used in this order. At stage 3
    /// they are entered in one order all the same, as entering is a call that all ranks make.
    fn backward_in(&self, order: &[usize], weight: impl Fn(usize) -> f64) -> Result<(), Error> {
        let anchor = Tensor::<1>::zeros([1], &Device::flex().autodiff());
        let is_gathered = self.optimizer.table().stage() == Stage::Three;
        let enter = |index: usize, anchor: &Tensor<1>| {
            self.optimizer.enter(&self.parts.parts[index], anchor).val()
        };
        let entered: Vec<Tensor<1>> = match is_gathered {
            true => (0..SIZES.len())
                .map(|index| enter(index, &anchor))
                .collect(),
            false => Vec::new(),
        };
        let mut loss = anchor;
        for &index in order {
            let value = match entered.get(index) {
                Some(value) => value.clone(),
                None => enter(index, &loss),
            };
            if SIZES[index] > 0 {
                loss = loss + value.sum().mul_scalar(weight(index));
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

/// How often a rank that does not use a branch contributes to it: not at all, though it enters it as all do.
#[test]
fn h3_at_stage_3_a_branch_that_all_enter_adds_up_over_those_that_use_it() {
    let results = local::run(5, |communicator| -> Result<_, Error> {
        let mut rank = Rank::new(config(Stage::Three, Reduction::Sum), communicator)?;
        let odd = rank.rank % 2 == 1;
        let used: Vec<usize> = (0..if odd { SIZES.len() } else { 6 }).collect();
        rank.backward_in(&used, |_| 0.25)?;
        rank.optimizer.step(1.0, &[])?;
        rank.values()
    });
    for values in results.unwrap() {
        moved(
            &values,
            |index| if index < 6 { 1.25 } else { 0.5 },
            "stage 3",
        );
    }
}

#[test]
fn h6_ranks_whose_backward_runs_in_another_order_train_as_one() {
    let forward: Vec<usize> = (0..SIZES.len()).collect();
    let backward: Vec<usize> = forward.iter().rev().copied().collect();
    let mixed = vec![3, 7, 0, 5, 1, 6, 2, 4];
    for stage in STAGES {
        let results = local::run(3, |communicator| -> Result<_, Error> {
            let mut rank = Rank::new(config(stage, Reduction::Sum), communicator)?;
            for _ in 0..2 {
                let order = [&forward, &backward, &mixed][rank.rank];
                rank.backward_in(order, |index| 0.5 + index as f64)?;
                rank.optimizer.step(0.5, &[])?;
            }
            rank.values()
        });
        for values in results.unwrap() {
            // Two steps at half the rate, of the gradients of three ranks.
            moved(
                &values,
                |index| 3.0 * (0.5 + index as f32),
                &format!("stage {stage}"),
            );
        }
    }
}

#[test]
fn n3_the_norm_is_the_same_where_shards_are_empty() {
    let elements: usize = SIZES.iter().sum();
    for ranks in 1..=5 {
        for stage in STAGES {
            let results = local::run(ranks, |communicator| -> Result<_, Error> {
                let config = ZeroConfig {
                    clip_norm: Some(0.5),
                    ..config(stage, Reduction::Mean)
                };
                let mut rank = Rank::new(config, communicator)?;
                rank.backward(|_| Some(2.0))?;
                rank.optimizer.step(1.0, &[])
            });
            for outcome in results.unwrap() {
                let StepOutcome::Applied { norm, clip, .. } = outcome else {
                    panic!("{outcome:?}")
                };
                let expected = 2.0 * (elements as f64).sqrt();
                let what = format!("{ranks} ranks, stage {stage}: {norm}, not {expected}");
                assert!((norm - expected).abs() < 1e-5 * expected, "{what}");
                assert!((norm * clip - 0.5).abs() < 1e-5, "{what}, times {clip}");
            }
        }
    }
}

/// Parameters of several shapes.
#[derive(Module, Debug)]
struct Shaped {
    matrix: Param<Tensor<2>>,
    /// Of a 1x1 convolution.
    kernel: Param<Tensor<4>>,
}

/// Values that differ from element to element.
fn counted<const D: usize>(shape: [usize; D], device: &Device, dtype: DType) -> Tensor<D> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| i as f32 * 0.5 + 1.0).collect();
    Tensor::from_data(TensorData::new(values, shape), (device, dtype))
}

fn shaped(matrix: DType, kernel: DType) -> Shaped {
    let device = Device::flex();
    Shaped {
        matrix: Param::initialized(ParamId::new(), counted([3, 5], &device, matrix)),
        kernel: Param::initialized(ParamId::new(), counted([4, 2, 1, 1], &device, kernel)),
    }
}

/// Trains one step on `ranks` and gives both parameters.
fn step_of(
    net: impl Fn() -> Shaped + Sync,
    precision: Precision,
    stage: Stage,
    ranks: usize,
) -> Vec<Vec<Vec<f32>>> {
    let dtype = match precision {
        Precision::Bf16 => DType::BF16,
        _ => DType::F32,
    };
    let results = local::run(ranks, |communicator| -> Result<_, Error> {
        let net = net();
        let communicator = Arc::new(communicator);
        let config = ZeroConfig {
            precision,
            ..config(stage, Reduction::Mean)
        };
        let device = Device::flex();
        let mut optimizer =
            ZeroOptimizer::new(&net, config, Initial::Module, communicator, &device)?;
        let autodiff = device.autodiff();
        let anchor = Tensor::<1>::zeros([1], (&autodiff, dtype));
        let entered = optimizer.enter(&net, &anchor);
        // The gradients of what is used transposed and permuted come back as views of that.
        let matrix = entered.matrix.val().transpose() * counted([5, 3], &autodiff, dtype);
        let kernel = entered.kernel.val().permute([3, 1, 0, 2]);
        let kernel = kernel * counted([1, 2, 4, 1], &autodiff, dtype);
        optimizer.backward(anchor + matrix.sum() + kernel.sum())?;
        optimizer.step(1.0, &[])?;
        let states = optimizer.whole_states(StateKind::Parameter)?;
        let values = states
            .into_iter()
            .map(|(_, data)| data.iter::<f32>().collect());
        Ok(values.collect())
    });
    results.unwrap()
}

/// Kernel and matrix, in the order of their names, after a step by gradients that lie as the factors do, transposed.
fn expected_step() -> Vec<Vec<f32>> {
    let value = |i: usize| i as f32 * 0.5 + 1.0;
    let kernel = (0..8).map(|i| value(i) - value(i % 2 * 4 + i / 2));
    let matrix = (0..15).map(|i| value(i) - value(i % 5 * 3 + i / 5));
    vec![kernel.collect(), matrix.collect()]
}

#[test]
fn d3_gradients_that_are_views_of_other_shapes_land_in_place() {
    for stage in STAGES {
        for ranks in 1..=3 {
            for got in step_of(
                || shaped(DType::F32, DType::F32),
                Precision::F32,
                stage,
                ranks,
            ) {
                assert_eq!(got, expected_step(), "stage {stage}, {ranks} ranks");
            }
        }
    }
}

/// The type in which all parameters are kept follows from the settings, whatever types the module comes with: as where norms
/// and head are of 32 bits and the rest of 16.
#[test]
fn d1_a_model_of_mixed_types_trains_in_one() {
    let mixed = [
        (DType::F64, DType::F32),
        (DType::BF16, DType::F32),
        (DType::F32, DType::F16),
        (DType::BF16, DType::F16),
    ];
    for stage in STAGES {
        for (matrix, kernel) in mixed {
            // All numbers are exact in 16 bits, so that both precisions take the same step.
            for precision in [Precision::F32, Precision::Bf16] {
                for got in step_of(|| shaped(matrix, kernel), precision, stage, 2) {
                    let what = format!("stage {stage}, {precision:?}: {matrix:?} and {kernel:?}");
                    assert_eq!(got, expected_step(), "{what}");
                }
            }
        }
    }
}
