//! What a run tells about itself: a line per step for programs, a progress display for people.

mod events;
mod metrics;
mod progress;
mod validation;

pub use events::EventFile;
pub use metrics::Metrics;
pub use progress::{Display, Figures, Progress};
pub(crate) use progress::{clock, energy, joules_of_epoch};
pub use validation::ValidationRecord;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize};
use terrashard_collectives::Traffic;
use terrashard_data::baseline::Score;
use terrashard_data::{Confusion, ConfusionMatrix, DATA_RANGE, Fidelity};
use terrashard_layout::{RankBytes, Stage};

use crate::error::{Error, Result};
use crate::planning::dry_run::Footprint;

/// One optimizer step, a line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StepRecord {
    /// The step, counted from 1.
    pub step: u64,
    /// The loss over all ranks and micro-batches; of a step that was skipped maybe NaN, which JSON writes as null.
    #[serde(deserialize_with = "nan_if_null")]
    pub loss: f64,
    /// The learning rate.
    pub lr: f64,
    /// Samples per second over all ranks, this step.
    pub images_s: f64,
    /// The global norm of the gradient, before clipping.
    pub grad_norm: f64,
    /// Whether the update was left out.
    pub skipped: bool,
    /// Samples over all ranks that could not be read, and were of weight 0.
    #[serde(default, skip_serializing_if = "is_none_of_them")]
    pub left_out: u64,
    /// Wall time of the step in seconds.
    pub seconds: f64,
    /// The terms of the loss, unweighted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub terms: BTreeMap<String, f64>,
    /// Where this rank's time went since the step before: rank 0's.
    #[serde(default)]
    pub times: StepTimes,
    /// What rank 0 sent in this step.
    #[serde(default)]
    pub sent: SentBytes,
    /// What the GPUs of all ranks took since a step told it last, in joules; 0 where nobody tells, or the counters are read a step later.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub joules: f64,
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

fn is_none_of_them(count: &u64) -> bool {
    *count == 0
}

/// Where a rank's time went, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct StepTimes {
    /// Waiting for batches.
    pub data: f64,
    /// Forward and backward.
    pub compute: f64,
    /// Waiting for other ranks: communication that nothing hides.
    pub communication: f64,
    /// The update.
    pub optimizer: f64,
    /// Saving, of the checkpoint before this step.
    pub checkpoint: f64,
    /// Measuring the model and drawing its map, before this step.
    #[serde(default)]
    pub validation: f64,
}

impl StepTimes {
    /// All of them.
    pub fn total(&self) -> f64 {
        self.data
            + self.compute
            + self.communication
            + self.optimizer
            + self.checkpoint
            + self.validation
    }

    /// Adds those of another step.
    pub fn add(&mut self, other: &Self) {
        self.data += other.data;
        self.compute += other.compute;
        self.communication += other.communication;
        self.optimizer += other.optimizer;
        self.checkpoint += other.checkpoint;
        self.validation += other.validation;
    }
}

/// Bytes that a rank sent, by verb, with scalars and batch statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SentBytes {
    /// Gradients at stage 0; scalars and batch statistics at every stage; over groups with hybrid sharding.
    pub all_reduce: u64,
    /// Gradients from stage 1 on.
    pub reduce_scatter: u64,
    /// Parameters: after the update at stages 1 and 2, for each use at stage 3.
    pub all_gather: u64,
}

impl SentBytes {
    /// What was sent over some groups between two readings of each.
    pub(crate) fn of<const N: usize>(now: &[Traffic; N], before: &[Traffic; N]) -> Self {
        let mut sent = Self::default();
        for (now, before) in now.iter().zip(before) {
            let traffic = now.since(before);
            sent.all_reduce += traffic.all_reduce.bytes;
            sent.reduce_scatter += traffic.reduce_scatter.bytes;
            sent.all_gather += traffic.all_gather.bytes;
        }
        sent
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.all_reduce + self.reduce_scatter + self.all_gather
    }
}

fn nan_if_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

impl StepRecord {
    /// The record as one line.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).expect("a record is plain data") + "\n"
    }
}

/// Bytes of model states that a rank really held, counted on its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HeldBytes {
    /// Parameter values.
    pub parameters: u64,
    /// Gradients at the end of backward, before the update.
    pub gradients: u64,
    /// Master weights where they are separate, moments and moving average.
    pub optimizer: u64,
    /// Of all these, what lies in host memory by offloading; not counted in the others.
    #[serde(default)]
    pub host: u64,
    /// Parameters gathered at once for the blocks in use.
    #[serde(default)]
    pub gathered: u64,
    /// Gradients on their way at once.
    #[serde(default)]
    pub buckets: u64,
}

impl HeldBytes {
    /// Those between steps: parameters, gradients, optimizer states, on the device and in host memory.
    pub fn total(&self) -> u64 {
        self.parameters + self.gradients + self.optimizer + self.host
    }
}

/// One call of `fit`, a line of `sessions.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// Name of the configuration.
    pub name: String,
    /// The checkpoint's step that this call started from; none if it started afresh.
    pub resumed_from_step: Option<u64>,
    /// The last step it made.
    pub last_step: u64,
    /// The signal that it ended by before its last step, if one came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_by: Option<String>,
    /// Steps of the whole run; 0 in records of earlier versions.
    #[serde(default)]
    pub steps: u64,
    /// Steps of this call that were skipped: they changed nothing.
    #[serde(default)]
    pub skipped: u64,
    /// Samples of this call's steps, over all ranks, that could not be read and were of weight 0.
    #[serde(default)]
    pub left_out: u64,
    /// Number of ranks.
    pub ranks: usize,
    /// ZeRO stage.
    pub stage: Stage,
    /// Samples in a step over all ranks.
    pub global_batch: usize,
    /// Wall time in seconds, from reading the configuration to the last checkpoint.
    pub seconds: f64,
    /// Samples of the training region.
    pub samples: usize,
    /// Elements of all parameters.
    pub parameters: u64,
    /// Predicted bytes on each rank at stages 0, 1, 2 and 3.
    pub predicted: Vec<RankBytes>,
    /// Bytes that the largest rank really held, at this call's stage.
    pub counted: HeldBytes,
    /// Where rank 0's time went.
    #[serde(default)]
    pub times: StepTimes,
    /// What rank 0 sent in the last step.
    #[serde(default)]
    pub sent: SentBytes,
    /// What the formulas say that it sends, without scalars and batch statistics.
    #[serde(default)]
    pub predicted_sent: u64,
    /// The most memory that the program held, with all its ranks; none where the system does not tell.
    #[serde(default)]
    pub peak_rss_bytes: Option<u64>,
    /// What `plan` foretells of a rank's device; none in records of earlier versions.
    #[serde(default)]
    pub foretold: Option<Footprint>,
    /// Batches that each rank's loader prepares at once in host memory.
    #[serde(default)]
    pub prepared: usize,
    /// The most that training really took; none where nobody tells.
    #[serde(default)]
    pub measured_peak: Option<MeasuredPeak>,
}

/// The most memory that training took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MeasuredPeak {
    /// Of the GPU of the rank that took most.
    Device {
        /// Held by tensors.
        bytes: u64,
    },
    /// Of the whole program, above what it held before.
    Program {
        /// Resident.
        bytes: u64,
    },
}

/// How well a map of foreground agrees with the label, over valid pixels. A ratio of nothing is none. Of a model of several
/// classes, ratios are means over the classes that have them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Scores {
    /// Intersection over union of the foreground.
    pub iou: Option<f64>,
    /// Harmonic mean of precision and recall, `2 iou / (1 + iou)`.
    pub f1: Option<f64>,
    /// Share of the predicted foreground that is foreground.
    pub precision: Option<f64>,
    /// Share of the foreground that was predicted.
    pub recall: Option<f64>,
    /// Share of the valid pixels that is foreground, of any class.
    pub prevalence: Option<f64>,
    /// `iou` over the pixels near an edge between foreground and background.
    pub shore_iou: Option<f64>,
}

impl Scores {
    /// The scores that follow from counted pixels.
    pub fn of(counts: &Score) -> Self {
        let Score { all, shore } = counts;
        Self {
            iou: all.iou(),
            f1: all.f1(),
            precision: all.precision(),
            recall: all.recall(),
            prevalence: all.prevalence(),
            shore_iou: shore.iou(),
        }
    }
}

impl Scores {
    /// The scores of a map of foreground of which only the whole is counted.
    pub fn of_foreground(counts: &Confusion) -> Self {
        Self {
            iou: counts.iou(),
            f1: counts.f1(),
            precision: counts.precision(),
            recall: counts.recall(),
            prevalence: counts.prevalence(),
            shore_iou: None,
        }
    }

    /// The scores of a map of several classes.
    pub fn of_classes(matrix: &ConfusionMatrix) -> Self {
        let background = matrix.of_class(0).prevalence();
        Self {
            iou: matrix.mean(Confusion::iou),
            f1: matrix.mean(Confusion::f1),
            precision: matrix.mean(Confusion::precision),
            recall: matrix.mean(Confusion::recall),
            prevalence: background.map(|share| 1.0 - share),
            shore_iou: None,
        }
    }
}

/// One class against all others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassScores {
    /// The class.
    pub class: usize,
    /// Valid pixels of it in the label.
    pub pixels: u64,
    /// Intersection over union; none of a class that is neither in the label nor in the map.
    pub iou: Option<f64>,
    /// `2 iou / (1 + iou)`.
    pub f1: Option<f64>,
    /// Share of the pixels taken for it that are of it.
    pub precision: Option<f64>,
    /// Share of its pixels that were found.
    pub recall: Option<f64>,
    /// Its share of the valid pixels.
    pub prevalence: Option<f64>,
}

impl ClassScores {
    /// Of every class.
    pub fn of(matrix: &ConfusionMatrix) -> Vec<Self> {
        let score = |class| {
            let counts = matrix.of_class(class);
            Self {
                class,
                pixels: counts.true_positive + counts.false_negative,
                iou: counts.iou(),
                f1: counts.f1(),
                precision: counts.precision(),
                recall: counts.recall(),
                prevalence: counts.prevalence(),
            }
        };
        (0..matrix.classes()).map(score).collect()
    }
}

/// How close the super-resolved image comes to the image at high resolution, over the pixels that neither lacks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageScores {
    /// Peak signal-to-noise ratio in dB over all bands; none where nothing differs or nothing was compared.
    pub psnr: Option<f64>,
    /// Structural similarity, windows of 11 x 11 pixels with Gaussian weights, the mean over bands.
    pub ssim: Option<f64>,
    /// `psnr` of the bicubic enlargement, where the image's bands for it are known.
    pub bicubic_psnr: Option<f64>,
    /// `ssim` of the bicubic enlargement.
    pub bicubic_ssim: Option<f64>,
    /// What values range over, for both measures: reflectance.
    pub data_range: f64,
    /// Values that were compared, over all bands.
    pub image_values: u64,
}

impl ImageScores {
    /// Of the model's image and of the bicubic enlargement.
    pub fn of(model: &Fidelity, bicubic: Option<&Fidelity>) -> Self {
        // Sums that are no number any more, of a model that has diverged, are no score either.
        let number = |value: Option<f64>| value.filter(|value| value.is_finite());
        Self {
            psnr: number(model.psnr()),
            ssim: number(model.ssim()),
            bicubic_psnr: number(bicubic.and_then(Fidelity::psnr)),
            bicubic_ssim: number(bicubic.and_then(Fidelity::ssim)),
            data_range: DATA_RANGE,
            image_values: model.values,
        }
    }
}

/// What `test` measured: what it prints as JSON, and `test.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TestRecord {
    /// The model's scores.
    #[serde(flatten)]
    pub scores: Scores,
    /// A pixel is foreground where its probability is above this; none with several classes, of which the most probable wins.
    pub threshold: Option<f64>,
    /// Labelled pixels of the test region.
    pub valid_pixels: u64,
    /// With several classes, each of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub per_class: Vec<ClassScores>,
    /// With a super-resolution branch and an image to compare with.
    #[serde(flatten)]
    pub image: Option<ImageScores>,
    /// Labelled pixels near an edge.
    pub shore_pixels: u64,
    /// The scores of the NDWI threshold, where the bands allow it.
    pub baseline: Option<Scores>,
    /// What was measured.
    pub checkpoint: PathBuf,
    /// Its step, if it is a run's.
    pub step: Option<u64>,
    /// What it was measured on: `data.test`, and the images where they are others than those that the model was trained on.
    #[serde(default)]
    pub region: String,
    /// Wall time in seconds.
    pub seconds: f64,
}

impl TestRecord {
    /// Reads a `test.json`.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Syntax`].
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::read(path))?;
        serde_json::from_str(&text).map_err(|error| Error::Syntax {
            path: path.into(),
            message: error.to_string(),
        })
    }
}

/// A number with its noun: `1 rank`, `2 ranks`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}
