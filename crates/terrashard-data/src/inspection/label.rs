//! What is wrong with a label.

use std::collections::BTreeMap;

use terrashard_raster::{RasterSource, Samples};

use super::{Finding, Kind, Level};
use crate::label_values::{LabelValues, Meaning};
use crate::scene::IGNORE;
use crate::sweep::sweep;

/// Values that are told one by one.
const TOLD: usize = 8;

/// How often each value occurs.
#[derive(Default)]
struct Values {
    counts: BTreeMap<u64, (f64, u64)>,
    /// Pixels that a mask beside them leaves out.
    masked: u64,
}

impl Values {
    fn add(&mut self, value: f64, count: u64) {
        // More values than any label has: a continuous raster, of which some values are enough.
        if self.counts.len() < 4096 || self.counts.contains_key(&order(value)) {
            self.counts.entry(order(value)).or_insert((value, 0)).1 += count;
        }
    }

    fn count(&self, is: impl Fn(f64) -> bool) -> u64 {
        let counts = self.counts.values().filter(|(value, _)| is(*value));
        counts.map(|(_, count)| count).sum()
    }

    fn told(&self, is: impl Fn(f64) -> bool) -> String {
        let all: Vec<_> = self
            .counts
            .values()
            .filter(|(value, _)| is(*value))
            .collect();
        let some = all.iter().take(TOLD);
        let mut told: Vec<String> = some
            .map(|(value, count)| format!("{value} ({count} pixels)"))
            .collect();
        if all.len() > TOLD {
            told.push(format!("and {} more", all.len() - TOLD));
        }
        told.join(", ")
    }
}

/// The bits of a number so that they sort as numbers do.
fn order(value: f64) -> u64 {
    let bits = value.to_bits();
    if bits >> 63 == 1 {
        !bits
    } else {
        bits | 1 << 63
    }
}

/// Reads the label to its last pixel.
pub(super) fn inspect(mask: &dyn RasterSource, classes: usize, findings: &mut Vec<Finding>) {
    let path = mask.path();
    if mask.metadata().bands != 1 {
        let message = format!("a label has 1 band, this has {}", mask.metadata().bands);
        let finding = Finding::new(Level::Wrong, Kind::Bands, path, message);
        return findings.push(finding.numbers(mask.metadata().bands as f64, 1.0));
    }
    let mut values = Values::default();
    let mut bytes = [0_u64; 256];
    for window in sweep(mask.metadata().window(), mask.metadata()) {
        let read = || -> terrashard_raster::Result<_> {
            let samples = mask.read_window(window)?.into_samples();
            Ok((samples, mask.read_mask(window)?))
        };
        let (samples, data) = match read() {
            Ok(read) => read,
            Err(error) => return findings.push(Finding::of_error(path, &error.into())),
        };
        let has_data = |at: &usize| data.as_ref().is_none_or(|data| data[*at]);
        let with_data = (0..samples.len()).filter(has_data);
        match &samples {
            Samples::U8(values) => with_data.for_each(|at| bytes[usize::from(values[at])] += 1),
            samples => with_data.for_each(|at| values.add(samples.get(at), 1)),
        }
        let masked = |data: Vec<bool>| data.iter().filter(|data| !**data).count() as u64;
        values.masked += data.map_or(0, masked);
    }
    for (value, &count) in bytes.iter().enumerate().filter(|(_, count)| **count > 0) {
        values.add(value as f64, count);
    }
    let allowed = LabelValues::new(mask.metadata(), classes);
    judge(&values, &allowed, |level, message, found, expected| {
        findings.push(Finding::new(level, Kind::Label, path, message).numbers(found, expected));
    });
}

fn judge(values: &Values, allowed: &LabelValues, mut tell: impl FnMut(Level, String, f64, f64)) {
    let is_class = |value: f64| matches!(allowed.meaning(value), Meaning::Class(_));
    let is_ignored = |value: f64| allowed.meaning(value) == Meaning::Ignored;
    let is_wrong = |value: f64| allowed.meaning(value) == Meaning::Unknown;
    let (wrong, all) = (
        values.count(is_wrong),
        values.count(|_| true) + values.masked,
    );
    if wrong > 0 {
        let message = format!(
            "it holds values that are no class: {}; allowed are 0 to {} and 255 (ignore); set `model.classes`, or relabel it",
            values.told(is_wrong),
            allowed.largest()
        );
        return tell(Level::Wrong, message, wrong as f64, 0.0);
    }
    let foreground = values.count(|value| is_class(value) && value > 0.0);
    let background = values.count(|value| value == 0.0);
    let nothing = values.count(|value| value == f64::from(IGNORE));
    match (background, foreground) {
        (0, 0) => {
            let message = format!(
                "all its {all} pixels are 255 (ignore) or without data, so that nothing can be learned from it"
            );
            let ignored = values.count(is_ignored) + values.masked;
            tell(Level::Wrong, message, ignored as f64, all as f64);
        }
        (_, 0) if nothing > 0 => {
            let message = format!(
                "it holds 0 ({background} pixels) and 255 ({nothing} pixels) alone, and 255 is ignored: there is no foreground; \
                 where 255 stands for foreground, write 1 in its place"
            );
            tell(Level::Suspicious, message, 0.0, 1.0);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrashard_raster::{DataType, Georeference, Metadata};

    fn label(nodata: Option<f64>) -> Metadata {
        Metadata {
            width: 1,
            height: 1,
            bands: 1,
            data_type: DataType::F64,
            georeference: Georeference::default(),
            nodata,
            descriptions: vec![None],
            overviews: Vec::new(),
            block: (1, 1),
        }
    }

    #[track_caller]
    fn check(values: &[(f64, u64)], classes: usize, expected: Option<(Level, &str)>) {
        let mut counted = Values::default();
        values
            .iter()
            .for_each(|&(value, count)| counted.add(value, count));
        let mut told = Vec::new();
        let allowed = LabelValues::new(&label(None), classes);
        judge(&counted, &allowed, |level, message, _, _| {
            told.push((level, message))
        });
        match expected {
            None => assert_eq!(told, []),
            Some((level, words)) => {
                assert_eq!(told.len(), 1, "{told:?}");
                assert!(told[0].0 == level && told[0].1.contains(words), "{told:?}");
            }
        }
    }

    #[test]
    fn geo_48_values_that_are_no_class_are_listed() {
        check(&[(0.0, 5), (1.0, 2), (255.0, 3)], 2, None);
        let listed =
            "no class: -3 (2 pixels), 0.5 (1 pixels), 2 (4 pixels); allowed are 0 to 1 and 255";
        let values = [(2.0, 4), (0.0, 5), (-3.0, 2), (0.5, 1)];
        check(&values, 2, Some((Level::Wrong, listed)));
        check(&[(0.0, 5), (2.0, 4)], 3, None);
        check(
            &[(f64::NAN, 1), (0.0, 1)],
            2,
            Some((Level::Wrong, "NaN (1 pixels)")),
        );
        let many: Vec<(f64, u64)> = (0..20).map(|value| (f64::from(value), 1)).collect();
        check(&many, 2, Some((Level::Wrong, "9 (1 pixels), and 10 more")));
    }

    #[test]
    fn labels_that_say_nothing_are_told() {
        check(
            &[(255.0, 9)],
            2,
            Some((Level::Wrong, "all its 9 pixels are 255")),
        );
        check(
            &[(255.0, 9), (0.0, 1)],
            2,
            Some((Level::Suspicious, "write 1 in its place")),
        );
        // A scene without water is a scene.
        check(&[(0.0, 9)], 2, None);
    }
}
