//! Predicted bytes against the formulas of the ZeRO paper and hand-computed cases.

use terrashard_layout::{ElementType, LayoutConfig, ParameterSpec, RankBytes, ShardTable, Stage};

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

#[test]
fn odd_parameters_by_hand() {
    let mut frozen = ParameterSpec::new("frozen", [10], ElementType::F32);
    frozen.trainable = false;
    let mut tied = ParameterSpec::new("tied", [7, 5], ElementType::Bf16);
    tied.tied_to = Some("weight".into());
    let parameters = [
        ParameterSpec::new("weight", [7, 5], ElementType::Bf16), // 35 elements, 12 on each of 3 ranks
        ParameterSpec::new("bias", [5], ElementType::F32),       // 5 elements, 2 on each
        ParameterSpec::new("empty", [0, 4], ElementType::F32),
        frozen, // 10 elements, 4 on each
        tied,
    ];
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

    // The largest bucket is that of the weight: 36 padded elements and the 12 that come out, of 2 bytes.
    let bytes = memory(&parameters, 3, Stage::Two, 0);
    assert_eq!(bytes.buckets, 2 * (36 + 12));
    assert_eq!(bytes.total(), bytes.states() + bytes.buckets);
}
