//! What every transport has to do, as functions that each rank of a group calls with its communicator.
//!
//! Expected values are computed here from what each rank is known to put in, so no rank trusts another. The
//! functions panic with a message that names the verb, the rank and the position if a communicator does
//! something else.

mod groups;

use burn::tensor::{DType, Device, Tensor};
use half::{bf16, f16};

use crate::scramble::scramble;
use crate::{Communicator, Pending, Result};
pub use groups::{interleaving, progress, splits};

/// Elements per rank that are tried: none, one, odd ones, and one beyond what a transport may do in one piece.
const SIZES: [usize; 5] = [0, 1, 3, 35, 66_001];

/// What a transport promises of its sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sums {
    /// They are `rank 0 + rank 1 + ...`, rounded as [`rank_order`] says.
    InRankOrder,
    /// Any order, rounded at each step: right within what these may differ by, and the same each time.
    InAnyOrder,
}

/// Calls all that follows, for `f32`, `f64`, `bf16` and `f16`.
///
/// # Errors
///
/// Whatever the communicator says, which is a failure of the suite as well.
pub fn run(comm: &dyn Communicator, device: &Device, sums: Sums) -> Result<()> {
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        verbs(comm, device, dtype)?;
        match sums {
            Sums::InRankOrder => {
                rank_order(comm, device, dtype)?;
                composition(comm, device, dtype)?;
            }
            Sums::InAnyOrder => close_and_repeatable(comm, device, dtype)?,
        }
        any_order(comm, device, dtype)?;
    }
    traffic(comm, device)?;
    splits(comm, device)?;
    interleaving(comm, device)?;
    progress(comm, device)
}

/// Each verb yields the right elements in the right places, and keeps element type and device.
///
/// # Errors
///
/// Whatever the communicator says.
pub fn verbs(comm: &dyn Communicator, device: &Device, dtype: DType) -> Result<()> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let check = |verb: &str, pending: Pending, expected: Vec<f64>| {
        let result = pending.wait()?;
        assert_eq!(result.dtype(), dtype, "{verb} on rank {rank}: element type");
        assert_eq!(&result.device(), device, "{verb} on rank {rank}: device");
        compare(verb, rank, &values(result), &expected);
        Ok(())
    };
    for n in SIZES {
        // Sums stay below 2^8, so they are exact in every element type, in any order.
        let input = |rank: usize, i: usize| ((i * 7 + rank * 5) % 31) as f64;
        let filled = |len| tensor((0..len).map(|i| input(rank, i)).collect(), device, dtype);
        let sum = |i: usize| (0..ranks).map(|rank| input(rank, i)).sum();

        check(
            "all-reduce",
            comm.all_reduce(filled(n))?,
            (0..n).map(sum).collect(),
        )?;
        let mine = (rank * n..(rank + 1) * n).map(sum).collect();
        check(
            "reduce-scatter",
            comm.reduce_scatter(filled(ranks * n))?,
            mine,
        )?;
        let all = (0..ranks)
            .flat_map(|rank| (0..n).map(move |i| input(rank, i)))
            .collect();
        check("all-gather", comm.all_gather(filled(n))?, all)?;
        for root in 0..ranks {
            let theirs = (0..n).map(|i| input(root, i)).collect();
            check("broadcast", comm.broadcast(filled(n), root)?, theirs)?;
        }
        comm.barrier()?;
    }
    Ok(())
}

/// Sums are `rank 0 + rank 1 + ...`, in `f32` for the half types, which are rounded once.
///
/// # Errors
///
/// Whatever the communicator says.
pub fn rank_order(comm: &dyn Communicator, device: &Device, dtype: DType) -> Result<()> {
    let (rank, ranks, n) = (comm.rank(), comm.ranks(), 1031);
    let inputs: Vec<Vec<f64>> = (0..ranks)
        .map(|rank| values(tensor(uneven(rank, ranks * n), device, dtype)))
        .collect();
    let expected: Vec<f64> = (0..ranks * n)
        .map(|i| {
            let terms = inputs.iter().map(|input| input[i]);
            let single = || {
                terms
                    .clone()
                    .map(|term| term as f32)
                    .reduce(|sum, term| sum + term)
                    .unwrap_or(0.0)
            };
            match dtype {
                DType::F64 => terms.reduce(|sum, term| sum + term).unwrap_or(0.0),
                DType::BF16 => bf16::from_f32(single()).to_f64(),
                DType::F16 => f16::from_f32(single()).to_f64(),
                _ => f64::from(single()),
            }
        })
        .collect();
    let mine = || tensor(uneven(rank, ranks * n), device, dtype);
    compare(
        "all-reduce in rank order",
        rank,
        &values(comm.all_reduce(mine())?.wait()?),
        &expected,
    );
    let part = values(comm.reduce_scatter(mine())?.wait()?);
    compare(
        "reduce-scatter in rank order",
        rank,
        &part,
        &expected[rank * n..(rank + 1) * n],
    );
    Ok(())
}

/// An all-reduce equals the all-gather of a reduce-scatter, bit for bit, and a second all-reduce equals the first.
///
/// # Errors
///
/// Whatever the communicator says.
pub fn composition(comm: &dyn Communicator, device: &Device, dtype: DType) -> Result<()> {
    for n in SIZES {
        let input = tensor(uneven(comm.rank(), comm.ranks() * n), device, dtype);
        let whole = comm.all_reduce(input.clone())?;
        let again = comm.all_reduce(input.clone())?;
        let part = comm.reduce_scatter(input)?.wait()?;
        let joined = comm.all_gather(part)?.wait()?.into_data();
        let whole = whole.wait()?.into_data();
        assert!(
            whole == joined,
            "rank {}: all-reduce differs from all-gather of reduce-scatter",
            comm.rank()
        );
        assert!(
            whole == again.wait()?.into_data(),
            "rank {}: a second all-reduce differs",
            comm.rank()
        );
    }
    Ok(())
}

/// Sums are those of exact numbers within what rounding at each of `ranks` steps may change, and the same the second time.
///
/// # Errors
///
/// Whatever the communicator says.
pub fn close_and_repeatable(comm: &dyn Communicator, device: &Device, dtype: DType) -> Result<()> {
    let (rank, ranks, n) = (comm.rank(), comm.ranks(), 1031);
    let inputs: Vec<Vec<f64>> = (0..ranks)
        .map(|rank| values(tensor(uneven(rank, ranks * n), device, dtype)))
        .collect();
    let unit = match dtype {
        DType::F64 => f64::EPSILON,
        DType::BF16 => bf16::EPSILON.to_f64(),
        DType::F16 => f16::EPSILON.to_f64(),
        _ => f64::from(f32::EPSILON),
    };
    let check = |verb: &str, got: &[f64], from: usize| {
        for (i, got) in got.iter().enumerate() {
            let terms = inputs.iter().map(|input| input[from + i]);
            let exact: f64 = terms.clone().sum();
            let bound = unit * ranks as f64 * terms.map(f64::abs).sum::<f64>();
            assert!(
                (got - exact).abs() <= bound,
                "{verb} on rank {rank}: got {got} instead of {exact} within {bound} at element {i}"
            );
        }
    };
    let mine = || tensor(uneven(rank, ranks * n), device, dtype);
    let whole = values(comm.all_reduce(mine())?.wait()?);
    check("all-reduce", &whole, 0);
    let part = values(comm.reduce_scatter(mine())?.wait()?);
    check("reduce-scatter", &part, rank * n);
    let again = values(comm.all_reduce(mine())?.wait()?);
    compare("a second all-reduce", rank, &again, &whole);
    let again = values(comm.reduce_scatter(mine())?.wait()?);
    compare("a second reduce-scatter", rank, &again, &part);
    // Every rank has the same sum.
    let all = values(
        comm.all_gather(tensor(whole.clone(), device, dtype))?
            .wait()?,
    );
    for other in all.chunks(whole.len()) {
        compare("the sum of another rank", rank, other, &whole);
    }
    Ok(())
}

/// Calls may be waited for in any order, another one on each rank, or not at all.
///
/// # Errors
///
/// Whatever the communicator says.
pub fn any_order(comm: &dyn Communicator, device: &Device, dtype: DType) -> Result<()> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    for round in 0..4 {
        let mut started = Vec::new();
        for call in 0..12 {
            let n = 1 + call * 3;
            let input = |rank: usize| (rank + 1 + call) as f64;
            let sum: f64 = (0..ranks).map(input).sum();
            let filled = |len| tensor(vec![input(rank); len], device, dtype);
            started.push(match call % 4 {
                0 => (comm.all_reduce(filled(n))?, vec![sum; n]),
                1 => (comm.reduce_scatter(filled(ranks * n))?, vec![sum; n]),
                2 => (
                    comm.all_gather(filled(n))?,
                    (0..ranks).flat_map(|rank| vec![input(rank); n]).collect(),
                ),
                _ => (
                    comm.broadcast(filled(n), call % ranks)?,
                    vec![input(call % ranks); n],
                ),
            });
        }
        // A random order of its own for each rank and round; the last two are dropped.
        let mut state = (round * ranks + rank) as u64 + 1;
        while started.len() > 2 {
            state = scramble(state);
            let (pending, expected) = started.swap_remove((state % started.len() as u64) as usize);
            compare(
                "a call waited for out of order",
                rank,
                &values(pending.wait()?),
                &expected,
            );
        }
    }
    comm.barrier()
}

/// Traffic follows the formulas of [`crate::Traffic`].
///
/// # Errors
///
/// Whatever the communicator says.
pub fn traffic(comm: &dyn Communicator, device: &Device) -> Result<()> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let before = comm.traffic();
    let filled = |len| tensor(vec![1.0; len], device, DType::BF16);
    comm.all_reduce(filled(7))?.wait()?;
    comm.reduce_scatter(filled(3 * ranks))?.wait()?;
    comm.reduce_scatter(filled(ranks))?.wait()?;
    comm.all_gather(filled(5))?.wait()?;
    comm.broadcast(filled(11), ranks - 1)?.wait()?;
    comm.barrier()?;
    let sent = comm.traffic().since(&before);
    let others = ranks as u64 - 1;
    let check = |verb, got: crate::VerbTraffic, calls, bytes| {
        assert_eq!(
            (got.calls, got.bytes),
            (calls, bytes),
            "calls and bytes of {verb} on rank {rank}"
        );
    };
    check(
        "all-reduce",
        sent.all_reduce,
        1,
        2 * others * 7u64.div_ceil(ranks as u64) * 2,
    );
    check(
        "reduce-scatter",
        sent.reduce_scatter,
        2,
        others * (3 + 1) * 2,
    );
    check("all-gather", sent.all_gather, 1, others * 5 * 2);
    check(
        "broadcast",
        sent.broadcast,
        1,
        if rank == ranks - 1 {
            others * 11 * 2
        } else {
            0
        },
    );
    check("barrier", sent.barrier, 1, 0);
    Ok(())
}

/// Numbers of either sign, of many magnitudes and with full fractions, so that the order of a sum shows.
fn uneven(rank: usize, len: usize) -> Vec<f64> {
    let number = |i: usize| {
        let bits = scramble(scramble(rank as u64 + 1).wrapping_add(i as u64));
        let fraction = 1.0 + (bits >> 12) as f64 / (1u64 << 52) as f64;
        let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
        sign * fraction * f64::from(1u32 << ((bits >> 1) % 9))
    };
    (0..len).map(number).collect()
}

fn tensor(values: Vec<f64>, device: &Device, dtype: DType) -> Tensor<1> {
    Tensor::from_data(values.as_slice(), (device, dtype))
}

fn values(tensor: Tensor<1>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

fn compare(verb: &str, rank: usize, got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len(), "{verb} on rank {rank}: length");
    let differing = got
        .iter()
        .zip(expected)
        .position(|(got, expected)| got != expected);
    if let Some(i) = differing {
        panic!(
            "{verb} on rank {rank}: got {} instead of {} at element {i}",
            got[i], expected[i]
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else [`rank_order`] could not fail.
    #[test]
    fn the_order_of_sums_shows() {
        let inputs: Vec<Vec<f64>> = (0..3).map(|rank| uneven(rank, 1031)).collect();
        let differs = |i: &usize| {
            let [a, b, c] = [0, 1, 2].map(|rank| inputs[rank][*i]);
            let single = (a as f32 + b as f32) + c as f32 != (c as f32 + b as f32) + a as f32;
            single && (a + b) + c != (c + b) + a
        };
        assert!((0..1031).filter(differs).count() > 50);
    }
}
