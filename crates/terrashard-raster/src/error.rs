//! What can go wrong with a raster, each in one line that names the file.

use std::io;
use std::path::{Path, PathBuf};

use crate::{DataType, Window};

/// A raster could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such file.
    #[error("{}: no such file; check the path", path.display())]
    NotFound {
        /// The path asked for.
        path: PathBuf,
    },
    /// The file holds no bytes.
    #[error("{}: the file is empty; download or copy it again", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file does not begin like one of the formats that are read.
    #[error("{}: not a raster (it begins with {start:?}); GeoTIFF, JPEG 2000, .npy and .npz files and .SAFE folders are read", path.display())]
    NotARaster {
        /// The file.
        path: PathBuf,
        /// Its first bytes as text.
        start: String,
    },
    /// A folder or archive holds none or more than one of what is read.
    #[error("{}: holds {what}; {remedy}", path.display())]
    Ambiguous {
        /// The folder or archive.
        path: PathBuf,
        /// What it holds.
        what: String,
        /// How to say which one.
        remedy: String,
    },
    /// Bands that are to be one raster do not fit each other.
    #[error("{}: {got} does not fit {expected} of {}; {remedy}", path.display(), first.display())]
    Misfit {
        /// The file of the band.
        path: PathBuf,
        /// What it is.
        got: String,
        /// What it should be.
        expected: String,
        /// The file that it should fit.
        first: PathBuf,
        /// How it can be made to fit.
        remedy: &'static str,
    },
    /// The file ends before the data that its directory lists.
    #[error("{}: truncated: {what} needs {needed} bytes, the file has {stored}; download or copy it again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The part that is cut off.
        what: String,
        /// Bytes that the file would need at least.
        needed: u64,
        /// Bytes that it has.
        stored: u64,
    },
    /// The file uses something that is not read.
    #[error("{}: {what} is not supported; {remedy}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What it uses.
        what: String,
        /// How the file can be turned into one that is read.
        remedy: &'static str,
    },
    /// The file contradicts itself or its data does not decode.
    #[error("{}: damaged: {source}; download or copy it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What the decoder found.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A tile, strip or band of the file does not decode.
    #[error("{}: {block} does not decode: {reason}; download or copy the file again", path.display())]
    Undecodable {
        /// The file.
        path: PathBuf,
        /// The tile, strip or band, and its pixels.
        block: String,
        /// What the decoder found.
        reason: String,
    },
    /// The file declares far more pixels than its bytes can hold.
    #[error(
        "{}: refused: declares {declared} bytes of pixels in {stored} stored bytes, more than {allowed} times as many",
        path.display()
    )]
    Implausible {
        /// The file.
        path: PathBuf,
        /// Bytes of all samples together.
        declared: u64,
        /// Bytes of the file.
        stored: u64,
        /// Declared bytes allowed per stored byte.
        allowed: u64,
    },
    /// One window, tile or strip needs more memory than the limit.
    #[error("{}: {what} takes {needed} bytes, more than the limit of {limit}; read smaller windows or raise the limit", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The window, tile or strip.
        what: String,
        /// Bytes that it takes decoded.
        needed: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// A window reaches beyond the raster, or holds no pixel.
    #[error("{}: window of {window} is empty or not inside of the {width} x {height} raster", path.display())]
    OutsideWindow {
        /// The file.
        path: PathBuf,
        /// The window asked for.
        window: Window,
        /// The raster's columns.
        width: usize,
        /// The raster's rows.
        height: usize,
    },
    /// Samples do not fill the window that they are said to fill.
    #[error("{bands} bands of {window} take {expected} samples, got {got}")]
    SampleCount {
        /// The window.
        window: Window,
        /// Bands.
        bands: usize,
        /// Samples that this takes.
        expected: usize,
        /// Samples given.
        got: usize,
    },
    /// The nodata value is not a value of the sample type.
    #[error("{}: nodata {nodata} is not a value of {data_type}; choose one that is", path.display())]
    Nodata {
        /// The file to be written.
        path: PathBuf,
        /// The nodata value.
        nodata: f64,
        /// The sample type.
        data_type: DataType,
    },
    /// The file to be written is described in a way that no GeoTIFF of ours has.
    #[error("{}: cannot be written: {what}", path.display())]
    Spec {
        /// The file to be written.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A window given to a sink does not fit the raster being written.
    #[error("{}: window of {window} cannot be written: {what}", path.display())]
    Misplaced {
        /// The file being written.
        path: PathBuf,
        /// The window.
        window: Window,
        /// What is wrong with it.
        what: String,
    },
    /// A sink was finished before every pixel was written.
    #[error("{}: not finished: {missing} of {rows} rows were never completely written; the file is left out", path.display())]
    Incomplete {
        /// The file being written.
        path: PathBuf,
        /// Rows with missing pixels.
        missing: usize,
        /// Rows of the raster.
        rows: usize,
    },
    /// A scene that lies elsewhere could not be reached or did not send what it was asked for.
    #[error("{}: bytes {start} to {end}: {reason}", path.display())]
    Remote {
        /// The address, without credentials.
        path: PathBuf,
        /// The first byte asked for.
        start: u64,
        /// The first byte behind those asked for.
        end: u64,
        /// What went wrong.
        reason: String,
    },
    /// The operating system refused.
    #[error("{}: failed to {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done, completing "failed to".
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The encoder refused.
    #[error("{}: failed to write: {source}", path.display())]
    Write {
        /// The file being written.
        path: PathBuf,
        /// The encoder's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// An error of the operating system while doing `action` with `path`; a missing file has its own variant.
    pub(crate) fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound {
                path: path.to_owned(),
            },
            _ => Self::Io {
                path: path.to_owned(),
                action,
                source,
            },
        }
    }
}

/// A result with [`enum@Error`] unless said otherwise.
pub type Result<T, E = Error> = std::result::Result<T, E>;
