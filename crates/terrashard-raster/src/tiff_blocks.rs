//! Tiles and strips decoded in one go: inflated, summed up where they hold differences, and taken apart into bands.
//!
//! What this does not cover is left to the general decoder, which takes four passes and one more copy.

use std::cell::RefCell;

use flate2::{Decompress, FlushDecompress, Status};
use rayon::prelude::*;
use tiff_reader::{ByteOrder, Ifd, RasterLayout};

use crate::block_grid::BlockGrid;
use crate::raster::Interleaved;
use crate::tiff_error::decode_error;
use crate::tiff_image::TiffBytes;
use crate::tile_cache::TileCache;
use crate::{DataType, Error, ReadLimits, Result, Samples, Window};

/// Bytes behind those of a block: where all goes that a stream makes beyond its pixels, up to its end, where the checksum is.
const SPARE: usize = 64;
/// Bytes of scratch memory that a thread keeps.
const KEPT_SCRATCH: usize = 32 << 20;
/// No codec makes more bytes than this of a block.
const PACKED_RATIO: u64 = 4;
const PACKED_SLACK: u64 = 4096;

thread_local! {
    /// Inflated bytes of one block.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Inflates a whole stream, of which the first `expected` bytes are to be had in `out`. A writer may have filled up its last block: what is
/// beyond the pixels is of no use, but it is read to its end, where the checksum of all is.
fn inflated(
    inflate: &mut Decompress,
    packed: &[u8],
    out: &mut [u8],
    expected: usize,
) -> std::result::Result<(), &'static str> {
    let mut from = 0;
    loop {
        let (read, made) = (inflate.total_in(), inflate.total_out());
        let status = inflate
            .decompress(
                &packed[read as usize..],
                &mut out[from..],
                FlushDecompress::None,
            )
            .map_err(|_| "corrupt stream")?;
        from = expected.min(inflate.total_out() as usize);
        match status {
            Status::StreamEnd if inflate.total_out() >= expected as u64 => return Ok(()),
            Status::StreamEnd => return Err("the stream ends early"),
            _ if (inflate.total_in(), inflate.total_out()) == (read, made) => {
                return Err("the stream ends early");
            }
            _ => {}
        }
    }
}

/// How the blocks of an image are coded, where it is in the common way.
#[derive(Debug)]
pub(crate) struct TiffBlocks {
    data_type: DataType,
    /// Whether samples are differences to the pixel on the left.
    differences: bool,
    cache: TileCache,
}

impl TiffBlocks {
    /// Deflate, bytes in this machine's order, whole bytes, and no predictor but that of integers.
    pub(crate) fn of(
        file: TiffBytes<'_>,
        ifd: &Ifd,
        layout: &RasterLayout,
        data_type: DataType,
        limits: ReadLimits,
    ) -> Option<Self> {
        let native = match file.tiff.byte_order() {
            ByteOrder::LittleEndian => cfg!(target_endian = "little"),
            ByteOrder::BigEndian => cfg!(target_endian = "big"),
        };
        let whole = usize::from(layout.bits_per_sample) == 8 * data_type.bytes();
        let deflate = matches!(ifd.compression(), 8 | 32946);
        let float = matches!(data_type, DataType::F32 | DataType::F64);
        let predictor = ifd.predictor() == 1 || (ifd.predictor() == 2 && !float);
        let colour = ifd.photometric_interpretation() == Some(6);
        (native && whole && deflate && predictor && !colour && ifd.fill_order() == 1).then(|| {
            Self {
                data_type,
                differences: ifd.predictor() == 2,
                cache: TileCache::new(limits.cache_bytes),
            }
        })
    }

    /// Samples of a window, `[bands, height, width]`.
    pub(crate) fn read(
        &self,
        file: TiffBytes<'_>,
        grid: &BlockGrid,
        window: Window,
        bands: usize,
    ) -> Result<Samples> {
        let touched = grid.touching(window);
        let mut samples = Samples::filled(self.data_type, 0.0, window.pixels() * bands);
        // A few for each thread at once: that many blocks are in memory beside the window.
        for some in touched.chunks(4 * rayon::current_num_threads()) {
            let blocks = some
                .par_iter()
                .map(|&index| self.cache.get_or(index, || self.decode(file, grid, index)))
                .collect::<Result<Vec<_>>>()?;
            for (&index, block) in some.iter().zip(&blocks) {
                let (of, place) = grid.place(index);
                let (width, height) = grid.stored_size(index);
                let part = place
                    .intersection(&window)
                    .expect("the window touches this block");
                for (inner, band) in of.enumerate() {
                    for row in part.row..part.row_end() {
                        let to = (band * window.height + row - window.row) * window.width
                            + part.col
                            - window.col;
                        let from =
                            (inner * height + row - place.row) * width + part.col - place.col;
                        samples.copy_from(to, block, from, part.width);
                    }
                }
            }
        }
        Ok(samples)
    }

    /// One block, band after band.
    fn decode(&self, file: TiffBytes<'_>, grid: &BlockGrid, index: usize) -> Result<Samples> {
        let (at, length) = grid.extent(index);
        let (width, height) = grid.stored_size(index);
        let bands = grid.place(index).0.len();
        let count = width * height * bands;
        if length == 0 || at == 0 {
            return Ok(Samples::filled(self.data_type, 0.0, count));
        }
        let expected = count * self.data_type.bytes();
        let undecodable = |reason: &str| Error::Undecodable {
            path: file.path.to_owned(),
            block: grid.describe(index),
            reason: reason.to_owned(),
        };
        if length > expected as u64 * PACKED_RATIO + PACKED_SLACK {
            return Err(undecodable("deflate: far more bytes than its pixels take"));
        }
        let packed = file
            .tiff
            .source()
            .read_exact_at(at, length as usize)
            .map_err(|e| decode_error(file.path, file.stored, Some(grid), e))?;
        SCRATCH.with_borrow_mut(|scratch| {
            if scratch.len() < expected + SPARE {
                scratch.resize(expected + SPARE, 0);
            }
            let mut inflate = Decompress::new(true);
            let whole = inflated(
                &mut inflate,
                &packed,
                &mut scratch[..expected + SPARE],
                expected,
            );
            whole.map_err(|reason| undecodable(&format!("deflate: {reason}")))?;
            let samples = Samples::from_interleaved(
                self.data_type,
                &scratch[..expected],
                Interleaved {
                    bands,
                    differences: self.differences.then_some(width),
                },
            );
            if scratch.len() > KEPT_SCRATCH {
                *scratch = Vec::new();
            }
            Ok(samples)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;

    use super::*;

    /// However much a stream makes beyond the pixels, its checksum is looked at.
    #[test]
    fn a_damaged_stream_is_told_however_long_it_is() {
        let expected = 1000;
        for made in [1000, 1010, 1000 + SPARE, 5000, 100_000] {
            let bytes: Vec<u8> = (0..made).map(|i| (i * i / 7) as u8).collect();
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(&bytes).unwrap();
            let whole = encoder.finish().unwrap();
            let inflate = |packed: &[u8]| {
                let mut out = vec![0; expected + SPARE];
                let done = inflated(&mut Decompress::new(true), packed, &mut out, expected);
                done.map(|()| out[..expected] == bytes[..expected])
            };
            assert_eq!(inflate(&whole), Ok(true), "{made}");
            let mut damaged = whole.clone();
            *damaged.last_mut().unwrap() ^= 1;
            assert!(inflate(&damaged).is_err(), "{made}");
            assert!(inflate(&whole[..whole.len() - 3]).is_err(), "{made}");
        }
        let short = [0x78, 0x9c, 0x03, 0x00, 0x00, 0x00, 0x00, 0x01];
        let mut out = vec![0; expected + SPARE];
        assert_eq!(
            inflated(&mut Decompress::new(true), &short, &mut out, expected),
            Err("the stream ends early")
        );
    }
}
