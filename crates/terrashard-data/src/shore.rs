//! The zone along the edge of a class, where a finer grid has something to win.

use crate::IGNORE;

/// The pixels within `steps` steps (up, down, left or right) of the edge of `class`, on both sides of it, that are not ignored.
///
/// A pixel of the class is within one step of the edge where one of its four neighbours is none of the class, and the other way
/// round. An ignored pixel is none of the class: beside it there is an edge, steps cross it, but it is not in the zone itself.
/// Pixels beyond the border of the mask do not exist.
///
/// # Shapes
/// `mask`: `[height, width]`, its width given; the zone has the same shape.
///
/// # Panics
/// Where the mask is not a whole number of rows.
pub fn zone(mask: &[u8], width: usize, class: u8, steps: usize) -> Vec<bool> {
    let inside = within(mask, width, steps, |label| label == class);
    let outside = within(mask, width, steps, |label| label != class);
    let near = inside
        .iter()
        .zip(&outside)
        .map(|(inside, outside)| *inside && *outside);
    near.zip(mask)
        .map(|(near, label)| near && *label != IGNORE)
        .collect()
}

/// The pixels that at most `steps` steps lead to a pixel that `is` holds for.
fn within(mask: &[u8], width: usize, steps: usize, is: impl Fn(u8) -> bool) -> Vec<bool> {
    assert!(
        width > 0 && mask.len().is_multiple_of(width),
        "whole rows of {width}"
    );
    let mut reached: Vec<bool> = mask.iter().map(|&label| is(label)).collect();
    // The pixels of the last step; each is visited once, so the time does not grow with the steps.
    let mut front: Vec<usize> = (0..mask.len()).filter(|&at| reached[at]).collect();
    for _ in 0..steps {
        let mut next = Vec::new();
        for at in front {
            let neighbours = [
                (at % width > 0).then(|| at - 1),
                (at % width + 1 < width).then_some(at + 1),
                at.checked_sub(width),
                Some(at + width).filter(|&below| below < mask.len()),
            ];
            for neighbour in neighbours.into_iter().flatten() {
                if !reached[neighbour] {
                    reached[neighbour] = true;
                    next.push(neighbour);
                }
            }
        }
        front = next;
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mask: &[&str], steps: usize, expected: &[&str]) {
        let width = mask[0].len();
        let label = |c: u8| if c == b'?' { IGNORE } else { c - b'0' };
        let labels: Vec<u8> = mask.iter().flat_map(|row| row.bytes().map(label)).collect();
        let marks: Vec<u8> = zone(&labels, width, 1, steps)
            .iter()
            .map(|&z| if z { b'x' } else { b'.' })
            .collect();
        let rows: Vec<&str> = marks
            .chunks(width)
            .map(|row| std::str::from_utf8(row).expect("ascii"))
            .collect();
        assert_eq!(rows, expected);
    }

    #[test]
    fn marks_both_sides_of_the_edge() {
        check(&["00001111"], 1, &["...xx..."]);
        check(&["00001111"], 2, &["..xxxx.."]);
        check(&["0000", "0100", "0000"], 1, &[".x..", "xxx.", ".x.."]);
        check(&["1111"], 3, &["...."]);
        check(&["00??1111"], 1, &["....x..."]);
        check(&["00??1111"], 3, &[".x..xxx."]);
        check(&["0000", "2221", "0000"], 1, &["...x", "..xx", "...x"]);
    }
}
