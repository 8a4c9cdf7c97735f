//! The entries of a zip file that are stored as they are, which is how `torch.save` writes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::refuse;
use crate::Result;
use crate::durable::io;

const END: u32 = 0x0605_4b50;
const END_64: u32 = 0x0606_4b50;
const LOCATOR_64: u32 = 0x0706_4b50;
const ENTRY: u32 = 0x0201_4b50;
const LOCAL: u32 = 0x0403_4b50;

/// Bytes of the record at the end, without its comment, and of the locator before it.
const END_BYTES: usize = 22;
const LOCATOR_BYTES: u64 = 20;
/// The longest comment after the record.
const COMMENT: usize = u16::MAX as usize;
/// A directory longer than this is not that of a checkpoint.
const LONGEST_DIRECTORY: u64 = 256 << 20;

/// An open zip file.
#[derive(Debug)]
pub(super) struct Archive {
    path: PathBuf,
    length: u64,
    /// Where the local header and how long the content of each entry is.
    entries: BTreeMap<String, Stored>,
}

#[derive(Debug, Clone, Copy)]
struct Stored {
    header: u64,
    bytes: u64,
}

impl Archive {
    /// Reads the directory.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let mut file = File::open(path).map_err(io("open", path))?;
        let length = file.metadata().map_err(io("read", path))?.len();
        let damaged = || refuse(path, "its zip directory is damaged");
        let tail = (END_BYTES + COMMENT).min(length as usize);
        let tail = bytes(path, &mut file, length - tail as u64..length)?;
        let at = (0..=tail.len().saturating_sub(END_BYTES))
            .rev()
            .find(|at| number::<4>(&tail, *at) == Some(END.into()))
            .ok_or_else(damaged)?;
        let field = |offset, width| match width {
            2 => number::<2>(&tail, at + offset),
            _ => number::<4>(&tail, at + offset),
        };
        let mut size = field(12, 4).ok_or_else(damaged)?;
        let mut start = field(16, 4).ok_or_else(damaged)?;
        let place = length - (tail.len() - at) as u64;
        if let Some(locator) = place.checked_sub(LOCATOR_BYTES) {
            let locator = bytes(path, &mut file, locator..place)?;
            if number::<4>(&locator, 0) == Some(LOCATOR_64.into()) {
                let record = number::<8>(&locator, 8).ok_or_else(damaged)?;
                let end = record.checked_add(56).ok_or_else(damaged)?;
                let record = bytes(path, &mut file, record..end)?;
                if number::<4>(&record, 0) != Some(END_64.into()) {
                    return Err(damaged());
                }
                size = number::<8>(&record, 40).ok_or_else(damaged)?;
                start = number::<8>(&record, 48).ok_or_else(damaged)?;
            }
        }
        let end = start.checked_add(size).ok_or_else(damaged)?;
        if size > LONGEST_DIRECTORY {
            return Err(damaged());
        }
        let directory = bytes(path, &mut file, start..end)?;
        let mut entries = BTreeMap::new();
        let mut at = 0;
        while at < directory.len() {
            let (name, stored, next) = entry(path, &directory, at)?;
            entries.insert(name, stored);
            at = next;
        }
        Ok(Self {
            path: path.into(),
            length,
            entries,
        })
    }

    /// The names of all entries, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Where the content of an entry is in the file.
    pub(super) fn content(&self, name: &str) -> Result<Range<u64>> {
        let path = &self.path;
        let missing = || refuse(path, format!("its entry `{name}` is missing"));
        let stored = self.entries.get(name).ok_or_else(missing)?;
        let mut file = File::open(path).map_err(io("open", path))?;
        let damaged = || refuse(path, format!("its entry `{name}` is damaged"));
        let end = stored.header.checked_add(30).ok_or_else(damaged)?;
        let header = bytes(path, &mut file, stored.header..end)?;
        if number::<4>(&header, 0) != Some(LOCAL.into()) {
            return Err(damaged());
        }
        let [name_bytes, extra] = [26, 28].map(|at| number::<2>(&header, at).unwrap_or(0));
        let start = end + name_bytes + extra;
        let end = start.checked_add(stored.bytes).ok_or_else(damaged)?;
        match end <= self.length {
            true => Ok(start..end),
            false => Err(damaged()),
        }
    }
}

/// An entry of the directory: its name, where it is, and where the next one begins.
fn entry(path: &Path, directory: &[u8], at: usize) -> Result<(String, Stored, usize)> {
    let damaged = || refuse(path, "its zip directory is damaged");
    let two = |offset| number::<2>(directory, at + offset).ok_or_else(damaged);
    let four = |offset| number::<4>(directory, at + offset).ok_or_else(damaged);
    if four(0)? != u64::from(ENTRY) {
        return Err(damaged());
    }
    let [name_bytes, extra, comment] = [two(28)?, two(30)?, two(32)?].map(|n| n as usize);
    let names = at + 46;
    let name = directory
        .get(names..names + name_bytes)
        .ok_or_else(damaged)?;
    let name = String::from_utf8_lossy(name).into_owned();
    let (method, stored_bytes) = (two(10)?, four(20)?);
    let (mut whole, mut header) = (four(24)?, four(42)?);
    let extra_at = names + name_bytes;
    let fields = directory
        .get(extra_at..extra_at + extra)
        .ok_or_else(damaged)?;
    // Of a large entry, what does not fit four bytes stands in an extra field, in this order.
    let mut wide = wide_field(fields);
    let mut widened = |narrow: u64| match narrow == u64::from(u32::MAX) {
        true => wide.next().ok_or_else(damaged),
        false => Ok(narrow),
    };
    whole = widened(whole)?;
    let stored_bytes = widened(stored_bytes)?;
    header = widened(header)?;
    if method != 0 || stored_bytes != whole {
        return Err(refuse(
            path,
            format!(
                "its entry `{name}` is compressed, which torch.save does not do: save it again"
            ),
        ));
    }
    let stored = Stored {
        header,
        bytes: whole,
    };
    Ok((name, stored, extra_at + extra + comment))
}

/// The numbers of eight bytes in the field of large entries, if there is one.
fn wide_field(mut fields: &[u8]) -> impl Iterator<Item = u64> {
    let mut found: &[u8] = &[];
    while let (Some(id), Some(size)) = (number::<2>(fields, 0), number::<2>(fields, 2)) {
        let end = (4 + size as usize).min(fields.len());
        if id == 1 {
            found = &fields[4..end];
        }
        fields = &fields[end..];
    }
    found
        .as_chunks()
        .0
        .iter()
        .map(|bytes| u64::from_le_bytes(*bytes))
}

/// A number of this many bytes, low ones first.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(N)?)?;
    let mut whole = [0; 8];
    whole[..N].copy_from_slice(bytes);
    Some(u64::from_le_bytes(whole))
}

/// Bytes of a file, which has to be that long before they are given memory.
pub(super) fn bytes(path: &Path, file: &mut File, range: Range<u64>) -> Result<Vec<u8>> {
    let length = file.metadata().map_err(io("read", path))?.len();
    if range.start > range.end || range.end > length {
        return Err(refuse(path, "it ends too early"));
    }
    let mut bytes = vec![0; (range.end - range.start) as usize];
    file.seek(SeekFrom::Start(range.start))
        .and_then(|_| file.read_exact(&mut bytes))
        .map_err(io("read", path))?;
    Ok(bytes)
}
