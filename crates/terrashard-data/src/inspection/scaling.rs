//! What speaks against the scaling and the order of bands: each with the number found and the number that it was held against.

use std::path::Path;

use super::{Finding, Kind, Level};
use crate::Scaling;
use crate::offset::ProductOffset;
use crate::statistics::Statistics;

/// What baseline 04.00 adds to digital numbers.
const ADDED: f64 = 1000.0;

/// How far below 0 noise brings pixels of a product with an offset, in digital numbers.
const NOISE: f64 = 200.0;

/// The share of pixels that may be darker than a product with an offset should have.
const DARK_SHARE: f64 = 0.01;

/// The share of a scene that may be 0 in all bands without a nodata value.
const ZERO_SHARE: f64 = 0.01;

/// The reflectance that the brightest hundredth reaches in some band of any scene, and that the median does not exceed.
const DARK: f64 = 0.02;
const BRIGHT: f64 = 2.0;

/// How much more alike a band has to be to one that is farther away. On eight scenes of water, forest, crops, mountains and clouds
/// the margin was never above 0.04 in the right order; with blue and red swapped it was 0.06 to 0.61 in seven of them.
const MARGIN: f64 = 0.05;

/// Triples of (reference, nearer, farther): by wavelength the reference is more alike to the nearer band.
const ORDER: [(&str, &str, &str); 7] = [
    ("B12", "B11", "B08"),
    ("B12", "B11", "B04"),
    ("B12", "B11", "B03"),
    ("B12", "B11", "B02"),
    ("B03", "B04", "B08"),
    ("B03", "B02", "B08"),
    ("B03", "B02", "B12"),
];

/// Blue and red are as alike to green, so both infrared bands have to say it.
const BLUE_AND_RED: ([&str; 2], &str, &str) = (["B11", "B12"], "B04", "B02");

/// An image as it was read, in digital numbers.
pub(crate) struct Read<'a> {
    pub(crate) statistics: &'a Statistics,
    pub(crate) names: &'a [String],
    pub(crate) path: &'a Path,
}

/// Says where much of a scene is 0 and nothing is declared as nodata.
pub(super) fn undeclared_zeros(statistics: &Statistics, path: &Path, findings: &mut Vec<Finding>) {
    let share = statistics.zero() as f64 / statistics.pixels().max(1) as f64;
    if share > ZERO_SHARE {
        let message = format!(
            "{:.1} % of its pixels are 0 in all bands, allowed are {:.0} %, and no nodata value is declared: they would be taken for \
             data; declare it with `nodata = 0`",
            100.0 * share,
            100.0 * ZERO_SHARE
        );
        let finding = Finding::new(Level::Suspicious, Kind::UndeclaredZeros, path, message);
        findings.push(finding.numbers(share, ZERO_SHARE));
    }
}

/// Says where much of a scene of 16-bit numbers is the largest of them in all bands and nothing is declared as nodata.
pub(super) fn undeclared_fill(
    statistics: &Statistics,
    bands: usize,
    path: &Path,
    findings: &mut Vec<Finding>,
) {
    let fill = f64::from(u16::MAX);
    if statistics.valid() == 0 {
        return;
    }
    // Of what is in order, less than this share is so bright.
    let below = 100.0 * (1.0 - ZERO_SHARE);
    if (0..bands).all(|band| statistics.percentile(band, below) == fill) {
        let message = format!(
            "more than {:.0} % of its pixels are {fill} in all bands, the largest number there is, and no nodata value is declared: they \
             would be taken for data; declare it with `nodata = {fill}`",
            100.0 * ZERO_SHARE
        );
        let kind = Kind::UndeclaredFill;
        findings.push(Finding::new(Level::Suspicious, kind, path, message));
    }
}

impl Read<'_> {
    fn tell(
        &self,
        level: Level,
        kind: Kind,
        message: String,
        numbers: (f64, f64),
        findings: &mut Vec<Finding>,
    ) {
        let finding = Finding::new(level, kind, self.path, message);
        findings.push(finding.numbers(numbers.0, numbers.1));
    }

    fn bands(&self) -> std::ops::Range<usize> {
        0..self.names.len()
    }

    fn smallest(&self) -> f64 {
        let of_band = |band| self.statistics.percentile(band, 0.0);
        self.bands().map(of_band).fold(f64::INFINITY, f64::min)
    }

    /// The largest of the bands' values at this share of the pixels.
    fn largest(&self, percent: f64) -> f64 {
        let of_band = |band| self.statistics.percentile(band, percent);
        self.bands().map(of_band).fold(f64::NEG_INFINITY, f64::max)
    }

    pub(super) fn inspect(
        &self,
        scaling: &Scaling,
        product: Option<&ProductOffset>,
        findings: &mut Vec<Finding>,
    ) {
        let before = findings.len();
        self.inspect_range(scaling, findings);
        // Of numbers in another unit the offset says nothing.
        if findings.len() == before {
            self.inspect_offset(scaling, product, findings);
        }
        self.inspect_order(findings);
    }

    /// Whether the scaling makes reflectance of the numbers.
    pub(super) fn inspect_range(&self, scaling: &Scaling, findings: &mut Vec<Finding>) {
        let (offset, scale) = (f64::from(scaling.offset), f64::from(scaling.scale));
        let reflectance = |value: f64| (value + offset) * scale;
        let (bright, median) = (self.largest(99.0), self.largest(50.0));
        let got = format!(
            "99 % of its values are at most {}, which `scale` = {} and `offset` = {offset} make a reflectance of {:.5}",
            bright as f32,
            scaling.scale,
            reflectance(bright)
        );
        let numbers = (reflectance(bright), DARK);
        if reflectance(bright) < DARK {
            let message = match bright {
                bright if bright <= BRIGHT => {
                    format!(
                        "{got}, expected at least {DARK}: these look like reflectance already; set `scale` = 1 and `offset` = 0"
                    )
                }
                bright if bright <= 255.0 => format!(
                    "{got}, expected at least {DARK}: these look like 8 bits (0 to 255), of a picture and not of a product; use the \
                     product, or set `scale` = {:.6}",
                    1.0 / 255.0
                ),
                _ => format!("{got}, expected at least {DARK}; correct `scale` and `offset`"),
            };
            self.tell(Level::Suspicious, Kind::Range, message, numbers, findings);
        } else if reflectance(median) > BRIGHT {
            let message = format!(
                "half of its values are above {}, which `scale` = {} and `offset` = {offset} make a reflectance of {:.4}, expected at \
                 most {BRIGHT}; correct `scale`, which is 0.0001 for Sentinel-2 products",
                median as f32,
                scaling.scale,
                reflectance(median)
            );
            let numbers = (reflectance(median), BRIGHT);
            self.tell(Level::Suspicious, Kind::Range, message, numbers, findings);
        }
    }

    pub(crate) fn inspect_offset(
        &self,
        scaling: &Scaling,
        product: Option<&ProductOffset>,
        findings: &mut Vec<Finding>,
    ) {
        let offset = f64::from(scaling.offset);
        let smallest = self.smallest();
        let told = |wanted: f32| product.filter(|product| product.offset == wanted);
        let limit = -offset - NOISE;
        let dark = |band: &usize| self.statistics.share_below(*band, limit);
        if offset > -ADDED / 2.0 {
            // Of a product without an offset that was corrected already, dark pixels lie below.
            let missing = match told(-1000.0) {
                Some(_) => self
                    .bands()
                    .all(|band| self.statistics.share_below(band, ADDED) < DARK_SHARE),
                None => told(0.0).is_none() && smallest >= ADDED,
            };
            // Only digital numbers in the unit of products have this offset.
            if missing && f64::from(scaling.scale) < 1e-3 {
                let (level, by) = match told(-1000.0) {
                    Some(product) => (Level::Wrong, format!(" ({})", product.told_by)),
                    None => (Level::Suspicious, String::new()),
                };
                let message = format!(
                    "the smallest of its values is {smallest} and `offset` is {offset}: products of processing baseline 04.00 and \
                     later are {ADDED} too large{by}; set `offset` = -1000"
                );
                self.tell(
                    level,
                    Kind::OffsetMissing,
                    message,
                    (offset, -ADDED),
                    findings,
                );
            }
            return;
        }
        let darkest = self.bands().max_by(|a, b| dark(a).total_cmp(&dark(b)));
        let darkest = darkest.expect("an image has bands");
        let share = dark(&darkest);
        if let Some(product) = told(0.0) {
            let message = format!("`offset` is {offset}, expected 0 ({})", product.told_by);
            self.tell(
                Level::Wrong,
                Kind::OffsetTwice,
                message,
                (offset, 0.0),
                findings,
            );
        } else if share > DARK_SHARE {
            let message = format!(
                "{:.1} % of {} are below {limit}, allowed are {:.0} %, and `offset` = {offset} makes them negative (the smallest is \
                 {smallest}): the offset has been applied before, or the product has none; set `offset` = 0",
                100.0 * share,
                self.names[darkest],
                100.0 * DARK_SHARE
            );
            let numbers = (share, DARK_SHARE);
            self.tell(
                Level::Suspicious,
                Kind::OffsetTwice,
                message,
                numbers,
                findings,
            );
        }
    }

    /// Whether bands that are neighbours by wavelength are alike.
    pub(crate) fn inspect_order(&self, findings: &mut Vec<Finding>) {
        let find = |name: &str| {
            self.names
                .iter()
                .position(|n| n.trim().eq_ignore_ascii_case(name))
        };
        let alike = |a: &str, b: &str| Some(self.statistics.correlation(find(a)?, find(b)?));
        let mut told: Vec<(&str, &str)> = Vec::new();
        let mut tell = |reference: &str, nearer: &'static str, farther: &'static str| {
            let (Some(near), Some(far)) = (alike(reference, nearer), alike(reference, farther))
            else {
                return;
            };
            // A comparison with NaN is false.
            let swapped = far - near > MARGIN;
            if swapped && !told.contains(&(nearer, farther)) {
                told.push((nearer, farther));
                let message = format!(
                    "{nearer} and {farther} look swapped: {reference} correlates with {nearer} by {near:.3} and with {farther}, which is \
                     farther in wavelength, by {far:.3}; correct the bands' order or names"
                );
                self.tell(
                    Level::Suspicious,
                    Kind::SwappedBands,
                    message,
                    (near, far),
                    findings,
                );
            }
        };
        let (references, red, blue) = BLUE_AND_RED;
        let by_both = references.iter().all(|reference| {
            let (near, far) = (alike(reference, red), alike(reference, blue));
            near.zip(far).is_some_and(|(near, far)| far - near > MARGIN)
        });
        if by_both {
            tell(references[1], red, blue);
        }
        for (reference, nearer, farther) in ORDER {
            tell(reference, nearer, farther);
        }
    }
}
