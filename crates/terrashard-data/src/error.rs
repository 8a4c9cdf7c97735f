//! What can be wrong with data, each in one line that names the file or the setting and the remedy.

use std::path::PathBuf;

use terrashard_raster::Window;

use crate::fine_grid::Fine;

/// Data could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error(transparent)]
    Raster(#[from] terrashard_raster::Error),
    /// A raster has another number of bands than the model takes.
    #[error("{}: expected {expected} bands, found {found}; choose the bands with `bands` or give another file", path.display())]
    BandCount {
        /// The file.
        path: PathBuf,
        /// Bands wanted.
        expected: usize,
        /// Bands of the file.
        found: usize,
    },
    /// A band is asked for that the file does not have.
    #[error("{}: no band {band}; it has {available}", path.display())]
    UnknownBand {
        /// The file.
        path: PathBuf,
        /// The name or number asked for.
        band: String,
        /// What the file has.
        available: String,
    },
    /// A mask or a high-resolution image is not exactly `scale` times the size of its image.
    #[error(
        "{}: the {fine} is {} x {} pixels (width x height), {scale} times the image {} is {} x {}; \
         cut or resample the {fine} onto the image's grid, for instance with `terrashard align`",
        path.display(), size.0, size.1, image.display(), image_size.0 * scale, image_size.1 * scale
    )]
    FineSize {
        /// What it is.
        fine: Fine,
        /// Its file.
        path: PathBuf,
        /// Its (width, height).
        size: (usize, usize),
        /// The image.
        image: PathBuf,
        /// The image's (width, height).
        image_size: (usize, usize),
        /// Its pixels per image pixel along one side.
        scale: usize,
    },
    /// A mask or a high-resolution image covers other ground than its image.
    #[error(
        "{}: the {fine} lies elsewhere than the image {}: {difference}; reproject or cut the {fine} onto the image's grid, for instance \
         with `terrashard align`",
        path.display(), image.display()
    )]
    FineGround {
        /// What it is.
        fine: Fine,
        /// Its file.
        path: PathBuf,
        /// The image.
        image: PathBuf,
        /// How they differ.
        difference: String,
    },
    /// Something cannot be laid onto the grid of an image.
    #[error("{what}")]
    Align {
        /// What, why not and what to do.
        what: String,
    },
    /// A classification cannot be laid over its image.
    #[error(
        "{}: the classification does not cover the image {}: {what}; reproject or cut it to the image's ground",
        path.display(), image.display()
    )]
    Classification {
        /// The classification.
        path: PathBuf,
        /// The image.
        image: PathBuf,
        /// How they differ.
        what: String,
    },
    /// A mask holds a value that is no class.
    #[error(
        "{}: value {value} at column {column}, row {row} is no class: allowed are 0 to {} and 255 (ignore); \
         set `classes` or relabel the mask",
        path.display(), classes - 1
    )]
    MaskValue {
        /// The mask.
        path: PathBuf,
        /// The value.
        value: f64,
        /// Its column in the mask.
        column: usize,
        /// Its row in the mask.
        row: usize,
        /// Number of classes.
        classes: usize,
    },
    /// A scene without a high-resolution image was asked for it.
    #[error("{}: the scene has no high-resolution image; name one with `highres`", image.display())]
    NoTarget {
        /// The image.
        image: PathBuf,
    },
    /// A scene without a mask was asked for labels.
    #[error("{}: the scene has no mask; name one with `mask`", image.display())]
    NoMask {
        /// The image.
        image: PathBuf,
    },
    /// A reference system cannot be computed with.
    #[error("EPSG:{epsg}: {what}; reproject the file with gdalwarp, to a UTM zone for instance")]
    Crs {
        /// The code.
        epsg: u32,
        /// Why not.
        what: String,
    },
    /// Nothing says what is to be added to a product's digital numbers.
    #[error(
        "{}: neither its name, its tags nor metadata beside it tell the processing baseline; give the offset as a number: -1000 from \
         baseline 04.00 on, 0 before",
        path.display()
    )]
    UnknownOffset {
        /// The image.
        path: PathBuf,
    },
    /// The metadata of a product cannot be used.
    #[error("{}: {what}", path.display())]
    Metadata {
        /// The metadata.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A setting has a value that makes no sense.
    #[error("`{key}`: {what}")]
    Setting {
        /// The setting.
        key: &'static str,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// A region is empty or reaches beyond its scene.
    #[error("`{key}`: {window} is empty or not inside of the scene of {width} x {height} pixels")]
    Region {
        /// The setting.
        key: &'static str,
        /// The region in pixels.
        window: Window,
        /// Columns of the scene.
        width: usize,
        /// Rows of the scene.
        height: usize,
    },
    /// Two parts of a split share pixels.
    #[error(
        "`{first}` and `{second}` share the pixels at {shared}; choose regions that do not overlap"
    )]
    Overlap {
        /// One part.
        first: &'static str,
        /// The other.
        second: &'static str,
        /// The pixels in both.
        shared: Window,
    },
    /// Selection left no chip.
    #[error(
        "no chip is left of {cut}: {why_and_remedy}",
        why_and_remedy = dropped(*few_valid, *few_foreground, *min_valid)
    )]
    NoChips {
        /// Chips that were cut.
        cut: usize,
        /// Those dropped for `min_valid`.
        few_valid: usize,
        /// Those dropped for `min_foreground`.
        few_foreground: usize,
        /// What `min_valid` was.
        min_valid: f64,
    },
    /// A sample is asked for that there is not.
    #[error("sample {index} of {samples}")]
    Sample {
        /// The index asked for.
        index: usize,
        /// Number of samples.
        samples: usize,
    },
    /// A window was given to a mosaic that is none of its own, comes too early or a second time.
    #[error("window of {window} cannot be added: {what}")]
    MosaicWindow {
        /// The window.
        window: Window,
        /// What is wrong with it.
        what: String,
    },
    /// A list of numbers does not have the length that its shape takes.
    #[error("{what}: expected {expected} values, got {got}")]
    Length {
        /// What the numbers are.
        what: &'static str,
        /// Their number by shape.
        expected: usize,
        /// Their number.
        got: usize,
    },
    /// The thread that prepares batches ended without a word.
    #[error("the thread that prepares batches has panicked")]
    LoaderPanicked,
}

/// A result with [`enum@Error`] unless said otherwise.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no chip, and what to do about it.
fn dropped(few_valid: usize, few_foreground: usize, min_valid: f64) -> String {
    let (valid, remedy) = match min_valid > 0.0 {
        true => ("have too few valid pixels", "lower `min_valid`"),
        false => (
            "have no valid pixel",
            "give a label that has classes where the image has data",
        ),
    };
    match (few_valid, few_foreground) {
        (few_valid, 0) => format!("{few_valid} {valid}; {remedy}"),
        (0, few_foreground) => {
            format!("{few_foreground} have too little foreground; lower `min_foreground`")
        }
        _ => format!(
            "{few_valid} {valid}, {few_foreground} too little foreground; lower `min_foreground`, or {remedy}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_lowered_is_not_to_be_lowered() {
        let check = |few_valid, few_foreground, min_valid, expected: &str| {
            let error = Error::NoChips {
                cut: 9,
                few_valid,
                few_foreground,
                min_valid,
            };
            assert_eq!(
                error.to_string(),
                format!("no chip is left of 9: {expected}")
            );
        };
        check(9, 0, 0.5, "9 have too few valid pixels; lower `min_valid`");
        check(
            9,
            0,
            0.0,
            "9 have no valid pixel; give a label that has classes where the image has data",
        );
        check(
            0,
            9,
            0.0,
            "9 have too little foreground; lower `min_foreground`",
        );
        check(
            4,
            5,
            0.5,
            "4 have too few valid pixels, 5 too little foreground; lower `min_foreground`, or lower `min_valid`",
        );
    }
}
