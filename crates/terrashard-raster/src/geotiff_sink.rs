//! Writing a Cloud Optimized GeoTIFF as its windows are computed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::partial_tile::PartialTile;
use crate::pyramid::{Pyramid, TILES_AT_ONCE, tile_window};
use crate::{DataType, Error, Raster, RasterSink, RasterSpec, Result, Samples, Window, cog};

/// Rows of tiles that may be incomplete at once, unless more are asked for.
const OPEN_ROWS: usize = 4;

/// A Cloud Optimized GeoTIFF being written: tiles, Deflate, one plane for all bands, overviews.
///
/// The result grows in a hidden `.partial` file in the folder of the target, its tiles in a file without a name beside it.
/// [`RasterSink::finish`] puts them together, flushes them to the disk and renames the file, so that whatever has the final
/// name is complete; dropping the sink removes it. A tile is encoded as soon as it is complete, so that memory is that of the
/// tiles that are not: one row of them, and half as many for the overviews, where windows come row by row.
pub struct GeoTiffSink {
    path: PathBuf,
    spec: RasterSpec,
    partial: NamedTempFile,
    pyramid: Pyramid,
    /// Tiles of which a part was given, by their numbers.
    open: BTreeMap<usize, PartialTile>,
    /// Rows of tiles that may be incomplete at once.
    most_open: usize,
    /// Tiles that are complete.
    done: Vec<bool>,
    /// For each row of tiles, how many of them are.
    done_in_row: Vec<usize>,
    /// Rows of tiles of which a part was given, and not all.
    begun: BTreeSet<usize>,
}

impl fmt::Debug for GeoTiffSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GeoTiffSink")
            .field("path", &self.path)
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

impl GeoTiffSink {
    /// Begins a file that will be at `path`. A file that is there stays untouched until [`RasterSink::finish`].
    ///
    /// # Errors
    /// [`Error::Nodata`] where the nodata value is not a value of the sample type, [`Error::Spec`] where a size is zero or
    /// above 2^32 - 1, the tile's side is no multiple of 16, the transform has no inverse, the EPSG code no place in a GeoTIFF
    /// (above 65535), descriptions or scales are not one for each band, or colours are given for more than one band or for
    /// samples that are neither uint8 nor uint16; [`Error::NotFound`] and [`Error::Io`] where the folder cannot be written to.
    pub fn create(path: impl AsRef<Path>, spec: RasterSpec) -> Result<Self> {
        let path = path.as_ref().to_owned();
        check(&path, &spec)?;
        let partial = temporary(&path)?;
        let scratch = tempfile::tempfile_in(folder(&path))
            .map_err(|e| Error::io(folder(&path), "create a file in", e))?;
        Ok(Self {
            pyramid: Pyramid::new(&spec, scratch),
            done: vec![false; spec.width.div_ceil(spec.tile) * spec.height.div_ceil(spec.tile)],
            done_in_row: vec![0; spec.height.div_ceil(spec.tile)],
            begun: BTreeSet::new(),
            open: BTreeMap::new(),
            most_open: OPEN_ROWS,
            path,
            spec,
            partial,
        })
    }

    /// The same for windows of `rows` rows that come from left to right: so many rows may be incomplete at once.
    pub fn windows_of(mut self, rows: usize) -> Self {
        // Wherever a window begins, it reaches into one row of tiles more.
        self.most_open = OPEN_ROWS.max(rows.div_ceil(self.spec.tile) + 1);
        self
    }

    /// The numbers and windows of the tiles that a window touches, row by row.
    fn touched(&self, window: Window) -> impl Iterator<Item = (usize, Window)> + use<> {
        let (side, size) = (self.spec.tile, (self.spec.width, self.spec.height));
        let across = self.spec.width.div_ceil(side);
        let rows = window.row / side..=(window.row_end() - 1) / side;
        let columns = window.col / side..=(window.col_end() - 1) / side;
        let places = rows.flat_map(move |row| columns.clone().map(move |column| (column, row)));
        places.map(move |place| (place.1 * across + place.0, tile_window(place, size, side)))
    }

    /// Gives complete tiles to the pyramid.
    fn encode(&mut self, tiles: &mut Vec<(Window, Samples)>) -> Result<()> {
        let tiles = std::mem::take(tiles);
        let written = self.pyramid.take(tiles);
        written.map_err(|e| unwritten(&self.path, e))
    }

    fn misplaced(&self, window: Window, what: impl Into<String>) -> Error {
        Error::Misplaced {
            path: self.path.clone(),
            window,
            what: what.into(),
        }
    }
}

impl RasterSink for GeoTiffSink {
    fn spec(&self) -> &RasterSpec {
        &self.spec
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn write(&mut self, raster: &Raster) -> Result<()> {
        let window = raster.window();
        let RasterSpec {
            bands,
            data_type,
            tile,
            ..
        } = self.spec;
        if window.is_empty() || !self.spec.window().contains(&window) {
            let what = format!(
                "it is empty or not inside of the {} x {} raster",
                self.spec.width, self.spec.height
            );
            return Err(self.misplaced(window, what));
        }
        if raster.bands() != bands || raster.samples().data_type() != data_type {
            let (got_bands, got_type) = (raster.bands(), raster.samples().data_type());
            let what = format!(
                "it has {got_bands} bands of {got_type}, the file has {bands} of {data_type}"
            );
            return Err(self.misplaced(window, what));
        }
        let shared = |tile: Window| {
            let part = tile.intersection(&window);
            part.expect("the window reaches into this tile")
        };
        for (index, tile) in self.touched(window) {
            let part = shared(tile);
            let row = match self.done[index] {
                true => Some(part.row),
                false => self.open.get(&index).and_then(|open| open.overlap(part)),
            };
            if let Some(row) = row {
                return Err(
                    self.misplaced(window, format!("pixels of row {row} were written before"))
                );
            }
        }
        let across = self.spec.width.div_ceil(tile);
        let mut full = Vec::new();
        for (index, place) in self.touched(window) {
            let open = self.open.entry(index);
            let open = open.or_insert_with(|| PartialTile::new(place, bands, data_type));
            open.take(raster, shared(place));
            let row = index / across;
            self.begun.insert(row);
            if open.is_complete() {
                let open = self.open.remove(&index).expect("it was just filled");
                full.push((place, open.into_samples()));
                self.done[index] = true;
                self.done_in_row[row] += 1;
                if self.done_in_row[row] == across {
                    self.begun.remove(&row);
                }
            }
            // What is complete is not kept until the last of many tiles is.
            if full.len() == TILES_AT_ONCE {
                self.encode(&mut full)?;
            }
        }
        self.encode(&mut full)?;
        if self.begun.len() > self.most_open {
            let rows = self.most_open * tile;
            let what = format!(
                "more than {rows} rows are incomplete; write windows row by row from the top"
            );
            return Err(self.misplaced(window, what));
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self {
            path,
            spec,
            partial,
            pyramid,
            open,
            done,
            ..
        } = *self;
        let across = spec.width.div_ceil(spec.tile);
        let lacks = |row: &usize| {
            let tiles = row / spec.tile * across..(row / spec.tile + 1) * across;
            let lacks = |open: &PartialTile| open.lacks(row % spec.tile);
            tiles
                .filter(|index| !done[*index])
                .any(|index| open.get(&index).is_none_or(lacks))
        };
        let missing = (0..spec.height).filter(lacks).count();
        if missing > 0 {
            return Err(Error::Incomplete {
                path,
                missing,
                rows: spec.height,
            });
        }
        cog::write(&spec, &pyramid, partial.as_file())
            .and_then(|()| partial.as_file().sync_all())
            .map_err(|e| unwritten(&path, e))?;
        partial
            .persist(&path)
            .map_err(|e| Error::io(&path, "rename its temporary file", e.error))?;
        // The rename itself is on the disk only when the folder is.
        #[cfg(unix)]
        File::open(folder(&path))
            .and_then(|f| f.sync_all())
            .map_err(|e| Error::io(&path, "flush its folder", e))?;
        Ok(())
    }
}

/// Refuses what no GeoTIFF can be.
fn check(path: &Path, spec: &RasterSpec) -> Result<()> {
    let refuse = |what: String| {
        Err(Error::Spec {
            path: path.to_owned(),
            what,
        })
    };
    let RasterSpec {
        width,
        height,
        bands,
        tile,
        ..
    } = *spec;
    let side = |n: usize| n > 0 && u32::try_from(n).is_ok();
    if !side(width) || !side(height) || bands == 0 || bands > 65_535 {
        return refuse(format!("{width} x {height} pixels of {bands} bands"));
    }
    if tile == 0 || !tile.is_multiple_of(16) || tile > 16_384 {
        return refuse(format!(
            "tiles of {tile} pixels; choose a multiple of 16 up to 16384"
        ));
    }
    if let Some(t) = spec.georeference.transform
        && !t.is_invertible()
    {
        return refuse(format!(
            "the transform {:?} has no inverse",
            t.coefficients()
        ));
    }
    if let Some(epsg) = spec.georeference.epsg
        && u16::try_from(epsg).is_err()
    {
        return refuse(format!("EPSG:{epsg} has no place in a GeoTIFF"));
    }
    for (what, given) in [
        ("descriptions", spec.descriptions.len()),
        ("scales and offsets", spec.scaling.len()),
    ] {
        if given != 0 && given != bands {
            return refuse(format!("{given} {what} for {bands} bands"));
        }
    }
    let colours = spec.colours.len();
    if colours > 0 {
        let values = match spec.data_type {
            DataType::U8 => 256,
            DataType::U16 => 65_536,
            other => return refuse(format!("colours for {other}; classes are uint8 or uint16")),
        };
        if bands != 1 || colours > values {
            return refuse(format!(
                "{colours} colours for {values} values of {bands} bands"
            ));
        }
    }
    match spec.nodata {
        Some(nodata) if !spec.data_type.represents(nodata) => Err(Error::Nodata {
            path: path.to_owned(),
            nodata,
            data_type: spec.data_type,
        }),
        _ => Ok(()),
    }
}

fn unwritten(path: &Path, source: std::io::Error) -> Error {
    Error::Write {
        path: path.to_owned(),
        source: Box::new(source),
    }
}

fn folder(path: &Path) -> &Path {
    path.parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// A new hidden file beside `path`, with the permissions of any new file.
fn temporary(path: &Path) -> Result<NamedTempFile> {
    let Some(name) = path.file_name() else {
        return Err(Error::Spec {
            path: path.to_owned(),
            what: "the path names no file".to_owned(),
        });
    };
    if path.is_dir() {
        return Err(Error::Spec {
            path: path.to_owned(),
            what: "a folder has this name".to_owned(),
        });
    }
    let mut builder = tempfile::Builder::new();
    let prefix = format!(".{}.", name.to_string_lossy());
    builder.prefix(&prefix).suffix(".partial");
    // A temporary file is for its owner alone by default; this one becomes the result.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder
        .tempfile_in(folder(path))
        .map_err(|e| Error::io(folder(path), "create a file in", e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pyramid::Level;

    /// Blocks as a prediction gives them: row by row, of 70 x 70 pixels, over tiles of 16.
    #[test]
    fn only_the_tiles_that_windows_end_in_are_kept() {
        const SIDE: usize = 70;
        const TILE: usize = 16;
        let folder = tempfile::tempdir().expect("a folder");
        for height in [300, 900] {
            let spec = RasterSpec::new(800, height, 1, DataType::U8).tile(TILE);
            let whole = spec.window();
            let sink = GeoTiffSink::create(folder.path().join("map.tif"), spec);
            let mut sink = sink.expect("a folder").windows_of(SIDE);
            let (mut most, mut most_of_overviews) = (0, 0);
            for row in (0..height).step_by(SIDE) {
                for col in (0..whole.width).step_by(SIDE) {
                    let block = Window::new(col, row, SIDE, SIDE).intersection(&whole);
                    let block = block.expect("it begins inside");
                    let samples = Samples::U8(vec![7; block.pixels()]);
                    let raster = Raster::new(block, 1, samples).expect("filled");
                    sink.write(&raster).expect("written");
                    most = most.max(sink.open.len());
                    let levels = sink.pyramid.levels()[1..].iter();
                    most_of_overviews = most_of_overviews.max(levels.map(Level::open).sum());
                }
            }
            // A row of tiles, and beside the block at hand a column of them; of overviews half as many, and so on.
            let (across, beside) = (whole.width.div_ceil(TILE), SIDE.div_ceil(TILE) + 1);
            assert!(most <= across + beside, "{most} of {across} across");
            assert!(
                most_of_overviews <= across + 8 * beside,
                "{most_of_overviews}"
            );
            Box::new(sink).finish().expect("complete");
        }
    }
}
