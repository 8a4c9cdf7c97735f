//! Whether a raster lies on the finer grid over an image's ground.

use std::fmt;

use terrashard_raster::{Metadata, RasterSource};

use crate::{Error, Result};

/// What lies on the finer grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fine {
    /// The label.
    Mask,
    /// The image at high resolution.
    Target,
}

impl fmt::Display for Fine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mask => "mask",
            Self::Target => "high-resolution image",
        })
    }
}

/// Checks that a raster is exactly `scale` times the image's size and covers exactly its ground.
///
/// # Errors
/// [`Error::FineSize`], [`Error::FineGround`].
pub(crate) fn check(
    what: Fine,
    image: &dyn RasterSource,
    fine: &dyn RasterSource,
    scale: usize,
) -> Result<()> {
    let (i, f) = (image.metadata(), fine.metadata());
    let (path, image) = (fine.path().to_owned(), image.path().to_owned());
    if (f.width, f.height) != (i.width * scale, i.height * scale) {
        return Err(Error::FineSize {
            fine: what,
            path,
            size: (f.width, f.height),
            image,
            image_size: (i.width, i.height),
            scale,
        });
    }
    match ground_difference(i, f) {
        None => Ok(()),
        Some(difference) => Err(Error::FineGround {
            fine: what,
            path,
            image,
            difference,
        }),
    }
}

/// How the ground of two rasters differs by more than a hundredth of a fine pixel; `None` where one says nothing of it.
fn ground_difference(image: &Metadata, fine: &Metadata) -> Option<String> {
    let (i, f) = (image.georeference, fine.georeference);
    if let (Some(a), Some(b)) = (i.epsg, f.epsg)
        && a != b
    {
        return Some(format!("it is in EPSG:{b}, the image in EPSG:{a}"));
    }
    let (a, b) = i.transform.zip(f.transform)?;
    let distance = a.corner_distance((image.width, image.height), &b, (fine.width, fine.height));
    let allowed = 0.01 * b.pixel_size();
    (distance.is_nan() || distance > allowed)
        .then(|| format!("corners are up to {distance:.3} apart, in the unit of the map"))
}
