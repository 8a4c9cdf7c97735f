//! Parts of a scene, and splits into parts that share no pixel.

use serde::{Deserialize, Serialize};
use terrashard_raster::Window;

use crate::{Error, Result};

/// A part of a scene: `"all"`, `"west"`, `{ pixels = [col, row, width, height] }`,
/// `{ fraction = [left, top, right, bottom] }`.
///
/// Halves of an odd number of pixels: the west and north ones are the smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Region {
    /// The whole scene.
    #[default]
    All,
    /// The left half.
    West,
    /// The right half.
    East,
    /// The upper half.
    North,
    /// The lower half.
    South,
    /// Column, row, width and height in image pixels.
    Pixels([usize; 4]),
    /// Left, top, right and bottom as fractions of the scene's sides, rounded down to whole pixels.
    ///
    /// Regions that meet at the same fraction meet at the same pixel.
    Fraction([f64; 4]),
}

impl Region {
    /// The region in pixels of a scene of `width` x `height`.
    ///
    /// # Errors
    /// [`Error::Region`] where it is empty or reaches beyond the scene; `key` is how the message calls it.
    pub fn window(&self, key: &'static str, width: usize, height: usize) -> Result<Window> {
        let between = |left: usize, top: usize, right: usize, bottom: usize| {
            Window::new(
                left,
                top,
                right.saturating_sub(left),
                bottom.saturating_sub(top),
            )
        };
        let window = match *self {
            Self::All => Window::new(0, 0, width, height),
            Self::West => between(0, 0, width / 2, height),
            Self::East => between(width / 2, 0, width, height),
            Self::North => between(0, 0, width, height / 2),
            Self::South => between(0, height / 2, width, height),
            Self::Pixels([col, row, width, height]) => Window::new(col, row, width, height),
            Self::Fraction([left, top, right, bottom]) => {
                // A cast saturates: NaN and negative fractions give 0, too large ones fail the check below.
                let pixel = |fraction: f64, side: usize| (fraction * side as f64).floor() as usize;
                between(
                    pixel(left, width),
                    pixel(top, height),
                    pixel(right, width),
                    pixel(bottom, height),
                )
            }
        };
        if window.is_empty() || !Window::new(0, 0, width, height).contains(&window) {
            return Err(Error::Region {
                key,
                window,
                width,
                height,
            });
        }
        Ok(window)
    }
}

/// Parts of one scene for training and testing, and one to choose the best checkpoint by, if wanted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Split {
    /// Trained on.
    pub train: Region,
    /// Looked at during training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Region>,
    /// Tested on.
    pub test: Region,
}

/// A [`Split`] in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitWindows {
    /// Trained on.
    pub train: Window,
    /// Looked at during training.
    pub validation: Option<Window>,
    /// Tested on.
    pub test: Window,
}

impl Split {
    /// The parts in pixels of a scene of `width` x `height`.
    ///
    /// # Errors
    /// [`Error::Region`] and, where two parts share a pixel, [`Error::Overlap`].
    pub fn windows(&self, width: usize, height: usize) -> Result<SplitWindows> {
        let train = self.train.window("train", width, height)?;
        let test = self.test.window("test", width, height)?;
        let validation = self
            .validation
            .map(|r| r.window("validation", width, height))
            .transpose()?;
        let apart = |first, a: Window, second, b: Window| match a.intersection(&b) {
            Some(shared) => Err(Error::Overlap {
                first,
                second,
                shared,
            }),
            None => Ok(()),
        };
        apart("train", train, "test", test)?;
        if let Some(validation) = validation {
            apart("train", train, "validation", validation)?;
            apart("validation", validation, "test", test)?;
        }
        Ok(SplitWindows {
            train,
            validation,
            test,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_share_no_pixel_and_cover_all() {
        for (width, height) in [(1536, 768), (379, 578), (3, 2)] {
            let split = Split {
                train: Region::West,
                validation: None,
                test: Region::East,
            };
            let parts = split.windows(width, height).expect("halves");
            assert_eq!(parts.train.width + parts.test.width, width);
            assert_eq!(parts.test.col, parts.train.col_end());
            assert_eq!((parts.train.height, parts.test.height), (height, height));
        }
        assert_eq!(
            Region::South.window("test", 5, 5).expect("lower half"),
            Window::new(0, 2, 5, 3)
        );
        assert!(
            Region::West.window("train", 1, 5).is_err(),
            "half of one column"
        );
    }

    #[test]
    fn other_parts_are_checked() {
        let check = |train: Region, test: Region, expected: &str| {
            let split = Split {
                train,
                validation: Some(Region::Pixels([90, 90, 10, 10])),
                test,
            };
            let got = split.windows(100, 100).map_err(|e| e.to_string());
            match got {
                Ok(_) => assert_eq!(expected, ""),
                Err(message) => assert!(
                    !expected.is_empty() && message.contains(expected),
                    "{message}"
                ),
            }
        };
        let fraction = |left, right| Region::Fraction([left, 0.0, right, 0.9]);
        check(fraction(0.0, 0.333), fraction(0.333, 1.0), "");
        check(
            fraction(0.0, 0.34),
            fraction(0.333, 1.0),
            "`train` and `test` share the pixels at columns 33..34, rows 0..90",
        );
        check(Region::West, Region::East, "`validation` and `test` share");
        check(
            fraction(0.0, 1.01),
            Region::East,
            "`train`: columns 0..101, rows 0..90 is empty or not inside",
        );
        check(
            Region::Pixels([0, 0, 0, 9]),
            Region::East,
            "is empty or not inside",
        );
    }

    #[test]
    fn reads_like_the_configuration() {
        let region = |text: &str| serde_json::from_str::<Region>(text).expect("a region");
        assert_eq!(region(r#""west""#), Region::West);
        assert_eq!(
            region(r#"{"pixels": [1, 2, 3, 4]}"#),
            Region::Pixels([1, 2, 3, 4])
        );
        assert_eq!(
            region(r#"{"fraction": [0, 0, 0.5, 1]}"#),
            Region::Fraction([0.0, 0.0, 0.5, 1.0])
        );
    }
}
