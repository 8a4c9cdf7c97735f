//! What groups that come from a split have to do.

use std::sync::Arc;

use burn::tensor::{DType, Device};

use super::{compare, tensor, traffic, values, verbs};
use crate::{Communicator, Result};

/// A way to share ranks out among groups: the color of each rank.
type Coloring = fn(rank: usize, ranks: usize) -> usize;

/// Groups by parity, in blocks, of one rank each, of all ranks, and one that leaves out a single rank.
const COLORINGS: [(&str, Coloring); 5] = [
    ("parity", |rank, _| rank % 2),
    ("blocks", |rank, ranks| rank / ranks.div_ceil(2)),
    // Falling, so that ranks of the new groups do not follow their colors.
    ("singletons", |rank, _| usize::MAX - rank),
    ("all", |_, _| 7),
    ("all but one", |rank, _| usize::from(rank == 1)),
];

/// A split yields the ranks of one color, in rank order, and sums, traffic and further splits stay inside.
///
/// # Errors
///
/// Whatever the communicator says.
pub fn splits(comm: &dyn Communicator, device: &Device) -> Result<()> {
    let mut groups = Vec::new();
    for (name, coloring) in COLORINGS {
        let (group, members) = split(comm, name, coloring)?;
        verbs(&*group, device, DType::F32)?;
        traffic(&*group, device)?;
        sum(&*group, &members, device, name, 5)?;
        groups.push((group, members, name));
    }
    // Older groups work on beside newer ones, and what they send is counted nowhere else.
    let others: Vec<_> = groups.iter().map(|(group, ..)| group.traffic()).collect();
    let own = comm.traffic();
    let (group, members, name) = &groups[0];
    sum(&**group, members, device, name, 9)?;
    assert_eq!(comm.traffic(), own, "a group's calls are its own");
    for (i, (group, _, name)) in groups.iter().enumerate() {
        let calls = group.traffic().calls() - others[i].calls();
        assert_eq!(calls, u64::from(i == 0), "calls of the group by {name}");
    }
    let (inner, _) = split(&**group, "blocks of a group", |rank, ranks| {
        rank / ranks.div_ceil(2)
    })?;
    verbs(&*inner, device, DType::BF16)
}

/// Calls of a group and of the one it came from may be under way together, and groups of one split need not make as
/// many calls as each other.
///
/// # Errors
///
/// Whatever the communicator says.
pub fn interleaving(comm: &dyn Communicator, device: &Device) -> Result<()> {
    let all: Vec<usize> = (0..comm.ranks()).collect();
    let (rows, row) = split(comm, "parity", COLORINGS[0].1)?;
    let (blocks, block) = split(comm, "blocks", COLORINGS[1].1)?;
    for round in 0..3 {
        // The odd ranks' group makes more calls than the even ranks'.
        for extra in 0..(comm.rank() % 2) * 3 {
            sum(&*rows, &row, device, "a group that calls more", extra + 1)?;
        }
        let started = [
            (&*rows, &row, "row"),
            (comm, &all, "all"),
            (&*blocks, &block, "block"),
            (comm, &all, "all again"),
        ]
        .map(|(group, members, name)| {
            let input = tensor(vec![value(comm.rank()); 70_000], device, DType::F32);
            Ok((group.all_reduce(input)?, members, name))
        });
        let mut started = started.into_iter().collect::<Result<Vec<_>>>()?;
        // Waited for from the back or from the front, the same on all ranks or not.
        if (round + comm.rank()).is_multiple_of(2) {
            started.reverse();
        }
        for (pending, members, name) in started {
            let expected = vec![total(members); 70_000];
            compare(name, comm.rank(), &values(pending.wait()?), &expected);
        }
    }
    comm.barrier()
}

/// A call completes for those who wait for it while a rank that has made it is busy with something else.
///
/// # Errors
///
/// Whatever the communicator says.
pub fn progress(comm: &dyn Communicator, device: &Device) -> Result<()> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let others = comm.split(0)?;
    for busy in 0..ranks {
        let input = tensor(vec![value(rank); 200_000], device, DType::F32);
        let pending = comm.all_reduce(input)?;
        // The busy rank is here until all others have their sums.
        if rank == busy {
            others.barrier()?;
        }
        let sum = values(pending.wait()?);
        let expected = vec![total(&(0..ranks).collect::<Vec<_>>()); 200_000];
        compare("a sum beside a busy rank", rank, &sum, &expected);
        if rank != busy {
            others.barrier()?;
        }
    }
    Ok(())
}

/// Splits `comm`, and checks rank and size of what comes out. Returns it with its members as ranks of `comm`.
fn split(
    comm: &dyn Communicator,
    name: &str,
    coloring: Coloring,
) -> Result<(Arc<dyn Communicator>, Vec<usize>)> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let color = coloring(rank, ranks);
    let group = comm.split(color)?;
    let members: Vec<usize> = (0..ranks)
        .filter(|&other| coloring(other, ranks) == color)
        .collect();
    let place = members.iter().position(|&member| member == rank);
    assert_eq!(
        (Some(group.rank()), group.ranks()),
        (place, members.len()),
        "rank and size after a split by {name} on rank {rank}"
    );
    Ok((group, members))
}

/// Sums a value that tells the members of `comm`, which are ranks of a group that it came from.
fn sum(
    comm: &dyn Communicator,
    members: &[usize],
    device: &Device,
    name: &str,
    len: usize,
) -> Result<()> {
    let me = members[comm.rank()];
    let input = tensor(vec![value(me); len], device, DType::F32);
    let got = values(comm.all_reduce(input)?.wait()?);
    compare(name, me, &got, &vec![total(members); len]);
    Ok(())
}

/// A power of two, so that a sum says which ranks took part.
fn value(rank: usize) -> f64 {
    f64::from(1u32 << (rank % 20))
}

fn total(members: &[usize]) -> f64 {
    members.iter().map(|&member| value(member)).sum()
}
