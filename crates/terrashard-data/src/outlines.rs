//! Areas of one class as polygons, from a map that is read row by row.
//!
//! A pixel belongs to an area with the four pixels beside it. Along an area's edge only corners are kept: those of one row of grid
//! points are joined in pairs from the left, those of one column from above, and rings follow these joints in turn. Where two pixels
//! of a class touch at a corner alone, the point is a corner of both areas.

use std::collections::BTreeMap;

use crate::IGNORE;

/// An area of one class: its outer ring and those of its holes, in pixels from the corner of the map, closed.
#[derive(Debug, Clone, PartialEq)]
pub struct Area {
    /// Its class.
    pub class: u8,
    /// Pixels of the class in it.
    pub pixels: u64,
    /// (column, row) of the corners, the class on the right of each ring on a map whose rows run down.
    pub rings: Vec<Vec<(usize, usize)>>,
}

/// Takes rows of a map from the top down and finds its areas.
#[derive(Debug)]
pub struct Outlines {
    width: usize,
    row: usize,
    above: Vec<u8>,
    /// For each class that is outlined, its corners in the order of rows.
    corners: BTreeMap<u8, Vec<Corner>>,
}

/// A point of the grid where the edge of an area turns.
#[derive(Debug, Clone, Copy)]
struct Corner {
    x: usize,
    y: usize,
    /// Among two corners at one point, the place of this one along the row and along the column.
    along_row: u8,
    along_column: u8,
    /// Whether the pixel to the right of the point and below it is of the class.
    below_right: bool,
}

impl Outlines {
    /// Of a map of this width.
    pub fn new(width: usize) -> Self {
        Self {
            width,
            row: 0,
            above: vec![0; width],
            corners: BTreeMap::new(),
        }
    }

    /// Takes the next row of classes; 0 is the background and 255 no data, neither of which is outlined.
    ///
    /// # Panics
    /// Where the row has another length.
    pub fn add(&mut self, row: &[u8]) {
        assert_eq!(row.len(), self.width, "a row of the map");
        for x in 0..=self.width {
            let pixel = |row: &[u8], x: Option<usize>| {
                let class = x.and_then(|x| row.get(x)).copied().unwrap_or(0);
                if class == IGNORE { 0 } else { class }
            };
            let around = [
                pixel(&self.above, x.checked_sub(1)),
                pixel(&self.above, Some(x)),
                pixel(row, x.checked_sub(1)),
                pixel(row, Some(x)),
            ];
            if around.iter().all(|class| *class == around[0]) {
                continue;
            }
            let mut classes = around.to_vec();
            classes.sort_unstable();
            classes.dedup();
            for class in classes.into_iter().filter(|class| *class != 0) {
                let is = around.map(|other| other == class);
                let found = self.corners.entry(class).or_default();
                turns(x, self.row, is).for_each(|corner| found.push(corner));
            }
        }
        self.above.copy_from_slice(row);
        self.row += 1;
    }

    /// The areas of the map, by class.
    pub fn finish(mut self) -> Vec<Area> {
        let nothing = vec![0; self.width];
        self.add(&nothing);
        let classes = std::mem::take(&mut self.corners);
        classes
            .into_iter()
            .flat_map(|(class, corners)| areas(class, &corners))
            .collect()
    }
}

/// The corners at a point, by which of the pixels above left, above right, below left and below right are of the class.
fn turns(x: usize, y: usize, is: [bool; 4]) -> impl Iterator<Item = Corner> {
    let corner = |along_row, along_column, below_right| Corner {
        x,
        y,
        along_row,
        along_column,
        below_right,
    };
    let corners = match is {
        // Two areas touch: each joint ends one area's edge and begins the other's.
        [true, false, false, true] => [Some(corner(0, 0, false)), Some(corner(1, 1, true))],
        [false, true, true, false] => [Some(corner(0, 1, false)), Some(corner(1, 0, false))],
        [a, b, c, d] => {
            let count = [a, b, c, d].iter().filter(|is| **is).count();
            [(count % 2 == 1).then(|| corner(0, 0, d)), None]
        }
    };
    corners.into_iter().flatten()
}

/// Puts corners together to rings, and rings to areas.
fn areas(class: u8, corners: &[Corner]) -> Vec<Area> {
    let pairs = |order: Vec<usize>| {
        let mut partner = vec![0; order.len()];
        for pair in order.as_chunks::<2>().0 {
            (partner[pair[0]], partner[pair[1]]) = (pair[1], pair[0]);
        }
        partner
    };
    let sorted = |key: fn(&Corner) -> (usize, usize, u8)| {
        let mut order: Vec<usize> = (0..corners.len()).collect();
        order.sort_by_key(|at| key(&corners[*at]));
        order
    };
    let across = pairs(sorted(|c| (c.y, c.x, c.along_row)));
    let down = pairs(sorted(|c| (c.x, c.y, c.along_column)));
    let mut seen = vec![false; corners.len()];
    let (mut outer, mut holes) = (Vec::new(), Vec::new());
    for first in 0..corners.len() {
        if seen[first] {
            continue;
        }
        // Left to right with the class below, so that the class is always on the right.
        let (left, right) = match corners[first].x <= corners[across[first]].x {
            true => (first, across[first]),
            false => (across[first], first),
        };
        let start = match corners[left].below_right {
            true => left,
            false => right,
        };
        let mut ring = Vec::new();
        let mut at = start;
        loop {
            let next = across[at];
            (seen[at], seen[next]) = (true, true);
            ring.extend([at, next].map(|at| (corners[at].x, corners[at].y)));
            at = down[next];
            if at == start {
                break;
            }
        }
        ring.push(ring[0]);
        match doubled_area(&ring) {
            area if area > 0 => outer.push((area, ring)),
            area => holes.push((-area, ring)),
        }
    }
    gather(class, outer, holes)
}

/// Twice the area that a ring encloses, positive where it turns clockwise on a map whose rows run down.
fn doubled_area(ring: &[(usize, usize)]) -> i64 {
    ring.windows(2)
        .map(|pair| {
            let [(ax, ay), (bx, by)] = [pair[0], pair[1]].map(|(x, y)| (x as i64, y as i64));
            ax * by - bx * ay
        })
        .sum()
}

type Ring = (i64, Vec<(usize, usize)>);

/// Gives each hole to the smallest area around it.
fn gather(class: u8, mut outer: Vec<Ring>, holes: Vec<Ring>) -> Vec<Area> {
    outer.sort_by_key(|(area, _)| *area);
    let boxes: Vec<_> = outer.iter().map(|(_, ring)| bounds(ring)).collect();
    let mut areas: Vec<Area> = outer
        .into_iter()
        .map(|(area, ring)| Area {
            class,
            pixels: (area / 2) as u64,
            rings: vec![ring],
        })
        .collect();
    for (area, ring) in holes {
        let [left, top, right, bottom] = bounds(&ring);
        // A point inside of the class beside the hole: half a pixel to the left of its leftmost edge.
        let leftmost = ring.iter().min().copied().unwrap_or_default();
        let beside = (leftmost.0 as f64 - 0.5, leftmost.1 as f64 + 0.5);
        let around = (0..areas.len()).find(|at| {
            let [l, t, r, b] = boxes[*at];
            l <= left
                && t <= top
                && r >= right
                && b >= bottom
                && inside(&areas[*at].rings[0], beside)
        });
        if let Some(at) = around {
            areas[at].pixels -= (area / 2) as u64;
            areas[at].rings.push(ring);
        }
    }
    areas
}

fn bounds(ring: &[(usize, usize)]) -> [usize; 4] {
    ring.iter()
        .fold([usize::MAX, usize::MAX, 0, 0], |[l, t, r, b], (x, y)| {
            [l.min(*x), t.min(*y), r.max(*x), b.max(*y)]
        })
}

/// Whether a ring encloses a point that is on none of its edges.
fn inside(ring: &[(usize, usize)], (x, y): (f64, f64)) -> bool {
    let crossings = ring.windows(2).filter(|pair| {
        let ((ax, ay), (_, by)) = (pair[0], pair[1]);
        let (low, high) = (ay.min(by) as f64, ay.max(by) as f64);
        low < y && y < high && (ax as f64) > x
    });
    crossings.count() % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outlines(rows: &[&str]) -> Vec<Area> {
        let mut outlines = Outlines::new(rows[0].len());
        for row in rows {
            let class = |c: u8| if c == b'?' { 255 } else { c - b'0' };
            outlines.add(&row.bytes().map(class).collect::<Vec<u8>>());
        }
        outlines.finish()
    }

    /// The pixels whose centres the rings of the areas of a class enclose, each area once.
    fn filled(areas: &[Area], (width, height): (usize, usize)) -> Vec<String> {
        let class = |x: usize, y: usize| {
            let point = (x as f64 + 0.5, y as f64 + 0.5);
            let holds = |area: &&Area| {
                area.rings.iter().filter(|ring| inside(ring, point)).count() % 2 == 1
            };
            let found: Vec<&Area> = areas.iter().filter(holds).collect();
            assert!(found.len() <= 1, "column {x}, row {y} lies in two areas");
            found
                .first()
                .map_or('0', |area| (b'0' + area.class) as char)
        };
        (0..height)
            .map(|y| (0..width).map(|x| class(x, y)).collect())
            .collect()
    }

    fn check(rows: &[&str], pixels: &[u64]) {
        let areas = outlines(rows);
        let expected: Vec<String> = rows.iter().map(|row| row.replace('?', "0")).collect();
        assert_eq!(
            filled(&areas, (rows[0].len(), rows.len())),
            expected,
            "{areas:?}"
        );
        let mut found: Vec<u64> = areas.iter().map(|area| area.pixels).collect();
        found.sort_unstable();
        assert_eq!(found, pixels, "{areas:?}");
    }

    #[test]
    fn areas_are_those_of_the_map() {
        check(&["000", "010", "000"], &[1]);
        check(&["11", "11"], &[4]);
        check(&["111", "101", "111"], &[8]);
        check(&["0110", "1001", "0110"], &[1, 1, 2, 2]);
        check(&["1010", "0101", "1010"], &[1; 6]);
        check(&["11111", "10001", "10101", "10001", "11111"], &[1, 16]);
        check(&["1122", "1?22", "3330"], &[3, 3, 4]);
        check(&["11011", "11011", "00100", "11011"], &[1, 2, 2, 4, 4]);
        check(&["1111", "1001", "1101", "1111"], &[13]);
        check(&["11111", "10011", "11001", "11111"], &[16]);
        check(&["11111", "10111", "11011", "11111"], &[18]);
    }

    #[test]
    fn corners_alone_are_kept() {
        let areas = outlines(&["0000", "0110", "0110"]);
        let ring = vec![(1, 1), (3, 1), (3, 3), (1, 3), (1, 1)];
        assert_eq!(areas[0].rings, [ring]);
    }

    #[test]
    fn any_map_is_filled_again() {
        // Maps of three classes from a linear congruence.
        let mut state = 1_u64;
        let mut draw = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (b'0' + (state >> 60) as u8 % 3) as char
        };
        for _ in 0..300 {
            let rows: Vec<String> = (0..7).map(|_| (0..9).map(|_| draw()).collect()).collect();
            let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
            let areas = outlines(&rows);
            assert_eq!(filled(&areas, (9, 7)), rows);
            let counted: u64 = areas.iter().map(|area| area.pixels).sum();
            let pixels = rows.concat().bytes().filter(|c| *c != b'0').count();
            assert_eq!(counted, pixels as u64);
        }
    }
}
