//! The conformance suite on threads, and what happens when a rank does not do what the others do.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::tensor::{DType, Device, Tensor};
use terrashard_collectives::conformance::Sums;
use terrashard_collectives::delayed::Delayed;
use terrashard_collectives::local::{self, LocalCommunicator, RunError};
use terrashard_collectives::{Communicator, Error, Result, Verb, conformance};

fn tensor(len: usize) -> Tensor<1> {
    Tensor::from_data(vec![1.0; len].as_slice(), (&Device::flex(), DType::F32))
}

fn floats(tensor: Tensor<1>) -> Vec<f32> {
    tensor.into_data().as_slice().expect("f32").to_vec()
}

/// Runs `body` on `ranks` threads and returns what each rank saw, whether or not it failed.
fn outcomes(ranks: usize, body: impl Fn(&LocalCommunicator) -> Result<()> + Sync) -> Vec<String> {
    local::run(ranks, |comm| {
        let outcome = body(&comm);
        Ok::<_, Error>(outcome.map_or_else(|error| error.to_string(), |()| "ok".to_owned()))
    })
    .expect("the body's errors are values here")
}

#[test]
fn conforms_for_one_to_five_ranks() {
    for ranks in 1..=5 {
        let runs = local::run(ranks, |comm| {
            conformance::run(&comm, &Device::flex(), Sums::InRankOrder)
        });
        assert!(runs.is_ok(), "{ranks} ranks: {}", runs.expect_err("not ok"));
    }
}

/// What NCCL is held to with more than two ranks: rank order fulfils it, too.
#[test]
fn conforms_where_the_order_of_sums_is_open() {
    let run = local::run(3, |comm| {
        conformance::run(&comm, &Device::flex(), Sums::InAnyOrder)
    });
    assert!(run.is_ok(), "{}", run.expect_err("not ok"));
}

#[test]
fn conforms_whoever_is_late() {
    for seed in 0..3 {
        let longest = Duration::from_micros(100);
        let run = local::run(4, |comm| {
            let comm = Delayed::new(comm, seed, longest);
            conformance::run(&comm, &Device::flex(), Sums::InRankOrder)
        });
        assert!(run.is_ok(), "seed {seed}: {}", run.expect_err("not ok"));
    }
}

#[test]
fn results_come_in_rank_order() {
    assert_eq!(
        local::run(4, |comm| Ok::<_, Error>(comm.rank() * 10)).unwrap(),
        [0, 10, 20, 30]
    );
    assert!(matches!(
        local::run(0, |_| Ok::<(), Error>(())),
        Err(RunError::NoRanks)
    ));
}

#[test]
fn inputs_that_are_shared_stay_as_they_are() {
    let kept = local::run(2, |comm| {
        let input = Tensor::<1>::from_floats([1.0, 2.0], &Device::flex());
        let sum = comm.all_reduce(input.clone())?.wait()?;
        Ok::<_, Error>((floats(input), floats(sum)))
    });
    assert_eq!(kept.unwrap(), vec![(vec![1.0, 2.0], vec![2.0, 4.0]); 2]);
}

#[test]
fn narrowed_inputs_are_read_where_they_are() {
    let sums = local::run(3, |comm| {
        let input = Tensor::<1>::from_floats([9.0, 1.0, 2.0, 9.0], &Device::flex()).narrow(0, 1, 2);
        Ok::<_, Error>(floats(comm.all_gather(input)?.wait()?))
    });
    assert_eq!(sums.unwrap(), vec![vec![1.0, 2.0, 1.0, 2.0, 1.0, 2.0]; 3]);
}

#[test]
fn different_verbs_are_an_error_on_every_rank() {
    let seen = outcomes(3, |comm| {
        comm.barrier()?;
        let pending = match comm.rank() {
            1 => comm.all_gather(tensor(4))?,
            _ => comm.all_reduce(tensor(4))?,
        };
        pending.wait().map(drop)
    });
    for message in &seen {
        assert_eq!(message, &seen[0]);
        for part in [
            "ranks disagree on call 1",
            "rank 1 makes all-gather of 4 f32",
            "makes all-reduce of 4 f32",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[test]
fn different_lengths_types_and_roots_are_errors() {
    let check = |parts: [&str; 2], body: fn(&LocalCommunicator) -> Result<()>| {
        for message in outcomes(2, body) {
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
    };
    check(
        [
            "rank 0 makes all-reduce of 4 f32",
            "rank 1 makes all-reduce of 5 f32",
        ],
        |comm| comm.all_reduce(tensor(4 + comm.rank()))?.wait().map(drop),
    );
    check(
        [
            "rank 0 makes all-gather of 2 f32",
            "rank 1 makes all-gather of 2 bf16",
        ],
        |comm| {
            let dtype = [DType::F32, DType::BF16][comm.rank()];
            comm.all_gather(Tensor::from_data([1.0, 2.0], (&Device::flex(), dtype)))?
                .wait()
                .map(drop)
        },
    );
    check(
        [
            "rank 0 makes broadcast from rank 0 of 1 f32",
            "rank 1 makes broadcast from rank 1 of 1 f32",
        ],
        |comm| comm.broadcast(tensor(1), comm.rank())?.wait().map(drop),
    );
    check(
        [
            "rank 0 makes barrier",
            "rank 1 makes reduce-scatter of 2 f32",
        ],
        |comm| match comm.rank() {
            0 => comm.barrier(),
            _ => comm.reduce_scatter(tensor(2))?.wait().map(drop),
        },
    );
}

#[test]
fn a_mismatch_is_the_error_of_the_run() {
    let error = local::run(2, |comm| {
        comm.all_reduce(tensor(comm.rank()))?.wait().map(drop)
    })
    .unwrap_err();
    let RunError::Failed {
        source:
            Error::Mismatch {
                sequence: 0,
                first_call,
                second_call,
                ..
            },
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!(
        (first_call.verb, second_call.verb),
        (Verb::AllReduce, Verb::AllReduce)
    );
    assert_eq!(first_call.len + second_call.len, 1);
}

#[test]
fn a_failing_rank_frees_and_informs_the_others() {
    #[derive(Debug, thiserror::Error)]
    enum Failure {
        #[error("scene.tif is truncated")]
        Data,
        #[error(transparent)]
        Collective(#[from] Error),
    }
    for (ranks, culprit) in [(2, 0), (3, 1), (5, 4)] {
        let error = local::run(ranks, |comm| {
            if comm.rank() == culprit {
                return Err(Failure::Data);
            }
            let seen = comm
                .all_reduce(tensor(3))
                .and_then(|pending| pending.wait())
                .unwrap_err();
            assert_eq!(
                seen.to_string(),
                format!("rank {culprit} gave up: scene.tif is truncated")
            );
            Err::<(), _>(Failure::Collective(seen))
        })
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("rank {culprit} failed: scene.tif is truncated")
        );
    }
}

#[test]
fn a_panicking_rank_frees_and_informs_the_others() {
    let error = local::run(4, |comm| {
        if comm.rank() == 2 {
            panic!("index {} out of bounds", 7);
        }
        comm.barrier()
    })
    .unwrap_err();
    assert!(
        matches!(&error, RunError::Panicked { rank: 2, .. }),
        "{error}"
    );
    assert_eq!(error.to_string(), "rank 2 panicked: index 7 out of bounds");

    let seen = Mutex::new(String::new());
    let run = local::run(2, |comm| {
        if comm.rank() == 1 {
            panic!("lost");
        }
        let error = comm.barrier().unwrap_err();
        *seen.lock().unwrap() = error.to_string();
        Err::<(), _>(error)
    });
    assert!(run.is_err());
    assert_eq!(seen.into_inner().unwrap(), "rank 1 gave up: panicked: lost");
}

#[test]
fn abort_reaches_ranks_that_wait() {
    let seen = outcomes(3, |comm| match comm.rank() {
        0 => {
            comm.abort("loss is not finite");
            Ok(())
        }
        _ => comm.all_gather(tensor(2))?.wait().map(drop),
    });
    assert_eq!(
        seen,
        [
            "ok",
            "rank 0 gave up: loss is not finite",
            "rank 0 gave up: loss is not finite"
        ]
    );
}

#[test]
fn a_rank_that_leaves_early_is_an_error_not_a_hang() {
    let seen = outcomes(2, |comm| match comm.rank() {
        0 => comm.barrier(),
        _ => {
            comm.barrier()?;
            comm.all_reduce(tensor(6))?.wait().map(drop)
        }
    });
    let expected =
        "rank 0 has ended without making call 1, for which rank 1 waits: all-reduce of 6 f32";
    assert_eq!(seen, ["ok", expected]);
}

#[test]
fn calls_that_all_ranks_have_made_complete_whatever_follows() {
    for _ in 0..50 {
        let sums = Mutex::new(Vec::new());
        let run = local::run(3, |comm| {
            let pending = comm.all_reduce(tensor(100_000))?;
            // All have published once the barrier is passed.
            comm.barrier()?;
            if comm.rank() == 0 {
                return Err(Error::Indivisible { len: 1, ranks: 3 });
            }
            let sum = floats(pending.wait()?);
            sums.lock().unwrap().push((sum[0], sum[99_999]));
            Ok(())
        });
        assert_eq!(
            run.unwrap_err().to_string(),
            "rank 0 failed: failed to scatter 1 elements over 3 ranks: pad the tensor to a multiple of 3"
        );
        assert_eq!(sums.into_inner().unwrap(), [(3.0, 3.0); 2]);
    }
}

#[test]
fn wrong_arguments_are_refused_before_anybody_is_told() {
    let seen = outcomes(2, |comm| {
        assert!(matches!(
            comm.reduce_scatter(tensor(3)),
            Err(Error::Indivisible { len: 3, ranks: 2 })
        ));
        assert!(matches!(
            comm.broadcast(tensor(1), 2),
            Err(Error::RootOutOfRange { root: 2, ranks: 2 })
        ));
        assert_eq!(comm.traffic().calls(), 0);
        comm.barrier()
    });
    assert_eq!(seen, ["ok", "ok"]);
}

/// The even and the odd ranks, each in a group of their own.
fn by_parity(comm: &LocalCommunicator) -> Result<Arc<dyn Communicator>> {
    comm.split(comm.rank() % 2)
}

#[test]
fn an_abort_reaches_every_group() {
    // Rank 0 gives up in its group; rank 2 waits there, 1 and 3 wait elsewhere.
    for waits_in_group in [true, false] {
        let seen = outcomes(4, |comm| {
            let group = by_parity(comm)?;
            match comm.rank() {
                0 => group.abort("the disk is full"),
                3 if waits_in_group => group.all_reduce(tensor(9))?.wait().map(drop)?,
                2 => group.barrier()?,
                _ => comm.all_gather(tensor(2))?.wait().map(drop)?,
            }
            Ok(())
        });
        let lost = "rank 0 gave up: the disk is full";
        assert_eq!(seen, ["ok", lost, lost, lost]);
    }
    // The other way round.
    let seen = outcomes(4, |comm| {
        let group = by_parity(comm)?;
        match comm.rank() {
            3 => comm.abort("the disk is full"),
            1 => drop(group.all_gather(tensor(2))?.wait()?),
            _ => drop(group.split(comm.rank())?.split(0)?),
        }
        Ok(())
    });
    assert_eq!(seen[1], "rank 3 gave up: the disk is full");
}

#[test]
fn a_panic_or_an_error_ends_waits_in_groups() {
    for panics in [true, false] {
        let seen = Mutex::new(Vec::new());
        let run = local::run(5, |comm| {
            let group = by_parity(&comm)?;
            match comm.rank() {
                3 if panics => panic!("lost"),
                3 => return Err(Error::Indivisible { len: 1, ranks: 3 }),
                1 => {}
                _ => group.barrier()?,
            }
            // Ranks 0, 2 and 4 wait for the group of 1 and 3.
            let error = match comm.rank() {
                1 => group.barrier(),
                _ => comm.barrier(),
            };
            let error = error.unwrap_err();
            seen.lock().unwrap().push(error.to_string());
            Err::<(), _>(error)
        });
        assert!(run.unwrap_err().to_string().starts_with("rank 3 "));
        let reason = match panics {
            true => "panicked: lost",
            false => "failed to scatter 1 elements over 3 ranks: pad the tensor to a multiple of 3",
        };
        let expected = vec![format!("rank 3 gave up: {reason}"); seen.lock().unwrap().len()];
        assert_eq!(*seen.lock().unwrap(), expected);
        assert!(!expected.is_empty());
    }
}

#[test]
fn errors_in_groups_name_ranks_as_the_run_does() {
    let seen = outcomes(5, |comm| {
        let group = by_parity(comm)?;
        match comm.rank() {
            // The second of its group.
            3 => Ok(()),
            1 => group.all_reduce(tensor(6))?.wait().map(drop),
            _ => comm.barrier(),
        }
    });
    // Whoever notices first: rank 1 in its group, or another in the barrier of all.
    let notices = [
        "rank 3 has ended without making call 0, for which rank 1 waits: all-reduce of 6 f32",
        "rank 3 has ended without making call 1, for which rank ",
    ];
    assert_eq!(seen[3], "ok");
    for rank in [0, 1, 2, 4] {
        assert_eq!(seen[rank], seen[0]);
        assert!(
            notices.iter().any(|notice| seen[rank].starts_with(notice)),
            "{}",
            seen[rank]
        );
    }

    let seen = outcomes(4, |comm| {
        let group = by_parity(comm)?;
        let len = if comm.rank() == 2 { 8 } else { 4 };
        if comm.rank() % 2 == 0 {
            group.all_gather(tensor(len))?.wait()?;
        }
        comm.barrier()
    });
    for message in &seen {
        assert_eq!(message, &seen[0]);
        for part in [
            "ranks disagree on call 0",
            "rank 0 makes all-gather of 4 f32",
            "rank 2 makes all-gather of 8 f32",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[test]
fn a_split_is_a_call_like_others() {
    let seen = outcomes(2, |comm| match comm.rank() {
        0 => comm.split(0).map(drop),
        _ => comm.barrier(),
    });
    for message in &seen {
        assert!(
            message.contains("makes split") && message.contains("makes barrier"),
            "{message}"
        );
    }
    let seen = outcomes(2, |comm| match comm.rank() {
        0 => comm.split(0).map(drop),
        _ => Ok(()),
    });
    let expected = "rank 1 has ended without making call 0, for which rank 0 waits: split";
    assert_eq!(seen, [expected, "ok"]);
}

#[test]
fn calls_of_a_group_complete_whatever_follows_elsewhere() {
    let sums = Mutex::new(Vec::new());
    let run = local::run(4, |comm| {
        let group = by_parity(&comm)?;
        let pending = group.all_reduce(tensor(100_000))?;
        comm.barrier()?;
        if comm.rank() == 1 {
            return Err(Error::Indivisible { len: 1, ranks: 3 });
        }
        sums.lock().unwrap().push(floats(pending.wait()?)[99_999]);
        Ok(())
    });
    assert!(run.is_err());
    assert_eq!(sums.into_inner().unwrap(), [2.0; 3]);
}
