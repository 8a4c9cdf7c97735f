//! Hashed chunks: how a part of a tensor is read with certainty and in bounded memory.
//!
//! The bytes of every stored tensor are hashed in chunks of [`CHUNK_BYTES`]. Reading some of them reads and
//! checks the chunks they touch, so a sub-interval is as certain as the whole, at the price of at most two
//! chunks of extra reading. Chunks are independent of each other: large tensors are hashed, and read, by several threads.

use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde::{Deserialize, Serialize};

use crate::durable::io;
use crate::{Error, Result};

/// Bytes under one hash; the last chunk of a tensor is shorter.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// From here on the work on a tensor is worth threads of its own.
const PARALLEL_BYTES: usize = 4 * CHUNK_BYTES;

/// The most threads that work on one tensor: few hash faster than a disk reads.
const THREADS_MAX: usize = 8;

/// The BLAKE3 hash of one chunk, 64 hexadecimal digits in files.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct ChunkHash(blake3::Hash);

impl ChunkHash {
    /// The hash of no bytes in particular: holds the place of a real one.
    pub(crate) const PLACEHOLDER: Self = Self(blake3::Hash::from_bytes([0; 32]));

    /// The hash of some bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(blake3::hash(bytes))
    }
}

impl fmt::Debug for ChunkHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex())
    }
}

impl From<ChunkHash> for String {
    fn from(hash: ChunkHash) -> Self {
        hash.0.to_hex().to_string()
    }
}

impl TryFrom<String> for ChunkHash {
    type Error = blake3::HexError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Ok(Self(blake3::Hash::from_hex(text)?))
    }
}

/// How many hashes a tensor of `bytes` has.
pub(crate) fn hash_count(bytes: u64) -> u64 {
    bytes.div_ceil(CHUNK_BYTES as u64)
}

/// The hashes of a tensor's bytes.
pub(crate) fn hashes(bytes: &[u8]) -> Vec<ChunkHash> {
    bytes.chunks(CHUNK_BYTES).map(ChunkHash::of).collect()
}

/// The hashes of a tensor's bytes, and the result of `work`, which runs at the same time where there is much to hash.
pub(crate) fn hashes_beside<T>(bytes: &[u8], work: impl FnOnce() -> T) -> (Vec<ChunkHash>, T) {
    if bytes.len() < PARALLEL_BYTES {
        let done = work();
        return (hashes(bytes), done);
    }
    thread::scope(|scope| {
        let runs: Vec<_> = bytes
            .chunks(share(bytes.len()))
            .map(|run| scope.spawn(|| hashes(run)))
            .collect();
        let done = work();
        let hashes = runs
            .into_iter()
            .flat_map(|run| run.join().expect("hashing bytes in memory does not panic"));
        (hashes.collect(), done)
    })
}

/// How many threads of this machine work side by side.
pub(crate) fn threads() -> usize {
    thread::available_parallelism().map_or(1, |threads| threads.get().min(THREADS_MAX))
}

/// Bytes of each thread's run of whole chunks.
fn share(bytes: usize) -> usize {
    bytes.div_ceil(threads()).next_multiple_of(CHUNK_BYTES)
}

/// A stored tensor's bytes in a file. Its owner has checked that they lie within the file and that there are
/// [`hash_count`] hashes.
#[derive(Debug)]
pub(crate) struct Extent<'a> {
    /// The file.
    pub(crate) path: PathBuf,
    /// Which bytes of it.
    pub(crate) bytes: Range<u64>,
    /// Their hashes.
    pub(crate) hashes: &'a [ChunkHash],
    /// The tensor, as messages show it.
    pub(crate) label: String,
    /// Counts the bytes that are read of it.
    pub(crate) read: &'a AtomicU64,
}

impl Extent<'_> {
    /// Reads the bytes from `start` (counted within the extent) that fill `out`, and checks every chunk that
    /// they touch.
    ///
    /// Threads take chunk after chunk in the file's order, so that the disk is read forwards, and hash each while it is in the
    /// processor's cache. Of several damaged chunks the first is told.
    pub(crate) fn read(&self, file: &mut File, start: usize, out: &mut [u8]) -> Result<()> {
        let helpers = match out.len() {
            ..PARALLEL_BYTES => 0,
            _ => threads() - 1,
        };
        let parts = Mutex::new(Parts { start, rest: out });
        let help = || match File::open(&self.path) {
            Ok(mut file) => self.read_parts(&mut file, &parts),
            Err(error) => Some((start, io("open", &self.path)(error))),
        };
        let first = thread::scope(|scope| {
            let helpers: Vec<_> = (0..helpers).map(|_| scope.spawn(help)).collect();
            let own = self.read_parts(file, &parts);
            let helped = helpers.into_iter().map(|helper| {
                helper
                    .join()
                    .expect("reading into memory that is there does not panic")
            });
            let failed = helped.chain([own]).flatten();
            failed.min_by_key(|(start, _)| *start)
        });
        first.map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Reads parts until none is left, or one fails: which, by its start, and why.
    fn read_parts(&self, file: &mut File, parts: &Mutex<Parts<'_>>) -> Option<(usize, Error)> {
        let mut partial = Vec::new();
        let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some((start, part)) = next() {
            if let Err(error) = self.read_part(file, start, part, &mut partial) {
                // Nobody takes another. Those before it were taken before it, and are read to their end.
                parts.lock().unwrap_or_else(PoisonError::into_inner).rest = &mut [];
                return Some((start, error));
            }
        }
        None
    }

    /// Reads a part of one chunk.
    fn read_part(
        &self,
        file: &mut File,
        start: usize,
        out: &mut [u8],
        partial: &mut Vec<u8>,
    ) -> Result<()> {
        let index = start / CHUNK_BYTES;
        let chunk = self.chunk(index);
        if out.len() == chunk.len() {
            return self.read_chunk(file, index, out);
        }
        partial.resize(chunk.len(), 0);
        self.read_chunk(file, index, partial)?;
        let from = start - chunk.start;
        out.copy_from_slice(&partial[from..from + out.len()]);
        Ok(())
    }

    /// Checks a chunk. The buffer is for its bytes, and can be used again.
    pub(crate) fn verify(&self, file: &mut File, index: usize, buffer: &mut Vec<u8>) -> Result<()> {
        buffer.resize(self.chunk(index).len(), 0);
        self.read_chunk(file, index, buffer)
    }

    /// How many bytes a chunk has.
    pub(crate) fn chunk_bytes(&self, index: usize) -> usize {
        self.chunk(index).len()
    }

    /// The bytes of a chunk, counted within the extent.
    fn chunk(&self, index: usize) -> Range<usize> {
        // The extent lies within a file and its parts in memory, so its length fits a usize.
        let len = (self.bytes.end - self.bytes.start) as usize;
        let start = index * CHUNK_BYTES;
        start..len.min(start + CHUNK_BYTES)
    }

    fn read_chunk(&self, file: &mut File, index: usize, out: &mut [u8]) -> Result<()> {
        let start = self.bytes.start + self.chunk(index).start as u64;
        read_at(file, &self.path, start, out)?;
        self.read.fetch_add(out.len() as u64, Ordering::Relaxed);
        if ChunkHash::of(out) == self.hashes[index] {
            return Ok(());
        }
        Err(Error::Damaged {
            path: self.path.clone(),
            tensor: self.label.clone(),
            bytes: start..start + out.len() as u64,
        })
    }
}

/// What is left of a reading, chunk by chunk.
struct Parts<'a> {
    /// Where it starts within the extent.
    start: usize,
    rest: &'a mut [u8],
}

impl<'a> Iterator for Parts<'a> {
    /// Where a part starts, and where its bytes belong.
    type Item = (usize, &'a mut [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = std::mem::take(&mut self.rest);
        if rest.is_empty() {
            return None;
        }
        let to_border = CHUNK_BYTES - self.start % CHUNK_BYTES;
        let (part, rest) = rest.split_at_mut(to_border.min(rest.len()));
        let start = self.start;
        (self.start, self.rest) = (start + part.len(), rest);
        Some((start, part))
    }
}

/// Fills `out` from the byte `start` of a file on.
pub(crate) fn read_at(file: &mut File, path: &Path, start: u64, out: &mut [u8]) -> Result<()> {
    file.seek(SeekFrom::Start(start))
        .and_then(|_| file.read_exact(out))
        .map_err(io("read", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An extent that starts at byte 3 of a file and ends 5 bytes before its end.
    fn with_extent(len: usize, body: impl FnOnce(&Extent<'_>, &[u8], &Path)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let data: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        std::fs::write(&path, [&[9; 3][..], &data, &[9; 5]].concat()).unwrap();
        let hashes = hashes(&data);
        assert_eq!(hashes.len() as u64, hash_count(len as u64));
        let read = AtomicU64::new(0);
        let extent = Extent {
            path: path.clone(),
            bytes: 3..3 + len as u64,
            hashes: &hashes,
            label: "m `w`".into(),
            read: &read,
        };
        body(&extent, &data, &path);
    }

    #[test]
    fn any_sub_interval_comes_back() {
        let len = 2 * CHUNK_BYTES + 17;
        with_extent(len, |extent, data, path| {
            let mut file = File::open(path).unwrap();
            for wanted in [
                0..len,
                0..1,
                5..5,
                len - 1..len,
                CHUNK_BYTES - 1..CHUNK_BYTES + 1,
                CHUNK_BYTES..2 * CHUNK_BYTES,
                1..2 * CHUNK_BYTES + 3,
            ] {
                let mut out = vec![0; wanted.len()];
                extent.read(&mut file, wanted.start, &mut out).unwrap();
                assert!(out == data[wanted.clone()], "{wanted:?}");
            }
            for index in 0..3 {
                extent.verify(&mut file, index, &mut Vec::new()).unwrap();
            }
        });
    }

    #[test]
    fn many_threads_give_what_one_gives() {
        let len = 3 * PARALLEL_BYTES + 17;
        with_extent(len, |extent, data, path| {
            let (hashed, done) = hashes_beside(data, || 7);
            assert!(hashed == extent.hashes && done == 7);
            let mut file = File::open(path).unwrap();
            for wanted in [0..len, 5..len - 3, CHUNK_BYTES..len, 7..PARALLEL_BYTES + 7] {
                let mut out = vec![0; wanted.len()];
                extent.read(&mut file, wanted.start, &mut out).unwrap();
                assert!(out == data[wanted.clone()], "{wanted:?}");
            }
            let mut bytes = std::fs::read(path).unwrap();
            bytes[3 + len - 1] ^= 1;
            std::fs::write(path, bytes).unwrap();
            let read = extent.read(&mut file, 0, &mut vec![0; len]);
            assert!(matches!(read, Err(Error::Damaged { .. })));
        });
    }

    #[test]
    fn of_several_damaged_chunks_the_first_is_told_and_each_is_read_once() {
        let len = 16 * CHUNK_BYTES;
        with_extent(len, |extent, _, path| {
            let mut file = File::open(path).unwrap();
            extent.read(&mut file, 0, &mut vec![0; len]).unwrap();
            assert_eq!(extent.read.load(Ordering::Relaxed), len as u64);
            let mut bytes = std::fs::read(path).unwrap();
            for chunk in [15, 9, 3, 4] {
                bytes[3 + chunk * CHUNK_BYTES] ^= 1;
            }
            std::fs::write(path, bytes).unwrap();
            for _ in 0..20 {
                match extent.read(&mut file, 0, &mut vec![0; len]) {
                    Err(Error::Damaged { bytes, .. }) => {
                        assert_eq!(bytes.start, 3 + 3 * CHUNK_BYTES as u64);
                    }
                    other => panic!("{other:?}"),
                }
            }
        });
    }

    #[test]
    fn a_flipped_bit_is_found_through_any_part_of_its_chunk_and_no_other() {
        with_extent(2 * CHUNK_BYTES, |extent, _, path| {
            let mut bytes = std::fs::read(path).unwrap();
            bytes[3 + CHUNK_BYTES + 10] ^= 1;
            std::fs::write(path, bytes).unwrap();
            let mut file = File::open(path).unwrap();
            let mut read = |start| extent.read(&mut file, start, &mut [0; 4]);
            read(CHUNK_BYTES - 4).unwrap();
            let error = read(2 * CHUNK_BYTES - 4).unwrap_err().to_string();
            assert!(
                error.contains("data is damaged") && error.contains("m `w`"),
                "{error}"
            );
            let mut buffer = Vec::new();
            extent.verify(&mut file, 0, &mut buffer).unwrap();
            assert!(matches!(
                extent.verify(&mut file, 1, &mut buffer),
                Err(Error::Damaged { .. })
            ));
        });
    }
}
