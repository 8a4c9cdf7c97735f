//! Predicted traffic against hand-computed cases and the formulas of the ZeRO paper.

use terrashard_layout::{
    ElementType, LayoutConfig, ParameterSpec, ReduceType, ShardTable, Stage, StateConfig,
    StepTraffic, VerbBytes,
};

fn table(parameters: Vec<ParameterSpec>, ranks: usize, stage: Stage, persist: usize) -> ShardTable {
    let config = LayoutConfig {
        ranks,
        stage,
        persist_bytes: persist,
        bucket_bytes: None,
    };
    ShardTable::new(parameters, &config).expect("the model is valid")
}

/// Of three ranks; each rank's shard in the comments.
fn odd_table(stage: Stage, persist: usize) -> ShardTable {
    let mut frozen = ParameterSpec::new("frozen", [10], ElementType::F32);
    frozen.trainable = false;
    let mut tied = ParameterSpec::new("tied", [7, 5], ElementType::Bf16);
    tied.tied_to = Some("weight".into());
    let parameters = vec![
        ParameterSpec::new("weight", [7, 5], ElementType::Bf16), // 12 elements, 24 bytes
        ParameterSpec::new("bias", [5], ElementType::F32),       // 2 elements, 8 bytes
        ParameterSpec::new("empty", [0, 4], ElementType::F32),
        frozen, // 4 elements, 16 bytes
        tied,   // 24 bytes where it is gathered
    ];
    table(parameters, 3, stage, persist)
}

fn config(reduce: ReduceType, accumulate: usize) -> StateConfig {
    StateConfig {
        reduce,
        accumulate,
        ..StateConfig::default()
    }
}

#[track_caller]
fn check(traffic: VerbBytes, expected: [u64; 3]) {
    let got = [
        traffic.all_reduce,
        traffic.reduce_scatter,
        traffic.all_gather,
    ];
    assert_eq!(got, expected);
    assert_eq!(traffic.total(), expected.iter().sum::<u64>());
}

#[test]
fn odd_parameters_by_hand() {
    let inside = |stage, persist, reduce, accumulate| {
        let traffic = odd_table(stage, persist).step_traffic(&config(reduce, accumulate), 1);
        assert_eq!(traffic.across, VerbBytes::default());
        traffic.inside
    };
    let (compute, full) = (ReduceType::Compute, ReduceType::Full);
    // Two other ranks, shards of 24 + 8 bytes, or 48 + 8 where they are reduced in single precision.
    check(inside(Stage::Zero, 0, compute, 1), [2 * 2 * 32, 0, 0]);
    check(inside(Stage::Zero, 0, full, 3), [2 * 2 * 56, 0, 0]);
    check(inside(Stage::One, 0, compute, 3), [0, 2 * 32, 2 * 32]);
    check(inside(Stage::One, 0, full, 1), [0, 2 * 56, 2 * 32]);
    check(inside(Stage::Two, 0, compute, 1), [0, 2 * 32, 2 * 32]);
    check(inside(Stage::Two, 0, full, 3), [0, 3 * 2 * 56, 2 * 32]);
    // Gathered twice: weight, bias, the frozen one, and the weight again where it is tied.
    let uses = 24 + 8 + 16 + 24;
    check(
        inside(Stage::Three, 0, compute, 1),
        [0, 2 * 32, 2 * 2 * uses],
    );
    check(
        inside(Stage::Three, 0, full, 3),
        [0, 3 * 2 * 56, 3 * 2 * 2 * uses],
    );
    // The bias, below 21 bytes, is replicated: gathered once, after the update.
    check(
        inside(Stage::Three, 21, compute, 3),
        [0, 3 * 2 * 32, 3 * 2 * 2 * (uses - 8) + 2 * 8],
    );
}

/// What is frozen before anything that is trained is gathered for forward alone.
#[test]
fn backward_never_reaches_the_first_frozen_blocks() {
    let spec = |name: &str, trainable: bool| ParameterSpec {
        trainable,
        ..ParameterSpec::new(name, [6], ElementType::F32)
    };
    let table = table(
        vec![
            spec("a.weight", false),
            spec("a.bias", false),
            spec("b.weight", false),
            spec("b.bias", true),
            spec("c.weight", false),
        ],
        3,
        Stage::Three,
        0,
    );
    let ahead = |prefetch, overlap, blocks: &[&[&str]]| {
        let rows = |block: &&[&str]| block.iter().filter_map(|name| table.index(name)).collect();
        let config = StateConfig {
            blocks: blocks.iter().map(rows).collect(),
            prefetch,
            overlap,
            ..config(ReduceType::Compute, 2)
        };
        table.step_traffic(&config, 1).inside.all_gather
    };
    let gathered = |blocks: &[&[&str]]| ahead(0, true, blocks);
    // Two other ranks, shards of 2 elements, two micro-batches.
    let one = 2 * 2 * 2 * 4;
    let by_block: [&[&str]; 3] = [
        &["a.weight", "a.bias"],
        &["b.weight", "b.bias"],
        &["c.weight"],
    ];
    assert_eq!(gathered(&by_block), (2 + 2 * 3) * one);
    // Each by itself: the weight of b is passed by no gradient either.
    assert_eq!(gathered(&[]), (3 + 2 * 2) * one);
    // What comes before the first that is trained is gathered ahead all the same.
    assert_eq!(ahead(1, true, &by_block), 2 * 5 * one);
    assert_eq!(ahead(1, true, &[]), (2 + 2 * 3) * one);
    assert_eq!(ahead(1, false, &by_block), gathered(&by_block));
}

/// Across `M` groups, twice `M - 1` times the `M`-th part of each bucket that a rank reduced.
#[test]
fn groups_that_replicate_each_other() {
    let across = |stage, groups| {
        let compute = config(ReduceType::Compute, 3);
        let traffic = odd_table(stage, 0).step_traffic(&compute, groups);
        assert_eq!(
            traffic.inside,
            odd_table(stage, 0).step_traffic(&compute, 1).inside
        );
        assert_eq!(
            traffic.total(),
            traffic.inside.total() + traffic.across.total()
        );
        traffic.across
    };
    for stage in [Stage::One, Stage::Two, Stage::Three] {
        check(across(stage, 2), [2 * (6 * 2) + 2 * 4, 0, 0]);
        check(across(stage, 5), [8 * (3 * 2) + 8 * 4, 0, 0]);
    }
    check(across(Stage::Zero, 2), [2 * (18 * 2) + 2 * (3 * 4), 0, 0]);
}

/// `2P(N-1)/N` elements for stages 0 to 2 and `3P(N-1)/N` for stage 3; with `A` micro-batches `2P`, `(A+1)P` and `3AP`.
/// Padding adds at most one element for each parameter, other rank and time that it travels.
#[test]
fn the_papers_formulas_hold_within_padding() {
    let parameters: Vec<ParameterSpec> = (0..40)
        .map(|i| ParameterSpec::new(format!("block.{i}"), [997 + 2 * i, 1009], ElementType::Bf16))
        .collect();
    let p: usize = parameters.iter().map(ParameterSpec::numel).sum();
    for n in [1, 2, 3, 5, 8, 64] {
        for a in [1, 3] {
            let times = [2, 2, a + 1, 3 * a];
            for (stage, times) in Stage::ALL.into_iter().zip(times) {
                let traffic: StepTraffic = table(parameters.clone(), n, stage, 0)
                    .step_traffic(&config(ReduceType::Compute, a), 1);
                let elements = traffic.total() as f64 / 2.0;
                let formula = (times * p * (n - 1)) as f64 / n as f64;
                let padding = (times * parameters.len() * (n - 1)) as f64;
                assert!(
                    (formula..=formula + padding).contains(&elements),
                    "stage {stage}, {n} ranks, {a} micro-batches: {elements}, formula {formula}"
                );
            }
        }
    }
}
