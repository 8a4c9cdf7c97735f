//! What an error of the TIFF decoder means to the owner of the file.

use std::path::Path;

use tiff_reader::TiffError;

use crate::Error;
use crate::block_grid::BlockGrid;

/// Says it in one line; with the `grid` of the image, in terms of the tile or strip that does not decode.
pub(crate) fn decode_error(
    path: &Path,
    stored: u64,
    grid: Option<&BlockGrid>,
    error: TiffError,
) -> Error {
    #[cfg(feature = "cloud")]
    let error = match far(error) {
        Ok(failure) => return failure.at(path),
        Err(error) => error,
    };
    let path = path.to_owned();
    match (error, grid) {
        (TiffError::DecompressionFailed { index, reason }, Some(grid)) => Error::Undecodable {
            path,
            block: grid.describe(index),
            reason: one_line(&reason),
        },
        (TiffError::Truncated { offset, needed, .. }, _) => Error::Truncated {
            path,
            what: "its directory".to_owned(),
            needed: offset.saturating_add(needed),
            stored,
        },
        (TiffError::OffsetOutOfBounds { offset, length, .. }, _) => Error::Truncated {
            path,
            what: "its directory".to_owned(),
            needed: offset.saturating_add(length),
            stored,
        },
        (TiffError::Io(source, _), _) => Error::io(&path, "read", source),
        (TiffError::UnsupportedSampleFormat(5 | 6), _) => Error::Unsupported {
            path,
            what: "a raster of complex numbers".to_owned(),
            remedy: "convert it with gdal_translate -ot",
        },
        (
            error @ (TiffError::UnsupportedCompression(_)
            | TiffError::UnsupportedPredictor(_)
            | TiffError::UnsupportedPlanarConfiguration(_)
            | TiffError::UnsupportedBitsPerSample(_)
            | TiffError::UnsupportedSampleFormat(_)),
            _,
        ) => Error::Unsupported {
            path,
            what: error
                .to_string()
                .trim_start_matches("unsupported ")
                .to_owned(),
            remedy: "convert it with gdal_translate",
        },
        (error, _) => Error::Damaged {
            path,
            source: Box::new(error),
        },
    }
}

/// The failure of a range, which passes through the decoder as an error of the system.
#[cfg(feature = "cloud")]
fn far(error: TiffError) -> Result<crate::remote_file::RangeFailure, TiffError> {
    use crate::remote_file::RangeFailure;
    match &error {
        TiffError::Io(source, _) => match source.get_ref().and_then(|e| e.downcast_ref()) {
            Some(failure) => Ok(RangeFailure::clone(failure)),
            None => Err(error),
        },
        _ => Err(error),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
