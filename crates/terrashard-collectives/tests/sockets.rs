//! The conformance suite on ranks that talk over TCP, and what happens when one of them does not do what the others do. Ranks are threads
//! here, each with a world of its own, as processes have.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use burn::tensor::{Device, Tensor};
use terrashard_collectives::bootstrap::Launched;
use terrashard_collectives::conformance::{self, Sums};
use terrashard_collectives::local::Patience;
use terrashard_collectives::sockets::World;
use terrashard_collectives::{Communicator, Error, Result};

fn patience(seconds: u64) -> Patience {
    Patience {
        timeout: Duration::from_secs(seconds),
        abandoned: |_, words| panic!("{words}"),
    }
}

/// What each rank of a run makes of `body`.
fn run<T: Send>(
    ranks: usize,
    patience: Patience,
    body: impl Fn(&dyn Communicator) -> T + Sync,
) -> Vec<T> {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    thread::scope(|scope| {
        let body = &body;
        let start = |rank| {
            let launched = Launched {
                rank,
                ranks,
                local_rank: rank,
                port,
                ..Launched::alone()
            };
            scope.spawn(move || {
                let world = World::join(&launched, patience).unwrap();
                body(&*world.communicator())
            })
        };
        let threads: Vec<_> = (0..ranks).map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, T>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    })
}

fn sum(rank: &dyn Communicator) -> Result<Vec<f32>> {
    let own = Tensor::<1>::from_floats([rank.rank() as f32, 0.5], &Device::flex());
    let sum = rank.all_reduce(own)?.wait()?;
    Ok(sum.into_data().as_slice().unwrap().to_vec())
}

#[test]
fn conforms_for_one_to_four_ranks() {
    for ranks in 1..=4 {
        let runs = run(ranks, patience(60), |rank| {
            conformance::run(rank, &Device::flex(), Sums::InRankOrder)
        });
        for (rank, outcome) in runs.into_iter().enumerate() {
            assert!(
                outcome.is_ok(),
                "rank {rank} of {ranks}: {}",
                outcome.unwrap_err()
            );
        }
    }
}

#[test]
fn a_rank_that_gives_up_is_named_to_all() {
    for culprit in 0..3 {
        let seen = run(3, patience(60), |rank| {
            sum(rank).unwrap();
            if rank.rank() == culprit {
                rank.abort("scene.tif is truncated");
            }
            sum(rank).unwrap_err().to_string()
        });
        let expected = format!("rank {culprit} gave up: scene.tif is truncated");
        assert_eq!(seen, vec![expected; 3]);
    }
}

#[test]
fn a_rank_that_leaves_early_is_an_error_not_a_hang() {
    for culprit in 0..3 {
        let seen = run(3, patience(60), |rank| match rank.rank() == culprit {
            true => String::new(),
            false => sum(rank).unwrap_err().to_string(),
        });
        let expected = format!("rank {culprit} has ended without making call 0, for which rank ");
        for (rank, text) in seen.iter().enumerate() {
            assert!(rank == culprit || text.contains(&expected), "{text}");
        }
    }
}

#[test]
fn different_calls_are_errors_on_every_rank() {
    let seen = run(3, patience(60), |rank| match rank.rank() {
        1 => rank.barrier().unwrap_err().to_string(),
        _ => sum(rank).unwrap_err().to_string(),
    });
    for text in &seen {
        assert!(text.contains("ranks disagree on call 0"), "{text}");
        assert!(text.contains("rank 1 makes barrier"), "{text}");
    }
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let seen = run(3, patience(1), |rank| {
        sum(rank).unwrap();
        if rank.rank() == 1 {
            thread::sleep(Duration::from_secs(2));
        }
        sum(rank).unwrap_err().to_string()
    });
    for text in &seen {
        assert!(
            text.contains("rank 1 has not made call 1, for which rank "),
            "{text}"
        );
    }
}

#[test]
fn results_that_nobody_waits_for_hold_up_nobody() {
    let sums = run(3, patience(60), |rank| {
        for _ in 0..20 {
            let own = Tensor::<1>::ones([1000], &Device::flex());
            drop(rank.all_gather(own).unwrap());
        }
        sum(rank).unwrap()
    });
    assert_eq!(sums, vec![vec![3.0, 1.5]; 3]);
}

#[test]
fn who_does_not_find_the_others_says_so() {
    let launched = Launched {
        rank: 0,
        ranks: 2,
        port: 0,
        ..Launched::alone()
    };
    let error = World::join(&launched, patience(1)).unwrap_err();
    assert!(matches!(error, Error::Transport { .. }), "{error}");
    assert!(
        error.to_string().contains("rank 1 has not come within 1 s"),
        "{error}"
    );
}
