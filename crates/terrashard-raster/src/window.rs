//! Rectangles of whole pixels.

use std::fmt;

/// A rectangle of whole pixels in a raster: columns `col..col + width`, rows `row..row + height`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Window {
    /// First column, counted from the left edge.
    pub col: usize,
    /// First row, counted from the top edge.
    pub row: usize,
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

impl Window {
    /// The window of `width` x `height` pixels whose upper left pixel is at column `col`, row `row`.
    pub const fn new(col: usize, row: usize, width: usize, height: usize) -> Self {
        Self {
            col,
            row,
            width,
            height,
        }
    }

    /// The first column right of the window.
    pub const fn col_end(&self) -> usize {
        self.col.saturating_add(self.width)
    }

    /// The first row below the window.
    pub const fn row_end(&self) -> usize {
        self.row.saturating_add(self.height)
    }

    /// Number of pixels.
    pub const fn pixels(&self) -> usize {
        self.width.saturating_mul(self.height)
    }

    /// Whether the window holds no pixel.
    pub const fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0
    }

    /// Whether every pixel of `other` lies in this window.
    pub const fn contains(&self, other: &Window) -> bool {
        other.col >= self.col
            && other.row >= self.row
            && other.col_end() <= self.col_end()
            && other.row_end() <= self.row_end()
    }

    /// The pixels in both windows, or `None` where they share none.
    pub fn intersection(&self, other: &Window) -> Option<Window> {
        let (col, row) = (self.col.max(other.col), self.row.max(other.row));
        let (col_end, row_end) = (
            self.col_end().min(other.col_end()),
            self.row_end().min(other.row_end()),
        );
        (col < col_end && row < row_end)
            .then(|| Window::new(col, row, col_end - col, row_end - row))
    }

    /// The same ground on a grid `factor` times as fine.
    pub const fn scaled(&self, factor: usize) -> Window {
        Window::new(
            self.col * factor,
            self.row * factor,
            self.width * factor,
            self.height * factor,
        )
    }
}

/// Columns, then rows: `columns 0..64, rows 128..192`.
impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "columns {}..{}, rows {}..{}",
            self.col,
            self.col_end(),
            self.row,
            self.row_end()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intersects_and_contains() {
        let window = Window::new(2, 3, 4, 5);
        assert_eq!(
            window.intersection(&Window::new(0, 0, 3, 4)),
            Some(Window::new(2, 3, 1, 1))
        );
        assert_eq!(window.intersection(&Window::new(6, 3, 4, 5)), None);
        assert!(window.contains(&Window::new(5, 7, 1, 1)));
        assert!(!window.contains(&Window::new(5, 7, 2, 1)));
        assert_eq!(window.scaled(5), Window::new(10, 15, 20, 25));
        assert_eq!(window.to_string(), "columns 2..6, rows 3..8");
    }
}
