//! Typed samples of one window.

use std::fmt;

use crate::halving::{Halving, Sample, halve};
use crate::tile_codec::Predictor;
use crate::{Error, Result, Window};

macro_rules! sample_types {
    ($($variant:ident $rust:ident $name:literal $bytes:literal $doc:literal;)*) => {
        /// The type of one sample.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DataType {
            $(#[doc = $doc] $variant,)*
        }

        impl DataType {
            /// Bytes of one sample.
            pub const fn bytes(self) -> usize {
                match self { $(Self::$variant => $bytes,)* }
            }

            /// numpy's name: `uint8`, `float32`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Whether `value` is one of the type's values: in range, and whole where the type is an integer.
            ///
            /// A float type holds every float (its nearest value stands for it) up to its range, NaN and the infinities.
            pub fn represents(self, value: f64) -> bool {
                match self.kind() {
                    Kind::Float => !value.is_finite() || self == Self::F64 || (value as f32).is_finite(),
                    // A cast to an integer saturates, so only its own values survive the way back.
                    Kind::Integer => match self { $(Self::$variant => (value as $rust) as f64 == value,)* },
                }
            }
        }

        /// Samples of one type, in the order `[bands, height, width]`.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Samples {
            $(#[doc = $doc] $variant(Vec<$rust>),)*
        }

        impl Samples {
            /// The type of the samples.
            pub const fn data_type(&self) -> DataType {
                match self { $(Self::$variant(_) => DataType::$variant,)* }
            }

            /// Number of samples.
            pub const fn len(&self) -> usize {
                match self { $(Self::$variant(v) => v.len(),)* }
            }

            /// Sample `index` as a double: exact for every type except 64-bit integers beyond 2^53.
            ///
            /// # Panics
            /// Where `index` is not below [`Samples::len`].
            pub fn get(&self, index: usize) -> f64 {
                match self { $(Self::$variant(v) => v[index] as f64,)* }
            }

            /// The samples of `range` as single precision: exact for 8- and 16-bit types, nearest for the others.
            ///
            /// # Panics
            /// Where the range exceeds [`Samples::len`].
            pub fn to_f32(&self, range: std::ops::Range<usize>) -> Vec<f32> {
                match self { $(Self::$variant(v) => v[range].iter().map(|&v| v as f32).collect(),)* }
            }

            /// Calls `visit` with each sample of `range` as a double.
            pub(crate) fn for_each(&self, range: std::ops::Range<usize>, mut visit: impl FnMut(f64)) {
                match self { $(Self::$variant(v) => v[range].iter().for_each(|&v| visit(v as f64)),)* }
            }

            /// `len` samples of `value`, which the type must represent.
            pub fn filled(data_type: DataType, value: f64, len: usize) -> Self {
                match data_type { $(DataType::$variant => Self::$variant(vec![value as $rust; len]),)* }
            }

            /// Native-endian `bytes`, pixel by pixel, taken apart into bands.
            pub(crate) fn from_interleaved(data_type: DataType, bytes: &[u8], how: Interleaved) -> Self {
                match data_type { $(DataType::$variant => {
                    let values = bytes.as_chunks::<$bytes>().0;
                    Self::$variant(taken_apart(values, how, $rust::from_ne_bytes))
                })* }
            }

            /// Native-endian bytes of one band after another.
            pub(crate) fn from_planes(data_type: DataType, planes: &[impl AsRef<[u8]>]) -> Self {
                match data_type { $(DataType::$variant => {
                    let bytes = planes.iter().map(|plane| plane.as_ref().len()).sum::<usize>();
                    let mut samples = Vec::with_capacity(bytes / $bytes);
                    for plane in planes {
                        samples.extend(plane.as_ref().as_chunks::<$bytes>().0.iter().map(|v| $rust::from_ne_bytes(*v)));
                    }
                    Self::$variant(samples)
                })* }
            }

            /// Overwrites `len` samples at `at` with those of `from` at `from_at`. Both have the same type.
            pub(crate) fn copy_from(&mut self, at: usize, from: &Samples, from_at: usize, len: usize) {
                match (self, from) {
                    $((Self::$variant(to), Samples::$variant(from)) =>
                        to[at..at + len].copy_from_slice(&from[from_at..from_at + len]),)*
                    _ => unreachable!("the types of both are compared when a window is accepted"),
                }
            }

            /// An empty list with room for `len` samples.
            pub(crate) fn with_capacity(data_type: DataType, len: usize) -> Self {
                match data_type { $(DataType::$variant => Self::$variant(Vec::with_capacity(len)),)* }
            }

            /// Appends each value as the nearest one of the type.
            pub(crate) fn extend_rounded(&mut self, values: &[f32]) {
                match self { $(Self::$variant(v) => v.extend(values.iter().map(|&v| <$rust>::nearest(v.into()))),)* }
            }

            /// Appends the samples of `range` of others, as the nearest values of the type.
            pub(crate) fn extend_converted(&mut self, from: &Samples, range: std::ops::Range<usize>) {
                match self { $(Self::$variant(v) => from.for_each(range, |sample| v.push(<$rust>::nearest(sample))),)* }
            }

            /// The samples at these places.
            pub(crate) fn picked(&self, places: &[usize]) -> Self {
                match self { $(Self::$variant(v) => Self::$variant(places.iter().map(|&at| v[at]).collect()),)* }
            }

            /// Writes row `row` of a window of samples, interleaved by pixel, as little-endian bytes: integers of up to 32 bits as
            /// differences to the pixel on the left.
            pub(crate) fn interleave_row(&self, window: Window, bands: usize, row: usize, to: &mut [u8]) {
                let differs = Predictor::of(self.data_type()) == Predictor::Horizontal;
                match self { $(Self::$variant(v) => {
                    let to = to.as_chunks_mut::<$bytes>().0;
                    for band in 0..bands {
                        let from = &v[(band * window.height + row) * window.width..][..window.width];
                        let to = to[band..].iter_mut().step_by(bands);
                        let mut left = <$rust>::default();
                        for (to, from) in to.zip(from) {
                            *to = if differs { from.difference(left) } else { *from }.to_le_bytes();
                            left = *from;
                        }
                    }
                })* }
            }

            /// Half the size: every second sample of every second row, or the mean of the valid ones of four.
            pub(crate) fn halved(&self, from: Window, bands: usize, how: &Halving) -> Self {
                match self { $(Self::$variant(v) => Self::$variant(halve(v, from, bands, how)),)* }
            }

            /// Overwrites `len` samples at `at` with `value`, which the type must represent.
            ///
            /// # Panics
            /// Where they exceed [`Samples::len`].
            pub fn fill(&mut self, at: usize, len: usize, value: f64) {
                match self { $(Self::$variant(v) => v[at..at + len].fill(value as $rust),)* }
            }
        }
    };
}

sample_types! {
    U8 u8 "uint8" 1 "8-bit unsigned.";
    I8 i8 "int8" 1 "8-bit signed.";
    U16 u16 "uint16" 2 "16-bit unsigned: Sentinel-2 digital numbers.";
    I16 i16 "int16" 2 "16-bit signed.";
    U32 u32 "uint32" 4 "32-bit unsigned.";
    I32 i32 "int32" 4 "32-bit signed.";
    U64 u64 "uint64" 8 "64-bit unsigned.";
    I64 i64 "int64" 8 "64-bit signed.";
    F32 f32 "float32" 4 "Single precision.";
    F64 f64 "float64" 8 "Double precision.";
}

/// How samples stand in interleaved bytes.
#[derive(Clone, Copy)]
pub(crate) struct Interleaved {
    /// Samples of a pixel.
    pub(crate) bands: usize,
    /// The pixels of a row, where samples are differences to the pixel on the left of them.
    pub(crate) differences: Option<usize>,
}

/// Pixels that are taken apart at a time, so that they are still in the cache for the next band.
const RUN: usize = 1024;

/// `[pixels, bands]` as `[bands, pixels]`.
fn taken_apart<V: Copy, T: Sample>(values: &[V], how: Interleaved, of: impl Fn(V) -> T) -> Vec<T> {
    match how.bands {
        1 => fixed_apart::<V, T, 1>(values, how, of),
        2 => fixed_apart::<V, T, 2>(values, how, of),
        3 => fixed_apart::<V, T, 3>(values, how, of),
        4 => fixed_apart::<V, T, 4>(values, how, of),
        6 => fixed_apart::<V, T, 6>(values, how, of),
        8 => fixed_apart::<V, T, 8>(values, how, of),
        bands => {
            let pixels = values.len() / bands;
            let mut apart = vec![T::default(); pixels * bands];
            let run = how.differences.unwrap_or(RUN);
            for at in (0..pixels).step_by(run) {
                let len = run.min(pixels - at);
                for band in 0..bands {
                    let from = values[at * bands + band..].iter().step_by(bands);
                    let to = &mut apart[band * pixels + at..][..len];
                    fill(to, from.map(|v| of(*v)), how);
                }
            }
            apart
        }
    }
}

/// The same for a number of bands that the compiler knows: twice as fast.
fn fixed_apart<V: Copy, T: Sample, const BANDS: usize>(
    values: &[V],
    how: Interleaved,
    of: impl Fn(V) -> T,
) -> Vec<T> {
    let values = values.as_chunks::<BANDS>().0;
    let pixels = values.len();
    let mut apart = vec![T::default(); pixels * BANDS];
    let run = how.differences.unwrap_or(RUN);
    for (index, from) in values.chunks(run).enumerate() {
        for band in 0..BANDS {
            let to = &mut apart[band * pixels + index * run..][..from.len()];
            fill(to, from.iter().map(|v| of(v[band])), how);
        }
    }
    apart
}

/// One band of one run of pixels.
fn fill<T: Sample>(to: &mut [T], from: impl Iterator<Item = T>, how: Interleaved) {
    if how.differences.is_none() {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = from);
        return;
    }
    let mut sum = T::default();
    for (to, from) in to.iter_mut().zip(from) {
        sum = sum.sum(from);
        *to = sum;
    }
}

enum Kind {
    Integer,
    Float,
}

impl DataType {
    const fn kind(self) -> Kind {
        match self {
            Self::F32 | Self::F64 => Kind::Float,
            _ => Kind::Integer,
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Samples {
    /// Whether there is no sample.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// All bands of one window.
#[derive(Clone, Debug, PartialEq)]
pub struct Raster {
    window: Window,
    bands: usize,
    samples: Samples,
}

impl Raster {
    /// Samples of a window.
    ///
    /// # Shapes
    /// `samples`: `[bands, window.height, window.width]`.
    ///
    /// # Errors
    /// [`Error::SampleCount`] where the number of samples is another.
    pub fn new(window: Window, bands: usize, samples: Samples) -> Result<Self> {
        let expected = window.pixels().saturating_mul(bands);
        if samples.len() != expected {
            return Err(Error::SampleCount {
                window,
                bands,
                expected,
                got: samples.len(),
            });
        }
        Ok(Self {
            window,
            bands,
            samples,
        })
    }

    /// The window that the samples come from.
    pub const fn window(&self) -> Window {
        self.window
    }

    /// Number of bands.
    pub const fn bands(&self) -> usize {
        self.bands
    }

    /// The samples, `[bands, height, width]`.
    pub const fn samples(&self) -> &Samples {
        &self.samples
    }

    /// Gives up the samples, `[bands, height, width]`.
    pub fn into_samples(self) -> Samples {
        self.samples
    }

    /// The sample of `band` at `column` and `row` of the window (not of the raster), as a double.
    ///
    /// # Panics
    /// Where one of them is outside of the window.
    pub fn at(&self, band: usize, column: usize, row: usize) -> f64 {
        assert!(
            band < self.bands && column < self.window.width && row < self.window.height,
            "outside of the window"
        );
        self.samples
            .get((band * self.window.height + row) * self.window.width + column)
    }

    /// The samples of one band as single precision, `[height, width]`: exact for 8- and 16-bit types.
    ///
    /// # Panics
    /// Where `band` is not below [`Raster::bands`].
    pub fn band_f32(&self, band: usize) -> Vec<f32> {
        self.samples.to_f32(self.band_range(band))
    }

    /// The bands with these numbers, in this order.
    ///
    /// # Panics
    /// Where a number is not below [`Raster::bands`].
    pub fn select(self, bands: &[usize]) -> Self {
        if bands.iter().copied().eq(0..self.bands) {
            return self;
        }
        let pixels = self.window.pixels();
        let mut samples = Samples::filled(self.samples.data_type(), 0.0, bands.len() * pixels);
        for (to, from) in bands.iter().enumerate() {
            assert!(*from < self.bands, "no band {from} of {}", self.bands);
            samples.copy_from(to * pixels, &self.samples, from * pixels, pixels);
        }
        Self {
            window: self.window,
            bands: bands.len(),
            samples,
        }
    }

    pub(crate) fn band_range(&self, band: usize) -> std::ops::Range<usize> {
        let pixels = self.window.pixels();
        band * pixels..(band + 1) * pixels
    }

    pub(crate) fn samples_mut(&mut self) -> &mut Samples {
        &mut self.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_know_their_values() {
        let check = |data_type: DataType, value: f64, expected: bool| {
            assert_eq!(
                data_type.represents(value),
                expected,
                "{data_type} and {value}"
            );
        };
        check(DataType::U8, 255.0, true);
        check(DataType::U8, 256.0, false);
        check(DataType::U8, -1.0, false);
        check(DataType::U8, 0.5, false);
        check(DataType::U8, f64::NAN, false);
        check(DataType::I16, -9999.0, true);
        check(DataType::U16, 65_535.0, true);
        check(DataType::F32, f64::NAN, true);
        check(DataType::F32, -3.4e38, true);
        check(DataType::F32, 1e39, false);
        check(DataType::F64, 1e39, true);
    }

    #[test]
    fn bands_follow_one_another() {
        let window = Window::new(7, 8, 2, 1);
        let raster = Raster::new(window, 2, Samples::U16(vec![1, 40_000, 3, 65_535]))
            .expect("two bands of two pixels");
        assert_eq!(raster.band_f32(0), [1.0, 40_000.0]);
        assert_eq!(raster.at(1, 1, 0), 65_535.0);
        assert!(Raster::new(window, 3, Samples::U16(vec![0; 4])).is_err());
    }

    #[test]
    fn interleaved_bytes_are_taken_apart() {
        let bytes: Vec<u8> = [1u16, 2, 3, 4, 5, 6]
            .iter()
            .flat_map(|v| v.to_ne_bytes())
            .collect();
        let plain = |bands| Interleaved {
            bands,
            differences: None,
        };
        let samples = Samples::from_interleaved(DataType::U16, &bytes, plain(3));
        assert_eq!(samples, Samples::U16(vec![1, 4, 2, 5, 3, 6]));
        let many: Vec<u8> = (0..2 * RUN + 10).map(|v| v as u8).collect();
        let taken = Samples::from_interleaved(DataType::U8, &many, plain(2));
        let expected = (0..2).flat_map(|band| many.iter().copied().skip(band).step_by(2));
        assert_eq!(taken, Samples::U8(expected.collect()));
        let five = Samples::from_interleaved(DataType::U8, &many[..20], plain(5));
        // Four pixels of five bands: band 1 begins with byte 1, then 6.
        assert_eq!((five.get(4), five.get(5)), (1.0, 6.0));
        let rows = Interleaved {
            bands: 2,
            differences: Some(3),
        };
        let bytes_of_rows = [1, 10, 2, 20, 254, 30, 5, 50, 0, 0, 1, 1];
        let summed = Samples::from_interleaved(DataType::U8, &bytes_of_rows, rows);
        assert_eq!(
            summed,
            Samples::U8(vec![1, 3, 1, 5, 5, 6, 10, 30, 60, 50, 50, 51])
        );
        let planes = Samples::from_planes(DataType::U16, &[&bytes[..4], &bytes[4..8]]);
        assert_eq!(planes, Samples::U16(vec![1, 2, 3, 4]));
    }
}
