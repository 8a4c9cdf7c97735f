//! Windowed reading and streamed writing of georeferenced rasters.
//!
//! A scene is a [`RasterSource`]: [`open`] reads the metadata of a GeoTIFF, a JPEG 2000 file, a Sentinel-2 product or a NumPy
//! array, [`RasterSource::read_window`] decodes one [`Window`] of it, all bands at once. [`BandSet`] makes one scene of bands in
//! files of their own. With the feature `cloud`, scenes in object stores and on web servers are read by ranges of bytes; what
//! gives access to them is in the environment, or is hidden by [`keep_credentials`]. A result is a [`RasterSink`]: [`GeoTiffSink`] takes windows as they are computed and puts the finished
//! Cloud Optimized GeoTIFF in place with one rename. [`Transform`] ties both to the ground, [`summarize`] describes a file.
//!
//! ```
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("mask.tif");
//! use terrashard_raster::{
//!     DataType, GeoTiffSink, Georeference, Raster, RasterSink, RasterSource, RasterSpec, Samples, Transform, Window,
//! };
//!
//! let ground = Georeference { epsg: Some(32633), transform: Some(Transform::north_up(600_000.0, 5_800_000.0, 2.0)) };
//! let spec = RasterSpec::new(3, 2, 1, DataType::U8).georeference(ground).nodata(255.0);
//! let mut sink = GeoTiffSink::create(&path, spec)?;
//! let whole = Window::new(0, 0, 3, 2);
//! sink.write(&Raster::new(whole, 1, Samples::U8(vec![0, 1, 255, 1, 1, 0]))?)?;
//! Box::new(sink).finish()?;
//!
//! let source = terrashard_raster::open(&path)?;
//! assert_eq!(source.read_window(Window::new(1, 0, 2, 1))?.samples(), &Samples::U8(vec![1, 255]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Invariants
//! - Pixels, never tensors: knows nothing of models, batches, ranks or training.
//! - Samples keep the type that the file has; a value is never narrowed or rescaled on the way.
//! - Sizes that a file declares are checked against the bytes it holds and against a budget before memory is asked for.
//! - A file under its final name is complete: what is unfinished has another name and goes when its sink is dropped.
//! - Rows run down, columns run right, a window is whole pixels; samples are band-sequential `[bands, height, width]`.

mod address;
mod annotations;
mod band_files;
mod band_set;
mod block_grid;
mod codestream;
mod cog;
#[cfg(feature = "cloud")]
mod directories;
mod error;
mod gdal_metadata;
mod geo_keys;
mod geotiff_sink;
mod geotiff_source;
mod halving;
mod jp2_source;
mod memory;
mod npy_source;
mod npz_archive;
mod opening;
mod partial_tile;
mod pyramid;
mod raster;
#[cfg(feature = "cloud")]
mod remote_file;
#[cfg(feature = "cloud")]
mod remote_store;
mod safe_product;
mod sink;
mod source;
mod summary;
mod tiff_blocks;
mod tiff_directory;
mod tiff_error;
mod tiff_image;
mod tile_cache;
mod tile_codec;
mod transform;
mod window;
mod xml;

pub use address::{is_url, keep_credentials, resolved};
pub use annotations::{Annotations, Validity};
pub use band_set::{BandSet, NamedBand};
pub use error::{Error, Result};
pub use geotiff_sink::GeoTiffSink;
pub use geotiff_source::GeoTiffSource;
pub use halving::Overviews;
pub use jp2_source::Jp2Source;
pub use memory::MemorySource;
pub use npy_source::NpySource;
pub use opening::{ReadLimits, open, open_with};
pub use raster::{DataType, Raster, Samples};
pub use sink::{RasterSink, RasterSpec};
pub use source::{Metadata, RasterSource};
pub use summary::{Summary, summarize};
pub use transform::{Georeference, Transform};
pub use window::Window;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
