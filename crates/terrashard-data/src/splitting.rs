//! Parts for training, validation and test that share no ground, over any number of scenes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use terrashard_layout::counter::Stream;
use terrashard_raster::{Georeference, Metadata, Window};

use crate::{Error, Result, Split};

/// What a chip is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// To be trained on.
    Train,
    /// To choose a checkpoint by.
    Validation,
    /// To be tested on.
    Test,
}

impl Part {
    /// All parts. Where two would share ground, the later one keeps it.
    pub const ALL: [Self; 3] = [Self::Train, Self::Validation, Self::Test];
}

/// How scenes are split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SplitRule {
    /// Each scene by the same regions.
    Regions(Split),
    /// Whole scenes; those that lie over each other stay together.
    Scenes(Shares),
    /// Squares of ground, the same for all scenes of a reference system, so that scenes over the same ground agree.
    Blocks {
        /// The side of a square in pixels of an image.
        side: usize,
        /// How many squares each part gets.
        shares: Shares,
    },
}

/// How much each part gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    /// Of train, validation and test; they are made to add up to 1.
    pub shares: [f64; 3],
    /// The seed of the draw.
    pub seed: u64,
}

impl Shares {
    fn validate(&self) -> Result<()> {
        let sum: f64 = self.shares.iter().sum();
        let sound = self.shares.iter().all(|share| (0.0..=1e6).contains(share));
        if sound && sum > 0.0 && self.shares[0] > 0.0 {
            return Ok(());
        }
        Err(Error::Setting {
            key: "shares",
            what: format!(
                "{:?}; choose three numbers of 0 or more, of which the first, for training, is above 0",
                self.shares
            ),
        })
    }

    /// Gives each of these keys a part. The order of the keys does not matter, only which there are.
    fn parts<K: Ord + Clone>(
        &self,
        what: &'static str,
        keys: BTreeMap<K, u64>,
    ) -> Result<BTreeMap<K, Part>> {
        self.validate()?;
        let stream = Stream::new(self.seed, what);
        let mut drawn: Vec<(u64, K)> = keys
            .into_iter()
            .map(|(key, name)| (stream.bits(name | 1 << 63), key))
            .collect();
        drawn.sort();
        let sum: f64 = self.shares.iter().sum();
        let wanted = self.shares.iter().filter(|share| **share > 0.0).count();
        if drawn.len() < wanted {
            return Err(Error::Setting {
                key: "split",
                what: format!(
                    "{} that share no ground for {wanted} parts; name more scenes, split by smaller blocks, or ask for fewer parts",
                    match drawn.len() {
                        1 => format!("1 {what}"),
                        many => format!("{many} {what}s"),
                    }
                ),
            });
        }
        // Where each part begins, so that each that is asked for gets one at least.
        let total = drawn.len();
        let [train, validation, test] = self.shares.map(|share| {
            let fair = (share / sum * total as f64).round() as usize;
            if share > 0.0 { fair.max(1) } else { 0 }
        });
        let test = test.min(total - 1);
        let validation = validation.min(total - test - usize::from(train > 0));
        let part = |at: usize| {
            if at < test {
                Part::Test
            } else if at < test + validation {
                Part::Validation
            } else {
                Part::Train
            }
        };
        Ok(drawn
            .into_iter()
            .enumerate()
            .map(|(at, (_, key))| (key, part(at)))
            .collect())
    }
}

/// Regions of scenes with their parts, `[scenes][regions]`: every pixel of a scene is in at most one, and in one where the rule is not
/// [`SplitRule::Regions`].
///
/// # Errors
/// [`Error::Region`], [`Error::Overlap`]; [`Error::Setting`] where there is not enough ground for the parts that are asked for.
pub fn split(scenes: &[&Metadata], rule: &SplitRule) -> Result<Vec<Vec<(Part, Window)>>> {
    match rule {
        SplitRule::Regions(split) => scenes
            .iter()
            .map(|scene| {
                let windows = split.windows(scene.width, scene.height)?;
                let mut parts = vec![(Part::Train, windows.train)];
                parts.extend(windows.validation.map(|window| (Part::Validation, window)));
                parts.push((Part::Test, windows.test));
                Ok(parts)
            })
            .collect(),
        SplitRule::Scenes(shares) => {
            let groups = groups(scenes);
            let keys = groups.iter().map(|&group| (group, group as u64)).collect();
            let parts = shares.parts("scene", keys)?;
            let whole = |(group, scene): (&usize, &&Metadata)| vec![(parts[group], scene.window())];
            Ok(groups.iter().zip(scenes).map(whole).collect())
        }
        SplitRule::Blocks { side, shares } => {
            if *side == 0 {
                return Err(Error::Setting {
                    key: "block",
                    what: "0 pixels; choose a few chips".to_owned(),
                });
            }
            let blocks: Vec<_> = scenes
                .iter()
                .enumerate()
                .map(|(at, scene)| blocks(at, scene, *side))
                .collect();
            let keys = blocks
                .iter()
                .flatten()
                .map(|(block, _)| (*block, block.name()))
                .collect();
            let parts = shares.parts("block", keys)?;
            let of_scene = |blocks: &Vec<(Block, Window)>| {
                blocks
                    .iter()
                    .map(|(block, window)| (parts[block], *window))
                    .collect()
            };
            Ok(blocks.iter().map(of_scene).collect())
        }
    }
}

/// A square of ground: of a reference system, or of one scene that says nothing of its ground.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Block {
    /// EPSG code, or the scene's place.
    system: (bool, u64),
    col: i64,
    row: i64,
}

impl Block {
    /// A number for the draw.
    fn name(&self) -> u64 {
        let Self { system, col, row } = *self;
        let system = Stream::new(u64::from(system.0), "system").child(system.1 + 2);
        system
            .child((col as u64) ^ 1 << 62)
            .bits((row as u64) ^ 1 << 62)
    }
}

/// The squares that a scene has a part of, with these parts.
fn blocks(scene: usize, metadata: &Metadata, side: usize) -> Vec<(Block, Window)> {
    // Pixels from the origin of the reference system to the scene's corner; of a rotated grid, or without one, from the corner itself.
    let (system, origin) = match metadata.georeference {
        Georeference {
            epsg: Some(epsg),
            transform: Some(t),
        } if t.b == 0.0 && t.d == 0.0 && t.is_invertible() => (
            (true, u64::from(epsg)),
            ((t.c / t.a).round() as i64, (t.f / t.e).round() as i64),
        ),
        _ => ((false, scene as u64), (0, 0)),
    };
    let pieces = |origin: i64, length: usize| {
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < length {
            let block = (origin + at as i64).div_euclid(side as i64);
            let end = ((block + 1) * side as i64 - origin).min(length as i64) as usize;
            pieces.push((block, at, end - at));
            at = end;
        }
        pieces
    };
    let (cols, rows) = (
        pieces(origin.0, metadata.width),
        pieces(origin.1, metadata.height),
    );
    let mut blocks = Vec::with_capacity(cols.len() * rows.len());
    for &(row, top, height) in &rows {
        for &(col, left, width) in &cols {
            blocks.push((
                Block { system, col, row },
                Window::new(left, top, width, height),
            ));
        }
    }
    blocks
}

/// For each scene the first one that it lies over, be it by others in between: scenes of one group stay together.
fn groups(scenes: &[&Metadata]) -> Vec<usize> {
    let mut groups: Vec<usize> = (0..scenes.len()).collect();
    let grounds: Vec<Option<Ground>> = scenes
        .iter()
        .map(|scene| Ground::new(scene, scene.window()))
        .collect();
    for at in 0..scenes.len() {
        for before in 0..at {
            let shared = grounds[at]
                .as_ref()
                .zip(grounds[before].as_ref())
                .is_some_and(|(a, b)| a.shares(b));
            let (ours, theirs) = (groups[at], groups[before]);
            if shared && ours != theirs {
                let (low, high) = (ours.min(theirs), ours.max(theirs));
                groups
                    .iter_mut()
                    .filter(|group| **group == high)
                    .for_each(|group| *group = low);
            }
        }
    }
    groups
}

/// The ground of a window as rectangles that hold it: exactly of a grid that is not rotated, in its own system.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    epsg: u32,
    /// Left, bottom, right and top in map coordinates.
    own: [f64; 4],
    /// The same in degrees, where the system can be computed with.
    degrees: Option<[f64; 4]>,
    /// A hundredth of a pixel: borders that touch share nothing.
    tolerance: f64,
}

impl Ground {
    /// None where the raster says nothing of its ground.
    pub(crate) fn new(metadata: &Metadata, window: Window) -> Option<Self> {
        let Georeference { epsg, transform } = metadata.georeference;
        let (epsg, transform) = epsg.zip(transform)?;
        let corners = transform
            .offset(window.col, window.row)
            .corners(window.width, window.height);
        let ring = crate::crs::footprint(metadata, window).ok().flatten();
        Some(Self {
            epsg,
            own: bounds(corners.into_iter()),
            degrees: ring.map(|ring| bounds(ring.into_iter().map(|[x, y]| (x, y)))),
            tolerance: 0.01 * transform.pixel_size(),
        })
    }

    /// Whether two windows share ground; between reference systems, whether they may.
    pub(crate) fn shares(&self, other: &Self) -> bool {
        let meet = |a: &[f64; 4], b: &[f64; 4], tolerance: f64| {
            let across = a[2].min(b[2]) - a[0].max(b[0]);
            let down = a[3].min(b[3]) - a[1].max(b[1]);
            across > tolerance && down > tolerance
        };
        if self.epsg == other.epsg {
            return meet(&self.own, &other.own, self.tolerance.max(other.tolerance));
        }
        let degrees = self.degrees.as_ref().zip(other.degrees.as_ref());
        degrees.is_some_and(|(a, b)| meet(a, b, 0.0))
    }

    /// Cells of a grid of degrees that the ground lies in, for a search; one cell for all where degrees are not known.
    pub(crate) fn cells(&self) -> Vec<(i32, i32)> {
        const PER_DEGREE: f64 = 20.0;
        let Some([left, bottom, right, top]) = self.degrees else {
            return vec![(i32::MAX, i32::MAX)];
        };
        let cell = |degrees: f64| (degrees * PER_DEGREE).floor() as i32;
        let rows = cell(bottom)..=cell(top);
        rows.flat_map(|row| (cell(left)..=cell(right)).map(move |col| (col, row)))
            .collect()
    }
}

fn bounds(points: impl Iterator<Item = (f64, f64)>) -> [f64; 4] {
    let none = [
        f64::INFINITY,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NEG_INFINITY,
    ];
    points.fold(none, |b, (x, y)| {
        [b[0].min(x), b[1].min(y), b[2].max(x), b[3].max(y)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;
    use terrashard_raster::{DataType, Transform};

    fn scene(epsg: Option<u32>, corner: (f64, f64), size: (usize, usize)) -> Metadata {
        Metadata {
            width: size.0,
            height: size.1,
            bands: 1,
            data_type: DataType::U8,
            georeference: Georeference {
                epsg,
                transform: epsg.map(|_| Transform::north_up(corner.0, corner.1, 10.0)),
            },
            nodata: None,
            descriptions: vec![None],
            overviews: Vec::new(),
            block: (size.0, 1),
        }
    }

    fn shares(shares: [f64; 3]) -> Shares {
        Shares { shares, seed: 3 }
    }

    #[test]
    fn blocks_cover_scenes_once_and_agree_over_the_same_ground() {
        // The second begins 130 columns and 70 rows further, on the same grid.
        let scenes = [
            scene(Some(32633), (300_000.0, 5_800_000.0), (400, 300)),
            scene(Some(32633), (301_300.0, 5_799_300.0), (300, 300)),
            scene(None, (0.0, 0.0), (100, 90)),
        ];
        let rule = SplitRule::Blocks {
            side: 64,
            shares: shares([0.6, 0.2, 0.2]),
        };
        let scenes: Vec<&Metadata> = scenes.iter().collect();
        let split = split(&scenes, &rule).expect("ground enough");
        let mut counts = BTreeMap::new();
        for (scene, regions) in scenes.iter().zip(&split) {
            let pixels: usize = regions.iter().map(|(_, window)| window.pixels()).sum();
            assert_eq!(pixels, scene.width * scene.height);
            for (part, window) in regions {
                assert!(
                    scene.window().contains(window) && window.width <= 64 && window.height <= 64
                );
                *counts.entry(*part).or_insert(0) += window.pixels();
            }
        }
        assert_eq!(counts.len(), 3, "{counts:?}");
        for (ours, a) in &split[0] {
            for (theirs, b) in &split[1] {
                let a = Ground::new(scenes[0], *a).expect("placed");
                let b = Ground::new(scenes[1], *b).expect("placed");
                assert!(
                    ours == theirs || !a.shares(&b),
                    "{ours:?} and {theirs:?} share ground"
                );
            }
        }
        let other = SplitRule::Blocks {
            side: 64,
            shares: Shares {
                seed: 4,
                ..shares([0.6, 0.2, 0.2])
            },
        };
        assert_ne!(super::split(&scenes, &other).expect("ground enough"), split);
    }

    #[test]
    fn scenes_that_lie_over_each_other_stay_together() {
        let scenes = [
            scene(Some(32633), (300_000.0, 5_800_000.0), (100, 100)),
            scene(Some(32633), (400_000.0, 5_800_000.0), (100, 100)),
            scene(Some(32633), (300_990.0, 5_800_000.0), (100, 100)),
            // Touches the third.
            scene(Some(32633), (301_990.0, 5_800_000.0), (100, 100)),
            // The first one's ground in the next zone.
            scene(Some(32632), (708_969.4, 5_800_372.0), (100, 100)),
        ];
        let scenes: Vec<&Metadata> = scenes.iter().collect();
        assert_eq!(groups(&scenes), [0, 1, 0, 3, 0]);
        let parts =
            split(&scenes, &SplitRule::Scenes(shares([1.0, 1.0, 1.0]))).expect("three groups");
        let part = |at: usize| parts[at][0].0;
        assert!(part(0) == part(2) && part(0) == part(4));
        let mut all = [part(0), part(1), part(3)];
        all.sort();
        assert_eq!(all, Part::ALL, "one group each");
        assert_eq!(parts[1][0].1, scenes[1].window());

        let error = split(&scenes[..1], &SplitRule::Scenes(shares([0.7, 0.0, 0.3])))
            .expect_err("one scene")
            .to_string();
        assert!(
            error.contains("1 scene that share no ground for 2 parts"),
            "{error}"
        );
        assert!(split(&scenes, &SplitRule::Scenes(shares([0.0, 0.5, 0.5]))).is_err());
    }

    #[test]
    fn parts_get_their_shares() {
        let check = |count: u64, wanted: [f64; 3], expected: [usize; 3]| {
            let keys = (0..count).map(|key| (key, key)).collect();
            let parts = shares(wanted).parts("block", keys).expect("enough");
            let got = Part::ALL.map(|part| parts.values().filter(|other| **other == part).count());
            assert_eq!(got, expected, "{count} by {wanted:?}");
        };
        check(100, [0.7, 0.1, 0.2], [70, 10, 20]);
        check(10, [70.0, 15.0, 15.0], [6, 2, 2]);
        check(3, [0.98, 0.01, 0.01], [1, 1, 1]);
        check(5, [1.0, 0.0, 0.0], [5, 0, 0]);
        check(4, [0.1, 0.0, 0.9], [1, 0, 3]);
    }

    #[test]
    fn regions_are_those_of_each_scene() {
        let scene = scene(None, (0.0, 0.0), (5, 2));
        let rule = SplitRule::Regions(Split {
            train: Region::West,
            validation: None,
            test: Region::East,
        });
        let parts = split(&[&scene], &rule).expect("halves");
        assert_eq!(
            parts,
            [[
                (Part::Train, Window::new(0, 0, 2, 2)),
                (Part::Test, Window::new(2, 0, 3, 2))
            ]]
        );
    }
}
