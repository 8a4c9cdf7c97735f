//! The file that a pyramid becomes: directories first, then the smallest overview, the raster last.
//!
//! OGC Cloud Optimized GeoTIFF, <https://docs.ogc.org/is/21-026/21-026.html>

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};

use crate::gdal_metadata::{self, GdalMetadata};
use crate::geo_keys;
use crate::pyramid::{FRAME, LEADER, Level, Pyramid};
use crate::tiff_directory::{Entry, Value, Variant, directory, directory_bytes};
use crate::tile_codec::Predictor;
use crate::{DataType, RasterSpec, Transform};

/// What GDAL looks for behind the header: <https://gdal.org/drivers/raster/cog.html#header-ghost-area>. A zero makes the
/// number of bytes even.
const STRUCTURE: &str = "GDAL_STRUCTURAL_METADATA_SIZE=000140 bytes\nLAYOUT=IFDS_BEFORE_DATA\nBLOCK_ORDER=ROW_MAJOR\nBLOCK_LEADER=SIZE_AS_UINT4\nBLOCK_TRAILER=LAST_4_BYTES_REPEATED\nKNOWN_INCOMPATIBLE_EDITION=NO\n \0";

// Values of tags.
const REDUCED: u32 = 1;
const DEFLATE: u16 = 8;
const MIN_IS_BLACK: u16 = 1;
const PALETTE: u16 = 3;
const CHUNKY: u16 = 1;
const TILE_OFFSETS: u16 = 324;
const TILE_LENGTHS: u16 = 325;

/// Writes the file. Its temporary tiles are those of `pyramid`.
pub(crate) fn write(spec: &RasterSpec, pyramid: &Pyramid, output: &File) -> io::Result<()> {
    let levels = pyramid.levels();
    let data: u64 = levels
        .iter()
        .flat_map(|level| &level.tiles)
        .map(|(_, len)| len + FRAME)
        .sum();
    // Places are not known yet; how many bytes they take is.
    let sizes = |variant: Variant| -> Vec<u64> {
        let entries = |(index, level): (usize, &Level)| {
            entries(spec, index, level, &vec![0; level.tiles.len()])
        };
        let sized = levels
            .iter()
            .enumerate()
            .map(|at| directory_bytes(&entries(at), variant) as u64);
        sized.collect()
    };
    let begin = |variant: Variant| (variant.header_bytes() + STRUCTURE.len()) as u64;
    let fits = begin(Variant::Classic) + sizes(Variant::Classic).iter().sum::<u64>() + data;
    let variant = match u32::try_from(fits) {
        Ok(_) => Variant::Classic,
        Err(_) => Variant::Big,
    };
    let sizes = sizes(variant);
    let mut places = vec![begin(variant)];
    for size in &sizes {
        places.push(places[places.len() - 1] + size);
    }
    let mut writer = BufWriter::with_capacity(1 << 20, output);
    writer.write_all(&variant.header(places[0]))?;
    writer.write_all(STRUCTURE.as_bytes())?;
    let mut at = places[levels.len()];
    let mut offsets = vec![Vec::new(); levels.len()];
    for (level, offsets) in levels.iter().zip(&mut offsets).rev() {
        for (_, len) in &level.tiles {
            offsets.push(at + LEADER);
            at += len + FRAME;
        }
    }
    for (index, level) in levels.iter().enumerate() {
        let next = if index + 1 < levels.len() {
            places[index + 1]
        } else {
            0
        };
        let entries = entries(spec, index, level, &offsets[index]);
        writer.write_all(&directory(&entries, variant, places[index], next))?;
    }
    writer.flush()?;
    drop(writer);
    for level in levels.iter().rev() {
        copy(pyramid.scratch(), &level.tiles, output)?;
    }
    Ok(())
}

/// Copies framed tiles to the end of `output`; those that follow each other are copied at once.
fn copy(scratch: &File, tiles: &[(u64, u64)], mut output: &File) -> io::Result<()> {
    let mut source = scratch;
    let framed = |(at, len): &(u64, u64)| (at - LEADER, len + FRAME);
    let mut tiles = tiles.iter().map(framed).peekable();
    while let Some((from, mut len)) = tiles.next() {
        while let Some((_, more)) = tiles.next_if(|(next, _)| *next == from + len) {
            len += more;
        }
        source.seek(SeekFrom::Start(from))?;
        let copied = io::copy(&mut source.take(len), &mut output)?;
        if copied != len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// The directory of one level, sorted by tag.
fn entries(spec: &RasterSpec, index: usize, level: &Level, offsets: &[u64]) -> Vec<Entry> {
    let bands = spec.bands;
    let (bits, format) = (spec.data_type.bytes() as u16 * 8, format(spec.data_type));
    let colours = !spec.colours.is_empty();
    let mut entries = Vec::with_capacity(24);
    let mut add = |tag: u16, value: Value| entries.push(Entry { tag, value });
    if index > 0 {
        add(254, Value::Long(vec![REDUCED]));
    }
    add(256, Value::Long(vec![level.width as u32]));
    add(257, Value::Long(vec![level.height as u32]));
    add(258, Value::Short(vec![bits; bands]));
    add(259, Value::Short(vec![DEFLATE]));
    let photometric = if colours { PALETTE } else { MIN_IS_BLACK };
    add(262, Value::Short(vec![photometric]));
    add(277, Value::Short(vec![bands as u16]));
    add(284, Value::Short(vec![CHUNKY]));
    add(
        317,
        Value::Short(vec![Predictor::of(spec.data_type) as u16]),
    );
    if colours {
        add(320, Value::Short(colour_map(spec)));
    }
    add(322, Value::Long(vec![spec.tile as u32]));
    add(323, Value::Long(vec![spec.tile as u32]));
    add(TILE_OFFSETS, Value::Places(offsets.to_vec()));
    let lengths = level.tiles.iter().map(|(_, len)| *len).collect();
    add(TILE_LENGTHS, Value::Places(lengths));
    if bands > 1 {
        // All bands but the first: of no colour.
        add(338, Value::Short(vec![0; bands - 1]));
    }
    add(339, Value::Short(vec![format; bands]));
    if index == 0 {
        if let Some(transform) = spec.georeference.transform {
            ground(transform)
                .into_iter()
                .for_each(|(tag, numbers)| add(tag, Value::Double(numbers)));
        }
        if spec.georeference.transform.is_some() || spec.georeference.epsg.is_some() {
            let code = spec.georeference.epsg.and_then(|c| u16::try_from(c).ok());
            add(geo_keys::TAG, Value::Short(geo_keys::directory(code)));
        }
        let said = GdalMetadata {
            descriptions: spec.descriptions.clone(),
            scales: spec.scaling.iter().map(|(scale, _)| *scale).collect(),
            offsets: spec.scaling.iter().map(|(_, offset)| *offset).collect(),
            tags: spec.tags.clone(),
        };
        if let Some(text) = said.to_text() {
            add(gdal_metadata::TAG, Value::Text(text));
        }
    }
    if let Some(nodata) = spec.nodata {
        let text = if nodata.is_nan() {
            "nan".to_owned()
        } else {
            nodata.to_string()
        };
        add(42113, Value::Text(text));
    }
    entries
}

/// The transform as tags: size of a pixel and place of the first corner, or all sixteen numbers where that does not do.
fn ground(t: Transform) -> Vec<(u16, Vec<f64>)> {
    if t.b == 0.0 && t.d == 0.0 && t.a > 0.0 && t.e < 0.0 {
        return vec![
            (33550, vec![t.a, -t.e, 0.0]),
            (33922, vec![0.0, 0.0, 0.0, t.c, t.f, 0.0]),
        ];
    }
    let rows = [
        [t.a, t.b, 0.0, t.c],
        [t.d, t.e, 0.0, t.f],
        [0.0; 4],
        [0.0, 0.0, 0.0, 1.0],
    ];
    vec![(34264, rows.concat())]
}

/// Reds, then greens, then blues of all values of the type; values without a colour are black.
fn colour_map(spec: &RasterSpec) -> Vec<u16> {
    let values = 1 << (8 * spec.data_type.bytes());
    let mut map = vec![0; 3 * values];
    for (value, colour) in spec.colours.iter().enumerate() {
        for (part, level) in colour.iter().enumerate() {
            // 255 is full intensity, which is 65535.
            map[part * values + value] = u16::from(*level) * 257;
        }
    }
    map
}

const fn format(data_type: DataType) -> u16 {
    match data_type {
        DataType::U8 | DataType::U16 | DataType::U32 | DataType::U64 => 1,
        DataType::I8 | DataType::I16 | DataType::I32 | DataType::I64 => 2,
        DataType::F32 | DataType::F64 => 3,
    }
}
