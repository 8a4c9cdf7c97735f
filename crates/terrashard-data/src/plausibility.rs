//! Whether a scene looks like what a model was trained on: its bands, their order and their scaling, each told with both numbers.
//!
//! Only medians of bands are known of a training, and scenes differ: of eleven of water, crops, forest, mountains, haze and clouds, any two
//! were at most 0.9 apart ([`distance`]), and where the right order of bands was more than [`ORDER_APART`] off, the best other one was
//! so by 0.8 times that at least. So what is told is seldom wrong; much that is wrong is not told.

use crate::inspection::{Finding, scaling};
use crate::offset::ProductOffset;
use crate::{Result, Scaling, Scene};

/// What is added to reflectances before they are compared: below it sensors see noise.
const FLOOR: f64 = 0.01;

/// The least distance at which a scene is not of the training's unit.
const UNIT_APART: f64 = 1.5;

/// The least distance, brightness left aside, at which bands may have another order.
const ORDER_APART: f64 = 0.5;

/// How many times nearer another unit or order has to be.
const NEARER: f64 = 3.0;

/// How many times a band's median may be that of the training, or a part of it.
const TIMES_APART: f64 = 10.0;

/// Bands of which every order is tried.
const MOST_BANDS: usize = 7;

/// What speaks against a scene being of the bands and the scaling that a model was trained with, one line for each; nothing where nothing
/// does.
///
/// `centres` are the medians or means of the bands' reflectance in training, where they are known. Windows spread over the scene
/// are looked at, not all of it.
///
/// # Errors
/// [`Error::Raster`](crate::Error::Raster), [`Error::Metadata`](crate::Error::Metadata).
pub fn unlike_training(scene: &Scene, centres: Option<&[f32]>) -> Result<Vec<String>> {
    let statistics = scene.sampled_statistics()?;
    if statistics.valid() == 0 {
        return Ok(Vec::new());
    }
    let names = scene.band_titles();
    let read = scaling::Read {
        statistics: &statistics,
        names: &names,
        path: scene.image().path(),
    };
    let mut findings: Vec<Finding> = Vec::new();
    read.inspect_order(&mut findings);
    let mut told: Vec<String> = findings
        .into_iter()
        .map(|finding| finding.message)
        .collect();
    let Some(centres) = centres.filter(|centres| centres.len() == names.len()) else {
        return Ok(told);
    };
    let found = Found {
        medians: (0..names.len())
            .map(|band| statistics.percentile(band, 50.0))
            .collect(),
        trained: centres.iter().map(|&centre| f64::from(centre)).collect(),
        scaling: scene.scaling(),
        names: &names,
    };
    if let Some(unit) = found.unit() {
        told.push(unit);
        return Ok(told);
    }
    let product = ProductOffset::find(scene.image())?;
    let mut offset = Vec::new();
    read.inspect_offset(scene.scaling(), product.as_ref(), &mut offset);
    told.extend(offset.iter().filter_map(|finding| found.offset(finding)));
    if told.is_empty() {
        told.extend(found.order());
    }
    if told.is_empty() {
        told.extend(found.times_apart());
    }
    Ok(told)
}

/// What was found of a scene, and what it is held against.
struct Found<'a> {
    /// Medians of the bands in digital numbers.
    medians: Vec<f64>,
    /// Those of the training in reflectance.
    trained: Vec<f64>,
    scaling: &'a Scaling,
    names: &'a [String],
}

impl Found<'_> {
    fn reflectance(&self, offset: f64) -> Vec<f64> {
        let scale = f64::from(self.scaling.scale);
        self.medians
            .iter()
            .map(|dn| (dn + offset) * scale)
            .collect()
    }

    fn as_read(&self) -> Vec<f64> {
        self.reflectance(f64::from(self.scaling.offset))
    }

    /// Whether the numbers are of another unit than those of the training.
    fn unit(&self) -> Option<String> {
        let apart = distance(&self.as_read(), &self.trained);
        let times = |factor: f64| {
            self.medians
                .iter()
                .map(|dn| dn * factor)
                .collect::<Vec<f64>>()
        };
        let units = [
            (1.0, "reflectance from 0 to 1 already"),
            (1.0 / 255.0, "8 bits, 0 to 255"),
            (1e-4, "digital numbers of Sentinel-2 products, 10000 for 1"),
        ];
        let distances =
            units.map(|(factor, what)| (distance(&times(factor), &self.trained), factor, what));
        let scale = f64::from(self.scaling.scale);
        // The unit of the model is no other: then the offset is wrong.
        let another = |unit: &(f64, f64, &str)| (unit.1 / scale - 1.0).abs() > 1e-3;
        let distances = distances.into_iter().filter(another);
        let (nearest, factor, what) = distances.min_by(|a, b| a.0.total_cmp(&b.0))?;
        if apart < UNIT_APART || nearest * NEARER > apart {
            return None;
        }
        Some(format!(
            "its values look like {what}: {}; the model reads (value + {}) * {}; give it values that are {:e} times these",
            self.beside(&self.as_read(), &times(factor)),
            self.scaling.offset,
            self.scaling.scale,
            (factor / scale) as f32,
        ))
    }

    /// Bands whose values are of another size than those of the training.
    fn times_apart(&self) -> Vec<String> {
        let each = self.as_read().into_iter().zip(&self.trained);
        let apart = each.zip(self.names).filter_map(|((found, &median), name)| {
            // Of a median of 0 or below nothing is ten times as large.
            let alike = median <= 0.0 || (1.0 / TIMES_APART..=TIMES_APART).contains(&(found / median));
            (!alike).then(|| {
                format!(
                    "the median of {name} is a reflectance of {found:.5}, it was {median:.5} in training, more than {TIMES_APART} times \
                     apart: check the offset and scale of the scene, and its bands"
                )
            })
        });
        apart.collect()
    }

    /// What is said of the offset, where the training's medians agree.
    fn offset(&self, finding: &Finding) -> Option<String> {
        let right = finding
            .expected
            .filter(|_| finding.kind == crate::Kind::OffsetMissing);
        let right = self.reflectance(right.unwrap_or(0.0));
        let nearer = distance(&right, &self.trained) < distance(&self.as_read(), &self.trained);
        nearer.then(|| {
            format!(
                "{}; {}",
                finding.message,
                self.beside(&self.as_read(), &right)
            )
        })
    }

    /// Whether another order of the bands fits far better.
    fn order(&self) -> Option<String> {
        let bands = self.names.len();
        if !(2..=MOST_BANDS).contains(&bands) {
            return None;
        }
        let values = self.as_read();
        let apart = shape_distance(&values, &self.trained);
        if apart < ORDER_APART {
            return None;
        }
        let reordered = |order: &[usize]| order.iter().map(|&at| values[at]).collect::<Vec<f64>>();
        let (nearest, order) = orders(bands)
            .into_iter()
            .map(|order| (shape_distance(&reordered(&order), &self.trained), order))
            .min_by(|a, b| a.0.total_cmp(&b.0))?;
        if nearest * NEARER > apart {
            return None;
        }
        let swapped: Vec<&str> = order.iter().map(|&at| self.names[at].as_str()).collect();
        Some(format!(
            "the bands look as if they had another order: what stands for {} looks like {}: {}; name them with `--bands`, or correct the file",
            self.names.join(", "),
            swapped.join(", "),
            self.beside(&values, &reordered(&order))
        ))
    }

    /// The medians as they are read, as they would be, and as they were in training.
    fn beside(&self, read: &[f64], would_be: &[f64]) -> String {
        let list = |values: &[f64]| {
            let values: Vec<String> = values.iter().map(|value| format!("{value:.4}")).collect();
            values.join(", ")
        };
        format!(
            "medians of {} are read as reflectances of {}, would be {}, and were {} in training",
            self.names.join(", "),
            list(read),
            list(would_be),
            list(&self.trained)
        )
    }
}

/// The ratios of two lists of reflectances, as logarithms.
fn ratios(values: &[f64], trained: &[f64]) -> Vec<f64> {
    let above = |value: f64| value.max(0.0) + FLOOR;
    let pairs = values.iter().zip(trained);
    pairs
        .map(|(&value, &trained)| (above(value) / above(trained)).ln())
        .collect()
}

/// The root of the mean square of the logarithms of ratios: 0.7 is twice as large or half as large in every band.
fn distance(values: &[f64], trained: &[f64]) -> f64 {
    let ratios = ratios(values, trained);
    let squares = ratios.iter().map(|ratio| ratio * ratio).sum::<f64>();
    (squares / ratios.len() as f64).sqrt()
}

/// The same without what all bands have in common: a brighter scene is no other order.
fn shape_distance(values: &[f64], trained: &[f64]) -> f64 {
    let ratios = ratios(values, trained);
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    let squares = ratios
        .iter()
        .map(|ratio| (ratio - mean).powi(2))
        .sum::<f64>();
    (squares / ratios.len() as f64).sqrt()
}

/// All orders of this many.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let mut orders = vec![Vec::new()];
    for _ in 0..count {
        let longer = |order: Vec<usize>| {
            let next = (0..count)
                .filter(|at| !order.contains(at))
                .collect::<Vec<_>>();
            next.into_iter().map(move |at| [&order[..], &[at]].concat())
        };
        orders = orders.into_iter().flat_map(longer).collect();
    }
    orders
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use terrashard_raster::{MemorySource, Metadata, RasterSource, Samples, Window};

    use super::*;
    use crate::{Band, BandSelection, SceneOptions};

    /// Medians of the shipped scene's west half, in reflectance: B02, B03, B04, B08, B11, B12.
    const WATER: [f32; 6] = [0.1416, 0.1136, 0.1072, 0.1648, 0.1728, 0.1088];
    /// Of forest and meadows in summer: the sixth of the scenes that the limits were found with.
    const FOREST: [f32; 6] = [0.0438, 0.0901, 0.0621, 0.366, 0.2202, 0.1298];

    fn scene(
        bands: BandSelection,
        scaling: Scaling,
        change: impl FnOnce(Vec<f32>, &mut Metadata) -> Samples,
    ) -> Scene {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../examples/water/S2A_T33UUU_20170216_L1C_6band.tif");
        let scene = terrashard_raster::open(path).expect("the shipped scene");
        let raster = scene
            .read_window(Window::new(900, 200, 256, 256))
            .expect("inside");
        let mut metadata = Metadata {
            width: 256,
            height: 256,
            ..scene.metadata().clone()
        };
        let samples = raster.samples().to_f32(0..raster.samples().len());
        let samples = change(samples, &mut metadata);
        let image = MemorySource::new("scene", metadata, samples).expect("filled");
        let options = SceneOptions {
            scaling,
            ..SceneOptions::new(bands)
        };
        Scene::new(Box::new(image), None, options).expect("sound")
    }

    fn numbers() -> BandSelection {
        BandSelection::Pick((1..=6).map(Band::Number).collect())
    }

    fn times(factor: f32, added: f32) -> impl FnOnce(Vec<f32>, &mut Metadata) -> Samples {
        move |samples, metadata| {
            metadata.descriptions.fill(None);
            Samples::F32(
                samples
                    .iter()
                    .map(|sample| sample * factor + added)
                    .collect(),
            )
        }
    }

    fn digital(offset: f32) -> Scaling {
        Scaling {
            offset,
            ..Scaling::default()
        }
    }

    #[track_caller]
    fn only(scene: &Scene, trained: &[f32], words: &[&str]) {
        let told = unlike_training(scene, Some(trained)).expect("reads");
        assert_eq!(told.len(), 1, "{told:#?}");
        for words in words {
            assert!(told[0].contains(words), "{words}: {told:#?}");
        }
    }

    #[test]
    fn geo_38_another_unit_is_told_with_what_was_trained_on() {
        let none: Vec<String> = Vec::new();
        let sound = scene(numbers(), digital(0.0), times(1.0, 0.0));
        for trained in [WATER, FOREST] {
            assert_eq!(
                unlike_training(&sound, Some(&trained)).expect("reads"),
                none
            );
        }
        assert_eq!(unlike_training(&sound, None).expect("reads"), none);
        let trained_in = "were 0.1416, 0.1136, 0.1072, 0.1648, 0.1728, 0.1088 in training";
        let reflectance = scene(numbers(), digital(0.0), times(1e-4, 0.0));
        only(
            &reflectance,
            &WATER,
            &["reflectance from 0 to 1 already", "1e4 times", trained_in],
        );
        let bytes = scene(numbers(), digital(0.0), times(255e-4, 0.0));
        only(&bytes, &WATER, &["8 bits, 0 to 255", trained_in]);
        let unscaled = Scaling {
            scale: 1.0,
            ..Scaling::default()
        };
        let products = scene(numbers(), unscaled, times(1.0, 0.0));
        only(
            &products,
            &WATER,
            &["digital numbers of Sentinel-2", "1e-4 times", trained_in],
        );
        // It says as much of a training that was normalised by what is known.
        only(&reflectance, &FOREST, &["reflectance from 0 to 1 already"]);
    }

    #[test]
    fn geo_36_an_offset_that_is_missing_or_applied_twice_is_told_with_what_was_trained_on() {
        let later = scene(numbers(), digital(0.0), times(1.0, 1000.0));
        only(&later, &WATER, &["set `offset` = -1000", "in training"]);
        let right = scene(numbers(), digital(-1000.0), times(1.0, 1000.0));
        assert!(
            unlike_training(&right, Some(&WATER))
                .expect("reads")
                .is_empty()
        );
        let twice = scene(numbers(), digital(-1000.0), times(1.0, 0.0));
        only(&twice, &WATER, &["set `offset` = 0", "in training"]);
    }

    #[test]
    fn geo_40_bands_of_another_order_are_told_by_name_or_by_what_was_trained_on() {
        let swapped = |a: usize, b: usize| {
            move |samples: Vec<f32>, metadata: &mut Metadata| {
                metadata.descriptions.swap(a, b);
                Samples::F32(samples)
            }
        };
        let names = || BandSelection::names(["B02", "B03", "B04", "B08", "B11", "B12"]);
        let scene_of = |a, b| scene(names(), digital(0.0), swapped(a, b));
        assert!(
            unlike_training(&scene_of(0, 0), None)
                .expect("reads")
                .is_empty()
        );
        let told = unlike_training(&scene_of(0, 2), None).expect("reads");
        assert!(
            told.iter().all(|told| told.contains("look swapped")),
            "{told:#?}"
        );
        assert!(told[0].contains("B04 and B02 look swapped"), "{told:#?}");

        // Without names, where bands differ as much as those of a forest do.
        let forest = |order: [usize; 6]| {
            move |samples: Vec<f32>, metadata: &mut Metadata| {
                metadata.descriptions.fill(None);
                let pixels = samples.len() / 6;
                let value = |at: usize| {
                    let band = order[at / pixels];
                    let noise = 1.0 + 0.1 * ((at * 7 % 13) as f32 / 13.0 - 0.5);
                    1e4 * FOREST[band] * 0.7 * noise
                };
                Samples::F32((0..samples.len()).map(value).collect())
            }
        };
        let sound = scene(numbers(), digital(0.0), forest([0, 1, 2, 3, 4, 5]));
        assert!(
            unlike_training(&sound, Some(&FOREST))
                .expect("reads")
                .is_empty()
        );
        let reversed = scene(numbers(), digital(0.0), forest([3, 1, 2, 0, 4, 5]));
        let looks = "looks like band 4, band 2, band 3, band 1, band 5, band 6";
        only(&reversed, &FOREST, &["another order", looks, "in training"]);
    }
}
