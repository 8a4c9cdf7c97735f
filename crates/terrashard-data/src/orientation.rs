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
        let last = side.wrapping_sub(1);
        for row in 0..side {
            out.extend((0..side).map(|col| {
                // Where the value at (row, col) of the result comes from.
                let (from_row, from_col) = match self.quarters {
                    0 => (row, col),
                    1 => (last - col, row),
                    2 => (last - row, last - col),
                    _ => (col, last - row),
                };
                plane[from_row * side
                    + if self.mirrored {
                        last - from_col
                    } else {
                        from_col
                    }]
            }));
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
