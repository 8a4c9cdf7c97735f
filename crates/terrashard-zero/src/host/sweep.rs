//! One pass over a piece and its states: cut into chunks for the cores, into blocks for the cache.

use std::array;

use pulp::{Arch, Simd, WithSimd};

use super::element::Element;
use super::piece::{Gradient, Piece};

/// Elements in a chunk, the least that a core is given: its streams are read for microseconds, which starting it costs
/// much less than.
const CHUNK: usize = 1 << 16;

/// Elements in a block, after which copy and average follow: what was just computed is still in the cache.
const BLOCK: usize = 4096;

/// Elements in a block whose gradient is converted first, to the stack.
const CONVERTED_BLOCK: usize = 1024;

/// An update rule with `S` states for each parameter.
pub(super) trait Rule<T, const S: usize>: Sync {
    /// The parameter and its states after the update.
    fn element(&self, parameter: T, gradient: T, states: [T; S]) -> (T, [T; S]);
}

/// Updates `piece` and its `states` with `rule`, on the cores of the thread pool that the caller runs in.
///
/// # Panics
/// If a part is not as long as the parameters.
pub(super) fn sweep<T: Element, R: Rule<T, S>, const S: usize>(
    rule: &R,
    piece: Piece<'_, T>,
    states: [&mut [T]; S],
) {
    piece.check();
    for state in &states {
        let n = piece.master.len();
        assert_eq!(state.len(), n, "a state is as long as its parameters");
    }
    let whole = Chunk {
        rule,
        piece,
        states,
    };
    whole.run(Arch::new(), CHUNK);
}

/// The instruction set that this processor's updates use.
pub fn instruction_set() -> &'static str {
    match format!("{:?}", Arch::new()).split_once('(') {
        Some(("V4", _)) => "AVX-512",
        Some(("V3", _)) => "AVX2",
        Some(("Neon", _)) => "NEON",
        _ => "portable",
    }
}

/// A range of the elements.
struct Chunk<'a, T, R, const S: usize> {
    rule: &'a R,
    piece: Piece<'a, T>,
    states: [&'a mut [T]; S],
}

impl<T: Element, R: Rule<T, S>, const S: usize> Chunk<'_, T, R, S> {
    /// Halves the range until a chunk is left, and gives the halves to whichever core is free.
    fn run(self, arch: Arch, chunk: usize) {
        let chunks = self.piece.master.len().div_ceil(chunk);
        if chunks <= 1 {
            return arch.dispatch(self);
        }
        let (left, right) = self.split_at(chunks / 2 * chunk);
        rayon::join(|| left.run(arch, chunk), || right.run(arch, chunk));
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        let rule = self.rule;
        let (piece, piece_right) = self.piece.split_at(at);
        let mut states = self.states.map(|state| {
            let (left, right) = state.split_at_mut(at);
            (left, Some(right))
        });
        let states_right = states
            .each_mut()
            .map(|(_, right)| right.take().expect("taken once"));
        let left = Self {
            rule,
            piece,
            states: states.map(|(left, _)| left),
        };
        let right = Self {
            rule,
            piece: piece_right,
            states: states_right,
        };
        (left, right)
    }
}

impl<T: Element, R: Rule<T, S>, const S: usize> WithSimd for Chunk<'_, T, R, S> {
    type Output = ();

    /// Compiled once for each instruction set: what is inlined here may use it.
    #[inline(always)]
    fn with_simd<I: Simd>(self, _: I) {
        let Self {
            rule,
            piece,
            mut states,
        } = self;
        let Piece {
            master,
            gradient,
            mut copy,
            mut average,
        } = piece;
        let mut converted = [T::ZERO; CONVERTED_BLOCK];
        let block = match gradient {
            Gradient::Full(_) => BLOCK,
            Gradient::Bf16(_) | Gradient::F16(_) => CONVERTED_BLOCK,
        };
        for (index, master) in master.chunks_mut(block).enumerate() {
            let (at, len) = (index * block, master.len());
            let gradient = gradient.read(at..at + len, &mut converted);
            let states = states.each_mut().map(|state| &mut state[at..at + len]);
            update(rule, master, gradient, states);
            copy.write(at, master);
            if let Some(average) = &mut average {
                average.follow(at, master);
            }
        }
    }
}

/// Updates a block.
#[inline(always)]
fn update<T: Element, R: Rule<T, S>, const S: usize>(
    rule: &R,
    master: &mut [T],
    gradient: &[T],
    states: [&mut [T]; S],
) {
    let len = master.len();
    let gradient = &gradient[..len];
    let states = states.map(|state| &mut state[..len]);
    for i in 0..len {
        let before = array::from_fn(|k| states[k][i]);
        let (parameter, after) = rule.element(master[i], gradient[i], before);
        master[i] = parameter;
        for k in 0..S {
            states[k][i] = after[k];
        }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::super::adamw::AdamWUpdate;
    use super::super::average::Average;
    use super::super::piece::ComputeCopy;
    use super::super::sgd::{Nesterov, SgdUpdate};
    use super::*;

    /// Every instruction set that this processor has.
    fn archs() -> Vec<Arch> {
        #[cfg(target_arch = "x86_64")]
        let others = {
            use pulp::x86::{V3, V4};
            [V3::try_new().map(Arch::V3), V4::try_new().map(Arch::V4)]
        };
        #[cfg(not(target_arch = "x86_64"))]
        let others = [Some(Arch::new()), None];
        let others = others.into_iter().flatten();
        [Arch::Scalar].into_iter().chain(others).collect()
    }

    #[test]
    fn the_instruction_set_is_the_best_of_those_there_are() {
        let best = match archs().pop() {
            #[cfg(target_arch = "x86_64")]
            Some(Arch::V4(_)) => "AVX-512",
            #[cfg(target_arch = "x86_64")]
            Some(Arch::V3(_)) => "AVX2",
            #[cfg(target_arch = "aarch64")]
            Some(Arch::Neon(_)) => "NEON",
            _ => "portable",
        };
        assert_eq!(instruction_set(), best);
    }

    /// Numbers over twelve decades, both signs, none zero.
    fn numbers(n: usize, seed: u64) -> Vec<f64> {
        let mut state = seed;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 11) as f64 * 2f64.powi(-53)
        };
        let mut number = || (next() - 0.5) * 10f64.powf(12.0 * next() - 9.0);
        (0..n).map(|_| number()).collect()
    }

    /// What a sweep leaves behind, and what in: parameters, states, copies, average.
    #[derive(Clone, Debug, PartialEq)]
    struct Left<T> {
        master: Vec<T>,
        states: Vec<Vec<T>>,
        bf16: Vec<u16>,
        f16: Vec<u16>,
        average: Vec<T>,
    }

    /// Runs `rule` three times: on a full gradient without a copy, on one in bf16 with a copy in f16, on one in f16 with
    /// a copy in bf16.
    fn left<T: Element, R: Rule<T, S>, const S: usize>(
        rule: &R,
        (arch, chunk, n): (Arch, usize, usize),
    ) -> Left<T> {
        let of = |seed| -> Vec<T> { numbers(n, seed).into_iter().map(T::of).collect() };
        let squares = |seed| numbers(n, seed).into_iter().map(|x| T::of(x * x)).collect();
        let (mut master, mut average, gradient) = (of(1), of(2), of(3));
        let mut states: [Vec<T>; S] = array::from_fn(|k| squares(10 + k as u64));
        let short = numbers(n, 4);
        let gradient_bf16: Vec<_> = short.iter().map(|x| bf16::from_f64(*x)).collect();
        let gradient_f16: Vec<_> = short.iter().map(|x| f16::from_f64(*x)).collect();
        let (mut copy_bf16, mut copy_f16) = (vec![bf16::NAN; n], vec![f16::NAN; n]);
        for round in 0..3 {
            let (gradient, copy) = match round {
                0 => (Gradient::Full(&gradient[..]), ComputeCopy::None),
                1 => (
                    Gradient::Bf16(&gradient_bf16),
                    ComputeCopy::F16(&mut copy_f16),
                ),
                _ => (
                    Gradient::F16(&gradient_f16),
                    ComputeCopy::Bf16(&mut copy_bf16),
                ),
            };
            let average = Average {
                values: &mut average,
                decay: 0.9,
            };
            let whole = Chunk {
                rule,
                piece: Piece {
                    copy,
                    average: Some(average),
                    ..Piece::new(&mut master, gradient)
                },
                states: states.each_mut().map(|state| &mut state[..]),
            };
            whole.run(arch, chunk);
        }
        Left {
            master,
            states: states.into(),
            bf16: copy_bf16.into_iter().map(bf16::to_bits).collect(),
            f16: copy_f16.into_iter().map(f16::to_bits).collect(),
            average,
        }
    }

    fn adamw() -> AdamWUpdate {
        AdamWUpdate {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            lr: 0.01,
            weight_decay: 0.1,
            step: 7,
            gradient_factor: 0.7,
        }
    }

    /// No instruction set, chunk or thread count changes a bit. Equal floats that are no NaN and no zero are equal bits.
    fn check<T: Element + PartialEq + std::fmt::Debug, R: Rule<T, S>, const S: usize>(rule: &R) {
        for n in [0, 1, 7, 8, 15, 16, 17, 31, 1025, 9000] {
            let expected = left(rule, (Arch::Scalar, usize::MAX, n));
            for arch in archs() {
                for chunk in [16, 1024, 1 << 16] {
                    assert_eq!(
                        left(rule, (arch, chunk, n)),
                        expected,
                        "{arch:?} {chunk} {n}"
                    );
                }
            }
        }
    }

    #[test]
    fn instruction_sets_and_chunks_give_the_same_bits() {
        check::<f32, _, 2>(&adamw().rule::<f32>());
        check::<f64, _, 2>(&adamw().rule::<f64>());
        let sgd = SgdUpdate {
            lr: 0.01,
            momentum: 0.9,
            weight_decay: 0.1,
            nesterov: true,
            gradient_factor: 0.7,
        };
        check::<f32, _, 0>(&sgd.rule::<f32>());
        check::<f32, _, 1>(&sgd.rule::<f32>());
        check::<f32, _, 1>(&Nesterov(sgd.rule::<f32>()));
    }

    #[test]
    fn thread_counts_give_the_same_bits() {
        let rule = adamw().rule::<f32>();
        let expected = left(&rule, (Arch::new(), usize::MAX, 5000));
        for threads in [1, 2, 3, 7] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            let pool = pool.build().unwrap();
            let got = pool.install(|| left(&rule, (Arch::new(), 64, 5000)));
            assert_eq!(got, expected, "{threads} threads");
        }
    }

    #[test]
    fn copies_and_average_follow_the_updated_parameters() {
        let rule = adamw().rule::<f32>();
        let Left { master, bf16, .. } = left(&rule, (Arch::new(), 5000, 9000));
        let rounded = |x: &f32| bf16::from_f32(*x).to_bits();
        assert_eq!(bf16, master.iter().map(rounded).collect::<Vec<_>>());

        // Without a move of the parameters the average of 1 and 3 is 0.75 * 1 + 0.25 * 3; it does not touch them.
        let (mut master, mut values, mut full) =
            (vec![3.0; 2000], vec![1.0; 2000], vec![0.0; 2000]);
        let mut piece = Piece::new(&mut master, Gradient::Full(&[0.0; 2000]));
        piece.copy = ComputeCopy::Full(&mut full);
        piece.average = Some(Average {
            values: &mut values,
            decay: 0.75,
        });
        let still = AdamWUpdate {
            weight_decay: 0.0,
            ..adamw()
        };
        sweep(
            &still.rule::<f64>(),
            piece,
            [&mut [0.0; 2000], &mut [0.0; 2000]],
        );
        assert_eq!(values, vec![1.5; 2000]);
        assert_eq!((master, full), (vec![3.0; 2000], vec![3.0; 2000]));
    }

    #[test]
    fn padding_stays_zero() {
        let mut zeros = [(); 4].map(|()| vec![0f32; 100]);
        let [master, m, v, average] = &mut zeros;
        let mut copy = vec![bf16::NAN; 100];
        let piece = Piece {
            copy: ComputeCopy::Bf16(&mut copy),
            average: Some(Average {
                values: average,
                decay: 0.9,
            }),
            ..Piece::new(master, Gradient::Bf16(&[bf16::ZERO; 100]))
        };
        sweep(&adamw().rule(), piece, [m, v]);
        let is_zero = |values: &Vec<f32>| values.iter().all(|x| x.to_bits() == 0);
        assert!(zeros.iter().all(is_zero));
        assert!(copy.iter().all(|x| x.to_bits() == 0));
    }

    #[test]
    #[should_panic(expected = "a state is as long as its parameters")]
    fn parts_of_other_lengths_are_refused() {
        let mut master = [0f32; 3];
        let piece = Piece::new(&mut master, Gradient::Full(&[0.0; 3]));
        sweep(&adamw().rule(), piece, [&mut [0.0; 3], &mut [0.0; 4]]);
    }
}
