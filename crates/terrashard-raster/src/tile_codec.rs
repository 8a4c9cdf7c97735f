//! Samples as the bytes of a compressed tile.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use crate::{DataType, Samples, Window};

/// zlib's default: a higher level takes twice the time for one hundredth less.
const LEVEL: u32 = 6;

/// What the predictor does to samples before they are compressed. The values are those of the TIFF tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Predictor {
    None = 1,
    /// Each sample is the difference to the one left of it.
    Horizontal = 2,
    /// First bytes of all samples of a row, then second bytes, ...; then differences of bytes.
    FloatingPoint = 3,
}

impl Predictor {
    pub(crate) const fn of(data_type: DataType) -> Self {
        match data_type {
            DataType::F32 | DataType::F64 => Self::FloatingPoint,
            // Not every reader knows differences of 64 bits.
            DataType::U64 | DataType::I64 => Self::None,
            _ => Self::Horizontal,
        }
    }
}

/// A tile of `side` pixels that begins with `samples`, `[bands, height, width]` of its window, interleaved by pixel, predicted and
/// compressed. Where the window has fewer rows or columns, zeros follow.
pub(crate) fn encode_tile(
    samples: &Samples,
    window: Window,
    bands: usize,
    side: usize,
) -> std::io::Result<Vec<u8>> {
    let data_type = samples.data_type();
    let row_bytes = side * bands * data_type.bytes();
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(LEVEL));
    let mut row_of = vec![0; row_bytes];
    let mut scratch = vec![0; row_bytes];
    for row in 0..side {
        row_of.fill(0);
        if row < window.height {
            samples.interleave_row(window, bands, row, &mut row_of);
            match Predictor::of(data_type) {
                Predictor::None | Predictor::Horizontal => {}
                Predictor::FloatingPoint => {
                    split_bytes(&mut row_of, &mut scratch, data_type.bytes(), bands);
                }
            }
        }
        encoder.write_all(&row_of)?;
    }
    encoder.finish()
}

/// Adobe's Photoshop TIFF Technical Note 3.
fn split_bytes(row: &mut [u8], scratch: &mut [u8], sample_bytes: usize, bands: usize) {
    let count = row.len() / sample_bytes;
    for (index, sample) in row.chunks_exact(sample_bytes).enumerate() {
        // The most significant byte comes first; the row is little-endian.
        for (plane, byte) in sample.iter().rev().enumerate() {
            scratch[plane * count + index] = *byte;
        }
    }
    row[..bands].copy_from_slice(&scratch[..bands]);
    for index in bands..row.len() {
        row[index] = scratch[index].wrapping_sub(scratch[index - bands]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn decoded(samples: &Samples, window: Window, bands: usize) -> Vec<u8> {
        let encoded = encode_tile(samples, window, bands, 2).expect("memory takes all bytes");
        let mut bytes = Vec::new();
        flate2::read::ZlibDecoder::new(&encoded[..])
            .read_to_end(&mut bytes)
            .expect("zlib's own");
        bytes
    }

    /// By hand: two bands of 2 x 1 pixels.
    #[test]
    fn integers_are_differences_within_a_band() {
        let samples = Samples::U16(vec![500, 300, 7, 8]);
        let row = [500_u16, 7, 65_336, 1]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .chain([0; 8]);
        let window = Window::new(2, 0, 2, 1);
        assert_eq!(decoded(&samples, window, 2), row.collect::<Vec<u8>>());
        // A column alone: zeros follow it.
        let row = [500_u16, 0, 300, 0].iter().flat_map(|v| v.to_le_bytes());
        let samples = Samples::U16(vec![500, 300]);
        let window = Window::new(2, 0, 1, 2);
        assert_eq!(decoded(&samples, window, 1), row.collect::<Vec<u8>>());
    }

    /// 1.0 is 3f80_0000 and 2.5 is 4020_0000.
    #[test]
    fn floats_are_split_into_bytes() {
        let window = Window::new(0, 0, 2, 1);
        let bytes = decoded(&Samples::F32(vec![1.0, 2.5]), window, 1);
        assert_eq!(bytes[..8], [0x3f, 0x01, 0x40, 0xa0, 0xe0, 0, 0, 0]);
        assert_eq!(bytes[8..], [0; 8]);
    }
}
