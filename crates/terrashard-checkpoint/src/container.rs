//! Safetensors files: written as a stream, read by byte range.
//!
//! Format: <https://github.com/huggingface/safetensors#format>. The header is made here so that equal input gives
//! equal bytes; it is read with the `safetensors` crate, which checks that tensors lie one after another.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use safetensors::tensor::{Dtype, Metadata};
use serde_json::{Map, Value, json};
use terrashard_layout::ElementType;

use crate::chunk::{self, ChunkHash};
use crate::durable::{crash_point, io};
use crate::{Error, Result};

/// The longest header that other readers accept, in bytes.
const HEADER_MAX_BYTES: u64 = 100_000_000;

/// The length of the header's length, in bytes; also its alignment.
const WORD_BYTES: usize = 8;

/// A tensor to be written.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its key in the file.
    pub(crate) key: String,
    /// Its shape in the file.
    pub(crate) shape: Vec<usize>,
    /// Its element type.
    pub(crate) dtype: ElementType,
    /// How messages call it.
    pub(crate) label: String,
}

/// Where a tensor was written.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    /// Its bytes in the file.
    pub(crate) bytes: Range<u64>,
    /// Their hashes.
    pub(crate) hashes: Vec<ChunkHash>,
}

/// Writes a file and flushes it to the disk; returns its length and where each entry is.
///
/// `fetch` gives the bytes of the entry at an index, which is asked for once; `metadata` is called with the
/// entries, before with placeholders for their hashes and after with the true ones, and must give texts of the same length.
pub(crate) fn write<'a>(
    path: &Path,
    entries: &[Entry],
    mut fetch: impl FnMut(usize) -> Result<Cow<'a, [u8]>>,
    metadata: impl Fn(&[Written]) -> Result<BTreeMap<String, String>>,
) -> Result<(u64, Vec<Written>)> {
    let (order, mut written) = arrange(path, entries)?;
    let draft = header(path, entries, &order, &written, &metadata(&written)?)?;
    crash_point(path)?;
    let file = File::create(path).map_err(io("create", path))?;
    let mut file = BufWriter::with_capacity(chunk::CHUNK_BYTES, file);
    file.write_all(&draft).map_err(io("write", path))?;
    for &index in &order {
        let (entry, place) = (&entries[index], &mut written[index]);
        let bytes = fetch(index)?;
        let expected = (place.bytes.end - place.bytes.start) as usize;
        if bytes.len() != expected {
            return Err(Error::Length {
                tensor: entry.label.clone(),
                expected,
                got: bytes.len(),
            });
        }
        crash_point(path)?;
        let (hashes, done) = chunk::hashes_beside(&bytes, || file.write_all(&bytes));
        done.map_err(io("write", path))?;
        place.hashes = hashes;
    }
    let done = header(path, entries, &order, &written, &metadata(&written)?)?;
    assert_eq!(
        done.len(),
        draft.len(),
        "hashes do not change the header's length"
    );
    if done != draft {
        file.seek(SeekFrom::Start(0))
            .and_then(|_| file.write_all(&done))
            .map_err(io("write", path))?;
    }
    let file = file
        .into_inner()
        .map_err(|error| io("write", path)(error.into_error()))?;
    crash_point(path)?;
    file.sync_all().map_err(io("flush", path))?;
    let data: u64 = written
        .iter()
        .map(|place| place.bytes.end - place.bytes.start)
        .sum();
    let start = draft.len() as u64;
    for place in &mut written {
        place.bytes = place.bytes.start + start..place.bytes.end + start;
    }
    Ok((start + data, written))
}

/// The order of tensors in the file, and each one's bytes counted from the end of the header: widest elements
/// first, so that all are aligned.
fn arrange(path: &Path, entries: &[Entry]) -> Result<(Vec<usize>, Vec<Written>)> {
    let mut keys = BTreeSet::new();
    for entry in entries {
        if entry.key == "__metadata__" || !keys.insert(&entry.key) {
            return Err(Error::Malformed {
                path: path.to_owned(),
                subject: entry.label.clone(),
                rule: "every tensor needs a key of its own, other than `__metadata__`",
            });
        }
    }
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(entries[index].dtype.bytes()));
    let mut written = vec![
        Written {
            bytes: 0..0,
            hashes: Vec::new()
        };
        entries.len()
    ];
    let mut end = 0;
    for &index in &order {
        let entry = &entries[index];
        let bytes =
            byte_count(&entry.shape, entry.dtype).ok_or_else(|| too_large(path, &entry.label))?;
        let next = bytes
            .checked_add(end)
            .ok_or_else(|| too_large(path, &entry.label))?;
        written[index] = Written {
            bytes: end..next,
            hashes: vec![ChunkHash::PLACEHOLDER; chunk::hash_count(bytes) as usize],
        };
        end = next;
    }
    Ok((order, written))
}

fn too_large(path: &Path, label: &str) -> Error {
    Error::Malformed {
        path: path.to_owned(),
        subject: label.to_owned(),
        rule: "a shape must have fewer bytes than can be counted",
    }
}

/// Bytes of a tensor, if they can be counted.
pub(crate) fn byte_count(shape: &[usize], dtype: ElementType) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    let numel = shape
        .iter()
        .try_fold(1_usize, |numel, &dim| numel.checked_mul(dim))?;
    numel.checked_mul(dtype.bytes())?.try_into().ok()
}

/// The header with its length in front, padded with spaces to whole words.
fn header(
    path: &Path,
    entries: &[Entry],
    order: &[usize],
    written: &[Written],
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>> {
    let mut map = Map::new();
    if !metadata.is_empty() {
        map.insert("__metadata__".into(), json!(metadata));
    }
    for &index in order {
        let (entry, bytes) = (&entries[index], &written[index].bytes);
        map.insert(
            entry.key.clone(),
            json!({ "dtype": dtype(entry.dtype), "shape": entry.shape, "data_offsets": [bytes.start, bytes.end] }),
        );
    }
    let mut text = Value::Object(map).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(WORD_BYTES), b' ');
    if text.len() as u64 > HEADER_MAX_BYTES {
        return Err(Error::Header {
            path: path.to_owned(),
            reason: format!("a header of {} bytes is too long for readers", text.len()),
        });
    }
    Ok([&(text.len() as u64).to_le_bytes(), text.as_slice()].concat())
}

/// A file's header as it was read.
#[derive(Debug)]
pub(crate) struct Header {
    /// Where the tensors' bytes start.
    start: u64,
    metadata: Metadata,
}

impl Header {
    /// Reads and checks the header of an open file.
    pub(crate) fn read(file: &mut File, path: &Path) -> Result<Self> {
        let refuse = |reason: String| Error::Header {
            path: path.to_owned(),
            reason,
        };
        let length = file.metadata().map_err(io("inspect", path))?.len();
        if length < WORD_BYTES as u64 {
            return Err(refuse(format!("{length} bytes are too few")));
        }
        let mut word = [0; WORD_BYTES];
        chunk::read_at(file, path, 0, &mut word)?;
        let declared = u64::from_le_bytes(word);
        // Nothing is allocated before this: the length comes from the file.
        if declared > HEADER_MAX_BYTES || declared > length - WORD_BYTES as u64 {
            return Err(refuse(format!(
                "a header of {declared} bytes does not fit a file of {length}"
            )));
        }
        let mut text = vec![0; declared as usize];
        chunk::read_at(file, path, WORD_BYTES as u64, &mut text)?;
        let metadata: Metadata =
            serde_json::from_slice(&text).map_err(|error| refuse(error.to_string()))?;
        let start = WORD_BYTES as u64 + declared;
        let data = metadata.data_len() as u64;
        if start.checked_add(data) != Some(length) {
            return Err(refuse(format!(
                "the header tells of {data} bytes of tensors, {} follow it",
                length - start
            )));
        }
        Ok(Self { start, metadata })
    }

    /// The texts that the file carries.
    pub(crate) fn metadata(&self, key: &str) -> Option<&str> {
        Some(self.metadata.metadata().as_ref()?.get(key)?.as_str())
    }

    /// The keys of all tensors in the file's order.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// A tensor's element type (`None` if it is one that we do not have), shape and bytes in the file.
    pub(crate) fn tensor(&self, key: &str) -> Option<(Option<ElementType>, &[usize], Range<u64>)> {
        let info = self.metadata.info(key)?;
        let (start, end) = info.data_offsets;
        let bytes = self.start + start as u64..self.start + end as u64;
        Some((element(info.dtype), &info.shape, bytes))
    }
}

/// The safetensors name of an element type.
fn dtype(element: ElementType) -> Dtype {
    match element {
        ElementType::F32 => Dtype::F32,
        ElementType::F64 => Dtype::F64,
        ElementType::Bf16 => Dtype::BF16,
        ElementType::F16 => Dtype::F16,
    }
}

/// The element type of a safetensors name.
fn element(dtype: Dtype) -> Option<ElementType> {
    match dtype {
        Dtype::F32 => Some(ElementType::F32),
        Dtype::F64 => Some(ElementType::F64),
        Dtype::BF16 => Some(ElementType::Bf16),
        Dtype::F16 => Some(ElementType::F16),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    fn entry(key: &str, shape: &[usize], dtype: ElementType) -> Entry {
        Entry {
            key: key.into(),
            shape: shape.into(),
            dtype,
            label: key.into(),
        }
    }

    #[test]
    fn other_readers_see_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let entries = [
            entry("half", &[3], ElementType::F16),
            entry("double", &[], ElementType::F64),
            entry("none", &[0, 4], ElementType::F32),
        ];
        let bytes: [&[u8]; 3] = [&[1, 2, 3, 4, 5, 6], &[8; 8], &[]];
        let metadata = |written: &[Written]| {
            Ok([("first".to_owned(), format!("{:?}", written[0].hashes))].into())
        };
        let (length, written) =
            write(&path, &entries, |i| Ok(Cow::from(bytes[i])), metadata).unwrap();

        let file = std::fs::read(&path).unwrap();
        assert_eq!(file.len() as u64, length);
        let read = SafeTensors::deserialize(&file).unwrap();
        assert_eq!(read.tensor("half").unwrap().data(), bytes[0]);
        assert_eq!(read.tensor("half").unwrap().dtype(), Dtype::F16);
        assert_eq!(read.tensor("double").unwrap().data(), bytes[1]);
        assert!(read.tensor("double").unwrap().shape().is_empty());
        assert_eq!(read.tensor("none").unwrap().shape(), [0, 4]);
        // The wide one stands first, on a multiple of its width.
        assert!(written[1].bytes.start < written[0].bytes.start && written[1].bytes.start % 8 == 0);
        assert_eq!(
            &file[written[0].bytes.start as usize..written[0].bytes.end as usize],
            bytes[0]
        );

        let header = Header::read(&mut File::open(&path).unwrap(), &path).unwrap();
        assert_eq!(
            header.metadata("first").unwrap(),
            format!("[{}]", blake3::hash(bytes[0]).to_hex())
        );
    }

    #[test]
    fn hostile_headers_are_refused_before_anything_is_allocated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let check = |declared: u64, text: &str, expected: &str| {
            std::fs::write(&path, [&declared.to_le_bytes(), text.as_bytes()].concat()).unwrap();
            let error = Header::read(&mut File::open(&path).unwrap(), &path).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        };
        check(u64::MAX, "{}", "does not fit");
        check(3, "{}", "does not fit");
        check(2, "{]", "is no safetensors file");
        check(2, "{}xx", "0 bytes of tensors, 2 follow");
        let far = r#"{"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}}"#;
        check(far.len() as u64, far, "is no safetensors file");
        let hole = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}12345678"#;
        check(hole.len() as u64 - 8, hole, "is no safetensors file");
        std::fs::write(&path, [1]).unwrap();
        assert!(Header::read(&mut File::open(&path).unwrap(), &path).is_err());
    }

    #[test]
    fn a_wrong_number_of_bytes_and_a_doubled_key_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let none = |_: &[Written]| Ok(BTreeMap::new());
        let one = entry("a", &[2], ElementType::F32);
        let result = write(&path, &[one], |_| Ok(vec![0; 7].into()), none);
        assert!(matches!(
            result,
            Err(Error::Length {
                expected: 8,
                got: 7,
                ..
            })
        ));
        let two = [
            entry("a", &[2], ElementType::F32),
            entry("a", &[2], ElementType::F32),
        ];
        let result = write(&path, &two, |_| Ok(vec![0; 8].into()), none);
        assert!(matches!(result, Err(Error::Malformed { .. })));
    }
}
