//! The directories of a file that lies elsewhere, as a file here.
//!
//! The reader of georeference opens files of this machine only. It is given one of the same length that holds what the
//! directories are and nothing else: a file with a hole, which takes no more room than they do.

use std::collections::HashSet;
use std::io::{self, Seek, SeekFrom, Write};

use tempfile::NamedTempFile;
use tiff_reader::{TiffError, TiffFile};

use crate::remote_file::Noted;

/// Directories below the first ones that are visited at most, as many as the reader of georeference visits.
const NESTED: usize = 1024;

/// Reads the directories that others name as theirs, so that they are noted as well.
pub(crate) fn visit(tiff: &TiffFile) -> Result<(), TiffError> {
    let mut seen = HashSet::new();
    let nested = tiff.ifds().iter().filter_map(|ifd| ifd.sub_ifd_offsets());
    let mut pending: Vec<u64> = nested.flat_map(|offsets| offsets.to_vec()).collect();
    while let Some(offset) = pending.pop() {
        if seen.len() == NESTED || !seen.insert(offset) {
            continue;
        }
        let ifd = tiff.read_ifd_at_offset(offset)?;
        pending.extend(
            ifd.sub_ifd_offsets()
                .iter()
                .flat_map(|offsets| offsets.to_vec()),
        );
    }
    Ok(())
}

/// A file of `len` bytes that holds what was noted.
pub(crate) fn sketch(noted: &[Noted], len: u64) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::new()?;
    file.as_file().set_len(len)?;
    for (at, bytes) in noted {
        file.seek(SeekFrom::Start(*at))?;
        file.write_all(bytes)?;
    }
    file.flush()?;
    Ok(file)
}
