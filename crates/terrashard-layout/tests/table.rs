//! Properties of the shard table over many models and rank counts, and its errors.

use std::collections::BTreeSet;

use terrashard_layout::{
    ElementType, Error, LayoutConfig, ParameterSpec, Residence, ShardTable, Stage, counter,
};

const TYPES: [ElementType; 4] = [
    ElementType::F32,
    ElementType::F64,
    ElementType::Bf16,
    ElementType::F16,
];

fn config(ranks: usize, stage: Stage) -> LayoutConfig {
    LayoutConfig {
        ranks,
        stage,
        ..LayoutConfig::default()
    }
}

fn spec(name: &str, shape: &[usize]) -> ParameterSpec {
    ParameterSpec::new(name, shape, ElementType::F32)
}

/// A random model: odd, empty, scalar, frozen and tied parameters of several groups and element types, whose
/// declared order is not that of their names.
fn model(seed: u64) -> Vec<ParameterSpec> {
    let draw = counter::Stream::new(seed, "model");
    let mut index = 0;
    let mut below = |bound: u64| {
        index += 1;
        draw.below(index, bound) as usize
    };
    let shapes: [&[usize]; 9] = [
        &[],
        &[0, 4],
        &[1],
        &[2],
        &[7, 5],
        &[3, 8, 3, 3],
        &[64],
        &[129, 33],
        &[1000, 17],
    ];
    let mut parameters: Vec<ParameterSpec> = Vec::new();
    for position in 0..40 {
        let name = format!("block{}.{position}", below(10));
        let untied: Vec<ParameterSpec> = parameters
            .iter()
            .filter(|p| p.tied_to.is_none())
            .cloned()
            .collect();
        if position > 4 && below(8) == 0 {
            let owner = untied[below(untied.len() as u64)].clone();
            parameters.push(ParameterSpec {
                name,
                tied_to: Some(owner.name.clone()),
                ..owner
            });
        } else {
            let mut parameter = ParameterSpec::new(name, shapes[below(9)], TYPES[below(4)]);
            parameter.group = below(2);
            parameter.trainable = below(6) != 0;
            parameters.push(parameter);
        }
    }
    parameters
}

#[test]
fn intervals_are_disjoint_and_cover_each_parameter() {
    for numel in [0, 1, 2, 3, 7, 8, 35, 1000, 1001] {
        for ranks in 1..=8 {
            let table =
                ShardTable::new(vec![spec("w", &[numel])], &config(ranks, Stage::Two)).unwrap();
            let row = &table.rows()[0];
            let mut next = 0;
            for rank in 0..ranks {
                let interval = row.interval(rank, ranks);
                assert_eq!(
                    interval.start, next,
                    "{numel} elements, rank {rank} of {ranks}"
                );
                assert!(interval.len() <= row.shard_len(ranks));
                next = interval.end;
            }
            assert_eq!(next, numel);
            assert!(
                row.shard_len(ranks) * ranks < numel + ranks,
                "no more padding than needed"
            );
        }
    }
}

#[test]
fn intervals_at_hand_computed_places() {
    let table = ShardTable::new(vec![spec("w", &[7, 5])], &config(4, Stage::Two)).unwrap();
    let intervals = [0, 1, 2, 3].map(|rank| table.rows()[0].interval(rank, 4));
    assert_eq!(intervals, [0..9, 9..18, 18..27, 27..35]);
    // Fewer elements than ranks: the last ranks own nothing.
    let table = ShardTable::new(vec![spec("w", &[5])], &config(4, Stage::Two)).unwrap();
    let intervals = [0, 1, 2, 3].map(|rank| table.rows()[0].interval(rank, 4));
    assert_eq!(intervals, [0..2, 2..4, 4..5, 5..5]);
}

#[test]
fn buckets_hold_each_reduced_parameter_once_within_bounds() {
    for seed in 0..60 {
        for (ranks, bucket_bytes) in [
            (1, None),
            (2, Some(0)),
            (3, Some(5000)),
            (5, Some(100_000)),
            (8, None),
        ] {
            let config = LayoutConfig {
                ranks,
                bucket_bytes,
                ..LayoutConfig::default()
            };
            let table = ShardTable::new(model(seed), &config).unwrap();
            let mut seen = BTreeSet::new();
            for bucket in table.buckets() {
                let mut offset = 0;
                for piece in &bucket.pieces {
                    let row = &table.rows()[piece.row];
                    assert!(
                        seen.insert(piece.row),
                        "{} is in two buckets",
                        row.parameter.name
                    );
                    assert_eq!(
                        (row.parameter.group, row.parameter.dtype),
                        (bucket.group, bucket.dtype)
                    );
                    assert_eq!((piece.offset, piece.len), (offset, row.shard_len(ranks)));
                    offset += piece.len;
                }
                assert_eq!(bucket.chunk, offset);
                let fits = bucket.bytes(ranks) <= table.bucket_bytes();
                assert!(
                    fits || bucket.pieces.len() == 1,
                    "{} bytes",
                    bucket.bytes(ranks)
                );
            }
            let reduced = |index: &usize| {
                let parameter = &table.rows()[*index].parameter;
                parameter.trainable && parameter.tied_to.is_none() && parameter.numel() > 0
            };
            assert_eq!(seen, (0..table.rows().len()).filter(reduced).collect());
        }
    }
}

/// Walks backward through the forward positions as backward does, and asks for each bucket as early as it is full.
#[test]
fn buckets_leave_in_the_order_in_which_backward_completes_them() {
    for seed in 0..60 {
        let config = LayoutConfig {
            ranks: 3,
            bucket_bytes: Some(20_000),
            ..LayoutConfig::default()
        };
        let table = ShardTable::new(model(seed), &config).unwrap();
        let first_use = |index: usize| {
            let row = &table.rows()[index];
            let ties = table
                .rows()
                .iter()
                .filter(|tied| tied.parameter.tied_to.as_ref() == Some(&row.parameter.name));
            ties.map(|tied| tied.order)
                .chain([row.order])
                .min()
                .unwrap()
        };
        let mut launched = Vec::new();
        for position in (0..table.rows().len()).rev() {
            for (index, bucket) in table.buckets().iter().enumerate() {
                let complete = bucket
                    .pieces
                    .iter()
                    .all(|piece| first_use(piece.row) >= position);
                if complete && !launched.contains(&index) {
                    launched.push(index);
                }
            }
        }
        assert_eq!(launched, (0..table.buckets().len()).collect::<Vec<_>>());
        for bucket in table.buckets() {
            let positions: Vec<usize> = bucket
                .pieces
                .iter()
                .map(|piece| first_use(piece.row))
                .collect();
            assert!(positions.is_sorted_by(|a, b| a >= b), "{positions:?}");
        }
    }
}

#[test]
fn a_bucket_laid_out_by_hand() {
    // Declared a (5 elements), b (35), c (2) on 2 ranks: backward completes c, b, a.
    let parameters = vec![spec("z.a", &[5]), spec("y.b", &[7, 5]), spec("x.c", &[2])];
    let config = LayoutConfig {
        bucket_bytes: Some(2 * 19 * 4),
        ..config(2, Stage::One)
    };
    let table = ShardTable::new(parameters, &config).unwrap();
    let names: Vec<&str> = table
        .rows()
        .iter()
        .map(|row| row.parameter.name.as_str())
        .collect();
    assert_eq!(names, ["x.c", "y.b", "z.a"]);
    let layout: Vec<Vec<(usize, usize, usize)>> = table
        .buckets()
        .iter()
        .map(|bucket| {
            bucket
                .pieces
                .iter()
                .map(|piece| (piece.row, piece.offset, piece.len))
                .collect()
        })
        .collect();
    assert_eq!(layout, [vec![(0, 0, 1), (1, 1, 18)], vec![(2, 0, 3)]]);
    let bucket = &table.buckets()[0];
    assert_eq!((bucket.chunk, bucket.flat_len(2)), (19, 38));
    assert_eq!(bucket.flat_range(&bucket.pieces[1], 1), 20..38);
}

#[test]
fn derived_bucket_sizes() {
    let check = |elements: &[usize], expected| {
        let parameters = elements
            .iter()
            .enumerate()
            .map(|(i, &n)| spec(&format!("p{i}"), &[n]))
            .collect();
        assert_eq!(
            ShardTable::new(parameters, &config(2, Stage::Two))
                .unwrap()
                .bucket_bytes(),
            expected
        );
    };
    check(&[100], 100);
    check(&[], 0);
    // 4 MB: an eighth is below 1 MiB, which is more than a quarter.
    check(&[1_000_000], 1_000_000);
    // 24 MB: an eighth is 3 MB.
    check(&[6_000_000], 3_000_000);
    check(&[300_000_000], 64 << 20);
}

#[test]
fn stage_three_keeps_small_values_whole() {
    let parameters = vec![
        spec("small", &[9]),
        spec("limit", &[10]),
        spec("large", &[400]),
    ];
    for (stage, whole) in [
        (Stage::Three, ["small"].as_slice()),
        (Stage::Two, &["large", "limit", "small"]),
    ] {
        let config = LayoutConfig {
            persist_bytes: 40,
            ..config(2, stage)
        };
        let table = ShardTable::new(parameters.clone(), &config).unwrap();
        let kept: Vec<&str> = table
            .rows()
            .iter()
            .filter(|row| table.keeps_whole(row))
            .map(|row| row.parameter.name.as_str())
            .collect();
        assert_eq!(kept, whole);
        assert_eq!(
            table.row("small").unwrap().replicated,
            stage == Stage::Three
        );
        assert_eq!(
            table
                .buckets()
                .iter()
                .map(|bucket| bucket.pieces.len())
                .sum::<usize>(),
            3
        );
    }
}

/// What is whole is gathered once, after the update, and what is a shard at each use: a bucket holds one of the two.
#[test]
fn buckets_never_mix_replicated_and_sharded_values() {
    let parameters = || {
        (0..6)
            .map(|i| spec(&format!("p{i}"), &[if i % 2 == 0 { 4 } else { 400 }]))
            .collect()
    };
    let buckets = |stage, persist_bytes| {
        let config = LayoutConfig {
            persist_bytes,
            bucket_bytes: Some(1 << 20),
            ..config(2, stage)
        };
        let table = ShardTable::new(parameters(), &config).unwrap();
        let buckets = table.buckets().iter();
        buckets
            .map(|bucket| {
                let rows = bucket.pieces.iter().map(|piece| &table.rows()[piece.row]);
                assert!(
                    rows.clone()
                        .all(|row| table.residence(row) == bucket.residence)
                );
                let names = rows.map(|row| row.parameter.name.clone()).collect();
                (bucket.residence, names)
            })
            .collect::<Vec<(Residence, Vec<String>)>>()
    };
    let all = ["p5", "p4", "p3", "p2", "p1", "p0"].map(String::from);
    assert_eq!(buckets(Stage::Two, 100), [(Residence::Whole, all.to_vec())]);
    assert_eq!(buckets(Stage::Three, 0), [(Residence::Shard, all.to_vec())]);
    let (small, large) = (["p4", "p2", "p0"], ["p5", "p3", "p1"]);
    assert_eq!(
        buckets(Stage::Three, 100),
        [
            (Residence::Shard, large.map(String::from).to_vec()),
            (Residence::Whole, small.map(String::from).to_vec()),
        ]
    );
}

#[test]
fn the_hash_sees_everything() {
    let mut tied = spec("b", &[2, 3]);
    tied.tied_to = Some("a".into());
    let base = vec![spec("a", &[2, 3]), tied, spec("c", &[4])];
    let settings = config(2, Stage::Two);
    let hash = |parameters: &[ParameterSpec], config: &LayoutConfig| {
        ShardTable::new(parameters.to_vec(), config).unwrap().hash()
    };
    assert_eq!(hash(&base, &settings), hash(&base, &settings));

    let edit = |change: fn(&mut Vec<ParameterSpec>)| {
        let mut parameters = base.clone();
        change(&mut parameters);
        hash(&parameters, &settings)
    };
    let hashes = [
        hash(&base, &settings),
        edit(|p| p[2].name = "d".into()),
        edit(|p| p[2].shape = vec![4, 1]),
        edit(|p| p[2].shape = vec![5]),
        edit(|p| p[2].dtype = ElementType::F16),
        edit(|p| p[2].group = 1),
        edit(|p| p[2].trainable = false),
        edit(|p| p[1].tied_to = None),
        edit(|p| p.swap(0, 2)),
        edit(|p| p.truncate(2)),
        hash(&base, &config(3, Stage::Two)),
        hash(&base, &config(2, Stage::One)),
        hash(
            &base,
            &LayoutConfig {
                persist_bytes: 1,
                ..settings
            },
        ),
        hash(
            &base,
            &LayoutConfig {
                bucket_bytes: Some(1),
                ..settings
            },
        ),
    ];
    assert_eq!(hashes.iter().collect::<BTreeSet<_>>().len(), hashes.len());
}

#[test]
fn rows_are_found_by_name() {
    let table = ShardTable::new(model(3), &config(4, Stage::Three)).unwrap();
    for (index, row) in table.rows().iter().enumerate() {
        assert_eq!(table.index(&row.parameter.name), Some(index));
        assert_eq!(table.row(&row.parameter.name), Some(row));
    }
    assert_eq!(table.index("nothing"), None);
}

#[test]
fn wrong_models_are_refused_with_the_name() {
    let check = |parameters: Vec<ParameterSpec>, ranks, expected: &str| {
        let error = ShardTable::new(parameters, &config(ranks, Stage::One)).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    let tie = |name: &str, shape: &[usize], owner: &str| ParameterSpec {
        tied_to: Some(owner.into()),
        ..spec(name, shape)
    };
    check(
        vec![spec("a", &[1])],
        0,
        "a run needs at least one rank, got 0: set `ranks` to 1 or more",
    );
    check(
        vec![spec("a", &[1]), spec("b", &[1]), spec("a", &[2])],
        2,
        "parameter `a` is declared twice: give every parameter a name of its own",
    );
    check(
        vec![tie("a", &[1], "b")],
        2,
        "parameter `a` is tied to `b`, which is no parameter of the model",
    );
    let of_tie = "which is tied as well: name the parameter that holds the values";
    check(
        vec![tie("a", &[1], "a")],
        2,
        &format!("parameter `a` is tied to `a`, {of_tie}"),
    );
    let chain = vec![spec("a", &[1]), tie("b", &[1], "a"), tie("c", &[1], "b")];
    check(chain, 2, &format!("parameter `c` is tied to `b`, {of_tie}"));
    check(
        vec![spec("a", &[2, 3]), tie("b", &[6], "a")],
        2,
        "parameter `b` is tied to `a` but differs in shape: expected [2, 3], got [6]",
    );
    let half = ParameterSpec {
        dtype: ElementType::F16,
        ..tie("b", &[1], "a")
    };
    check(
        vec![spec("a", &[1]), half],
        2,
        "parameter `b` is tied to `a` but differs in element type: expected f32, got f16",
    );
    let huge = vec![usize::MAX, 2];
    let error = ShardTable::new(vec![spec("a", &huge)], &config(2, Stage::One)).unwrap_err();
    assert_eq!(
        error,
        Error::TooLarge {
            name: "a".into(),
            shape: huge
        }
    );
    assert_eq!(Stage::try_from(4), Err(Error::StageOutOfRange { got: 4 }));
}
