//! Windows for one pass over a raster, along its blocks and in bounded memory.

use terrashard_raster::{Metadata, Window};

/// Bytes of one window of a pass.
const WINDOW_BYTES: usize = 16 << 20;

/// Windows that cover `region` once, row by row, each of at most [`WINDOW_BYTES`] where a pixel allows it; along the blocks of the
/// file where they fit, so that none is decoded twice.
pub(crate) fn sweep(region: Window, metadata: &Metadata) -> impl Iterator<Item = Window> + use<> {
    let pixel_bytes = metadata.bands * metadata.data_type.bytes();
    cells(region, metadata.block, pixel_bytes)
}

fn cells(
    region: Window,
    block: (usize, usize),
    pixel_bytes: usize,
) -> impl Iterator<Item = Window> {
    let pixels = (WINDOW_BYTES / pixel_bytes.max(1)).max(1);
    // Whole blocks where some fit in `room`, else what there is room for.
    let fit = |block: usize, room: usize| match room / block.max(1) {
        0 => room.max(1),
        blocks => blocks * block.max(1),
    };
    let low = block.1.clamp(1, pixels);
    let width = fit(block.0, (pixels / low).min(region.col_end()));
    let height = fit(block.1, (pixels / width).max(1));
    let first = |start: usize, step: usize| start / step * step;
    (first(region.row, height)..region.row_end())
        .step_by(height)
        .flat_map(move |row| {
            (first(region.col, width)..region.col_end())
                .step_by(width)
                .filter_map(move |col| Window::new(col, row, width, height).intersection(&region))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_covers_each_pixel_once_in_bounded_windows() {
        let check = |region: Window, block: (usize, usize), pixel_bytes: usize| {
            let windows: Vec<Window> = cells(region, block, pixel_bytes).collect();
            let pixels: usize = windows.iter().map(Window::pixels).sum();
            assert_eq!(pixels, region.pixels(), "{region}, {block:?}");
            for (at, window) in windows.iter().enumerate() {
                assert!(region.contains(window) && !window.is_empty());
                assert!(window.pixels() * pixel_bytes <= WINDOW_BYTES.max(pixel_bytes));
                let again = windows[..at]
                    .iter()
                    .any(|w| w.intersection(window).is_some());
                assert!(!again, "{window} twice");
            }
        };
        check(Window::new(0, 0, 1, 1), (1, 1), 1);
        check(Window::new(5, 7, 600, 500), (256, 256), 12);
        check(Window::new(768, 0, 768, 768), (1536, 1), 12);
        check(Window::new(0, 0, 10_980, 10_980), (512, 512), 12);
        check(Window::new(0, 0, 10_980, 10_980), (10_980, 1), 12);
        check(Window::new(0, 0, 20_000, 3000), (20_000, 3000), 1);
        check(Window::new(3, 0, 1, 200_000), (4, 200_000), 100);
    }
}
