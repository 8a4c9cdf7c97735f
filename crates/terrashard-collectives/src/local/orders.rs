//! Every order of events of small runs: none deadlocks, and none changes a bit or an error's culprit.
//!
//! What ranks do to a group is one step each under one lock: they publish, leave, fail, or finish a call that is settled. So one thread can
//! take the steps of all ranks in any order, and there are few enough orders of a short run to take every one of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{FloatDType, TensorData};

use super::group::{Group, Input, Slot};
use crate::element::elements;
use crate::{Call, Error, Verb};

/// What a rank does next.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// Makes its next call.
    Publish(Verb),
    /// Waits for the result of the call that it made so many calls after the first.
    Finish(usize),
    /// Ends well.
    Leave,
    /// Gives up.
    Fail,
}

/// What a call came to, in bits.
type Seen = Result<Vec<u32>, String>;

/// A run at some point of it.
struct Run<'a> {
    group: Group,
    scripts: &'a [Vec<Act>],
    /// Steps that each rank has made.
    made: Vec<usize>,
    slots: Vec<Vec<Result<Arc<Slot>, Error>>>,
    seen: Vec<BTreeMap<usize, Seen>>,
}

/// Elements of each call: as many for each of two and three ranks, and sums that depend on their order.
const LEN: usize = 6;

fn input(rank: usize, number: usize) -> TensorData {
    let value = |at| [0.1f32, 1e8, -1e8, 3.3][(rank + number + at) % 4] + rank as f32;
    TensorData::new((0..LEN).map(value).collect::<Vec<_>>(), [LEN])
}

impl<'a> Run<'a> {
    /// The run after these ranks have each made a step, in this order.
    fn after(scripts: &'a [Vec<Act>], order: &[usize]) -> Self {
        let ranks = scripts.len();
        let mut run = Self {
            group: Group::new(ranks, None),
            scripts,
            made: vec![0; ranks],
            slots: vec![Vec::new(); ranks],
            seen: vec![BTreeMap::new(); ranks],
        };
        order.iter().for_each(|rank| run.step(*rank));
        run
    }

    fn next(&self, rank: usize) -> Option<Act> {
        self.scripts[rank].get(self.made[rank]).copied()
    }

    /// Ranks whose next step does not have to wait.
    fn able(&self) -> Vec<usize> {
        let is_able = |rank: &usize| match self.next(*rank) {
            None => false,
            Some(Act::Finish(number)) => match &self.slots[*rank][number] {
                Ok(slot) => self.group.is_settled(slot),
                Err(_) => true,
            },
            Some(_) => true,
        };
        (0..self.scripts.len()).filter(is_able).collect()
    }

    fn step(&mut self, rank: usize) {
        match self.next(rank).expect("it was able to") {
            Act::Publish(verb) => {
                let dtype = FloatDType::F32;
                let number = self.slots[rank].len();
                let call = Call {
                    verb,
                    len: LEN,
                    dtype,
                };
                let input = Input::Elements(input(rank, number));
                self.slots[rank].push(self.group.publish(rank, call, input));
            }
            Act::Finish(number) => {
                let slot = self.slots[rank][number].clone();
                let result = slot.and_then(|slot| self.group.finish(rank, &slot));
                let bits =
                    |data: TensorData| elements::<f32>(&data).iter().map(|x| x.to_bits()).collect();
                let seen = result.map(bits).map_err(|error| error.to_string());
                self.seen[rank].insert(number, seen);
            }
            Act::Leave => self.group.leave(rank),
            Act::Fail => self.group.fail(rank, "the disk is full"),
        }
        self.made[rank] += 1;
    }
}

/// Takes every order of the steps of `scripts`, hands `check` what each rank saw at the end, and returns how many orders there are.
fn every_order(scripts: &[Vec<Act>], mut check: impl FnMut(&[BTreeMap<usize, Seen>])) -> usize {
    let (mut orders, mut count) = (vec![Vec::new()], 0);
    while let Some(order) = orders.pop() {
        let run = Run::after(scripts, &order);
        let able = run.able();
        if able.is_empty() {
            let ended = (0..scripts.len()).all(|rank| run.next(rank).is_none());
            assert!(ended, "nobody can go on after {order:?} of {scripts:?}");
            check(&run.seen);
            count += 1;
        }
        for rank in able {
            orders.push([&order[..], &[rank]].concat());
        }
    }
    count
}

const SUM: Act = Act::Publish(Verb::AllReduce);
const SCATTER: Act = Act::Publish(Verb::ReduceScatter);
const GATHER: Act = Act::Publish(Verb::AllGather);
const COPY: Act = Act::Publish(Verb::Broadcast { root: 1 });

/// The results of ranks that make each call and wait for it, one after the other.
fn expected(scripts: &[Vec<Act>]) -> Vec<BTreeMap<usize, Seen>> {
    let calls = |script: &[Act]| {
        script
            .iter()
            .filter(|act| matches!(act, Act::Publish(_)))
            .count()
    };
    let plain = |script: &Vec<Act>| -> Vec<Act> {
        let publish = script
            .iter()
            .filter(|act| matches!(act, Act::Publish(_)))
            .copied();
        publish.chain((0..calls(script)).map(Act::Finish)).collect()
    };
    let scripts: Vec<Vec<Act>> = scripts.iter().map(plain).collect();
    let publishing = (0..scripts.len()).flat_map(|rank| vec![rank; calls(&scripts[rank])]);
    let order: Vec<usize> = publishing.clone().chain(publishing).collect();
    Run::after(&scripts, &order).seen
}

#[test]
fn no_order_of_calls_and_waits_changes_a_bit() {
    use Act::{Finish, Leave};
    let two = [
        vec![SUM, SCATTER, Finish(1), GATHER, Finish(0), Finish(2), Leave],
        vec![SUM, Finish(0), SCATTER, GATHER, Finish(2), Finish(1), Leave],
    ];
    let three = [
        vec![SUM, COPY, Finish(1), Finish(0)],
        vec![SUM, Finish(0), COPY, Finish(1)],
        vec![SUM, COPY, Finish(0), Leave],
    ];
    for (scripts, least) in [(&two[..], 500), (&three[..], 5_000)] {
        let wanted = expected(scripts);
        let count = every_order(scripts, |seen| {
            for (seen, wanted) in seen.iter().zip(&wanted) {
                for (number, seen) in seen {
                    assert!(seen.is_ok() && seen == &wanted[number], "{scripts:?}");
                }
            }
        });
        assert!(count >= least, "{count} orders");
    }
}

#[test]
fn no_order_around_a_rank_that_fails_or_leaves_deadlocks() {
    use Act::{Fail, Finish, Leave};
    for (end, culprit) in [
        (Fail, "rank 1 gave up: the disk is full"),
        (
            Leave,
            "rank 1 has ended without making call 1, for which rank ",
        ),
    ] {
        let scripts = [
            vec![SUM, Finish(0), GATHER, Finish(1)],
            vec![SUM, end],
            vec![SUM, GATHER, Finish(1), Finish(0)],
        ];
        // The second call never comes to anything.
        let wanted = expected(&[const { &[SUM] }; 3].map(|script| script.to_vec()));
        let mut first_calls = [0, 0];
        let count = every_order(&scripts, |seen| {
            for rank in [0, 2] {
                match &seen[rank][&0] {
                    // All had made it.
                    Ok(bits) => {
                        assert_eq!(Ok(bits), wanted[rank][&0].as_ref());
                        first_calls[0] += 1;
                    }
                    Err(error) => {
                        assert!(error.contains(culprit), "{error}");
                        first_calls[1] += 1;
                    }
                }
                let error = seen[rank][&1].as_ref().expect_err("rank 1 never makes it");
                assert!(error.contains(culprit), "{error}");
            }
        });
        assert!(count >= 500, "{count} orders");
        // Whether the first call completes depends on the order, unless nobody can fail before it has.
        assert!(first_calls[0] > 0, "{first_calls:?}");
    }
}

#[test]
fn no_order_of_different_calls_deadlocks() {
    use Act::Finish;
    let scripts = [
        vec![SUM, GATHER, Finish(0), Finish(1)],
        vec![SUM, SCATTER, Finish(1), Finish(0)],
        vec![SUM, GATHER, Finish(1), Finish(0)],
    ];
    let count = every_order(&scripts, |seen| {
        for seen in seen {
            let error = seen[&1].as_ref().expect_err("rank 1 differs");
            assert!(error.contains("ranks disagree on call 1"), "{error}");
            assert!(error.contains("rank 1 makes reduce-scatter"), "{error}");
        }
    });
    assert!(count >= 500, "{count} orders");
}
