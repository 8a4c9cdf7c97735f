//! `bench host-adam`: AdamW in host memory beside the bandwidth of the memory and beside PyTorch.
//!
//! The update does so little arithmetic that memory bounds it, so its measure is a loop that moves the same bytes and does
//! no more than must be done to move them. Machines are shared and their bandwidth doubles and halves within seconds: all
//! that is compared takes turns, and the fastest step of all turns counts. A lucky turn of one side distorts quotients of
//! those, so there are the medians of the quotients within a round beside them: those tell more of a machine whose
//! bandwidth changes, and less of one whose cores are taken away.

use std::path::PathBuf;
use std::time::Instant;

use half::bf16;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use terrashard_zero::host::{AdamWUpdate, ComputeCopy, Gradient, MomentSlices, Piece, zeroed};

use crate::torch::{self, Implementation, Torch};

/// What to measure.
#[derive(Clone, Debug)]
pub struct HostAdamBench {
    /// Parameters.
    pub size: usize,
    /// How often all take their turn.
    pub rounds: usize,
    /// The interpreter of the PyTorch to compare with.
    pub python: Option<PathBuf>,
}

/// What one pass writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Variant {
    /// Parameters and moments.
    #[serde(rename = "f32")]
    F32,
    /// A copy of the parameters in bf16 as well.
    #[serde(rename = "f32 + bf16 copy")]
    F32WithBf16Copy,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostAdamRow {
    /// Which benchmark.
    pub bench: String,
    /// Parameters.
    pub size: usize,
    /// What is written.
    pub variant: Variant,
    /// Threads of all that is compared.
    pub threads: usize,
    /// The instruction set that the update chose.
    pub instruction_set: String,
    /// The fastest step, milliseconds.
    pub ms: f64,
    /// Bytes read and written in a second, 10^9: 28 for each parameter, 30 with the copy.
    #[serde(rename = "GB_s")]
    pub gb_s: f64,
    /// The same of a loop that adds the gradient to the three others and nothing else.
    #[serde(rename = "rmw_GB_s")]
    pub rmw_gb_s: f64,
    /// `GB_s / rmw_GB_s`.
    pub fraction: f64,
    /// The median of the same within each round.
    pub fraction_median: f64,
    /// The fastest step of `torch.optim.AdamW(fused=True)`, milliseconds, with `copy_` to bf16 after it where the variant
    /// has a copy.
    pub torch_fused_ms: Option<f64>,
    /// That of `foreach=True`, without a copy.
    pub torch_foreach_ms: Option<f64>,
    /// `ms / torch_fused_ms`.
    pub ratio: Option<f64>,
    /// The median of the same within each round.
    pub ratio_median: Option<f64>,
    /// PyTorch's version and instruction set.
    pub torch: Option<String>,
}

/// The arrays of one size.
struct Memory {
    master: Vec<f32>,
    m: Vec<f32>,
    v: Vec<f32>,
    gradient: Vec<f32>,
    copy: Vec<bf16>,
    step: u64,
}

impl Memory {
    fn new(size: usize) -> Self {
        Self {
            master: filled(0.5, size),
            m: zeroed(size),
            v: zeroed(size),
            gradient: vec![1e-3; size],
            copy: zeroed(size),
            step: 0,
        }
    }

    /// One step of the optimizer.
    fn update(&mut self, variant: Variant) {
        self.step += 1;
        let update = AdamWUpdate {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            lr: 1e-3,
            weight_decay: 0.01,
            step: self.step,
            gradient_factor: 1.0,
        };
        let mut piece = Piece::new(&mut self.master, Gradient::Full(&self.gradient));
        if variant == Variant::F32WithBf16Copy {
            piece.copy = ComputeCopy::Bf16(&mut self.copy);
        }
        let moments = MomentSlices {
            m: &mut self.m,
            v: &mut self.v,
        };
        update.apply(piece, moments);
    }

    /// Reads four arrays and writes three of them in place, and the copy where the variant has one.
    fn read_modify_write(&mut self, variant: Variant) {
        const CHUNK: usize = 1 << 16;
        let arch = Arch::new();
        let copied = match variant {
            Variant::F32 => 0,
            Variant::F32WithBf16Copy => self.copy.len(),
        };
        let inputs = self.gradient.par_chunks(CHUNK);
        let arrays = self.master.par_chunks_mut(CHUNK);
        let arrays = arrays.zip(self.m.par_chunks_mut(CHUNK));
        let arrays = arrays.zip(self.v.par_chunks_mut(CHUNK)).zip(inputs);
        let run = |(((a, b), c), d), copy| arch.dispatch(AddToThree { a, b, c, d, copy });
        match copied {
            0 => arrays.for_each(|arrays| run(arrays, None)),
            _ => arrays
                .zip(self.copy.par_chunks_mut(CHUNK))
                .for_each(|(arrays, copy)| run(arrays, Some(copy))),
        }
    }
}

/// As the states of a rank are allocated.
fn filled(value: f32, size: usize) -> Vec<f32> {
    let mut values = zeroed(size);
    values.fill(value);
    values
}

/// The least that touches every stream as the update does.
struct AddToThree<'a> {
    a: &'a mut [f32],
    b: &'a mut [f32],
    c: &'a mut [f32],
    d: &'a [f32],
    copy: Option<&'a mut [bf16]>,
}

impl WithSimd for AddToThree<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<I: Simd>(self, _: I) {
        match self.copy {
            None => add_to_three(self.a, self.b, self.c, self.d),
            Some(copy) => {
                // Blocks, so that what was written is still in the cache when it is copied.
                const BLOCK: usize = 1024;
                let blocks = self.a.chunks_mut(BLOCK).zip(self.b.chunks_mut(BLOCK));
                let blocks = blocks.zip(self.c.chunks_mut(BLOCK));
                let blocks = blocks.zip(self.d.chunks(BLOCK)).zip(copy.chunks_mut(BLOCK));
                for ((((a, b), c), d), copy) in blocks {
                    add_to_three(a, b, c, d);
                    for (copy, a) in copy.iter_mut().zip(a) {
                        *copy = bf16::from_bits((a.to_bits() >> 16) as u16);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn add_to_three(a: &mut [f32], b: &mut [f32], c: &mut [f32], d: &[f32]) {
    for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
        *a += *d;
        *b += *d;
        *c += *d;
    }
}

/// Runs the benchmark: two rows, without and with the copy.
///
/// # Errors
/// [`torch::Error`] if there is an interpreter that does not answer.
pub fn run(bench: &HostAdamBench) -> Result<Vec<HostAdamRow>, torch::Error> {
    let threads = rayon::current_num_threads();
    let start = |python: &PathBuf| Torch::start(python, bench.size, threads);
    let mut torch = bench.python.as_ref().map(start).transpose()?;
    let mut memory = Memory::new(bench.size);
    // A turn takes ten milliseconds at least, longer than threads of the last one go on waiting for work.
    let steps = (50_000_000 / bench.size).clamp(3, 50);
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..bench.rounds {
        for (variant, rounds) in VARIANTS.into_iter().zip(&mut rounds) {
            let mut turn = |which, steps| {
                let torch = torch.as_mut();
                torch.map(|it| it.fastest(which, steps)).transpose()
            };
            rounds.push(Turns {
                rmw: fastest(steps, || memory.read_modify_write(variant)),
                update: fastest(steps, || memory.update(variant)),
                fused: turn(variant.fused(), steps)?,
                // So much slower that fewer steps take as long.
                foreach: turn(Implementation::Foreach, steps.div_ceil(8))?,
            });
        }
    }
    let row = |(variant, rounds): (Variant, &Vec<Turns>)| {
        let least = |of: fn(&Turns) -> Option<f64>| rounds.iter().filter_map(of).reduce(f64::min);
        let median = |of: fn(&Turns) -> Option<f64>| {
            let mut values: Vec<f64> = rounds.iter().filter_map(of).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        let none = f64::INFINITY;
        let ms = least(|turns| Some(turns.update)).unwrap_or(none);
        let rmw_ms = least(|turns| Some(turns.rmw)).unwrap_or(none);
        let torch_fused_ms = least(|turns| turns.fused);
        let gb_s = |ms: f64| variant.bytes() * bench.size as f64 / ms / 1e6;
        HostAdamRow {
            bench: "host-adam".into(),
            size: bench.size,
            variant,
            threads,
            instruction_set: terrashard_zero::host::instruction_set().into(),
            ms,
            gb_s: gb_s(ms),
            rmw_gb_s: gb_s(rmw_ms),
            fraction: rmw_ms / ms,
            fraction_median: median(|turns| Some(turns.rmw / turns.update)).unwrap_or(0.0),
            torch_fused_ms,
            torch_foreach_ms: least(|turns| turns.foreach),
            ratio: torch_fused_ms.map(|fused| ms / fused),
            ratio_median: median(|turns| turns.fused.map(|fused| turns.update / fused)),
            torch: torch.as_ref().map(|torch| torch.version.clone()),
        }
    };
    Ok(VARIANTS.into_iter().zip(&rounds).map(row).collect())
}

const VARIANTS: [Variant; 2] = [Variant::F32, Variant::F32WithBf16Copy];

impl Variant {
    /// Bytes read and written for each parameter.
    fn bytes(self) -> f64 {
        match self {
            Self::F32 => 28.0,
            Self::F32WithBf16Copy => 30.0,
        }
    }

    /// What of PyTorch does the same work.
    fn fused(self) -> Implementation {
        match self {
            Self::F32 => Implementation::Fused,
            Self::F32WithBf16Copy => Implementation::FusedWithBf16Copy,
        }
    }
}

/// The fastest steps of one round's turns, milliseconds.
struct Turns {
    rmw: f64,
    update: f64,
    fused: Option<f64>,
    foreach: Option<f64>,
}

/// The time of the fastest of `steps` calls, milliseconds, from within the thread pool as PyTorch's is from within its own.
fn fastest(steps: usize, mut step: impl FnMut() + Send) -> f64 {
    let time = |_| {
        let start = Instant::now();
        step();
        start.elapsed().as_secs_f64() * 1e3
    };
    rayon::scope(|_| (0..steps).map(time).fold(f64::INFINITY, f64::min))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_loops_touch_every_element() {
        let n = 100_001;
        for variant in [Variant::F32, Variant::F32WithBf16Copy] {
            let copied = variant == Variant::F32WithBf16Copy;
            let mut memory = Memory::new(n);
            memory.read_modify_write(variant);
            assert!(memory.master.iter().all(|x| *x == 0.5 + 1e-3));
            assert!(memory.m.iter().chain(&memory.v).all(|x| *x == 1e-3));
            let all = |copy: &[bf16], value| copy.iter().all(|x| x.to_f32() == value);
            assert!(all(&memory.copy, if copied { 0.5 } else { 0.0 }));

            // A first step moves by the learning rate: 0.5 * (1 - 1e-5) - 1e-3, in bf16 255 / 512.
            let mut memory = Memory::new(n);
            memory.update(variant);
            assert!(memory.master.iter().all(|x| (x - 0.498995).abs() < 1e-6));
            assert!(all(&memory.copy, if copied { 255.0 / 512.0 } else { 0.0 }));
        }
    }

    #[test]
    fn rows_hold_what_was_measured() {
        let bench = HostAdamBench {
            size: 1000,
            rounds: 1,
            python: None,
        };
        let rows = run(&bench).expect("without an interpreter nothing can fail");
        assert_eq!(rows.len(), 2);
        for (row, bytes) in rows.iter().zip([28.0, 30.0]) {
            assert!((row.gb_s * row.ms - bytes * 1e-3).abs() < 1e-9, "{row:?}");
            assert!(
                (row.fraction - row.gb_s / row.rmw_gb_s).abs() < 1e-9,
                "{row:?}"
            );
            // In one round the fastest steps are the median ones.
            assert!((row.fraction - row.fraction_median).abs() < 1e-9, "{row:?}");
            assert_eq!((row.torch_fused_ms, row.ratio), (None, None));
        }
    }
}
