//! Model states: parameters, gradients between backward and step, optimizer states, buckets.

use terrashard_layout::{RankBytes, Stage};
use terrashard_tests::counted::{Rank, state_config};
use terrashard_zero::{HeldBytes, Offload, Optimizer, Precision, ReduceDtype, Sgd, ZeroConfig};

use crate::{STAGES, ranks};

/// Odd layers of about a million parameters.
const WIDTHS: [usize; 9] = [311, 353, 397, 331, 359, 367, 349, 337, 373];

/// What is held when it is most: after backward and before the step, or before a window's last micro-batch.
#[derive(Clone, Copy, Debug)]
struct Counted {
    held: HeldBytes,
    buckets: usize,
    predicted: RankBytes,
    /// Elements of the model, and of the padding of all its shards.
    numel: usize,
    padding: usize,
}

fn count(count: usize, config: &ZeroConfig) -> Counted {
    let counted = ranks(count, |communicator| {
        let mut rank = Rank::new(&WIDTHS, config, communicator)?;
        rank.step()?;
        let before = rank.optimizer.held_bytes();
        assert_eq!((before.gradients, before.gathered), (0, 0), "{config:?}");
        rank.optimizer.take_buckets_peak();
        for _ in 0..(config.accumulate - 1).max(1) {
            rank.backward()?;
        }
        let table = rank.optimizer.table();
        let rows = table.rows().iter();
        let padding = rows.map(|row| row.shard_len(count) * count - row.numel());
        Ok(Counted {
            held: rank.optimizer.held_bytes(),
            buckets: rank.optimizer.take_buckets_peak(),
            predicted: table.rank_bytes(&state_config(config, table, &rank.chain)),
            numel: rank.chain.numel(),
            padding: padding.sum(),
        })
    });
    for other in &counted {
        assert_eq!(other.held, counted[0].held, "ranks hold the same");
    }
    counted[0]
}

impl Counted {
    fn states(&self) -> usize {
        self.held.parameters + self.held.gradients + self.held.optimizer
    }

    /// Equal to the prediction, but for the padding of whole buffers, and never less.
    fn agrees(&self, what: &str) {
        let check = |name: &str, counted: usize, predicted: u64, element: usize| {
            let over = counted as i64 - predicted as i64;
            let most = (self.padding * element) as i64;
            assert!(
                (0..=most).contains(&over),
                "{what}: {name} is off by {over}"
            );
        };
        let Self {
            held, predicted, ..
        } = *self;
        check("parameters", held.parameters, predicted.parameters, 0);
        check("gradients", held.gradients, predicted.gradients, 4);
        check("optimizer", held.optimizer, predicted.optimizer(), 16);
        check("host", held.host, predicted.host, 0);
        assert!(
            self.buckets as u64 <= predicted.buckets,
            "{what}: {} of {} bytes travel at once",
            self.buckets,
            predicted.buckets
        );
    }
}

/// As the ZeRO paper counts: 16-bit values and gradients, 12 bytes of optimizer states.
fn mixed(stage: Stage) -> ZeroConfig {
    ZeroConfig {
        stage,
        precision: Precision::Bf16,
        reduce_dtype: ReduceDtype::Compute,
        ..ZeroConfig::default()
    }
}

#[test]
fn m1_states_take_what_the_formulas_say() {
    for ranks in 1..=4 {
        let mut totals = Vec::new();
        for stage in STAGES {
            let counted = count(ranks, &mixed(stage));
            let what = format!("stage {stage}, {ranks} ranks");
            let psi = counted.numel as f64;
            let n = ranks as f64;
            let formula = match stage {
                Stage::Zero => 16.0 * psi,
                // The paper's 4 + 12 / N holds whole gradients until the step; with one micro-batch each bucket is
                // reduced as it arrives, which leaves what stage 2 holds.
                Stage::One | Stage::Two => 2.0 * psi + 14.0 * psi / n,
                Stage::Three => 16.0 * psi / n,
            };
            let over = counted.states() as f64 - formula;
            let padding = (16 * counted.padding) as f64;
            assert!(
                (-1.0..=padding).contains(&over),
                "{what}: {over} over {formula}"
            );
            if stage == Stage::One {
                let paper = 4.0 * psi + 12.0 * psi / n;
                assert!(counted.states() as f64 <= paper + padding);
                assert!(counted.held.gradients as u64 <= counted.predicted.gradients);
            } else {
                counted.agrees(&what);
            }
            assert!(
                4 * counted.buckets <= 2 * counted.numel,
                "{what}: buckets of {} bytes are more than a quarter of the model",
                counted.buckets
            );
            totals.push(counted.states() + counted.buckets);
        }
        let [zero, one, two, three] = totals[..] else {
            unreachable!("four stages")
        };
        let bucket = 1 << 16;
        assert!(one <= zero + bucket && two <= one + bucket && three <= two + bucket);
    }
}

#[test]
fn m1_the_same_table_for_the_defaults_single_precision_and_accumulation() {
    for precision in [Precision::F32, Precision::Bf16] {
        for reduce_dtype in [ReduceDtype::Full, ReduceDtype::Compute] {
            for accumulate in [1, 3] {
                for stage in STAGES {
                    let config = ZeroConfig {
                        precision,
                        reduce_dtype,
                        accumulate,
                        ema: (accumulate == 3).then_some(0.99),
                        ..mixed(stage)
                    };
                    let counted = count(2, &config);
                    let what =
                        format!("stage {stage}, {precision:?}, {reduce_dtype:?}, {accumulate}");
                    if stage == Stage::One && accumulate == 1 {
                        assert!(counted.held.gradients as u64 <= counted.predicted.gradients);
                        continue;
                    }
                    counted.agrees(&what);
                    // Micro-batches add up in single precision.
                    let element = match (accumulate, reduce_dtype) {
                        (1, ReduceDtype::Compute) if precision == Precision::Bf16 => 2,
                        _ => 4,
                    };
                    let share = if stage.shards_gradients() { 2 } else { 1 };
                    let expected = element * counted.numel / share;
                    let over = counted.held.gradients - expected;
                    assert!(over <= 4 * counted.padding, "{what}: {over}");
                }
            }
        }
    }
}

#[test]
fn offload_leaves_parameters_and_gradients_on_the_device() {
    for precision in [Precision::F32, Precision::Bf16] {
        for (stage, offload) in [
            (Stage::One, Offload::Optimizer),
            (Stage::Two, Offload::Optimizer),
            (Stage::Three, Offload::Optimizer),
            (Stage::Three, Offload::Parameters),
        ] {
            for persist_bytes in [0, 2000] {
                let config = ZeroConfig {
                    precision,
                    offload,
                    persist_bytes,
                    ema: Some(0.9),
                    ..mixed(stage)
                };
                let counted = count(3, &config);
                let what = format!("stage {stage}, {offload:?}, {precision:?}, {persist_bytes}");
                assert_eq!(counted.held.optimizer, 0, "{what}");
                if stage != Stage::One {
                    counted.agrees(&what);
                }
                if offload == Offload::Parameters && persist_bytes == 0 {
                    assert_eq!(counted.held.parameters, 0, "{what}");
                }
                assert_eq!(counted.held.host as u64, counted.predicted.host, "{what}");
            }
        }
    }
}

#[test]
fn a_part_of_the_states_is_offloaded_as_asked() {
    let config = ZeroConfig {
        offload: Offload::Optimizer,
        offload_fraction: 0.5,
        ..mixed(Stage::Two)
    };
    let counted = count(2, &config);
    // Each bucket rounds by itself.
    let slack = 12 * 16;
    let near = |got: usize, predicted: u64| got.abs_diff(predicted as usize) <= slack;
    assert!(
        near(counted.held.host, counted.predicted.host),
        "{counted:?}"
    );
    assert!(near(counted.held.optimizer, counted.predicted.optimizer()));
    assert!(near(counted.held.optimizer, counted.held.host as u64));
}

#[test]
fn other_rules_have_other_states() {
    for (momentum, states) in [(0.9, 1), (0.0, 0)] {
        let config = ZeroConfig {
            precision: Precision::F32,
            optimizer: Optimizer::Sgd(Sgd {
                momentum,
                ..Sgd::default()
            }),
            ..mixed(Stage::Three)
        };
        let counted = count(2, &config);
        counted.agrees("sgd");
        let expected = states * 4 * counted.numel / 2;
        assert!(counted.held.optimizer - expected <= 4 * counted.padding);
    }
}

#[test]
fn m2_a_larger_bucket_costs_no_more_than_its_buffers() {
    for stage in [Stage::One, Stage::Two] {
        for bytes in [1 << 20, 4 << 20, 64 << 20] {
            let config = ZeroConfig {
                bucket_bytes: Some(bytes),
                ..mixed(stage)
            };
            let counted = count(2, &config);
            let gradients = 2 * (counted.numel + counted.padding);
            assert!(counted.buckets <= (2 * bytes).min(gradients), "{counted:?}");
        }
    }
}

#[test]
fn gathered_parameters_are_counted_and_few_at_once() {
    for prefetch in 0..=2 {
        let config = ZeroConfig {
            prefetch,
            ..mixed(Stage::Three)
        };
        ranks(2, |communicator| {
            let mut rank = Rank::new(&WIDTHS, &config, communicator)?;
            rank.step()?;
            let table = rank.optimizer.table();
            let blocks = state_config(&config, table, &rank.chain).blocks;
            let bytes = |block: Vec<usize>| {
                let rows = block.into_iter().map(|row| table.rows()[row].shard_len(2));
                2 * 2 * rows.sum::<usize>()
            };
            let blocks: Vec<usize> = blocks.into_iter().map(bytes).collect();
            // The block in use and those that are gathered ahead of it.
            let together = blocks
                .windows(1 + prefetch)
                .map(|blocks| blocks.iter().sum());
            assert_eq!(Some(rank.optimizer.take_gathered_peak()), together.max());
            assert_eq!(rank.optimizer.gathered_bytes(), 0);
            Ok(())
        });
    }
}
