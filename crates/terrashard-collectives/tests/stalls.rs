//! Ranks that do not come in time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use terrashard_collectives::local::{self, LocalCommunicator, Patience, RunError};
use terrashard_collectives::{Communicator, Error};

const TIMEOUT: Duration = Duration::from_secs(1);

fn within(
    ranks: usize,
    abandoned: fn(&Error, &str),
    body: impl Fn(&LocalCommunicator) -> Result<(), Error> + Sync,
) -> Result<Vec<()>, RunError<Error>> {
    let patience = Patience {
        timeout: TIMEOUT,
        abandoned,
    };
    local::run_within(ranks, Some(patience), |rank| body(&rank))
}

fn sum(rank: &LocalCommunicator) -> Result<(), Error> {
    let one = Tensor::<1>::from_floats([1.0, 2.0], &Device::flex());
    rank.all_reduce(one)?.wait().map(drop)
}

#[test]
fn a_rank_that_stalls_ends_the_run_and_is_named() {
    for (ranks, culprit) in [(2, 0), (3, 1), (5, 4)] {
        let seen = Mutex::new(Vec::new());
        let run = within(
            ranks,
            |error, _| panic!("{error}"),
            |rank| {
                sum(rank)?;
                if rank.rank() == culprit {
                    // Until the others have given it up.
                    while seen.lock().unwrap_or_else(PoisonError::into_inner).len() < ranks - 1 {
                        thread::sleep(Duration::from_millis(5));
                    }
                }
                let error = sum(rank).expect_err("one rank does not come");
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.push(error.to_string());
                Err(error)
            },
        );
        let Err(RunError::Failed { rank, source }) = run else {
            panic!("{run:?}");
        };
        assert_eq!(rank, culprit);
        let text = source.to_string();
        assert!(
            text.starts_with(&format!(
                "rank {culprit} has not made call 1, for which rank "
            )),
            "{text}"
        );
        assert!(text.contains("all-reduce of 2 f32"), "{text}");
        let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(seen, vec![text; ranks], "all are told the same");
    }
}

#[test]
fn a_thread_that_does_not_end_is_told_of() {
    static GIVEN_UP: AtomicBool = AtomicBool::new(false);
    fn given_up(error: &Error, words: &str) {
        assert!(matches!(error, Error::Stalled { rank: 1, .. }), "{error}");
        assert!(words.starts_with("rank 1 has not made call 0"), "{words}");
        GIVEN_UP.store(true, Ordering::Relaxed);
    }
    let began = Instant::now();
    let run = within(3, given_up, |rank| {
        if rank.rank() == 1 {
            while !GIVEN_UP.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(5));
            }
            return Ok(());
        }
        rank.barrier()
    });
    let error = run.expect_err("rank 1 does not come").to_string();
    assert!(error.contains("rank 1 has not made call 0"), "{error}");
    assert!(error.contains("barrier"), "{error}");
    assert!(began.elapsed() >= TIMEOUT);
}

#[test]
fn whoever_is_late_but_in_time_is_waited_for() {
    let run = within(
        3,
        |error, _| panic!("{error}"),
        |rank| {
            for _ in 0..4 {
                // More than the timeout in all, but not at once.
                if rank.rank() == 2 {
                    thread::sleep(TIMEOUT / 3);
                }
                sum(rank)?;
            }
            Ok(())
        },
    );
    assert!(run.is_ok(), "{run:?}");
}
