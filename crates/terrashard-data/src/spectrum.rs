//! The Fourier transform of small square images (Cooley and Tukey 1965).

use std::f64::consts::TAU;

/// A complex number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Complex {
    pub(crate) real: f64,
    pub(crate) imaginary: f64,
}

impl Complex {
    pub(crate) fn times(self, other: Self) -> Self {
        Self {
            real: self.real * other.real - self.imaginary * other.imaginary,
            imaginary: self.real * other.imaginary + self.imaginary * other.real,
        }
    }

    pub(crate) fn conjugate(self) -> Self {
        Self {
            imaginary: -self.imaginary,
            ..self
        }
    }

    pub(crate) fn scaled(self, factor: f64) -> Self {
        Self {
            real: self.real * factor,
            imaginary: self.imaginary * factor,
        }
    }

    pub(crate) fn length(self) -> f64 {
        self.real.hypot(self.imaginary)
    }

    fn plus(self, other: Self) -> Self {
        Self {
            real: self.real + other.real,
            imaginary: self.imaginary + other.imaginary,
        }
    }
}

/// Transforms a square of `side` x `side` numbers in place; the side is a power of two.
pub(crate) fn transform(values: &mut [Complex], side: usize) {
    both_ways(values, side, -1.0);
}

/// Undoes [`transform`].
pub(crate) fn inverse(values: &mut [Complex], side: usize) {
    both_ways(values, side, 1.0);
    let scale = 1.0 / (side * side) as f64;
    values
        .iter_mut()
        .for_each(|value| *value = value.scaled(scale));
}

fn both_ways(values: &mut [Complex], side: usize, sign: f64) {
    assert!(
        side.is_power_of_two() && values.len() == side * side,
        "a square of a power of two"
    );
    let turns: Vec<Complex> = (0..side / 2)
        .map(|k| {
            let angle = sign * TAU * k as f64 / side as f64;
            Complex {
                real: angle.cos(),
                imaginary: angle.sin(),
            }
        })
        .collect();
    values
        .chunks_exact_mut(side)
        .for_each(|row| line(row, &turns));
    let mut column = vec![Complex::default(); side];
    for col in 0..side {
        for (row, value) in column.iter_mut().enumerate() {
            *value = values[row * side + col];
        }
        line(&mut column, &turns);
        for (row, value) in column.iter().enumerate() {
            values[row * side + col] = *value;
        }
    }
}

fn line(values: &mut [Complex], turns: &[Complex]) {
    let length = values.len();
    if length < 2 {
        return;
    }
    let bits = length.ilog2();
    for at in 0..length {
        let mirrored = at.reverse_bits() >> (usize::BITS - bits);
        if at < mirrored {
            values.swap(at, mirrored);
        }
    }
    let mut half = 1;
    while half < length {
        let step = length / (2 * half);
        for block in values.chunks_exact_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for (k, (a, b)) in low.iter_mut().zip(high).enumerate() {
                let turned = b.times(turns[k * step]);
                (*a, *b) = (a.plus(turned), a.plus(turned.scaled(-1.0)));
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_sum_that_it_stands_for() {
        const SIDE: usize = 8;
        let values: Vec<Complex> = (0..SIDE * SIDE)
            .map(|at| Complex {
                real: (at as f64 * 1.7).sin(),
                imaginary: (at as f64 * 0.3).cos(),
            })
            .collect();
        let mut transformed = values.clone();
        transform(&mut transformed, SIDE);
        for (v, u) in [(0, 0), (1, 0), (3, 5), (7, 7)] {
            let mut sum = Complex::default();
            for (at, value) in values.iter().enumerate() {
                let angle = -TAU * (u * (at % SIDE) + v * (at / SIDE)) as f64 / SIDE as f64;
                let turn = Complex {
                    real: angle.cos(),
                    imaginary: angle.sin(),
                };
                sum = sum.plus(value.times(turn));
            }
            assert!(
                transformed[v * SIDE + u].plus(sum.scaled(-1.0)).length() < 1e-10,
                "{u}, {v}"
            );
        }
        inverse(&mut transformed, SIDE);
        for (got, expected) in transformed.iter().zip(&values) {
            assert!(got.plus(expected.scaled(-1.0)).length() < 1e-12);
        }
    }
}
