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
}

impl Extent<'_> {
    /// Reads the bytes from `start` (counted within the extent) that fill `out`, and checks every chunk that
    /// they touch.
    pub(crate) fn read(&self, file: &mut File, start: usize, out: &mut [u8]) -> Result<()> {
        if out.len() < PARALLEL_BYTES {
            return self.read_run(file, start, out);
        }
        // Runs end at chunks, so that none is read twice.
        let (first, rest) = out.split_at_mut(CHUNK_BYTES - start % CHUNK_BYTES);
        let (after, share) = (start + first.len(), share(rest.len()));
        thread::scope(|scope| {
            let run = |(index, run): (usize, _)| {
                scope.spawn(move || {
                    let mut file = File::open(&self.path).map_err(io("open", &self.path))?;
                    self.read_run(&mut file, after + index * share, run)
                })
            };
            let runs: Vec<_> = rest.chunks_mut(share).enumerate().map(run).collect();
            self.read_run(file, start, first)?;
            runs.into_iter().try_for_each(|run| {
                run.join()
                    .expect("reading into memory that is there does not panic")
            })
        })
    }

    fn read_run(&self, file: &mut File, start: usize, out: &mut [u8]) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        let wanted = start..start + out.len();
        let mut partial = Vec::new();
        for index in start / CHUNK_BYTES..wanted.end.div_ceil(CHUNK_BYTES) {
            let chunk = self.chunk(index);
            let common = wanted.start.max(chunk.start)..wanted.end.min(chunk.end);
            let target = &mut out[common.start - start..common.end - start];
            if common == chunk {
                self.read_chunk(file, index, target)?;
            } else {
                partial.resize(chunk.len(), 0);
                self.read_chunk(file, index, &mut partial)?;
                target.copy_from_slice(
                    &partial[common.start - chunk.start..common.end - chunk.start],
                );
            }
        }
        Ok(())
    }

    /// Checks some of the chunks.
    pub(crate) fn verify(&self, file: &mut File, chunks: Range<usize>) -> Result<()> {
        let mut buffer = Vec::new();
        for index in chunks {
            buffer.resize(self.chunk(index).len(), 0);
            self.read_chunk(file, index, &mut buffer)?;
        }
        Ok(())
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
        let extent = Extent {
            path: path.clone(),
            bytes: 3..3 + len as u64,
            hashes: &hashes,
            label: "m `w`".into(),
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
            extent.verify(&mut file, 0..3).unwrap();
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
            extent.verify(&mut file, 0..1).unwrap();
            assert!(matches!(
                extent.verify(&mut file, 0..2),
                Err(Error::Damaged { .. })
            ));
        });
    }
}
