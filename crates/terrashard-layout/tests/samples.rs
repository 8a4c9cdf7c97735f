//! The sample order and the windows of micro-batches.

use std::collections::BTreeMap;

use terrashard_layout::{BatchShape, Error, SampleOrder, global_batch, micro_batch};

#[test]
fn each_sample_comes_once_per_epoch() {
    for samples in [1, 2, 3, 4, 5, 8, 31, 100, 1000, 4097] {
        for seed in [0, 1, u64::MAX] {
            let order = SampleOrder::new(samples, seed).unwrap();
            for epoch in [0, 1, 1000] {
                let start = epoch * samples as u64;
                let mut seen: Vec<usize> = (start..start + samples as u64)
                    .map(|cursor| order.at(cursor))
                    .collect();
                seen.sort_unstable();
                assert!(
                    seen.iter().copied().eq(0..samples),
                    "{samples} samples, seed {seed}, epoch {epoch}"
                );
            }
        }
    }
    assert_eq!(SampleOrder::new(0, 0), Err(Error::NoSamples));
}

#[test]
fn seeds_and_epochs_differ() {
    let epoch = |seed, epoch: u64| -> Vec<usize> {
        let order = SampleOrder::new(50, seed).unwrap();
        (epoch * 50..(epoch + 1) * 50)
            .map(|cursor| order.at(cursor))
            .collect()
    };
    assert_eq!(epoch(1, 0), epoch(1, 0));
    assert_ne!(epoch(1, 0), epoch(2, 0));
    assert_ne!(epoch(1, 0), epoch(1, 1));
    assert_ne!(epoch(1, 0), (0..50).collect::<Vec<_>>());
}

/// A run has to see the same samples on every machine and after every update, else it cannot be resumed. The order
/// was computed by a second implementation, in Python, of the shuffle and of the generator.
#[test]
fn the_order_is_pinned() {
    let order = SampleOrder::new(10, 42).unwrap();
    let got: Vec<usize> = (0..20).map(|cursor| order.at(cursor)).collect();
    let expected = [
        [8, 6, 9, 3, 7, 1, 2, 4, 0, 5],
        [3, 2, 6, 8, 4, 1, 7, 5, 9, 0],
    ];
    assert_eq!(got, expected.concat());
}

/// All 24 orders of four samples come equally often: 2400 of each expected, standard deviation 48.
#[test]
fn every_permutation_is_as_likely() {
    let mut counts: BTreeMap<Vec<usize>, u32> = BTreeMap::new();
    for seed in 0..57_600 {
        let order = SampleOrder::new(4, seed).unwrap();
        *counts
            .entry((0..4).map(|cursor| order.at(cursor)).collect())
            .or_default() += 1;
    }
    assert_eq!(counts.len(), 24);
    assert!(
        counts.values().all(|count| (2160..2640).contains(count)),
        "{counts:?}"
    );
}

/// Neighbours in a large epoch are as far apart as chance has it: a third of the samples on average.
#[test]
fn neighbours_are_independent() {
    let n = 10_007;
    let order = SampleOrder::new(n, 7).unwrap();
    let distance = |cursor: u64| order.at(cursor).abs_diff(order.at(cursor + 1)) as f64;
    let mean = (0..n as u64 - 1).map(distance).sum::<f64>() / (n as f64 - 1.0);
    assert!((mean / n as f64 - 1.0 / 3.0).abs() < 0.01, "{mean}");
}

#[test]
fn windows_are_disjoint_and_cover_the_global_batch() {
    for (ranks, n, accumulate) in [(1, 1, 1), (2, 3, 1), (3, 2, 4), (5, 1, 3)] {
        for cursor in [0, 17] {
            let windows = (0..ranks).flat_map(|rank| {
                (0..accumulate).map(move |m| micro_batch(cursor, rank, ranks, n, accumulate, m))
            });
            let covered: Vec<u64> = windows.flatten().collect();
            let expected: Vec<u64> =
                (cursor..cursor + global_batch(ranks, n, accumulate)).collect();
            assert_eq!(covered, expected);
        }
    }
    assert_eq!(micro_batch(100, 2, 3, 4, 5, 1), 144..148);
}

/// A stream that ends gives each sample once an epoch, to ranks that all count the same micro-batches.
#[test]
fn the_end_of_a_stream_is_shared_without_repeating() {
    let (samples, epochs) = (21u64, 2u64);
    let order = SampleOrder::new(samples as usize, 5).unwrap();
    for (ranks, n, accumulate) in shapes() {
        let shape = BatchShape {
            ranks,
            micro_batch: n,
            accumulate,
        };
        let end = samples * epochs;
        let mut seen = vec![BTreeMap::new(); epochs as usize];
        for step in 0..shape.steps(end) {
            let window = shape.window(step * shape.global_batch(), Some(end));
            assert!(!window.is_empty());
            let mut cursors = window.samples();
            for rank in 0..ranks {
                let share = window.share(rank);
                let even = (window.samples().end - window.samples().start) / ranks as u64;
                assert!((even..=even + 1).contains(&(share.end - share.start)));
                for m in 0..accumulate {
                    let micro_batch = window.micro_batch(rank, m);
                    assert!(micro_batch.end - micro_batch.start <= n as u64);
                    for cursor in micro_batch {
                        assert_eq!(Some(cursor), cursors.next());
                        let epoch = order.epoch(cursor) as usize;
                        *seen[epoch].entry(order.at(cursor)).or_insert(0) += 1;
                    }
                }
            }
            assert_eq!(cursors.next(), None, "all of the window is shared out");
            for m in 0..accumulate {
                let idle = (0..ranks).all(|rank| window.micro_batch(rank, m).is_empty());
                assert_eq!(window.is_idle(m), idle);
            }
        }
        let past = shape.steps(end) * shape.global_batch();
        assert!(shape.window(past, Some(end)).is_empty());
        for epoch in seen {
            assert!(
                epoch.len() == 21 && epoch.values().all(|times| *times == 1),
                "{ranks} ranks, {n} samples, {accumulate} micro-batches: {epoch:?}"
            );
        }
    }
}

/// A run that goes on with other ranks takes the samples that are left, each once, and in the same order as it would have.
#[test]
fn c9_what_is_left_of_an_epoch_is_shared_by_other_ranks_without_repeating() {
    let samples = 100u64;
    let order = SampleOrder::new(samples as usize, 3).unwrap();
    let taken = |shape: BatchShape, from: u64, steps: u64| -> Vec<usize> {
        let windows = (0..steps).map(|step| {
            let window = shape.window(from + step * shape.global_batch(), Some(samples));
            let shares = (0..shape.ranks).flat_map(move |rank| window.share(rank));
            shares.map(|cursor| order.at(cursor)).collect::<Vec<_>>()
        });
        windows.collect::<Vec<_>>().concat()
    };
    let shape = |ranks, micro_batch, accumulate| BatchShape {
        ranks,
        micro_batch,
        accumulate,
    };
    let before = shape(4, 3, 1);
    let whole = taken(before, 0, before.steps(samples));
    let mut sorted = whole.clone();
    sorted.sort_unstable();
    assert!(sorted.into_iter().eq(0..samples as usize));
    for steps in [0, 1, 5, 8] {
        let cursor = steps * before.global_batch();
        let first = taken(before, 0, steps);
        for after in [
            shape(1, 12, 1),
            shape(3, 2, 2),
            shape(5, 1, 3),
            shape(2, 7, 1),
        ] {
            let rest = taken(after, cursor, after.steps(samples - cursor));
            assert_eq!(
                [&first[..], &rest].concat(),
                whole,
                "{after:?} from {cursor}"
            );
        }
    }
}

fn shapes() -> impl Iterator<Item = (usize, usize, usize)> {
    let accumulated = |(ranks, n)| (1..=3).map(move |accumulate| (ranks, n, accumulate));
    (1..=5)
        .flat_map(|ranks| (1..=3).map(move |n| (ranks, n)))
        .flat_map(accumulated)
}

#[test]
fn a_partial_window_by_hand() {
    let shape = BatchShape {
        ranks: 3,
        micro_batch: 2,
        accumulate: 2,
    };
    assert_eq!(
        (shape.global_batch(), shape.steps(12), shape.steps(17)),
        (12, 1, 2)
    );
    let window = shape.window(12, Some(17));
    let shares = [0, 1, 2].map(|rank| [0, 1].map(|m| window.micro_batch(rank, m)));
    assert_eq!(
        shares,
        [[12..13, 13..13], [13..15, 15..15], [15..17, 17..17]]
    );
    let window = shape.window(12, Some(13));
    assert_eq!(
        [0, 1, 2].map(|rank| window.share(rank)),
        [12..12, 12..12, 12..13]
    );
}
