//! Reading NumPy arrays, alone or in an archive.
//!
//! The format: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>

use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::memory::{check_budget, check_window};
use crate::opening::ReadLimits;
use crate::{
    DataType, Error, Georeference, MemorySource, Metadata, Raster, RasterSource, Result, Samples,
    Window,
};

/// How a `.npy` file begins.
pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";

/// Bytes of a header that are accepted.
const MAX_HEADER: usize = 1 << 16;

/// An array in a file: `[height, width]`, or with the bands in front or behind, whichever axis is the shorter.
pub struct NpySource {
    path: PathBuf,
    file: Mutex<File>,
    /// Where the first element is.
    data: u64,
    layout: Layout,
    limits: ReadLimits,
    metadata: Metadata,
}

/// What a header says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    data_type: DataType,
    big_endian: bool,
    width: usize,
    height: usize,
    bands: usize,
    /// Elements from one column, row and band to the next.
    steps: (usize, usize, usize),
}

impl fmt::Debug for NpySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NpySource")
            .field("path", &self.path)
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}

impl NpySource {
    /// Opens the array that begins at byte `at` of a file and has `stored` bytes with its header.
    pub(crate) fn open(
        path: &Path,
        mut file: File,
        at: u64,
        stored: u64,
        limits: ReadLimits,
    ) -> Result<Self> {
        let mut start = Vec::new();
        file.seek(SeekFrom::Start(at))
            .and_then(|_| (&file).take(MAX_HEADER as u64).read_to_end(&mut start))
            .map_err(|e| Error::io(path, "read", e))?;
        start.truncate(usize::try_from(stored).unwrap_or(usize::MAX));
        let (layout, header) = Layout::parse(path, &start)?;
        layout.check(path, header, stored)?;
        Ok(Self {
            metadata: layout.metadata(),
            path: path.to_owned(),
            file: Mutex::new(file),
            data: at + header as u64,
            layout,
            limits,
        })
    }

    /// Reads `bytes.len()` bytes from element `at` on.
    fn fetch(&self, at: usize, bytes: &mut [u8]) -> Result<()> {
        let place = self.data + (at * self.layout.data_type.bytes()) as u64;
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(place))
            .and_then(|_| file.read_exact(bytes))
            .map_err(|e| Error::io(&self.path, "read", e))
    }
}

impl RasterSource for NpySource {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn read_window(&self, window: Window) -> Result<Raster> {
        check_window(&self.path, &self.metadata, window)?;
        check_budget(&self.path, &self.metadata, window, self.limits)?;
        let bytes = self
            .layout
            .gather(window, |at, bytes| self.fetch(at, bytes))?;
        let samples = self.layout.samples(bytes);
        Raster::new(window, self.layout.bands, samples)
    }
}

/// The array that `bytes` are, header and all.
pub(crate) fn in_memory(path: &Path, bytes: &[u8]) -> Result<MemorySource> {
    let (layout, header) = Layout::parse(path, bytes)?;
    layout.check(path, header, bytes.len() as u64)?;
    let size = layout.data_type.bytes();
    let data = &bytes[header..];
    let metadata = layout.metadata();
    let gathered = layout.gather(metadata.window(), |at, to| {
        to.copy_from_slice(&data[at * size..][..to.len()]);
        Ok(())
    })?;
    MemorySource::new(path, metadata, layout.samples(gathered))
}

impl Layout {
    /// The layout and the bytes of the header.
    fn parse(path: &Path, start: &[u8]) -> Result<(Self, usize)> {
        let damaged = |what: &'static str| Error::Damaged {
            path: path.to_owned(),
            source: what.into(),
        };
        let cut = || Error::Truncated {
            path: path.to_owned(),
            what: "its header".to_owned(),
            needed: start.len() as u64 + 1,
            stored: start.len() as u64,
        };
        if !start.starts_with(MAGIC) {
            return Err(damaged("the array does not begin like one of NumPy"));
        }
        let (length, begin) = match (start.get(6), start.get(8..10), start.get(8..12)) {
            (Some(1), Some(two), _) => (usize::from(u16::from_le_bytes([two[0], two[1]])), 10),
            (Some(2 | 3), _, Some(four)) => {
                let length = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
                (length as usize, 12)
            }
            (Some(_), _, _) => return Err(damaged("an array of a version that is not known")),
            (None, _, _) => return Err(cut()),
        };
        if length > MAX_HEADER {
            return Err(damaged("an array with a header beyond all measure"));
        }
        let end = begin + length;
        let text = start.get(begin..end).ok_or_else(cut)?;
        let text = String::from_utf8_lossy(text);
        let value = |key: &str| {
            let (_, rest) = text.split_once(&format!("'{key}':"))?;
            Some(rest.trim_start())
        };
        let missing = || damaged("an array whose header lacks its type, order or shape");
        let descr = value("descr").ok_or_else(missing)?;
        let descr = descr.split('\'').nth(1).unwrap_or(descr);
        let fortran = value("fortran_order")
            .ok_or_else(missing)?
            .starts_with("True");
        let (_, shape) = value("shape")
            .and_then(|rest| rest.split_once('('))
            .ok_or_else(missing)?;
        let (shape, _) = shape.split_once(')').ok_or_else(missing)?;
        let shape = shape
            .split(',')
            .map(str::trim)
            .filter(|number| !number.is_empty())
            .map(str::parse)
            .collect::<Result<Vec<usize>, _>>()
            .map_err(|_| missing())?;
        let (big_endian, data_type) = element(descr).ok_or_else(|| Error::Unsupported {
            path: path.to_owned(),
            what: format!("an array of {descr:?}"),
            remedy: "convert it with numpy's astype",
        })?;
        let layout = Self::new(data_type, big_endian, &shape, fortran);
        let layout = layout.ok_or_else(|| Error::Unsupported {
            path: path.to_owned(),
            what: format!("an array of shape {shape:?}"),
            remedy: "give it the axes height and width, and bands in front or behind",
        })?;
        Ok((layout, end))
    }

    fn new(data_type: DataType, big_endian: bool, shape: &[usize], fortran: bool) -> Option<Self> {
        let elements = shape
            .iter()
            .try_fold(1_usize, |all, n| all.checked_mul(*n))?;
        if elements == 0 || !matches!(shape.len(), 2 | 3) {
            return None;
        }
        // Elements from one index of each axis to the next.
        let mut steps = vec![1; shape.len()];
        if fortran {
            for axis in 1..shape.len() {
                steps[axis] = steps[axis - 1] * shape[axis - 1];
            }
        } else {
            for axis in (1..shape.len()).rev() {
                steps[axis - 1] = steps[axis] * shape[axis];
            }
        }
        let (rows, columns, bands) = match shape {
            [_, _] => (0, 1, None),
            [first, _, last] if first <= last => (1, 2, Some(0)),
            _ => (0, 1, Some(2)),
        };
        Some(Self {
            data_type,
            big_endian,
            width: shape[columns],
            height: shape[rows],
            bands: bands.map_or(1, |axis| shape[axis]),
            steps: (
                steps[columns],
                steps[rows],
                bands.map_or(1, |axis| steps[axis]),
            ),
        })
    }

    fn check(&self, path: &Path, header: usize, stored: u64) -> Result<()> {
        let samples = (self.width as u64)
            .saturating_mul(self.height as u64)
            .saturating_mul(self.bands as u64);
        let needed = samples
            .saturating_mul(self.data_type.bytes() as u64)
            .saturating_add(header as u64);
        if needed > stored {
            return Err(Error::Truncated {
                path: path.to_owned(),
                what: "its array".to_owned(),
                needed,
                stored,
            });
        }
        Ok(())
    }

    fn metadata(&self) -> Metadata {
        Metadata {
            width: self.width,
            height: self.height,
            bands: self.bands,
            data_type: self.data_type,
            georeference: Georeference::default(),
            nodata: None,
            descriptions: vec![None; self.bands],
            overviews: Vec::new(),
            block: (self.width, 1),
        }
    }

    /// The bytes of a window's elements, `[bands, height, width]`. `fetch` reads elements that follow each other.
    fn gather(
        &self,
        window: Window,
        mut fetch: impl FnMut(usize, &mut [u8]) -> Result<()>,
    ) -> Result<Vec<u8>> {
        let size = self.data_type.bytes();
        let (column, row, band) = self.steps;
        let first = window.col * column + window.row * row;
        // Of each axis: how many, elements between them in the file, and in the window.
        let mut axes = [
            (window.width, column, 1),
            (window.height, row, window.width),
            (self.bands, band, window.pixels()),
        ];
        axes.sort_by_key(|&(_, step, _)| step);
        let [inner, middle, outer] = axes;
        // Where whole runs of the inner axis follow each other, they are fetched at once.
        let joined = middle.1 == inner.0 * inner.1;
        let runs = if joined { 1 } else { middle.0 };
        let mut run = vec![0; inner.0 * (middle.0 / runs) * size];
        let mut gathered = vec![0; window.pixels() * self.bands * size];
        for (o, r) in (0..outer.0).flat_map(|o| (0..runs).map(move |r| (o, r))) {
            fetch(first + o * outer.1 + r * middle.1, &mut run)?;
            for (k, element) in run.chunks_exact(size).enumerate() {
                let m = if joined { k / inner.0 } else { r };
                let to = (k % inner.0 * inner.2 + m * middle.2 + o * outer.2) * size;
                gathered[to..to + size].copy_from_slice(element);
            }
        }
        Ok(gathered)
    }

    fn samples(&self, mut bytes: Vec<u8>) -> Samples {
        if self.big_endian != cfg!(target_endian = "big") {
            bytes
                .chunks_exact_mut(self.data_type.bytes())
                .for_each(<[u8]>::reverse);
        }
        Samples::from_planes(self.data_type, &[bytes])
    }
}

/// `<u2` and its like.
fn element(descr: &str) -> Option<(bool, DataType)> {
    let (order, kind) = descr.split_at_checked(1)?;
    let big_endian = match order {
        "<" | "|" => false,
        ">" => true,
        "=" => cfg!(target_endian = "big"),
        _ => return None,
    };
    let data_type = match kind {
        "u1" | "b1" => DataType::U8,
        "i1" => DataType::I8,
        "u2" => DataType::U16,
        "i2" => DataType::I16,
        "u4" => DataType::U32,
        "i4" => DataType::I32,
        "u8" => DataType::U64,
        "i8" => DataType::I64,
        "f4" => DataType::F32,
        "f8" => DataType::F64,
        _ => return None,
    };
    Some((big_endian, data_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header as NumPy writes it, and the bytes 0, 1, 2, ...
    fn array(descr: &str, fortran: bool, shape: &str, elements: usize, size: usize) -> Vec<u8> {
        let order = if fortran { "True" } else { "False" };
        let text =
            format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n");
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.bytes());
        for element in 0..elements {
            let mut value = vec![0; size];
            value[if descr.starts_with('>') { size - 1 } else { 0 }] = element as u8;
            bytes.extend(value);
        }
        bytes
    }

    fn check(bytes: &[u8], at: (usize, usize, usize), value: f64, window: Window) {
        let path = Path::new("a.npy");
        let memory = in_memory(path, bytes).expect("an array");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.npy");
        std::fs::write(&file, bytes).expect("writes");
        let file = File::open(&file).expect("opens");
        let limits = ReadLimits::default();
        let source = NpySource::open(path, file, 0, bytes.len() as u64, limits).expect("an array");
        assert_eq!(source.metadata(), memory.metadata());
        let whole = memory
            .read_window(memory.metadata().window())
            .expect("inside");
        let (band, column, row) = at;
        assert_eq!(whole.at(band, column, row), value);
        assert_eq!(
            source.read_window(window).expect("inside"),
            memory.read_window(window).expect("inside")
        );
    }

    /// Values by hand: element i is i.
    #[test]
    fn axes_are_told_apart() {
        let window = Window::new(1, 1, 2, 1);
        // [height 2, width 4]: row 1, column 2 is element 6; in Fortran's order element 2 * 2 + 1.
        check(&array("|u1", false, "(2, 4)", 8, 1), (0, 2, 1), 6.0, window);
        check(&array("<u2", true, "(2, 4)", 8, 2), (0, 2, 1), 5.0, window);
        // [bands 2, height 3, width 4]: band 1, row 2, column 3 is the last element; [.., 1, 2] is 12 + 4 + 2.
        check(
            &array(">i2", false, "(2, 3, 4)", 24, 2),
            (1, 2, 1),
            18.0,
            window,
        );
        check(
            &array("<i4", true, "(2, 3, 4)", 24, 4),
            (1, 2, 1),
            15.0,
            window,
        );
        // [height 3, width 4, bands 2]: row 1, column 2, band 1 is (1 * 4 + 2) * 2 + 1.
        check(
            &array("<u8", false, "(3, 4, 2)", 24, 8),
            (1, 2, 1),
            13.0,
            window,
        );
        check(
            &array(">u4", true, "(3, 4, 2)", 24, 4),
            (1, 2, 1),
            19.0,
            window,
        );
    }

    #[test]
    fn what_is_no_raster_is_refused() {
        let check = |bytes: &[u8], expected: &str| {
            let message = in_memory(Path::new("a.npy"), bytes)
                .expect_err("refused")
                .to_string();
            assert!(
                message.starts_with("a.npy: ") && message.contains(expected),
                "{message}"
            );
        };
        check(
            &array("<c8", false, "(2, 2)", 4, 8),
            "an array of \"<c8\" is not supported",
        );
        check(&array("<f2", false, "(2, 2)", 4, 2), "numpy's astype");
        check(&array("|u1", false, "(8,)", 8, 1), "an array of shape [8]");
        check(
            &array("|u1", false, "(0, 8)", 0, 1),
            "an array of shape [0, 8]",
        );
        check(
            &array("|u1", false, "(3, 3)", 8, 1),
            "truncated: its array needs",
        );
        let huge = format!("({}, {}, 9)", u64::MAX / 2, u64::MAX / 2);
        check(&array("|u1", false, &huge, 8, 1), "an array of shape");
        let whole = array("|u1", false, "(2, 2)", 4, 1);
        for end in 0..whole.len() {
            assert!(
                in_memory(Path::new("a.npy"), &whole[..end]).is_err(),
                "{end}"
            );
        }
    }
}
