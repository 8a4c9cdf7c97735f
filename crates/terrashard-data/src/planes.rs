//! Cutting and padding of `[planes, height, width]`.

use terrashard_raster::Window;

/// Copies a window out of each plane.
///
/// # Shapes
/// `[planes, size.1, size.0]` -> `[planes, window.height, window.width]`; `size` is (width, height).
///
/// # Panics
/// Where the window is not inside of the planes.
pub fn crop<T: Copy>(values: &[T], size: (usize, usize), window: Window) -> Vec<T> {
    let (width, height) = size;
    let mut cut = Vec::with_capacity(values.len() / (width * height).max(1) * window.pixels());
    for plane in values.chunks_exact(width * height) {
        for row in window.row..window.row_end() {
            cut.extend_from_slice(&plane[row * width + window.col..][..window.width]);
        }
    }
    cut
}

/// Pads each plane to the right and downwards by mirroring it about its last column and row, which are not repeated.
///
/// # Shapes
/// `[planes, size.1, size.0]` -> `[planes, to.1, to.0]`; sizes are (width, height), `to` at least `size`.
pub fn mirror_pad<T: Copy>(values: &[T], size: (usize, usize), to: (usize, usize)) -> Vec<T> {
    let (width, height) = size;
    if size == to {
        return values.to_vec();
    }
    let columns: Vec<usize> = (0..to.0).map(|col| mirror(col, width)).collect();
    let mut padded = Vec::with_capacity(values.len() / (width * height).max(1) * to.0 * to.1);
    for plane in values.chunks_exact(width * height) {
        for row in 0..to.1 {
            let line = &plane[mirror(row, height) * width..][..width];
            padded.extend(columns.iter().map(|&col| line[col]));
        }
    }
    padded
}

/// The place in `0..length` that `index` is mirrored to.
fn mirror(index: usize, length: usize) -> usize {
    if length == 1 {
        return 0;
    }
    let period = 2 * (length - 1);
    (index % period).min(period - index % period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_without_repeating_the_edge() {
        let line = |length: usize, to: usize| {
            mirror_pad(&(0..length).collect::<Vec<_>>(), (length, 1), (to, 1))
        };
        assert_eq!(line(3, 8), [0, 1, 2, 1, 0, 1, 2, 1]);
        assert_eq!(line(1, 3), [0, 0, 0]);
        assert_eq!(line(4, 4), [0, 1, 2, 3]);
        assert_eq!(
            mirror_pad(&[1, 2, 3, 4], (2, 2), (3, 3)),
            [1, 2, 1, 3, 4, 3, 1, 2, 1]
        );
        assert_eq!(
            mirror_pad(&[1, 2, 3, 4], (1, 2), (2, 2)),
            [1, 1, 2, 2, 3, 3, 4, 4]
        );
    }

    #[test]
    fn crops_each_plane() {
        let planes: Vec<u8> = (0..24).collect();
        assert_eq!(
            crop(&planes, (4, 3), Window::new(1, 1, 2, 2)),
            [5, 6, 9, 10, 17, 18, 21, 22]
        );
    }
}
