//! Overviews: the same ground with half as many columns and rows.

use rayon::prelude::*;

use crate::Window;

/// What stands in a pixel of an overview.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overviews {
    /// No overviews are stored.
    None,
    /// The upper left one of the four pixels that it covers: no value is made up, as classes need. The default.
    #[default]
    Nearest,
    /// The mean of those of the four that are data, as images need.
    Average,
}

/// How samples are halved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Halving {
    pub(crate) how: Overviews,
    /// The value that means "no data", if the type has it.
    pub(crate) nodata: Option<f64>,
}

/// Arithmetic that all sample types have.
pub(crate) trait Sample: Copy + Default + PartialEq + Send + Sync {
    /// The difference to `left`, wrapping around; only integers are asked for it.
    fn difference(self, left: Self) -> Self;
    /// The sum with `other`, wrapping around; only integers are asked for it.
    fn sum(self, other: Self) -> Self;
    /// Exact for all but 64-bit integers beyond 2^53.
    fn double(self) -> f64;
    /// The nearest value of the type.
    fn nearest(value: f64) -> Self;
}

macro_rules! integers {
    ($($rust:ident)*) => {
        $(impl Sample for $rust {
            fn difference(self, left: Self) -> Self {
                self.wrapping_sub(left)
            }

            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn double(self) -> f64 {
                self as f64
            }

            fn nearest(value: f64) -> Self {
                value.round() as Self
            }
        })*
    };
}

macro_rules! floats {
    ($($rust:ident)*) => {
        $(impl Sample for $rust {
            fn difference(self, left: Self) -> Self {
                self - left
            }

            fn sum(self, other: Self) -> Self {
                self + other
            }

            fn double(self) -> f64 {
                self.into()
            }

            fn nearest(value: f64) -> Self {
                value as Self
            }
        })*
    };
}

integers!(u8 i8 u16 i16 u32 i32 u64 i64);
floats!(f32 f64);

/// The window of the overview that `from` covers; `from` begins at even columns and rows.
pub(crate) const fn halved_window(from: Window) -> Window {
    Window::new(
        from.col / 2,
        from.row / 2,
        from.width.div_ceil(2),
        from.height.div_ceil(2),
    )
}

/// Halves samples `[bands, from.height, from.width]`.
pub(crate) fn halve<T: Sample>(samples: &[T], from: Window, bands: usize, how: &Halving) -> Vec<T> {
    let to = halved_window(from);
    let mut halved = vec![T::default(); bands * to.pixels()];
    let rows = halved.par_chunks_mut(to.width).enumerate();
    rows.for_each(|(index, row)| {
        let (band, down) = (index / to.height, index % to.height * 2);
        let line = |down: usize| &samples[(band * from.height + down) * from.width..][..from.width];
        let upper = line(down);
        match how.how {
            Overviews::None | Overviews::Nearest => {
                row.iter_mut()
                    .zip(upper.iter().step_by(2))
                    .for_each(|(to, from)| *to = *from);
            }
            Overviews::Average => {
                let lower = if down + 1 < from.height {
                    line(down + 1)
                } else {
                    &[]
                };
                let lower = lower.chunks(2).chain(std::iter::repeat(&[][..]));
                for ((to, above), below) in row.iter_mut().zip(upper.chunks(2)).zip(lower) {
                    *to = mean(above, below, how.nodata);
                }
            }
        }
    });
    halved
}

/// The mean of the samples that are data; where none is, the first one.
fn mean<T: Sample>(above: &[T], below: &[T], nodata: Option<f64>) -> T {
    let nodata = nodata.map(T::nearest);
    let (mut sum, mut count) = (0.0, 0_u32);
    for &sample in above.iter().chain(below) {
        let value = sample.double();
        if !value.is_nan() && Some(sample) != nodata {
            sum += value;
            count += 1;
        }
    }
    match count {
        0 => above[0],
        count => T::nearest(sum / f64::from(count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand, with an odd number of columns and rows.
    #[test]
    fn four_pixels_become_one() {
        let samples = [
            1_u8, 2, 9, //
            3, 5, 255, //
            255, 7, 255, //
        ];
        let from = Window::new(4, 2, 3, 3);
        let check = |how, nodata, expected: [u8; 4]| {
            let halving = Halving { how, nodata };
            assert_eq!(halve(&samples, from, 1, &halving), expected, "{how:?}");
        };
        check(Overviews::Nearest, Some(255.0), [1, 9, 255, 255]);
        check(Overviews::Average, Some(255.0), [3, 9, 7, 255]);
        check(Overviews::Average, None, [3, 132, 131, 255]);
        assert_eq!(halved_window(from), Window::new(2, 1, 2, 2));

        let floats = [f32::NAN, -1.0, 2.0, f32::NAN];
        let halving = Halving {
            how: Overviews::Average,
            nodata: Some(f64::NAN),
        };
        assert_eq!(halve(&floats, Window::new(0, 0, 2, 2), 1, &halving), [0.5]);
    }

    #[test]
    fn bands_stay_apart() {
        let samples = [1_i16, 1, 1, 1, -3, -3, -3, -4];
        let halving = Halving {
            how: Overviews::Average,
            nodata: None,
        };
        assert_eq!(
            halve(&samples, Window::new(0, 0, 2, 2), 2, &halving),
            [1, -3]
        );
    }
}
