//! Runs of ranks on threads whose every step a scheduler chooses: none of its orders deadlocks, changes a bit or blames another rank.
//!
//! `orders.rs` takes all orders of whole steps; here a step may be interrupted at each lock, atomic and wake-up, so few of the orders can be
//! taken: as many random ones as [`SCHEDULES`], and as many in which few changes of the running thread are placed where they do most
//! (PCT). They follow from a seed (`SHUTTLE_RANDOM_SEED` sets another). One that fails is printed, and made again by
//! `TERRASHARD_SCHEDULE` together with the name of its test.

use std::env;
use std::sync::Arc;

use burn::tensor::{FloatDType, TensorData};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::{Barrier, mpsc};
use shuttle::{Config, Runner, replay, thread};

use super::group::{Group, Input};
use crate::element::elements;
use crate::{Call, Error, Result, Verb};

/// Schedules of each kind that a test takes.
const SCHEDULES: usize = 2_000;

/// Changes of the running thread in a schedule of PCT.
const CHANGES: usize = 4;

/// A third and a bit of it is a segment of a sum.
const LEN: usize = 6;

/// Takes many schedules of `body`, or that one which the environment names.
fn any_schedule(body: impl Fn() + Send + Sync + Copy + 'static) {
    if let Ok(schedule) = env::var("TERRASHARD_SCHEDULE") {
        return replay(body, &schedule);
    }
    let config = || {
        let mut config = Config::new();
        config.stack_size = 1 << 20;
        config
    };
    Runner::new(RandomScheduler::new_from_seed(1, SCHEDULES), config()).run(body);
    Runner::new(PctScheduler::new_from_seed(2, CHANGES, SCHEDULES), config()).run(body);
}

/// A rank in a group.
#[derive(Clone)]
struct Rank {
    group: Arc<Group>,
    rank: usize,
    all: Arc<Barrier>,
}

/// A call's result in bits.
type Bits = Vec<u32>;

/// Sums of these depend on their order.
fn input(rank: usize, number: usize) -> Vec<f32> {
    let value = |at| [0.1f32, 1e8, -1e8, 3.3][(rank + number + at) % 4] + rank as f32;
    (0..LEN).map(value).collect()
}

impl Rank {
    /// Makes its call of this number, and waits for it when what is returned is called.
    fn begin(&self, verb: Verb, number: usize) -> impl FnOnce() -> Result<Bits> + use<> {
        let (rank, group) = (self.rank, Arc::clone(&self.group));
        let call = Call {
            verb,
            len: LEN,
            dtype: FloatDType::F32,
        };
        let data = TensorData::new(input(rank, number), [LEN]);
        let slot = group.publish(rank, call, Input::Elements(data));
        move || {
            let result = group.finish(rank, &*slot?)?;
            Ok(elements::<f32>(&result)
                .iter()
                .map(|x| x.to_bits())
                .collect())
        }
    }

    fn call(&self, verb: Verb, number: usize) -> Result<Bits> {
        self.begin(verb, number)()
    }

    fn split(&self, color: usize) -> Result<Self> {
        let (rank, group) = self.group.split(self.rank, color)?;
        let all = Arc::clone(&self.all);
        Ok(Self { group, rank, all })
    }

    /// Waits for all ranks by other means than the group, which wakes nobody there: a wake-up that came too early is not made good by
    /// the next one.
    fn pause(&self) {
        self.all.wait();
    }
}

/// What a call comes to on `rank`, where its group are these ranks: added one after the other, as is promised.
fn expected(verb: Verb, number: usize, rank: usize, ranks: usize) -> Bits {
    let inputs: Vec<_> = (0..ranks).map(|rank| input(rank, number)).collect();
    let sum = |at: usize| {
        let others = inputs[1..].iter();
        others.fold(inputs[0][at], |sum, input| sum + input[at])
    };
    let part = LEN / ranks;
    let values: Vec<f32> = match verb {
        Verb::AllReduce => (0..LEN).map(sum).collect(),
        Verb::ReduceScatter => (rank * part..(rank + 1) * part).map(sum).collect(),
        Verb::AllGather => inputs.concat(),
        Verb::Broadcast { root } => inputs[root].clone(),
        Verb::Barrier | Verb::Split => Vec::new(),
    };
    values.iter().map(|x| x.to_bits()).collect()
}

/// Runs a body on a thread for each of three ranks; a rank whose body returns has left, or failed with its error.
fn run(body: impl Fn(Rank) -> Result<()> + Send + Copy + 'static) {
    let group = Arc::new(Group::new(3, None));
    let all = Arc::new(Barrier::new(3));
    let live = |rank| {
        let (group, all) = (Arc::clone(&group), Arc::clone(&all));
        thread::spawn(move || {
            let outcome = body(Rank {
                group: Arc::clone(&group),
                rank,
                all,
            });
            match outcome {
                Ok(()) => group.leave(rank),
                Err(error) => group.fail(rank, &error.to_string()),
            }
        })
    };
    let threads: Vec<_> = (0..3).map(live).collect();
    for thread in threads {
        thread.join().expect("no rank panics");
    }
}

const COPY: Verb = Verb::Broadcast { root: 1 };

#[test]
fn no_schedule_changes_a_bit() {
    any_schedule(|| {
        run(|own| {
            let verbs = [Verb::AllReduce, Verb::ReduceScatter, COPY, Verb::AllGather];
            let mut calls: Vec<_> = (0..)
                .zip(verbs)
                .map(|(number, verb)| (number, verb, own.begin(verb, number)))
                .collect();
            // Each rank waits in an order of its own.
            calls.rotate_left(own.rank);
            if own.rank == 2 {
                calls.reverse();
            }
            for (number, verb, finish) in calls {
                let wanted = expected(verb, number, own.rank, 3);
                assert_eq!(finish()?, wanted, "{verb} on rank {}", own.rank);
            }
            own.pause();
            Ok(())
        });
    });
}

#[test]
fn no_schedule_loses_a_wake_up() {
    any_schedule(|| {
        run(|own| {
            for number in 0..2 {
                let sum = own.call(Verb::AllReduce, number)?;
                assert_eq!(sum, expected(Verb::AllReduce, number, own.rank, 3));
                own.pause();
            }
            Ok(())
        });
    });
}

#[test]
fn no_schedule_of_groups_changes_a_bit() {
    any_schedule(|| {
        run(|own| {
            let group = own.split(own.rank % 2)?;
            let ranks = group.group.ranks();
            let sum = own.begin(Verb::AllReduce, 0);
            let inside = group.begin(Verb::AllReduce, 1);
            let wanted = expected(Verb::AllReduce, 1, group.rank, ranks);
            assert_eq!(inside()?, wanted);
            own.pause();
            assert_eq!(sum()?, expected(Verb::AllReduce, 0, own.rank, 3));
            own.pause();
            own.call(Verb::Barrier, 2)?;
            own.pause();
            Ok(())
        });
    });
}

/// As updates of buckets and the places of other processes do.
#[test]
fn no_schedule_of_a_thread_that_waits_while_another_calls_deadlocks() {
    any_schedule(|| {
        run(|own| {
            let (calls, begun) = mpsc::channel();
            let rank = own.rank;
            let waits = thread::spawn(move || {
                for (number, finish) in begun {
                    let finish: Box<dyn FnOnce() -> Result<Bits> + Send> = finish;
                    let wanted = expected(Verb::AllReduce, number, rank, 3);
                    assert_eq!(finish()?, wanted);
                }
                Ok::<_, Error>(())
            });
            for number in 0..3 {
                let finish = Box::new(own.begin(Verb::AllReduce, number));
                if calls.send((number, finish as _)).is_err() {
                    break;
                }
                let own = own.call(COPY, number)?;
                assert_eq!(own, expected(COPY, number, rank, 3));
            }
            drop(calls);
            waits.join().expect("it does not panic")
        });
    });
}

#[test]
fn no_schedule_around_a_rank_that_ends_deadlocks() {
    fn ends(fail: bool) {
        run(move |own| {
            let first = own.begin(Verb::AllReduce, 0);
            if own.rank == 1 {
                let full = || Error::Transport {
                    reason: "the disk is full".to_owned(),
                };
                return if fail { Err(full()) } else { Ok(()) };
            }
            let second = own.begin(COPY, 1);
            let group = own.split(0);
            let told = |error: &Error| {
                let text = error.to_string();
                let culprit = if fail {
                    "rank 1 gave up: "
                } else {
                    "rank 1 has ended"
                };
                assert!(text.starts_with(culprit), "{text}");
            };
            // A call that all have made completes where they made it before the run was lost.
            match first() {
                Ok(sum) => assert_eq!(sum, expected(Verb::AllReduce, 0, own.rank, 3)),
                Err(error) => told(&error),
            }
            told(&group.err().expect("rank 1 never splits"));
            let error = second().expect_err("rank 1 never makes it");
            told(&error);
            Err(error)
        });
    }
    any_schedule(|| ends(true));
    any_schedule(|| ends(false));
}

#[test]
fn no_schedule_of_different_calls_deadlocks() {
    any_schedule(|| {
        run(|own| {
            let first = own.begin(Verb::AllReduce, 0);
            let verb = match own.rank {
                1 => Verb::ReduceScatter,
                _ => Verb::AllGather,
            };
            let error = own.call(verb, 1).expect_err("rank 1 makes another");
            let text = error.to_string();
            assert!(text.contains("ranks disagree on call 1"), "{text}");
            assert!(text.contains("rank 1 makes reduce-scatter"), "{text}");
            // Whether all had made it depends on the order.
            if let Ok(sum) = first() {
                assert_eq!(sum, expected(Verb::AllReduce, 0, own.rank, 3));
            }
            Err(error)
        });
    });
}
