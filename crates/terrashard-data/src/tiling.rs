//! Whole-pixel windows that cover a region.

use terrashard_raster::Window;

use crate::{Error, Result};

/// Where windows of length `chip`, `stride` apart, begin on a side of `length` pixels so that they cover it.
///
/// The last one is shifted inward to end with the side; a side shorter than a chip has the one window that it is.
pub(crate) fn starts(length: usize, chip: usize, stride: usize) -> Vec<usize> {
    if length <= chip {
        return vec![0];
    }
    let last = length - chip;
    (0..last).step_by(stride).chain([last]).collect()
}

/// Windows of `chip` x `chip` pixels, `stride` apart, row by row, that cover every pixel of `region` and stay inside of it.
///
/// The last window of a row or column is shifted inward. A region narrower or lower than a chip gives windows that are as
/// narrow or low; whoever cuts them pads them.
///
/// # Errors
/// [`Error::Setting`] where `chip` is 0 or `stride` is not in `1..=chip`, since pixels would be left out.
pub fn tile(region: Window, chip: usize, stride: usize) -> Result<Vec<Window>> {
    if chip == 0 {
        return Err(Error::Setting {
            key: "chip",
            what: "0 pixels; choose a multiple of 32, such as 64".to_owned(),
        });
    }
    if stride == 0 || stride > chip {
        let what = format!(
            "{stride} pixels; choose 1 to {chip} (the chip's side), or pixels would be left out"
        );
        return Err(Error::Setting {
            key: "stride",
            what,
        });
    }
    let (width, height) = (chip.min(region.width), chip.min(region.height));
    let cols = starts(region.width, chip, stride);
    let rows = starts(region.height, chip, stride);
    let window =
        |row: usize, col: usize| Window::new(region.col + col, region.row + row, width, height);
    Ok(rows
        .iter()
        .flat_map(|&row| cols.iter().map(move |&col| window(row, col)))
        .collect())
}

/// Windows of at most `chip` x `chip` pixels, row by row, that cover every pixel of `region` exactly once.
///
/// Where the sides are no multiples of a chip, windows are all nearly equally large instead of leaving slivers; whoever cuts them pads
/// them.
///
/// # Errors
/// [`Error::Setting`] where `chip` is 0.
pub fn partition(region: Window, chip: usize) -> Result<Vec<Window>> {
    // What is checked of a chip is checked there.
    if region.is_empty() || chip == 0 {
        return tile(region, chip, chip);
    }
    let borders = |length: usize| {
        let parts = length.div_ceil(chip);
        (0..=parts)
            .map(|part| part * length / parts)
            .collect::<Vec<_>>()
    };
    let (cols, rows) = (borders(region.width), borders(region.height));
    let mut windows = Vec::with_capacity((cols.len() - 1) * (rows.len() - 1));
    for row in rows.windows(2) {
        for col in cols.windows(2) {
            windows.push(Window::new(
                region.col + col[0],
                region.row + row[0],
                col[1] - col[0],
                row[1] - row[0],
            ));
        }
    }
    Ok(windows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// User problems: a 512-pixel image gave 0 chips, the right and lower edges were never reached, small areas were dropped.
    #[test]
    fn geo_13_every_pixel_is_covered_for_all_sizes() {
        for width in 1..40 {
            for (height, chip, stride) in
                [(1, 8, 8), (17, 8, 8), (23, 8, 5), (40, 7, 1), (9, 16, 3)]
            {
                let region = Window::new(100, 200, width, height);
                let mut seen = vec![0; width * height];
                let windows = tile(region, chip, stride).expect("sound");
                for window in &windows {
                    assert!(region.contains(window), "{window} leaves {region}");
                    assert_eq!(
                        (window.width, window.height),
                        (chip.min(width), chip.min(height))
                    );
                    for row in window.row..window.row_end() {
                        for col in window.col..window.col_end() {
                            seen[(row - 200) * width + col - 100] += 1;
                        }
                    }
                }
                assert!(
                    seen.iter().all(|&n| n >= 1),
                    "{width} x {height}, chip {chip}, stride {stride}"
                );
                if width % chip == 0 && height % chip == 0 && stride == chip {
                    assert!(
                        seen.iter().all(|&n| n == 1),
                        "covered once where sizes divide"
                    );
                }
            }
        }
    }

    /// The same problems where every pixel counts once.
    #[test]
    fn geo_13_a_partition_has_every_pixel_once() {
        for (width, height, chip) in [
            (512, 512, 512),
            (600, 17, 512),
            (379, 578, 64),
            (1, 1, 8),
            (129, 64, 64),
        ] {
            let region = Window::new(3, 5, width, height);
            let windows = partition(region, chip).expect("sound");
            let pixels: usize = windows.iter().map(Window::pixels).sum();
            assert_eq!(pixels, region.pixels());
            assert_eq!(windows.len(), width.div_ceil(chip) * height.div_ceil(chip));
            for (at, window) in windows.iter().enumerate() {
                assert!(region.contains(window) && window.width <= chip && window.height <= chip);
                assert!(2 * window.width >= chip.min(width), "no slivers: {window}");
                assert!(
                    windows[..at]
                        .iter()
                        .all(|other| other.intersection(window).is_none())
                );
            }
        }
        assert!(partition(Window::new(0, 0, 9, 9), 0).is_err());
    }

    #[test]
    fn windows_are_known() {
        let check = |length: usize, chip: usize, stride: usize, expected: &[usize]| {
            assert_eq!(
                starts(length, chip, stride),
                expected,
                "{length}, {chip}, {stride}"
            );
        };
        check(512, 512, 512, &[0]);
        check(1024, 512, 512, &[0, 512]);
        check(600, 512, 256, &[0, 88]);
        check(10, 4, 3, &[0, 3, 6]);
        check(11, 4, 3, &[0, 3, 6, 7]);
        check(3, 4, 1, &[0]);
        assert_eq!(
            tile(Window::new(0, 0, 1536, 768), 64, 64)
                .expect("sound")
                .len(),
            288
        );
        assert!(tile(Window::new(0, 0, 9, 9), 4, 5).is_err());
        assert!(tile(Window::new(0, 0, 9, 9), 0, 0).is_err());
    }
}
