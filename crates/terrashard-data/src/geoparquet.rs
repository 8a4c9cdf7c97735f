//! Areas of a map as GeoParquet 1.1 (<https://geoparquet.org/releases/v1.1.0/>): polygons as well-known binary in longitude and
//! latitude, each with its class and its pixels. With the feature `geoparquet`.

#[cfg(feature = "geoparquet")]
mod columns;

use std::fs::File;
use std::io;

/// Whether this build writes GeoParquet.
pub const WRITES_GEOPARQUET: bool = cfg!(feature = "geoparquet");

/// An area of one class on the ground.
#[derive(Clone, Debug, PartialEq)]
pub struct GroundArea {
    /// The class.
    pub class: u8,
    /// The pixels of the map that it has.
    pub pixels: u64,
    /// Its outer ring counter-clockwise, then its holes clockwise, each closed: degrees of longitude and latitude on WGS 84.
    pub rings: Vec<Vec<[f64; 2]>>,
}

/// Writes areas, ten thousand of them in memory at a time. Returns the file, complete.
///
/// # Errors
/// That of an area; what `failed` makes of the file's, or where this build does not write GeoParquet ([`WRITES_GEOPARQUET`]).
pub fn write_geoparquet<E>(
    file: File,
    areas: impl Iterator<Item = Result<GroundArea, E>>,
    failed: impl Fn(io::Error) -> E,
) -> Result<File, E> {
    #[cfg(feature = "geoparquet")]
    {
        let failed = |error: parquet::errors::ParquetError| failed(io::Error::other(error));
        let mut columns = columns::GeoParquet::new(file).map_err(failed)?;
        for area in areas {
            columns.add(&area?).map_err(failed)?;
        }
        columns.finish().map_err(failed)
    }
    #[cfg(not(feature = "geoparquet"))]
    {
        drop((file, areas));
        Err(failed(io::ErrorKind::Unsupported.into()))
    }
}
