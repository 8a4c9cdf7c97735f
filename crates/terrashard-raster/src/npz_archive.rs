//! Arrays in a NumPy archive: a ZIP file of `.npy` files, stored as they are or deflated.
//!
//! ZIP: <https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT>

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use flate2::read::DeflateDecoder;

use crate::npy_source::{self, NpySource};
use crate::opening::{DECLARED_PER_STORED, ReadLimits};
use crate::{Error, RasterSource, Result};

/// How an archive begins.
pub(crate) const MAGIC: &[u8] = b"PK\x03\x04";

/// The end of the archive's directory is looked for in so many bytes: a comment may follow it.
const MAX_TAIL: u64 = 66_000;
/// Bytes of a directory that are accepted.
const MAX_DIRECTORY: u64 = 16 << 20;
const END_BYTES: usize = 22;
const ENTRY_BYTES: usize = 46;
const LOCAL_BYTES: usize = 30;
/// What stands in a field whose value needs 64 bits.
const ELSEWHERE: u32 = u32::MAX;

/// One file of the archive.
#[derive(Debug)]
struct Member {
    name: String,
    method: u16,
    packed: u64,
    unpacked: u64,
    /// Where its local header is.
    header: u64,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Opens the array `wanted` of an archive, or the only one that there is.
pub(crate) fn open(
    path: &Path,
    wanted: Option<&str>,
    limits: ReadLimits,
) -> Result<Box<dyn RasterSource>> {
    let io = |e| Error::io(path, "read", e);
    let mut file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
    let stored = file.metadata().map_err(io)?.len();
    let members = members(path, &mut file, stored)?;
    let names = || -> Vec<&str> {
        members
            .iter()
            .map(|m| m.name.trim_end_matches(".npy"))
            .collect()
    };
    let chosen = match wanted {
        Some(wanted) => members
            .iter()
            .find(|m| m.name.trim_end_matches(".npy") == wanted.trim_end_matches(".npy")),
        None => members.first().filter(|_| members.len() == 1),
    };
    let Some(member) = chosen else {
        let first = names().first().copied().unwrap_or("NAME");
        return Err(Error::Ambiguous {
            path: path.to_owned(),
            what: match wanted {
                Some(wanted) => format!("no array {wanted}, but {}", names().join(", ")),
                None => format!("the arrays {}", names().join(", ")),
            },
            remedy: format!("name one of them: {}", path.join(first).display()),
        });
    };
    let path: PathBuf = path.join(member.name.trim_end_matches(".npy"));
    let damaged = |what: &'static str| Error::Damaged {
        path: path.clone(),
        source: what.into(),
    };
    let mut local = [0; LOCAL_BYTES];
    file.seek(SeekFrom::Start(member.header))
        .and_then(|_| file.read_exact(&mut local))
        .map_err(io)?;
    if !local.starts_with(MAGIC) {
        return Err(damaged("the archive's directory leads to no file"));
    }
    let skipped = |at| u64::from(u16_at(&local, at).expect("it has 30 bytes"));
    let begin = member.header + LOCAL_BYTES as u64 + skipped(26) + skipped(28);
    if begin.saturating_add(member.packed) > stored {
        return Err(Error::Truncated {
            path,
            what: "its array".to_owned(),
            needed: begin.saturating_add(member.packed),
            stored,
        });
    }
    match member.method {
        0 => Ok(Box::new(NpySource::open(
            &path,
            file,
            begin,
            member.packed,
            limits,
        )?)),
        8 => {
            let limit = limits.window_bytes as u64;
            if member.unpacked > member.packed.saturating_mul(DECLARED_PER_STORED) {
                return Err(Error::Implausible {
                    path,
                    declared: member.unpacked,
                    stored: member.packed,
                    allowed: DECLARED_PER_STORED,
                });
            }
            if member.unpacked > limit {
                return Err(Error::TooLarge {
                    path,
                    what: "a compressed array".to_owned(),
                    needed: member.unpacked,
                    limit,
                });
            }
            file.seek(SeekFrom::Start(begin)).map_err(io)?;
            let mut bytes = Vec::new();
            // One byte more than declared would show a member that says less than it holds.
            let unpacked = DeflateDecoder::new(file.take(member.packed))
                .take(member.unpacked + 1)
                .read_to_end(&mut bytes);
            match unpacked {
                Ok(count) if count as u64 == member.unpacked => {}
                Ok(_) => return Err(damaged("the array has another length than declared")),
                Err(source) => {
                    return Err(Error::Damaged {
                        path,
                        source: Box::new(source),
                    });
                }
            }
            Ok(Box::new(npy_source::in_memory(&path, &bytes)?))
        }
        method => Err(Error::Unsupported {
            path,
            what: format!("compression by method {method} of ZIP"),
            remedy: "save it with numpy.savez",
        }),
    }
}

/// The `.npy` files that the archive's directory lists.
fn members(path: &Path, file: &mut File, stored: u64) -> Result<Vec<Member>> {
    let io = |e| Error::io(path, "read", e);
    let damaged = || Error::Damaged {
        path: path.to_owned(),
        source: "an archive without a directory, or cut off".into(),
    };
    let mut tail = Vec::new();
    let begin = stored.saturating_sub(MAX_TAIL);
    file.seek(SeekFrom::Start(begin)).map_err(io)?;
    file.take(MAX_TAIL).read_to_end(&mut tail).map_err(io)?;
    let end = tail
        .windows(4)
        .rposition(|w| w == b"PK\x05\x06")
        .ok_or_else(damaged)?;
    if tail.len() < end + END_BYTES {
        return Err(damaged());
    }
    let length = u64::from(u32_at(&tail, end + 12).ok_or_else(damaged)?);
    let at = u32_at(&tail, end + 16).ok_or_else(damaged)?;
    if at == ELSEWHERE || length > MAX_DIRECTORY {
        return Err(Error::Unsupported {
            path: path.to_owned(),
            what: "an archive of more than 4 GiB".to_owned(),
            remedy: "save the array with numpy.save",
        });
    }
    let mut directory = Vec::new();
    file.seek(SeekFrom::Start(at.into())).map_err(io)?;
    file.take(length).read_to_end(&mut directory).map_err(io)?;
    let mut members = Vec::new();
    let mut rest = &directory[..];
    while rest.starts_with(b"PK\x01\x02") {
        let member = Member::parse(rest).ok_or_else(damaged)?;
        rest = rest.get(member.1..).ok_or_else(damaged)?;
        if member.0.name.ends_with(".npy") {
            members.push(member.0);
        }
    }
    Ok(members)
}

impl Member {
    /// A member and the bytes that its entry takes.
    fn parse(entry: &[u8]) -> Option<(Self, usize)> {
        let name_bytes = usize::from(u16_at(entry, 28)?);
        let extra_bytes = usize::from(u16_at(entry, 30)?);
        let comment_bytes = usize::from(u16_at(entry, 32)?);
        let extra_at = ENTRY_BYTES + name_bytes;
        let name = entry.get(ENTRY_BYTES..extra_at)?;
        let mut extra = entry.get(extra_at..extra_at + extra_bytes)?;
        let (mut packed, mut unpacked) = (u32_at(entry, 20)?.into(), u32_at(entry, 24)?.into());
        let mut header = u32_at(entry, 42)?.into();
        // NumPy writes the extra field of 64 bits always; it holds those values that do not fit, in this order.
        while extra.len() >= 4 {
            let (kind, length) = (u16_at(extra, 0)?, usize::from(u16_at(extra, 2)?));
            let field = extra.get(4..4 + length)?;
            if kind == 1 {
                let mut at = 0;
                for value in [&mut unpacked, &mut packed, &mut header] {
                    if *value == u64::from(ELSEWHERE) {
                        *value = u64_at(field, at)?;
                        at += 8;
                    }
                }
            }
            extra = &extra[4 + length..];
        }
        let member = Self {
            name: String::from_utf8_lossy(name).into_owned(),
            method: u16_at(entry, 10)?,
            packed,
            unpacked,
            header,
        };
        Some((member, extra_at + extra_bytes + comment_bytes))
    }
}
