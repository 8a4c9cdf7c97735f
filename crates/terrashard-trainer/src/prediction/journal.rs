//! What is finished of a scene's prediction, kept beside its output until that is whole, so that a prediction that was ended goes
//! on where it was.
//!
//! A journal is one hidden file: a line that says of which prediction it is, then a record for each finished block. A record is its
//! length, a hash and its bytes, so that one that was cut short is told from a whole one and left out.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::{fs, io};

use terrashard_raster::{DataType, Raster, Samples, Window};

use crate::error::{Error, Result};

/// Bytes before the payload of a record: its length and the first half of its hash.
const HEAD: usize = 4 + 16;

/// The longest record that is believed.
const LONGEST: usize = 1 << 30;

/// What was made of one block.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Finished {
    /// Pixels of the image that are zero in every band, where no value is declared to stand for no data.
    pub(crate) zeros: u64,
    /// Pixels of each class in the map.
    pub(crate) classes: Vec<(u8, u64)>,
    /// One for each output, over the same pixels of the map.
    pub(crate) rasters: Vec<Raster>,
}

/// The journal of one prediction, locked for this process.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: BufWriter<File>,
    records: usize,
}

/// One without a record is of no use.
impl Drop for Journal {
    fn drop(&mut self) {
        if self.records == 0 {
            // Best effort: an empty file that stays does no harm.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Journal {
    /// Where the journal of an output lies.
    pub(crate) fn beside(output: &Path) -> PathBuf {
        let name = output.file_name().unwrap_or_default().to_string_lossy();
        output.with_file_name(format!(".{name}.journal"))
    }

    /// Opens the journal of `output` and takes hold of it. Where it is of the same prediction, the whole records are kept, a
    /// multiple of `together` of them; else it is begun anew. Returns the number of records.
    ///
    /// # Errors
    /// [`Error::OutputBusy`] where another process writes the same output; [`Error::Write`].
    pub(crate) fn open(output: &Path, identity: &str, together: usize) -> Result<(Self, usize)> {
        let path = Self::beside(output);
        // Whoever called knows of the output.
        let failed = || Error::write(output);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed())?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(Error::OutputBusy {
                    path: output.into(),
                });
            }
            // A file system without locks has one user at a time.
            Err(fs::TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {}
            Err(fs::TryLockError::Error(error)) => return Err(failed()(error)),
        }
        let mut journal = Self {
            file: BufWriter::new(file),
            path,
            records: 0,
        };
        let head = format!("terrashard prediction {identity}\n");
        let records = journal
            .whole(&head, together)
            .map_err(Error::write(&journal.path))?;
        journal.records = records;
        Ok((journal, records))
    }

    /// Cuts off what is not whole, or all where the journal is of another prediction; the next record goes behind.
    fn whole(&mut self, head: &str, together: usize) -> io::Result<usize> {
        let file = self.file.get_mut();
        file.seek(SeekFrom::Start(0))?;
        let mut reader = BufReader::with_capacity(1 << 20, &*file);
        let mut found = vec![0; head.len()];
        let same = match reader.read_exact(&mut found) {
            Ok(()) => found == head.as_bytes(),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => false,
            Err(error) => return Err(error),
        };
        if !same {
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(head.as_bytes())?;
            return Ok(0);
        }
        let (mut records, mut kept, mut end) = (0, 0, head.len() as u64);
        let mut place = end;
        while let Some(payload) = next(&mut reader)? {
            place += (HEAD + payload.len()) as u64;
            records += 1;
            if records % together == 0 {
                (kept, end) = (records, place);
            }
        }
        file.set_len(end)?;
        file.seek(SeekFrom::Start(end))?;
        Ok(kept)
    }

    /// The records that were found, in order, before any is added.
    ///
    /// # Errors
    /// [`Error::Write`] where they cannot be read again; what `take` returns.
    pub(crate) fn replay(&mut self, mut take: impl FnMut(Finished) -> Result<()>) -> Result<()> {
        let path = self.path.clone();
        let failed = |error| Error::write(&path)(error);
        let file = self.file.get_mut();
        let mut reader = File::open(&path).map(BufReader::new).map_err(failed)?;
        let mut byte = [0];
        while byte != *b"\n" {
            reader.read_exact(&mut byte).map_err(failed)?;
        }
        while let Some(payload) = next(&mut reader).map_err(failed)? {
            let finished = Finished::decode(&payload)
                .ok_or_else(|| failed(io::Error::from(ErrorKind::InvalidData)))?;
            take(finished)?;
        }
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok(())
    }

    /// Adds a record. It outlives this process as soon as this returns.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub(crate) fn add(&mut self, finished: &Finished) -> Result<()> {
        let payload = finished.encode();
        let hash = blake3::hash(&payload);
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        self.file
            .write_all(&length.to_le_bytes())
            .and_then(|()| self.file.write_all(&hash.as_bytes()[..16]))
            .and_then(|()| self.file.write_all(&payload))
            .and_then(|()| self.file.flush())
            .map_err(Error::write(&self.path))?;
        self.records += 1;
        Ok(())
    }

    /// The output is whole: nothing is left of the journal.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub(crate) fn remove(mut self) -> Result<()> {
        self.records = 0;
        fs::remove_file(&self.path).map_err(Error::write(&self.path))
    }
}

/// The next whole record.
fn next(reader: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; HEAD];
    let ended = |error: io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => Ok(None),
        _ => Err(error),
    };
    if let Err(error) = reader.read_exact(&mut head) {
        return ended(error);
    }
    let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    if length > LONGEST {
        return Ok(None);
    }
    // As much memory as there are bytes, whatever the length says.
    let mut payload = Vec::new();
    reader.take(length as u64).read_to_end(&mut payload)?;
    let whole = payload.len() == length && blake3::hash(&payload).as_bytes()[..16] == head[4..];
    Ok(whole.then_some(payload))
}

impl Finished {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.zeros.to_le_bytes().to_vec();
        bytes.extend((self.classes.len() as u64).to_le_bytes());
        for (class, pixels) in &self.classes {
            bytes.push(*class);
            bytes.extend(pixels.to_le_bytes());
        }
        for raster in &self.rasters {
            let Window {
                col,
                row,
                width,
                height,
            } = raster.window();
            let numbers = [col, row, width, height, raster.bands()];
            bytes.extend(numbers.iter().flat_map(|n| (*n as u64).to_le_bytes()));
            let (kind, raw) = match raster.samples() {
                Samples::U8(values) => (0, values.clone()),
                Samples::F32(values) => (1, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
                other => unreachable!("no output has samples of {}", other.data_type()),
            };
            let packed = lz4_flex::compress_prepend_size(&raw);
            bytes.push(kind);
            bytes.extend((packed.len() as u64).to_le_bytes());
            bytes.extend(packed);
        }
        bytes
    }

    /// None where the bytes are not what [`Finished::encode`] gives.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (zeros, rest) = number(bytes)?;
        let (length, mut rest) = number(rest)?;
        let mut classes = Vec::new();
        for _ in 0..length {
            let (class, after) = rest.split_first()?;
            let (pixels, after) = number(after)?;
            classes.push((*class, pixels));
            rest = after;
        }
        let mut rasters = Vec::new();
        while !rest.is_empty() {
            let mut numbers = [0; 5];
            for each in &mut numbers {
                (*each, rest) = number(rest)?;
            }
            let (kind, after) = rest.split_first()?;
            let (length, after) = number(after)?;
            let (packed, after) = after.split_at_checked(usize::try_from(length).ok()?)?;
            rest = after;
            let raw = lz4_flex::decompress_size_prepended(packed).ok()?;
            let samples = match kind {
                0 => Samples::U8(raw),
                _ => Samples::F32(
                    raw.as_chunks()
                        .0
                        .iter()
                        .map(|chunk| f32::from_le_bytes(*chunk))
                        .collect(),
                ),
            };
            let [col, row, width, height, bands] = numbers.map(|n| n as usize);
            let window = Window::new(col, row, width, height);
            rasters.push(Raster::new(window, bands, samples).ok()?);
        }
        Some(Self {
            zeros,
            classes,
            rasters,
        })
    }
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (head, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*head), rest))
}

/// Bytes that a record of these outputs takes at most on its way, for blocks of this many map pixels.
pub(crate) fn record_bytes(outputs: impl Iterator<Item = (usize, DataType)>, pixels: u64) -> u64 {
    // The samples, their bytes, packed, and in the record.
    outputs
        .map(|(bands, data_type)| 4 * pixels * (bands * data_type.bytes()) as u64)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(value: u8) -> Finished {
        let window = Window::new(usize::from(value), 5, 3, 2);
        Finished {
            zeros: u64::from(value) + 7,
            classes: vec![(value, 4), (255, 2)],
            rasters: vec![
                Raster::new(window, 1, Samples::U8(vec![value; 6])).unwrap(),
                Raster::new(window, 2, Samples::F32(vec![f32::from(value) / 3.0; 12])).unwrap(),
            ],
        }
    }

    fn replayed(journal: &mut Journal) -> Vec<Finished> {
        let mut all = Vec::new();
        journal
            .replay(|finished| {
                all.push(finished);
                Ok(())
            })
            .unwrap();
        all
    }

    #[test]
    fn whole_records_are_found_again_and_a_cut_one_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("map.tif");
        let (mut journal, found) = Journal::open(&output, "a", 1).unwrap();
        assert_eq!(found, 0);
        (0..5).for_each(|value| journal.add(&finished(value)).unwrap());
        assert!(matches!(
            Journal::open(&output, "a", 1),
            Err(Error::OutputBusy { .. })
        ));
        drop(journal);

        let path = Journal::beside(&output);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        let (mut journal, found) = Journal::open(&output, "a", 1).unwrap();
        assert_eq!(found, 4);
        assert_eq!(
            replayed(&mut journal),
            (0..4).map(finished).collect::<Vec<_>>()
        );
        journal.add(&finished(9)).unwrap();
        drop(journal);

        // Rows of three: what follows the last whole row goes.
        let (mut journal, found) = Journal::open(&output, "a", 3).unwrap();
        assert_eq!(found, 3);
        assert_eq!(replayed(&mut journal).len(), 3);
        journal.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_damaged_record_and_all_behind_it_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("map.tif");
        let (mut journal, _) = Journal::open(&output, "a", 1).unwrap();
        let head = fs::metadata(Journal::beside(&output)).unwrap().len() as usize;
        (0..3).for_each(|value| journal.add(&finished(value)).unwrap());
        drop(journal);
        let path = Journal::beside(&output);
        let bytes = fs::read(&path).unwrap();
        let record = (bytes.len() - head) / 3;
        for (at, expected) in [(head + record + 30, 1), (head + 1, 0), (5, 0)] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            fs::write(&path, damaged).unwrap();
            assert_eq!(
                Journal::open(&output, "a", 1).unwrap().1,
                expected,
                "byte {at}"
            );
        }
    }

    #[test]
    fn another_prediction_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("map.tif");
        let (mut journal, _) = Journal::open(&output, "a", 1).unwrap();
        journal.add(&finished(1)).unwrap();
        drop(journal);
        let (mut journal, found) = Journal::open(&output, "b", 1).unwrap();
        assert_eq!(found, 0);
        assert!(replayed(&mut journal).is_empty());
    }
}
