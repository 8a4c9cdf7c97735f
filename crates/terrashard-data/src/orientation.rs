//! The eight ways to lay a square down: flips and quarter turns.

use terrashard_layout::counter::Stream;

/// One of the eight orientations of a square: mirrored or not, then turned by quarters clockwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Orientation {
    mirrored: bool,
    quarters: u8,
}

impl Orientation {
    /// As it is.
    pub const IDENTITY: Self = Self {
        mirrored: false,
        quarters: 0,
    };

    /// All eight.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..8).map(Self::from_bits)
    }

    /// The orientation of a sample in an epoch: the same on any rank and in any order of asking.
    pub fn draw(seed: u64, sample: u64, epoch: u64) -> Self {
        Self::from_bits(
            Stream::new(seed, "orientation")
                .child(epoch)
                .below(sample, 8),
        )
    }

    fn from_bits(bits: u64) -> Self {
        Self {
            mirrored: bits & 4 != 0,
            quarters: (bits & 3) as u8,
        }
    }

    /// Lays down one square plane of `side` x `side` values, `[side, side]`, at the end of `out`.
    ///
    /// # Panics
    /// Where `plane` is not such a square.
    pub fn apply<T: Copy>(self, plane: &[T], side: usize, out: &mut Vec<T>) {
        assert_eq!(plane.len(), side * side, "a plane of {side} x {side}");
        if self == Self::IDENTITY {
            return out.extend_from_slice(plane);
        }
        // Half a turn reads rows from the last to the first, and mirrors. What remains of a quarter's turn is a transposition.
        match self.quarters {
            0 | 2 => {
                let turned = self.quarters == 2;
                let rows = plane.chunks_exact(side.max(1));
                let lay = |row: &[T]| match self.mirrored != turned {
                    true => out.extend(row.iter().rev()),
                    false => out.extend_from_slice(row),
                };
                match turned {
                    true => rows.rev().for_each(lay),
                    false => rows.for_each(lay),
                }
            }
            quarters => {
                let begin = out.len();
                out.extend_from_slice(plane);
                // Where the value at (row, col) of the result comes from.
                let (upwards, backwards) = (quarters == 1, (quarters == 3) != self.mirrored);
                transpose(plane, side, (upwards, backwards), &mut out[begin..]);
            }
        }
    }
}

/// Rows and columns of a piece of a plane that is transposed at a time: what caches hold of both sides.
const PIECE: usize = 32;

/// `out[row, col] = plane[col, row]`, the plane's rows taken `upwards`, its columns `backwards`.
fn transpose<T: Copy>(plane: &[T], side: usize, (upwards, backwards): (bool, bool), out: &mut [T]) {
    let from = |reversed: bool, at: usize| if reversed { side - 1 - at } else { at };
    for first_row in (0..side).step_by(PIECE) {
        for first_col in (0..side).step_by(PIECE) {
            for row in first_row..(first_row + PIECE).min(side) {
                let from_col = from(backwards, row);
                let to = &mut out[row * side..][first_col..(first_col + PIECE).min(side)];
                for (to, col) in to.iter_mut().zip(first_col..) {
                    *to = plane[from(upwards, col) * side + from_col];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn laid(orientation: Orientation, plane: &[u8], side: usize) -> Vec<u8> {
        let mut out = Vec::new();
        orientation.apply(plane, side, &mut out);
        out
    }

    #[test]
    fn turns_by_hand() {
        let plane = [1, 2, 3, 4];
        let check = |mirrored: bool, quarters: u8, expected: [u8; 4]| {
            assert_eq!(
                laid(Orientation { mirrored, quarters }, &plane, 2),
                expected,
                "{mirrored}, {quarters}"
            );
        };
        check(false, 0, [1, 2, 3, 4]);
        check(false, 1, [3, 1, 4, 2]);
        check(false, 2, [4, 3, 2, 1]);
        check(false, 3, [2, 4, 1, 3]);
        check(true, 0, [2, 1, 4, 3]);
        check(true, 1, [4, 2, 3, 1]);
    }

    #[test]
    fn pieces_of_a_plane_lie_where_single_pixels_would() {
        // Two whole pieces and a part of one.
        let side = 2 * PIECE + 7;
        let plane: Vec<u32> = (0..(side * side) as u32).collect();
        for orientation in Orientation::all() {
            let mut out = vec![9];
            orientation.apply(&plane, side, &mut out);
            let last = side - 1;
            let pixel = |index: usize| {
                let (row, col) = (index / side, index % side);
                let (row, col) = match orientation.quarters {
                    0 => (row, col),
                    1 => (last - col, row),
                    2 => (last - row, last - col),
                    _ => (col, last - row),
                };
                plane[row * side
                    + if orientation.mirrored {
                        last - col
                    } else {
                        col
                    }]
            };
            let expected: Vec<u32> = (0..side * side).map(pixel).collect();
            assert!(out[1..] == expected, "{orientation:?}");
        }
    }

    #[test]
    fn all_eight_differ_and_agree_between_grids() {
        let coarse: Vec<u8> = (0..9).collect();
        let fine: Vec<u8> = (0..36).map(|i| coarse[i / 6 / 2 * 3 + i % 6 / 2]).collect();
        let mut seen = Vec::new();
        for orientation in Orientation::all() {
            let turned = laid(orientation, &coarse, 3);
            let repeated: Vec<u8> = (0..36).map(|i| turned[i / 6 / 2 * 3 + i % 6 / 2]).collect();
            assert_eq!(
                laid(orientation, &fine, 6),
                repeated,
                "image and mask turn alike"
            );
            assert!(!seen.contains(&turned));
            seen.push(turned);
        }
    }

    #[test]
    fn draws_depend_on_seed_sample_and_epoch_alone() {
        let draws = |seed, epoch| {
            (0..4000)
                .map(|s| Orientation::draw(seed, s, epoch))
                .collect::<Vec<_>>()
        };
        assert_eq!(draws(1, 0), draws(1, 0));
        assert_ne!(draws(1, 0), draws(2, 0));
        assert_ne!(draws(1, 0), draws(1, 1));
        for orientation in Orientation::all() {
            let share = draws(1, 0).iter().filter(|o| **o == orientation).count();
            assert!((400..600).contains(&share), "{share} of 4000");
        }
    }
}
