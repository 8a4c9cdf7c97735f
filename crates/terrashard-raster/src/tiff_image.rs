//! One image of a TIFF file: the raster itself, an overview of it or a mask.

use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;
use tiff_reader::{Ifd, RasterLayout, TiffError, TiffFile};

use crate::block_grid::{BlockGrid, PLANAR};
use crate::opening::DECLARED_PER_STORED;
use crate::raster::Interleaved;
use crate::tiff_blocks::TiffBlocks;
use crate::tiff_error::decode_error;
use crate::{DataType, Error, Raster, ReadLimits, Result, Samples, Window};

/// An image whose directory has been checked; no pixel of it is in memory.
pub(crate) struct TiffImage {
    ifd: Ifd,
    layout: RasterLayout,
    data_type: DataType,
    grid: BlockGrid,
    /// Bands and pixels of the blocks that are not stored and hold another value than zero.
    sparse: Vec<(Range<usize>, Window)>,
    fill: f64,
    /// Where blocks are coded in the common way.
    blocks: Option<TiffBlocks>,
}

/// The file that an image is in.
#[derive(Clone, Copy)]
pub(crate) struct TiffBytes<'a> {
    pub(crate) path: &'a Path,
    pub(crate) tiff: &'a TiffFile,
    pub(crate) stored: u64,
}

impl TiffImage {
    /// Checks all that can be checked without decoding. Blocks that are not stored hold `fill`, where the type has it.
    pub(crate) fn new(
        file: TiffBytes<'_>,
        ifd: Ifd,
        fill: Option<f64>,
        limits: ReadLimits,
    ) -> Result<Self> {
        let TiffBytes { path, stored, .. } = file;
        check_codec(path, &ifd)?;
        let layout = ifd
            .raster_layout()
            .map_err(|e| decode_error(path, stored, None, e))?;
        let data_type = data_type(path, &layout)?;
        let bands = layout.samples_per_pixel;
        let declared = (layout.width as u64)
            .saturating_mul(layout.height as u64)
            .saturating_mul(bands as u64)
            .saturating_mul(data_type.bytes() as u64);
        if declared > stored.saturating_mul(DECLARED_PER_STORED) {
            return Err(Error::Implausible {
                path: path.to_owned(),
                declared,
                stored,
                allowed: DECLARED_PER_STORED,
            });
        }
        let grid = BlockGrid::new(path, &ifd, &layout)?;
        let per_block = if layout.planar_configuration == PLANAR {
            1
        } else {
            bands as u64
        };
        let needed = (grid.block.0 as u64)
            .saturating_mul(grid.block.1 as u64)
            .saturating_mul(per_block)
            .saturating_mul(data_type.bytes() as u64);
        if needed > limits.window_bytes as u64 {
            let (what, limit) = (format!("one {}", grid.noun), limits.window_bytes as u64);
            return Err(Error::TooLarge {
                path: path.to_owned(),
                what,
                needed,
                limit,
            });
        }
        let missing = grid.check_extent(path, stored)?;
        // The decoder fills a block that is not stored with zeros; that is right unless the nodata value is another.
        let fill = fill
            .filter(|v| *v != 0.0 && data_type.represents(*v))
            .unwrap_or(0.0);
        let sparse = if fill == 0.0 {
            Vec::new()
        } else {
            missing.into_iter().map(|index| grid.place(index)).collect()
        };
        let blocks = TiffBlocks::of(file, &ifd, &layout, data_type, limits);
        Ok(Self {
            blocks,
            ifd,
            layout,
            data_type,
            grid,
            sparse,
            fill,
        })
    }

    pub(crate) const fn size(&self) -> (usize, usize) {
        (self.layout.width, self.layout.height)
    }

    pub(crate) const fn bands(&self) -> usize {
        self.layout.samples_per_pixel
    }

    pub(crate) const fn data_type(&self) -> DataType {
        self.data_type
    }

    pub(crate) const fn block(&self) -> (usize, usize) {
        self.grid.block
    }

    pub(crate) const fn ifd(&self) -> &Ifd {
        &self.ifd
    }

    /// Decodes the blocks that `window`, which lies in the image, touches.
    pub(crate) fn read(&self, file: TiffBytes<'_>, window: Window) -> Result<Raster> {
        let Window {
            col,
            row,
            width,
            height,
        } = window;
        let bands = self.bands();
        let failed =
            |error: TiffError| decode_error(file.path, file.stored, Some(&self.grid), error);
        let samples = if let Some(blocks) = &self.blocks {
            blocks.read(file, &self.grid, window, bands)?
        } else if self.layout.planar_configuration == PLANAR {
            let planes = (0..bands)
                .into_par_iter()
                .map(|band| {
                    file.tiff
                        .read_band_window_bytes_from_ifd(&self.ifd, band, row, col, height, width)
                })
                .collect::<Result<Vec<_>, _>>()
                .map_err(failed)?;
            Samples::from_planes(self.data_type, &planes)
        } else {
            // One call for all bands: band by band, each interleaved block would be decoded once per band.
            let bytes = file
                .tiff
                .read_window_bytes_from_ifd(&self.ifd, row, col, height, width)
                .map_err(failed)?;
            let interleaved = Interleaved {
                bands,
                differences: None,
            };
            Samples::from_interleaved(self.data_type, &bytes, interleaved)
        };
        let mut raster = Raster::new(window, bands, samples)?;
        self.fill_sparse(&mut raster);
        Ok(raster)
    }

    /// Writes the nodata value into blocks that the file leaves out.
    fn fill_sparse(&self, raster: &mut Raster) {
        let window = raster.window();
        for (bands, block) in &self.sparse {
            let Some(part) = block.intersection(&window) else {
                continue;
            };
            for band in bands.clone() {
                for row in part.row..part.row_end() {
                    let at = (band * window.height + row - window.row) * window.width + part.col
                        - window.col;
                    raster.samples_mut().fill(at, part.width, self.fill);
                }
            }
        }
    }
}

/// Refuses a codec that is not built in before a window needs it.
fn check_codec(path: &Path, ifd: &Ifd) -> Result<()> {
    let name = match ifd.compression() {
        // None, LZW, JPEG, Deflate (two codes), PackBits, LERC, Zstandard, WebP.
        1 | 5 | 7 | 8 | 32946 | 32773 | 34887 | 50000 | 50001 => return Ok(()),
        6 => "JPEG of the old kind".to_owned(),
        34925 => "LZMA".to_owned(),
        34712 => "JPEG 2000".to_owned(),
        code => format!("the codec of TIFF number {code}"),
    };
    let (what, remedy) = (
        format!("compression by {name}"),
        "convert it with gdal_translate -co COMPRESS=DEFLATE",
    );
    Err(Error::Unsupported {
        path: path.to_owned(),
        what,
        remedy,
    })
}

fn data_type(path: &Path, layout: &RasterLayout) -> Result<DataType> {
    Ok(match (layout.sample_format, layout.bits_per_sample) {
        (1, 1..=8) => DataType::U8,
        (1, 9..=16) => DataType::U16,
        (1, 32) => DataType::U32,
        (1, 64) => DataType::U64,
        (2, 8) => DataType::I8,
        (2, 16) => DataType::I16,
        (2, 32) => DataType::I32,
        (2, 64) => DataType::I64,
        (3, 32) => DataType::F32,
        (3, 64) => DataType::F64,
        (format, bits) => {
            let what = match format {
                5 | 6 => "a raster of complex numbers".to_owned(),
                _ => format!("a {bits}-bit sample of format {format}"),
            };
            return Err(Error::Unsupported {
                path: path.to_owned(),
                what,
                remedy: "convert it with gdal_translate -ot",
            });
        }
    })
}
