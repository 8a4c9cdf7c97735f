//! `verify`: the same steps trained twice, plainly and as the configuration says, and where they part.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use serde::Serialize;
use terrashard_collectives::Communicator;
use terrashard_data::Chips;
use terrashard_layout::{Offload, SampleOrder, Stage};
use terrashard_models::HeadNorm;
use terrashard_zero::StateKind;

use super::rank::Rank;
use super::resume::Start;
use super::{Plan, StopRequest, run_ranks, samples, settings};
use crate::config::{
    Batch, BatchNormStatistics, Config, Device, Precision, Recompute, RecomputeChoice, ZeroSection,
};
use crate::error::{Error, Result};
use crate::record::Display;

/// Up to this relative difference a parameter counts as equal. In double precision, sums in another order differ by 1e-16 and
/// AdamW, which divides gradients by their own size, makes of that what its epsilon of 1e-8 allows.
pub const BOUND: f64 = 1e-6;

/// What `verify` found: what it prints as JSON.
///
/// Differences are relative to a parameter's norm, `||a - b|| / ||b||`, or where that is less, to a step of the learning rate in
/// each element: a bias whose gradient is zero in mathematics stays at its rounding noise, of which nothing can be said.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verification {
    /// What was compared with: in words.
    pub reference: String,
    /// In what both were computed: in words.
    pub precision: String,
    /// Steps that were trained.
    pub steps: u64,
    /// Those of them that changed the parameters: the others were skipped.
    pub applied_steps: u64,
    /// The largest difference of any parameter at any step.
    pub max_rel: f64,
    /// The parameter that differs most.
    pub parameter: Option<String>,
    /// The first step at which a parameter differed by more than `bound`; if none did, that of the largest difference.
    pub step: Option<u64>,
    /// Up to here a parameter counts as equal.
    pub bound: f64,
    /// Whether every parameter is.
    pub equal: bool,
    /// The largest difference of each parameter.
    pub per_parameter: BTreeMap<String, f64>,
}

/// Trains `steps` steps twice in memory, at stage 0 on one rank and as the configuration says, and compares the parameters
/// after each. Nothing is written.
///
/// Both see the same samples in the same micro-batches. A training in fp32 is compared in double precision, in which rounding
/// can neither look like a difference nor hide one. Where batch statistics are taken over ranks and micro-batches follow one
/// another, one rank cannot have the same statistics, and in 16 bits it would round otherwise: then the reference runs at
/// stage 0 on as many ranks.
///
/// # Errors
/// Those of [`super::fit`]; [`Error::InvalidValue`] if every step was skipped.
pub fn verify(config: &Config, device: Device, steps: u64) -> Result<Verification> {
    if steps == 0 {
        return Err(Error::invalid("--steps", 0, "at least 1"));
    }
    let ranks = config.zero.ranks.count(device);
    let chips = samples(config, ranks, false)?.chips;
    let batch = Batch::resolve(&config.train, ranks)?;
    let (reference_ranks, reference_batch) = reference(config, ranks, batch);
    let plain = Config {
        zero: ZeroSection {
            stage: Stage::Zero,
            offload: Offload::None,
            recompute: RecomputeChoice::All(Recompute::Keep),
            prefetch: 0,
            shard_group: None,
            overlap: false,
            ..config.zero.clone()
        },
        ..config.clone()
    };
    let mut found = Verification {
        reference: match reference_ranks {
            1 => "stage 0 on one rank".into(),
            ranks => format!("stage 0 on {ranks} ranks"),
        },
        precision: match config.train.precision {
            Precision::Fp32 | Precision::Tf32 => "double precision".into(),
            Precision::Bf16 => "bf16".into(),
            Precision::Fp16 => "fp16".into(),
        },
        steps,
        applied_steps: 0,
        max_rel: 0.0,
        parameter: None,
        step: None,
        bound: BOUND,
        equal: true,
        per_parameter: BTreeMap::new(),
    };
    thread::scope(|scope| {
        // Both train at once, a step apart at most, so that two sets of parameters are kept and not two for each step.
        let (to_expected, expected) = sync_channel(0);
        let (to_got, got) = sync_channel(0);
        let chips = &chips;
        let trial = |config, ranks, batch, sender| {
            scope.spawn(move || train(config, device, (ranks, batch), chips, steps, &sender))
        };
        let reference = trial(&plain, reference_ranks, reference_batch, to_expected);
        let trained = trial(config, ranks, batch, to_got);
        for step in 1..=steps {
            // A training that failed says why below.
            let (Ok(expected), Ok(got)) = (expected.recv(), got.recv()) else {
                break;
            };
            found.compare(step, &got, &expected, config.train.lr);
        }
        drop((expected, got));
        for trained in [reference, trained] {
            let joined = trained.join().map_err(|_| Error::Panicked {
                who: "a training".into(),
                message: "its message stands above".into(),
            })?;
            found.applied_steps = joined?;
        }
        Ok::<(), Error>(())
    })?;
    if found.applied_steps == 0 {
        let expected = "more steps: each of these was skipped, since a gradient was not finite";
        return Err(Error::invalid("--steps", steps, expected));
    }
    Ok(found)
}

/// On how many ranks the reference runs, and how it takes a step's samples.
fn reference(config: &Config, ranks: usize, batch: Batch) -> (usize, Batch) {
    if matches!(config.train.precision, Precision::Bf16 | Precision::Fp16) {
        return (ranks, batch);
    }
    let statistics = match config.model.head_norm {
        HeadNorm::Batch => Some(config.train.batch_norm),
        HeadNorm::None => None,
    };
    let local = |statistics| statistics != BatchNormStatistics::Sync;
    if batch.accumulate == 1 && !statistics.is_some_and(local) {
        let micro = batch.global;
        return (1, Batch { micro, ..batch });
    }
    if statistics.is_none_or(local) {
        let accumulate = batch.accumulate * ranks;
        return (
            1,
            Batch {
                accumulate,
                ..batch
            },
        );
    }
    (ranks, batch)
}

/// Names and values.
type Tensors = Vec<(String, Vec<f64>)>;

/// Trains and sends the parameters after each step; returns the number of steps that changed them.
fn train(
    config: &Config,
    device: Device,
    (ranks, batch): (usize, Batch),
    chips: &Arc<Chips>,
    steps: u64,
    to: &SyncSender<Tensors>,
) -> Result<u64> {
    let plan = Plan {
        validation: None,
        panels: None,
        config,
        run: None,
        device,
        gpu: None,
        display: Display::Quiet,
        stop: StopRequest::default(),
        precision: match settings::precision(config) {
            terrashard_zero::Precision::F32 => terrashard_zero::Precision::F64,
            half => half,
        },
        batch,
        order: SampleOrder::new(chips.len(), config.train.seed)?,
        chips: chips.clone(),
        start: Start::Afresh,
        changed: None,
        steps,
        end: None,
        last_step: steps,
    };
    let applied = run_ranks(ranks, |communicator| {
        let first = communicator.rank() == 0;
        let mut rank = Rank::new(&plan, Arc::new(communicator))?;
        for step in 1..=steps {
            rank.step(step)?;
            let parameters = rank.optimizer.whole_states(StateKind::Parameter)?;
            // Nobody listens after the other training failed; this one then ends with its steps.
            if first {
                let _ = to.send(doubles(parameters));
            }
        }
        Ok(rank.optimizer.steps())
    })?;
    Ok(applied[0])
}

fn doubles(tensors: Vec<(String, burn::tensor::TensorData)>) -> Tensors {
    let tensors = tensors.into_iter();
    tensors
        .map(|(name, data)| (name, data.iter::<f64>().collect()))
        .collect()
}

impl Verification {
    /// Takes in the parameters after one step.
    fn compare(&mut self, step: u64, got: &Tensors, expected: &Tensors, lr: f64) {
        for ((name, got), (_, expected)) in got.iter().zip(expected) {
            let away = got.iter().zip(expected).map(|(a, b)| (a - b).powi(2));
            let (away, norm) = (
                away.sum::<f64>(),
                expected.iter().map(|x| x * x).sum::<f64>(),
            );
            let least = expected.len() as f64 * lr * lr;
            let rel = match away {
                0.0 => 0.0,
                _ => (away / norm.max(least)).sqrt(),
            };
            // What is no number must not pass for small.
            let rel = if rel.is_nan() { f64::INFINITY } else { rel };
            let largest = self.per_parameter.entry(name.clone()).or_default();
            *largest = largest.max(rel);
            if rel > self.max_rel {
                self.max_rel = rel;
                self.parameter = Some(name.clone());
                if self.equal {
                    self.step = Some(step);
                }
            }
            self.equal &= rel <= self.bound;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    use terrashard_data::{BandSelection, ChipOptions, OnUnreadable, Scene, SceneOptions};
    use terrashard_raster::{
        Georeference, MemorySource, Metadata, Raster, RasterSource, Samples, Window,
    };

    use super::*;

    const CONFIG: &str = r#"
        [model]
        dims = [8, 8, 8, 8]
        depths = [1, 1, 1, 1]
        heads = [1, 1, 1, 1]
        head_channels = 8
        scale = 1
        superres = false
        bands = 2
        [data]
        scenes = [{ image = "image", mask = "mask" }]
        bands = [1, 2]
        chip = 32
        on_unreadable = "skip_tile"
        [train]
        steps = 4
        global_batch = 6
        micro_batch = 1
        lr = 1e-2
        seed = 5
        [zero]
        stage = 2
        [checkpoint]
        [log]
    "#;

    fn raster(name: &str, samples: Samples) -> MemorySource {
        let [width, height] = [128, 64];
        let bands = samples.len() / (width * height);
        let metadata = Metadata {
            width,
            height,
            bands,
            data_type: samples.data_type(),
            georeference: Georeference::default(),
            nodata: None,
            descriptions: vec![None; bands],
            overviews: Vec::new(),
            block: (width, 1),
        };
        MemorySource::new(name, metadata, samples).unwrap()
    }

    /// An image whose second chip cannot be read once it is damaged.
    #[derive(Debug)]
    struct Perishable(MemorySource, Arc<AtomicBool>, Damaged);

    impl RasterSource for Perishable {
        fn metadata(&self) -> &Metadata {
            self.0.metadata()
        }

        fn path(&self) -> &Path {
            self.0.path()
        }

        fn read_window(&self, window: Window) -> terrashard_raster::Result<Raster> {
            let is_bad = window.row < 32 && window.col < 64 && window.col_end() > 32
                || self.2 == Damaged::Wholly;
            if is_bad && self.1.load(Ordering::Relaxed) {
                let path = self.path().to_owned();
                return Err(terrashard_raster::Error::Empty { path });
            }
            self.0.read_window(window)
        }
    }

    /// When the image is damaged.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Damaged {
        Never,
        BeforeChipsAreCut,
        AfterChipsAreCut,
        /// All of it, after the chips are cut.
        Wholly,
    }

    /// The parameters after four steps of six samples.
    fn trained(ranks: usize, damaged: Damaged) -> (u64, Tensors) {
        let config: Config = toml::from_str(CONFIG).unwrap();
        let damage = Arc::new(AtomicBool::new(damaged == Damaged::BeforeChipsAreCut));
        let values = (0..2 * 128 * 64).map(|at| 500 + (at * 37 % 3000) as u16);
        let image = raster("image", Samples::U16(values.collect()));
        let labels = (0..128 * 64).map(|at| u8::from(at * 37 % 3000 > 1500));
        let mask = raster("mask", Samples::U8(labels.collect()));
        let options = SceneOptions {
            scale: 1,
            cache_bytes: 0,
            ..SceneOptions::new(BandSelection::All(2))
        };
        let image = Perishable(image, damage.clone(), damaged);
        let scene = Scene::new(Box::new(image), Some(Box::new(mask)), options).unwrap();
        let (scene, whole) = (Arc::new(scene), Window::new(0, 0, 128, 64));
        let options = ChipOptions {
            chip: 32,
            stride: 32,
            unreadable: OnUnreadable::SkipTile,
            ..ChipOptions::default()
        };
        let chips = Chips::new(vec![(scene, whole)], options).unwrap();
        damage.store(damaged != Damaged::Never, Ordering::Relaxed);
        let batch = Batch::resolve(&config.train, ranks).unwrap();
        assert_eq!(batch.accumulate, 6 / ranks);
        let (to, from) = sync_channel(4);
        let device = Device::Cpu;
        let applied = train(&config, device, (ranks, batch), &Arc::new(chips), 4, &to).unwrap();
        (applied, from.try_iter().last().unwrap())
    }

    /// The weights of all other pixels are exactly those of a training in which the whole tile was ignored from the start.
    #[test]
    fn h12_a_tile_that_goes_bad_is_one_that_is_ignored_on_any_number_of_ranks() {
        for ranks in [1, 2, 3] {
            let ignored = trained(ranks, Damaged::BeforeChipsAreCut);
            assert_eq!(ignored.0, 4, "steps");
            let left_out = trained(ranks, Damaged::AfterChipsAreCut);
            assert!(left_out == ignored, "{ranks} ranks");
            assert!(left_out != trained(ranks, Damaged::Never), "{ranks} ranks");
        }
    }

    #[test]
    fn n9_a_step_without_a_valid_pixel_on_any_rank_changes_nothing() {
        for ranks in [1, 3] {
            let (applied, parameters) = trained(ranks, Damaged::Wholly);
            // The learning rate goes by steps that were applied.
            assert_eq!(applied, 0);
            for (name, values) in &parameters {
                assert!(values.iter().all(|value| value.is_finite()), "{name}");
            }
            let (_, moved) = trained(ranks, Damaged::Never);
            let config: Config = toml::from_str(CONFIG).unwrap();
            let first = initial_values(&config);
            assert!(moved != first);
            assert!(parameters == first, "{ranks} ranks");
        }
    }

    /// Those of every parameter, by the seed.
    fn initial_values(config: &Config) -> Tensors {
        let model = config.model.init(&burn::tensor::Device::flex()).unwrap();
        let parameters = terrashard_models::parameters(&model).into_iter();
        let mut values: Tensors = parameters
            .map(|(name, shape)| {
                let values = terrashard_models::initial_value(&name, &shape, config.train.seed);
                (name, values.into_iter().map(f64::from).collect())
            })
            .collect();
        values.sort_by(|(a, _), (b, _)| a.cmp(b));
        values
    }

    #[test]
    fn the_first_step_that_differs_is_told() {
        let found = |steps: &[[f64; 2]]| {
            let mut found = Verification {
                reference: String::new(),
                precision: String::new(),
                steps: 3,
                applied_steps: 3,
                max_rel: 0.0,
                parameter: None,
                step: None,
                bound: BOUND,
                equal: true,
                per_parameter: BTreeMap::new(),
            };
            let tensors = |values: &[f64; 2]| vec![("a".to_string(), values.to_vec())];
            for (index, values) in steps.iter().enumerate() {
                let expected = tensors(&[3.0, 4.0]);
                found.compare(index as u64 + 1, &tensors(values), &expected, 0.1);
            }
            found
        };
        let apart = found(&[[3.0, 4.0], [3.0, 4.5], [3.0, 5.0]]);
        assert_eq!((apart.max_rel, apart.equal), (0.2, false));
        assert_eq!(
            (apart.parameter.as_deref(), apart.step),
            (Some("a"), Some(2))
        );
        let near = found(&[[3.0, 4.0 + 1e-7]]);
        assert!(near.equal && near.step == Some(1) && near.max_rel > 0.0);
        let same = found(&[[3.0, 4.0]]);
        assert!(same.equal && same.step.is_none());
        assert!(!found(&[[f64::NAN, 4.0]]).equal);
        let mut noise = found(&[]);
        let tensors = |value| vec![("a".to_string(), vec![value])];
        noise.compare(1, &tensors(1e-12), &tensors(-1e-12), 1e-3);
        assert!(noise.equal && noise.max_rel < 1e-8);
    }
}
