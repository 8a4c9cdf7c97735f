//! Predicted bytes against the formulas of the ZeRO paper and hand-computed cases.

use terrashard_layout::{
    ElementType, LayoutConfig, Offload, ParameterSpec, RankBytes, ReduceType, ShardTable, Stage,
    StateConfig,
};

fn memory(
    parameters: &[ParameterSpec],
    ranks: usize,
    stage: Stage,
    persist_bytes: usize,
) -> RankBytes {
    let config = LayoutConfig {
        ranks,
        stage,
        persist_bytes,
        bucket_bytes: None,
    };
    ShardTable::new(parameters.to_vec(), &config)
        .expect("the model is valid")
        .memory()
}

/// Where nothing is padded, states are the paper's `16P`, `4P + 12P/N`, `2P + 14P/N`, `16P/N` for 16-bit
/// parameters, and `16P`, `8P + 8P/N`, `4P + 12P/N`, `16P/N` for f32.
#[test]
fn the_papers_formulas_hold_without_padding() {
    let p: u64 = 64 * 64 + 64 * 9;
    for ranks in [1, 2, 4, 8, 64] {
        let n = ranks as u64;
        let check = |dtype, expected: [u64; 4]| {
            let parameters = [[64usize, 64], [64, 9]]
                .map(|shape| ParameterSpec::new(format!("{shape:?}"), shape, dtype));
            let states = Stage::ALL.map(|stage| memory(&parameters, ranks, stage, 0).states());
            assert_eq!(states, expected, "{dtype} on {ranks} ranks");
        };
        for dtype in [ElementType::Bf16, ElementType::F16] {
            check(
                dtype,
                [16 * p, 4 * p + 12 * p / n, 2 * p + 14 * p / n, 16 * p / n],
            );
        }
        check(
            ElementType::F32,
            [16 * p, 8 * p + 8 * p / n, 4 * p + 12 * p / n, 16 * p / n],
        );
        check(
            ElementType::F64,
            [32 * p, 16 * p + 16 * p / n, 8 * p + 24 * p / n, 32 * p / n],
        );
    }
}

/// The paper's example: 7.5 billion parameters on 64 ranks take 120, 31.4, 16.6 and 1.9 GB.
#[test]
fn the_papers_example() {
    let parameters = [ParameterSpec::new(
        "all",
        [7500, 1000, 1000],
        ElementType::F16,
    )];
    let gigabytes = Stage::ALL.map(|stage| memory(&parameters, 64, stage, 0).states() as f64 / 1e9);
    for (got, expected) in gigabytes.iter().zip([120.0, 31.4, 16.6, 1.9]) {
        assert!((got - expected).abs() < 0.05, "{gigabytes:?}");
    }
}

/// Five parameters, of 3 ranks: with the elements of each rank's shard in the comments.
fn odd_model() -> [ParameterSpec; 5] {
    let mut frozen = ParameterSpec::new("frozen", [10], ElementType::F32);
    frozen.trainable = false;
    let mut tied = ParameterSpec::new("tied", [7, 5], ElementType::Bf16);
    tied.tied_to = Some("weight".into());
    [
        ParameterSpec::new("weight", [7, 5], ElementType::Bf16), // 35 elements, 12 on each of 3 ranks
        ParameterSpec::new("bias", [5], ElementType::F32),       // 5 elements, 2 on each
        ParameterSpec::new("empty", [0, 4], ElementType::F32),
        frozen, // 10 elements, 4 on each
        tied,
    ]
}

#[test]
fn odd_parameters_by_hand() {
    let parameters = odd_model();
    let whole = (2 * 35, 4 * 5, 4 * 10);
    let shard = (2 * 12, 4 * 2, 4 * 4);
    let states = |bytes: RankBytes| {
        [
            bytes.parameters,
            bytes.gradients,
            bytes.master,
            bytes.momentum,
            bytes.variance,
            bytes.gathered,
        ]
    };
    let check = |stage, persist, expected| {
        assert_eq!(states(memory(&parameters, 3, stage, persist)), expected)
    };
    let (parameter, gradient) = (whole.0 + whole.1 + whole.2, whole.0 + whole.1);
    check(
        Stage::Zero,
        0,
        [parameter, gradient, 4 * 35, 4 * 40, 4 * 40, 0],
    );
    check(
        Stage::One,
        0,
        [parameter, gradient, 4 * 12, 4 * 14, 4 * 14, 0],
    );
    check(
        Stage::Two,
        0,
        [parameter, shard.0 + shard.1, 4 * 12, 4 * 14, 4 * 14, 0],
    );
    let sharded = shard.0 + shard.1 + shard.2;
    check(
        Stage::Three,
        0,
        [sharded, shard.0 + shard.1, 4 * 12, 4 * 14, 4 * 14, 2 * 36],
    );
    // The bias is below 21 bytes and stays whole; its gradient and states are sharded all the same.
    let kept = shard.0 + whole.1 + shard.2;
    check(
        Stage::Three,
        21,
        [kept, shard.0 + shard.1, 4 * 12, 4 * 14, 4 * 14, 2 * 36],
    );

    // Two buckets, both of which may be on their way: of the weight, 36 padded elements and the 12 that come out, of
    // 2 bytes; of the bias, 6 and 2 of 4 bytes.
    let bytes = memory(&parameters, 3, Stage::Two, 0);
    assert_eq!(bytes.buckets, 2 * (36 + 12) + 4 * (6 + 2));
    assert_eq!(bytes.total(), bytes.states() + bytes.buckets);
}

fn odd_table(stage: Stage, persist_bytes: usize) -> ShardTable {
    let config = LayoutConfig {
        ranks: 3,
        stage,
        persist_bytes,
        bucket_bytes: None,
    };
    ShardTable::new(odd_model().to_vec(), &config).expect("the model is valid")
}

/// Gradients are held in the type in which they are reduced, and in single precision where micro-batches add up.
#[test]
fn gradients_by_type_and_accumulation() {
    let check = |stage, reduce, accumulate, expected| {
        let config = StateConfig {
            reduce,
            accumulate,
            ..StateConfig::default()
        };
        let bytes = odd_table(stage, 0).rank_bytes(&config);
        assert_eq!(bytes.gradients, expected, "{stage} {reduce:?} {accumulate}");
    };
    check(Stage::Zero, ReduceType::Compute, 1, 2 * 35 + 4 * 5);
    check(Stage::Zero, ReduceType::Full, 1, 4 * 35 + 4 * 5);
    check(Stage::One, ReduceType::Compute, 3, 4 * 35 + 4 * 5);
    check(Stage::Two, ReduceType::Compute, 1, 2 * 12 + 4 * 2);
    check(Stage::Two, ReduceType::Full, 3, 4 * 12 + 4 * 2);
    check(Stage::Three, ReduceType::Full, 1, 4 * 12 + 4 * 2);

    let full = StateConfig {
        reduce: ReduceType::Full,
        ..StateConfig::default()
    };
    let buckets = odd_table(Stage::Two, 0).rank_bytes(&full).buckets;
    assert_eq!(buckets, 4 * (36 + 12) + 4 * (6 + 2));
}

#[test]
fn moments_and_averages_by_optimizer() {
    let optimizer = |moments, ema| {
        let config = StateConfig {
            moments,
            ema,
            ..StateConfig::default()
        };
        let bytes = odd_table(Stage::One, 0).rank_bytes(&config);
        [bytes.master, bytes.momentum, bytes.variance, bytes.ema]
    };
    // The weight has 12 elements on a rank and the bias 2; only the weight, of 16 bits, has a master copy.
    assert_eq!(optimizer(2, true), [48, 56, 56, 56]);
    assert_eq!(optimizer(2, false), [48, 56, 56, 0]);
    assert_eq!(optimizer(1, false), [48, 56, 0, 0]);
    assert_eq!(optimizer(0, false), [48, 0, 0, 0]);
}

#[test]
fn offloaded_states_by_hand() {
    let bytes = |stage, persist, offload, offload_fraction, ema| {
        let config = StateConfig {
            offload,
            offload_fraction,
            ema,
            ..StateConfig::default()
        };
        let bytes = odd_table(stage, persist).rank_bytes(&config);
        [bytes.parameters, bytes.optimizer(), bytes.host]
    };
    let whole = 2 * 35 + 4 * 5 + 4 * 10;
    // Master, m and v of 12 + 2 elements; the bias has a master copy too, beside its value on the device.
    let optimizer = Offload::Optimizer;
    assert_eq!(
        bytes(Stage::Two, 0, optimizer, 1.0, false),
        [whole, 0, 12 * 14]
    );
    assert_eq!(
        bytes(Stage::Two, 0, optimizer, 1.0, true),
        [whole, 0, 16 * 14]
    );
    // A half: 6 + 1 elements stay, of which the bias has no master copy.
    assert_eq!(
        bytes(Stage::Two, 0, optimizer, 0.5, false),
        [whole, 12 * 6 + 8, 12 * 7]
    );
    assert_eq!(
        bytes(Stage::Two, 0, optimizer, 0.0, false),
        [whole, 12 * 12 + 8 * 2, 0]
    );
    // Shards of weight, bias and the frozen one move, and the bias is its own master copy.
    let (parameters, shards) = (Offload::Parameters, 2 * 12 + 4 * 2 + 4 * 4);
    assert_eq!(
        bytes(Stage::Three, 0, parameters, 1.0, false),
        [0, 0, shards + 12 * 12 + 8 * 2]
    );
    // The bias stays whole on the device, where it is its own master copy.
    assert_eq!(
        bytes(Stage::Three, 21, parameters, 1.0, false),
        [20, 0, shards - 4 * 2 + 12 * 12 + 8 * 2]
    );
}

/// Padded to 3 ranks the weight takes 72 bytes, the bias 24, the frozen one 48, the tied one 72.
#[test]
fn what_is_gathered_at_once() {
    let table = odd_table(Stage::Three, 0);
    let row = |name| table.index(name).expect("a parameter");
    let pair = [
        vec![row("weight"), row("bias")],
        vec![row("frozen"), row("tied")],
    ];
    let check = |blocks: &[Vec<usize>], prefetch, expected| {
        let config = StateConfig {
            blocks: blocks.to_vec(),
            prefetch,
            ..StateConfig::default()
        };
        assert_eq!(table.rank_bytes(&config).gathered, expected);
    };
    check(&[], 0, 72);
    check(&[], 1, 48 + 72);
    check(&[], 2, 48 + 72);
    check(&pair, 0, 48 + 72);
    check(&pair, 1, 72 + 24 + 48 + 72);
    check(&pair, 2, 72 + 24 + 48 + 72);
    let config = StateConfig {
        blocks: pair.to_vec(),
        ..StateConfig::default()
    };
    assert_eq!(
        odd_table(Stage::Three, 21).rank_bytes(&config).gathered,
        48 + 72
    );
    assert_eq!(odd_table(Stage::Two, 0).rank_bytes(&config).gathered, 0);
}

#[test]
fn without_overlap_one_thing_at_a_time() {
    let table = odd_table(Stage::Three, 0);
    let bytes = |overlap, prefetch| {
        let bytes = table.rank_bytes(&StateConfig {
            overlap,
            prefetch,
            ..StateConfig::default()
        });
        (bytes.buckets, bytes.gathered)
    };
    assert_eq!(bytes(true, 1).1, 48 + 72);
    assert_eq!(bytes(false, 1), bytes(false, 0));
    assert_eq!(bytes(false, 0).1, 72);
    // Two buckets, one for each element type, of 12 and 2 elements a rank in the types of their values.
    let (bf16, f32) = ((3 * 12 + 12) * 2, (3 * 2 + 2) * 4);
    assert_eq!((bytes(true, 0).0, bytes(false, 0).0), (bf16 + f32, bf16));
}

#[test]
fn the_share_that_stays_whole() {
    // 5 of the 50 elements that are nobody else's.
    assert_eq!(odd_table(Stage::Three, 21).replicated_share(), 0.1);
    assert_eq!(odd_table(Stage::Three, 0).replicated_share(), 0.0);
    assert_eq!(odd_table(Stage::Two, 21).replicated_share(), 0.0);
}
