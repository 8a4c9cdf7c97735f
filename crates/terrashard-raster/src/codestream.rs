//! JPEG 2000 codestreams taken apart into their tiles, each of which decodes by itself.
//!
//! ISO/IEC 15444-1, annexes A and B, <https://www.itu.int/rec/T-REC-T.800>

use std::io::{self, Read, Seek, SeekFrom};

use crate::Window;

/// Bytes of a main header that are accepted: it holds tables, not pixels.
const MAX_HEADER: usize = 16 << 20;
/// Tiles that are accepted, as the standard has it.
const MAX_TILES: usize = 65_535;
/// Components that are accepted.
const MAX_COMPONENTS: usize = 256;

// Markers.
const SOC: u16 = 0xff4f;
const SIZ: u16 = 0xff51;
const TLM: u16 = 0xff55;
const PPM: u16 = 0xff60;
const SOT: u16 = 0xff90;
const EOC: u16 = 0xffd9;

/// Bytes of a tile-part's first segment, marker included.
const SOT_BYTES: u64 = 12;

/// Where in the file each tile lies.
pub(crate) struct Codestream {
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// Bits of a sample, and whether it has a sign.
    pub(crate) precision: (u32, bool),
    pub(crate) components: usize,
    /// Columns and rows of a tile.
    pub(crate) tile: (usize, usize),
    size: Vec<u8>,
    /// All other segments of the main header that tiles need.
    tables: Vec<u8>,
    origin: (u32, u32),
    tile_origin: (u32, u32),
    /// For each tile, the places and lengths of its parts.
    parts: Vec<Vec<(u64, u64)>>,
}

/// Why a codestream is not read.
#[derive(Debug)]
pub(crate) enum Refusal {
    Io(io::Error),
    Damaged(String),
    Unsupported(String),
    /// The file ends at this byte or before.
    Truncated(u64),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl Codestream {
    /// Reads the main header at `start` and finds the tile-parts up to `end`.
    pub(crate) fn read(
        file: &mut (impl Read + Seek),
        start: u64,
        end: u64,
    ) -> Result<Self, Refusal> {
        let mut reader = At { file, end };
        let mut at = start;
        if reader.marker(at)? != SOC {
            return Err(Refusal::Damaged(
                "its codestream does not begin with SOC".into(),
            ));
        }
        at += 2;
        let mut size = None;
        let mut tables = Vec::new();
        loop {
            let marker = reader.marker(at)?;
            if marker == SOT {
                break;
            }
            // Markers without a segment.
            if (0xff30..=0xff3f).contains(&marker) {
                at += 2;
                continue;
            }
            let mut length = [0; 2];
            reader.exact(at + 2, &mut length)?;
            let length = usize::from(u16::from_be_bytes(length));
            if marker < 0xff00 || length < 2 {
                return Err(Refusal::Damaged(format!("no marker segment at byte {at}")));
            }
            let mut segment = vec![0; length + 2];
            reader.exact(at, &mut segment)?;
            match marker {
                SIZ => size = Some(segment),
                // Lengths of tile-parts would be those of all tiles.
                TLM => {}
                PPM => {
                    return Err(Refusal::Unsupported(
                        "JPEG 2000 with packet headers in the main header".into(),
                    ));
                }
                _ => tables.extend(segment),
            }
            if tables.len() > MAX_HEADER {
                return Err(Refusal::Damaged("a main header without end".into()));
            }
            at += length as u64 + 2;
        }
        let size = size.ok_or_else(|| Refusal::Damaged("no SIZ segment".into()))?;
        let mut stream = Self::sized(size, tables)?;
        stream.find_parts(&mut reader, at)?;
        Ok(stream)
    }

    fn sized(size: Vec<u8>, tables: Vec<u8>) -> Result<Self, Refusal> {
        let damaged = || Refusal::Damaged("a SIZ segment that contradicts itself".into());
        let number = |at: usize| u32_at(&size, at).ok_or_else(damaged);
        // Marker, length and capabilities take 6 bytes.
        let (end, origin) = ((number(6)?, number(10)?), (number(14)?, number(18)?));
        let (tile, tile_origin) = ((number(22)?, number(26)?), (number(30)?, number(34)?));
        let components = usize::from(u16_at(&size, 38).ok_or_else(damaged)?);
        let listed = size.len().saturating_sub(40);
        if components == 0 || components > MAX_COMPONENTS || listed < 3 * components {
            return Err(damaged());
        }
        let plain = end.0 > origin.0
            && end.1 > origin.1
            && tile.0 > 0
            && tile.1 > 0
            && tile_origin.0 <= origin.0
            && tile_origin.1 <= origin.1
            && u64::from(tile_origin.0) + u64::from(tile.0) > u64::from(origin.0)
            && u64::from(tile_origin.1) + u64::from(tile.1) > u64::from(origin.1);
        if !plain {
            return Err(damaged());
        }
        let each: Vec<&[u8]> = size[40..40 + 3 * components].chunks(3).collect();
        let (first, alike) = (each[0], each.iter().all(|c| *c == each[0]));
        if !alike || first[1] != 1 || first[2] != 1 {
            return Err(Refusal::Unsupported(
                "JPEG 2000 whose components differ in size or depth".into(),
            ));
        }
        let precision = (u32::from(first[0] & 0x7f) + 1, first[0] & 0x80 != 0);
        if precision.0 > 16 {
            return Err(Refusal::Unsupported(format!(
                "JPEG 2000 of {} bits",
                precision.0
            )));
        }
        let mut stream = Self {
            width: (end.0 - origin.0) as usize,
            height: (end.1 - origin.1) as usize,
            precision,
            components,
            tile: (tile.0 as usize, tile.1 as usize),
            size,
            tables,
            origin,
            tile_origin,
            parts: Vec::new(),
        };
        let (across, down) = stream.tiles();
        match across.checked_mul(down).filter(|count| *count <= MAX_TILES) {
            Some(count) => stream.parts = vec![Vec::new(); count],
            None => return Err(damaged()),
        }
        Ok(stream)
    }

    /// Tiles across and down.
    pub(crate) fn tiles(&self) -> (usize, usize) {
        let count = |extent: usize, origin: u32, tile_origin: u32, tile: usize| {
            (extent + (origin - tile_origin) as usize).div_ceil(tile)
        };
        (
            count(self.width, self.origin.0, self.tile_origin.0, self.tile.0),
            count(self.height, self.origin.1, self.tile_origin.1, self.tile.1),
        )
    }

    fn find_parts<F: Read + Seek>(
        &mut self,
        reader: &mut At<'_, F>,
        mut at: u64,
    ) -> Result<(), Refusal> {
        let mut found = 0;
        while at < reader.end {
            match reader.marker(at)? {
                SOT => {}
                EOC => break,
                _ => return Err(Refusal::Damaged(format!("no tile-part at byte {at}"))),
            }
            let mut head = [0; SOT_BYTES as usize];
            reader.exact(at, &mut head)?;
            let tile = usize::from(u16::from_be_bytes([head[4], head[5]]));
            let length = match u32::from_be_bytes([head[6], head[7], head[8], head[9]]) {
                // The last one: up to the end-of-codestream marker, if that is there.
                0 => reader.end - at,
                length => u64::from(length),
            };
            if length < SOT_BYTES + 2 || tile >= self.parts.len() {
                return Err(Refusal::Damaged(format!(
                    "a tile-part of no tile at byte {at}"
                )));
            }
            if length > reader.end - at {
                return Err(Refusal::Truncated(at + length));
            }
            self.parts[tile].push((at, length));
            at += length;
            found += 1;
            if found > 256 * MAX_TILES {
                return Err(Refusal::Damaged("tile-parts without end".into()));
            }
        }
        match self.parts.iter().position(Vec::is_empty) {
            Some(tile) => Err(Refusal::Damaged(format!(
                "tile {} of {} is missing",
                tile + 1,
                self.parts.len()
            ))),
            None => Ok(()),
        }
    }

    /// The pixels of tile `index`.
    pub(crate) fn place(&self, index: usize) -> Window {
        let (left, top, right, bottom) = self.corners(index);
        Window::new(
            (left - self.origin.0) as usize,
            (top - self.origin.1) as usize,
            (right - left) as usize,
            (bottom - top) as usize,
        )
    }

    /// Left, top, right and bottom of a tile on the reference grid.
    fn corners(&self, index: usize) -> (u32, u32, u32, u32) {
        let (across, _) = self.tiles();
        let span = |index: usize, origin: u32, tile_origin: u32, tile: usize, extent: usize| {
            let begin = u64::from(tile_origin) + (index * tile) as u64;
            let end = (begin + tile as u64).min(u64::from(origin) + extent as u64);
            // Both lie on the grid, whose extent has 32 bits.
            (begin.max(u64::from(origin)) as u32, end as u32)
        };
        let (left, right) = span(
            index % across,
            self.origin.0,
            self.tile_origin.0,
            self.tile.0,
            self.width,
        );
        let (top, bottom) = span(
            index / across,
            self.origin.1,
            self.tile_origin.1,
            self.tile.1,
            self.height,
        );
        (left, top, right, bottom)
    }

    /// Bytes of the parts of tile `index`.
    pub(crate) fn stored(&self, index: usize) -> u64 {
        self.parts[index].iter().map(|(_, length)| length).sum()
    }

    /// A codestream of tile `index` alone: the same coordinates, so that it decodes to the same samples.
    pub(crate) fn tile_stream(
        &self,
        file: &mut (impl Read + Seek),
        index: usize,
    ) -> Result<Vec<u8>, Refusal> {
        let (left, top, right, bottom) = self.corners(index);
        let mut size = self.size.clone();
        let numbers = [
            right,
            bottom,
            left,
            top,
            right - left,
            bottom - top,
            left,
            top,
        ];
        for (slot, number) in size[6..38].chunks_exact_mut(4).zip(numbers) {
            slot.copy_from_slice(&number.to_be_bytes());
        }
        let mut stream = SOC.to_be_bytes().to_vec();
        stream.extend(size);
        stream.extend(&self.tables);
        for &(at, length) in &self.parts[index] {
            let begin = stream.len();
            file.seek(SeekFrom::Start(at))?;
            file.take(length).read_to_end(&mut stream)?;
            if stream.len() - begin != length as usize {
                return Err(Refusal::Truncated(at + length));
            }
            // It is tile 0 of its own stream.
            stream[begin + 4..begin + 6].fill(0);
        }
        if !stream.ends_with(&EOC.to_be_bytes()) {
            stream.extend(EOC.to_be_bytes());
        }
        Ok(stream)
    }
}

/// A file up to where the codestream ends.
struct At<'a, F> {
    file: &'a mut F,
    end: u64,
}

impl<F: Read + Seek> At<'_, F> {
    fn exact(&mut self, at: u64, to: &mut [u8]) -> Result<(), Refusal> {
        let end = at + to.len() as u64;
        if end > self.end {
            return Err(Refusal::Truncated(end));
        }
        self.file.seek(SeekFrom::Start(at))?;
        Ok(self.file.read_exact(to)?)
    }

    fn marker(&mut self, at: u64) -> Result<u16, Refusal> {
        let mut marker = [0; 2];
        self.exact(at, &mut marker)?;
        Ok(u16::from_be_bytes(marker))
    }
}
