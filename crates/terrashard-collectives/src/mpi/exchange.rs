//! Messages between the ranks of one group, on MPI's world communicator.

use std::thread;
use std::time::{Duration, Instant};

use ::mpi::Tag;
use ::mpi::datatype::Equivalence;
use ::mpi::point_to_point::{Destination, Source};
use ::mpi::request::{self, RequestCollection};
use ::mpi::topology::{Communicator as _, SimpleCommunicator};

/// Elements of one message at most. MPI counts them in 32 bits.
const MESSAGE: usize = 1 << 28;

/// The longest time between two looks at what has arrived.
const LONGEST_PAUSE: Duration = Duration::from_micros(200);

/// Looks without a pause, between which others may run, while elements travel.
const LOOKS: u32 = 20_000;

/// What a thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaiting {
    /// Ranks, which may be busy for long.
    Ranks,
    /// Elements of ranks that are there.
    Elements,
}

/// A rank's way to the others of its group. Groups are told apart by their tags, and the messages of two ranks in one
/// group by their order, which MPI keeps.
pub(super) struct Exchange {
    world: SimpleCommunicator,
    /// The ranks of the run that belong to the group.
    members: Vec<i32>,
    tag: Tag,
}

impl Exchange {
    pub(super) fn new(members: &[usize], tag: usize) -> Self {
        let rank = |&member| i32::try_from(member).expect("MPI counts ranks in 32 bits");
        Self {
            world: SimpleCommunicator::world(),
            members: members.iter().map(rank).collect(),
            tag: Tag::try_from(tag).expect("checked when the group was agreed on"),
        }
    }

    /// Sends and receives slices, each with a rank of the group. The other rank's slice has the same length. Empty
    /// ones are left out.
    ///
    /// Buffers that MPI may still write to cannot be taken back, so it returns only when all have arrived: `awaited` is told at each
    /// look how long that has taken and which rank it waits for, and may end the process.
    pub(super) fn exchange<'a, T: Equivalence + 'a>(
        &self,
        sends: impl IntoIterator<Item = (usize, &'a [T])>,
        receives: impl IntoIterator<Item = (usize, &'a mut [T])>,
        awaiting: Awaiting,
        awaited: impl Fn(Duration, usize),
    ) {
        let ranks = self.members.len();
        let began = Instant::now();
        // Of each request, as long as it is under way.
        let mut others = Vec::with_capacity(2 * ranks);
        request::multiple_scope(
            2 * ranks,
            |scope, requests: &mut RequestCollection<'a, [T]>| {
                for (rank, slice) in receives {
                    let source = self.world.process_at_rank(self.members[rank]);
                    for part in slice.chunks_mut(MESSAGE) {
                        requests.add(source.immediate_receive_into_with_tag(scope, part, self.tag));
                        others.push(Some(rank));
                    }
                }
                for (rank, slice) in sends {
                    let destination = self.world.process_at_rank(self.members[rank]);
                    for part in slice.chunks(MESSAGE) {
                        requests.add(destination.immediate_send_with_tag(scope, part, self.tag));
                        others.push(Some(rank));
                    }
                }
                let mut done = Vec::with_capacity(2 * ranks);
                let mut looks = 0;
                while requests.incomplete() > 0 {
                    requests.test_some(&mut done);
                    for (request, ..) in &done {
                        others[*request] = None;
                    }
                    if let Some(other) = others.iter().flatten().next() {
                        awaited(began.elapsed(), *other);
                        pause(awaiting, looks);
                        looks += 1;
                    }
                }
            },
        );
    }
}

/// What a thread does before it looks again.
fn pause(awaiting: Awaiting, looks: u32) {
    let doubled = match awaiting {
        Awaiting::Ranks => looks.checked_sub(16),
        Awaiting::Elements => looks.checked_sub(LOOKS),
    };
    match doubled {
        None => thread::yield_now(),
        Some(doubled) => {
            let longer = Duration::from_micros(10 << (doubled / 8).min(8));
            thread::sleep(longer.min(LONGEST_PAUSE));
        }
    }
}
