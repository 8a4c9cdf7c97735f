//! The areas of a map of classes as GeoJSON ([RFC 7946](https://www.rfc-editor.org/rfc/rfc7946)) or GeoParquet.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde_json::{Value, json};
use terrashard_data::{Area, GroundArea, Outlines, WRITES_GEOPARQUET, write_geoparquet};
use terrashard_raster::{Samples, Window};

use super::lonlat::LonLat;
use crate::error::{Error, Result};

/// Bytes of the map that are read at once.
const READ_BYTES: usize = 16 << 20;

/// The flag that asks for it.
pub(crate) const FLAG: &str = "--polygons";

/// How areas are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    GeoJson,
    GeoParquet,
}

impl Format {
    /// By the ending of the file's name.
    fn of(output: &Path) -> Self {
        let ending = output.extension().unwrap_or_default();
        match ["parquet", "geoparquet"]
            .iter()
            .any(|name| ending.eq_ignore_ascii_case(name))
        {
            true => Self::GeoParquet,
            false => Self::GeoJson,
        }
    }
}

/// Refuses a file of a format that this build does not write.
///
/// # Errors
/// [`Error::InvalidValue`].
pub(super) fn check(output: &Path) -> Result<()> {
    match Format::of(output) == Format::GeoParquet && !WRITES_GEOPARQUET {
        true => Err(Error::invalid(
            FLAG,
            output.display(),
            "a name that ends in .geojson, or a build with `--features geoparquet`",
        )),
        false => Ok(()),
    }
}

/// Writes the areas of every class but the background of a finished map. Returns their number. Memory is that of the areas'
/// corners.
///
/// # Errors
/// [`Error::InvalidValue`] where the map says not where it lies, [`Error::Raster`], [`Error::Write`].
pub(crate) fn write(map: &Path, output: &Path) -> Result<usize> {
    let source = terrashard_raster::open(map)?;
    let metadata = source.metadata();
    let (width, height) = (metadata.width, metadata.height);
    let lonlat = LonLat::new(FLAG, map, &metadata.georeference)?;
    let mut outlines = Outlines::new(width);
    let rows = (READ_BYTES / width).clamp(1, height);
    for row in (0..height).step_by(rows) {
        let window = Window::new(0, row, width, rows.min(height - row));
        let Samples::U8(classes) = source.read_window(window)?.into_samples() else {
            unreachable!("our own map has classes in bytes");
        };
        classes
            .chunks_exact(width)
            .for_each(|row| outlines.add(row));
    }
    let areas = outlines.finish();
    let temporary = output.with_file_name(format!(
        ".{}.partial",
        output.file_name().unwrap_or_default().to_string_lossy()
    ));
    let grounded = areas.iter().map(|area| grounded(area, &lonlat));
    let written = match Format::of(output) {
        Format::GeoJson => collection(&temporary, grounded),
        Format::GeoParquet => columns(&temporary, grounded),
    };
    if written.is_err() {
        // Best effort: the error that is told is the first one.
        let _ = fs::remove_file(&temporary);
    }
    written?;
    fs::rename(&temporary, output).map_err(Error::write(output))?;
    Ok(areas.len())
}

fn collection(path: &Path, areas: impl Iterator<Item = Result<GroundArea>>) -> Result<()> {
    let failed = |error: io::Error| Error::write(path)(error);
    let mut file = BufWriter::new(File::create(path).map_err(failed)?);
    let head = b"{\"type\":\"FeatureCollection\",\"features\":[";
    file.write_all(head).map_err(failed)?;
    for (index, area) in areas.enumerate() {
        let separator = if index == 0 { "\n" } else { ",\n" };
        write!(file, "{separator}{}", feature(&area?)).map_err(failed)?;
    }
    file.write_all(b"\n]}\n").map_err(failed)?;
    let file = file
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(failed)
}

fn columns(path: &Path, areas: impl Iterator<Item = Result<GroundArea>>) -> Result<()> {
    let failed = |error: io::Error| Error::write(path)(error);
    let file = File::create(path).map_err(failed)?;
    let file = write_geoparquet(file, areas, failed)?;
    file.sync_all().map_err(failed)
}

fn feature(area: &GroundArea) -> Value {
    json!({
        "type": "Feature",
        "geometry": { "type": "Polygon", "coordinates": area.rings },
        "properties": { "class": area.class, "pixels": area.pixels },
    })
}

/// An area in longitude and latitude.
fn grounded(area: &Area, lonlat: &LonLat) -> Result<GroundArea> {
    let ring = |(index, ring): (usize, &Vec<(usize, usize)>)| -> Result<Vec<[f64; 2]>> {
        let points = ring.iter().map(|point| lonlat.at(FLAG, *point));
        let mut points = points.collect::<Result<Vec<_>>>()?;
        // The outer ring runs counter-clockwise, holes clockwise, wherever north is in the map.
        let counter_clockwise = enclosed(&points) > 0.0;
        if counter_clockwise != (index == 0) {
            points.reverse();
        }
        Ok(points)
    };
    Ok(GroundArea {
        class: area.class,
        pixels: area.pixels,
        rings: area
            .rings
            .iter()
            .enumerate()
            .map(ring)
            .collect::<Result<_>>()?,
    })
}

/// Twice the area that a ring encloses, positive where it runs counter-clockwise.
fn enclosed(ring: &[[f64; 2]]) -> f64 {
    ring.windows(2)
        .map(|pair| pair[0][0] * pair[1][1] - pair[1][0] * pair[0][1])
        .sum()
}
