//! `bench branch`: whether the super-resolution branch helps the segmentation, on an image that is its own target.
//!
//! An image and its mask stand for a fine pair: averaged over squares, the image is the model's input, and four of its bands at full
//! resolution are what the branch learns. The west half is trained on, the east half tested.

mod scene;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use terrashard_trainer::config::{Config, Device};
use terrashard_trainer::evaluation::{self, TestOptions};
use terrashard_trainer::record::Display;
use terrashard_trainer::run_directory::RunDirectory;
use terrashard_trainer::training::{self, FitOptions, Partial, StopRequest};

use crate::{memory, npy};

/// Fine pixels that are averaged to one along each side.
const SCALE: usize = 5;

/// What to measure.
#[derive(Clone, Debug)]
pub struct BranchBench {
    /// Reflectance, `[height, width, bands]`: blue, green, red and near infrared first.
    pub image: PathBuf,
    /// Classes, `[height, width, 1]`.
    pub mask: PathBuf,
    /// The class that is foreground.
    pub class: u8,
    /// Optimizer steps of a run.
    pub steps: u64,
    /// Seeds, from 0.
    pub seeds: u64,
    /// Weights of the image's L1 loss, each a training with the branch.
    pub l1_weights: Vec<f64>,
}

/// One training, measured on the half that it has not seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BranchRow {
    /// Who ran.
    pub who: String,
    /// Which benchmark.
    pub bench: String,
    /// Whether the model had the branch.
    pub branch: bool,
    /// Weight of the branch's L1 loss, where there is one.
    pub l1_weight: Option<f64>,
    /// The seed of initial values, order and augmentation; none in a row of means.
    pub seed: Option<u64>,
    /// Optimizer steps.
    pub steps: u64,
    /// Elements of all parameters.
    pub parameters: u64,
    /// Of the segmentation.
    pub iou: f64,
    /// Of the segmentation.
    pub f1: f64,
    /// Of the super-resolved image, in dB.
    pub psnr: Option<f64>,
    /// Of the super-resolved image.
    pub ssim: Option<f64>,
    /// Of the bicubic enlargement, in dB.
    pub bicubic_psnr: Option<f64>,
    /// Of the bicubic enlargement.
    pub bicubic_ssim: Option<f64>,
    /// Median of the steps, milliseconds of the clock.
    pub step_ms: f64,
    /// What all threads computed, by step, milliseconds: with reading the data.
    pub cpu_ms: Option<f64>,
    /// Largest resident size of the process that trained above its start, with its data, bytes.
    pub peak_bytes: Option<u64>,
    /// Mean of the loss over the last twentieth of the steps.
    pub loss: f64,
}

/// What the columns of [`BranchRow::cells`] are.
pub const HEAD: [&str; 13] = [
    "branch",
    "L1 weight",
    "seed",
    "IoU",
    "F1",
    "PSNR dB",
    "bicubic dB",
    "SSIM",
    "bicubic SSIM",
    "ms a step",
    "CPU ms a step",
    "peak MiB",
    "parameters",
];

impl BranchRow {
    /// The row as a table shows it.
    pub fn cells(&self) -> Vec<String> {
        let optional = |value: Option<f64>, digits: usize| {
            value.map_or("-".into(), |value| format!("{value:.digits$}"))
        };
        let mebibytes = self
            .peak_bytes
            .map(|bytes| bytes as f64 / f64::from(1 << 20));
        vec![
            if self.branch { "with" } else { "without" }.to_string(),
            self.l1_weight
                .map_or("-".into(), |weight| weight.to_string()),
            self.seed.map_or("mean".into(), |seed| seed.to_string()),
            format!("{:.4}", self.iou),
            format!("{:.4}", self.f1),
            optional(self.psnr, 2),
            optional(self.bicubic_psnr, 2),
            optional(self.ssim, 4),
            optional(self.bicubic_ssim, 4),
            format!("{:.1}", self.step_ms),
            optional(self.cpu_ms, 1),
            optional(mebibytes, 0),
            self.parameters.to_string(),
        ]
    }
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An input cannot be read.
    #[error(transparent)]
    Input(#[from] npy::Error),
    /// Image and mask do not belong together.
    #[error(
        "the image is {image:?}, the mask {mask:?}; give [height, width, 4 bands or more] and [height, width] or [height, width, 1]"
    )]
    Shapes {
        /// The image's shape.
        image: Vec<usize>,
        /// The mask's shape.
        mask: Vec<usize>,
    },
    /// A raster cannot be written.
    #[error(transparent)]
    Raster(#[from] terrashard_raster::Error),
    /// A training or a test failed.
    #[error(transparent)]
    Trainer(#[from] terrashard_trainer::Error),
    /// A file or process of the benchmark's own.
    #[error("failed to run a training in a process of its own: {0}")]
    Process(#[from] std::io::Error),
    /// A process ended without a row.
    #[error("a training ended without a result: {0}")]
    NoRow(String),
}

/// Trains with and without the branch in turn, each in a process of its own (`program` with `branch-run` first), and tells each row.
///
/// # Errors
/// [`Error`] of the first thing that fails.
pub fn run(
    bench: &BranchBench,
    program: &Path,
    mut tell: impl FnMut(BranchRow),
) -> Result<(), Error> {
    let folder = tempfile::tempdir()?;
    scene::write(bench, folder.path())?;
    let mut rows = Vec::new();
    let weights = bench.l1_weights.iter().map(|weight| Some(*weight));
    let variants: Vec<Option<f64>> = std::iter::once(None).chain(weights).collect();
    for seed in 0..bench.seeds {
        for (variant, l1_weight) in variants.iter().enumerate() {
            let name = format!("{seed}-{variant}");
            let config = folder.path().join(format!("{name}.toml"));
            std::fs::write(&config, configuration(bench.steps, seed, *l1_weight))?;
            let output = Command::new(program)
                .arg("branch-run")
                .arg(&config)
                .arg(folder.path().join(name))
                .output()?;
            let row: BranchRow = serde_json::from_slice(&output.stdout)
                .map_err(|_| Error::NoRow(String::from_utf8_lossy(&output.stderr).into_owned()))?;
            tell(row.clone());
            rows.push(row);
        }
    }
    for l1_weight in variants {
        let of = rows.iter().filter(|row| row.l1_weight == l1_weight);
        let of: Vec<&BranchRow> = of.collect();
        if let Some(row) = mean(&of) {
            tell(row);
        }
    }
    Ok(())
}

/// Trains and tests one configuration in this process.
///
/// # Errors
/// [`Error::Trainer`].
pub fn run_one(config: &Path, run: &Path) -> Result<BranchRow, Error> {
    let config = Config::load(config, &[])?;
    let run = RunDirectory::new(run);
    let options = FitOptions {
        name: "branch".into(),
        run: run.clone(),
        stop_after: None,
        stop: StopRequest::default(),
        partial: Partial::Refused,
        device: Device::Cpu,
        display: Display::Quiet,
    };
    let started = memory::resident();
    let before = memory::cpu_seconds();
    let training::Fitted::Trained(session) = training::fit(&config, &options)? else {
        return Err(Error::NoRow("the run was there before".into()));
    };
    let steps = run.steps()?;
    let peak_bytes = memory::peak_resident()
        .zip(started)
        .map(|(peak, started)| peak.saturating_sub(started));
    let computed = before.zip(memory::cpu_seconds());
    let tested = evaluation::test(
        &config,
        run.root(),
        &TestOptions {
            device: Device::Cpu,
            ranks: 1,
            memory: None,
            display: Display::Quiet,
        },
    )?;
    let image = tested.image.as_ref();
    let mut seconds: Vec<f64> = steps.iter().map(|step| step.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    let last = &steps[steps.len() - steps.len().div_ceil(20)..];
    Ok(BranchRow {
        who: "terrashard".into(),
        bench: "branch".into(),
        branch: config.model.superres,
        l1_weight: config.train.l1_weight,
        seed: Some(config.train.seed),
        steps: session.last_step,
        parameters: session.parameters,
        // No foreground in either is no hit.
        iou: tested.scores.iou.unwrap_or(0.0),
        f1: tested.scores.f1.unwrap_or(0.0),
        psnr: image.and_then(|image| image.psnr),
        ssim: image.and_then(|image| image.ssim),
        bicubic_psnr: image.and_then(|image| image.bicubic_psnr),
        bicubic_ssim: image.and_then(|image| image.bicubic_ssim),
        step_ms: 1e3 * seconds[seconds.len() / 2],
        cpu_ms: computed.map(|(before, after)| 1e3 * (after - before) / steps.len() as f64),
        peak_bytes,
        loss: last.iter().map(|step| step.loss).sum::<f64>() / last.len() as f64,
    })
}

/// The means over seeds; the median of the times.
fn mean(rows: &[&BranchRow]) -> Option<BranchRow> {
    let first = rows.first()?;
    let count = rows.len() as f64;
    let of = |value: fn(&BranchRow) -> f64| rows.iter().map(|row| value(row)).sum::<f64>() / count;
    let if_all = |value: fn(&BranchRow) -> Option<f64>| {
        let values: Option<Vec<f64>> = rows.iter().map(|row| value(row)).collect();
        values.map(|values| values.iter().sum::<f64>() / count)
    };
    let mut times: Vec<f64> = rows.iter().map(|row| row.step_ms).collect();
    times.sort_by(f64::total_cmp);
    Some(BranchRow {
        seed: None,
        iou: of(|row| row.iou),
        f1: of(|row| row.f1),
        psnr: if_all(|row| row.psnr),
        ssim: if_all(|row| row.ssim),
        bicubic_psnr: if_all(|row| row.bicubic_psnr),
        bicubic_ssim: if_all(|row| row.bicubic_ssim),
        step_ms: times[times.len() / 2],
        cpu_ms: if_all(|row| row.cpu_ms),
        peak_bytes: rows.iter().filter_map(|row| row.peak_bytes).max(),
        loss: of(|row| row.loss),
        ..(*first).clone()
    })
}

/// A model of the size of the shipped example's.
fn configuration(steps: u64, seed: u64, l1_weight: Option<f64>) -> String {
    let superres = l1_weight.is_some();
    let l1_weight = l1_weight.map_or(String::new(), |weight| format!("l1_weight = {weight:?}"));
    format!(
        r#"
[model]
dims = [16, 32, 64, 128]
depths = [1, 1, 1, 1]
heads = [1, 2, 4, 8]
head_channels = 64
scale = {SCALE}
superres = {superres}

[data]
scenes = [{{ image = "coarse.tif", mask = "mask.tif", highres = "fine.tif" }}]
bands = [1, 2, 3, 4, 5, 6]
scaling = {{ scale = 1.0 }}
chip = 32
stride = 8
overlap = 16

[data.highres]
bands = [1, 2, 3, 4]
baseline = [3, 2, 1, 4]
scaling = {{ scale = 1.0 }}

[train]
steps = {steps}
global_batch = 8
lr = 1e-3
schedule = "poly"
warmup_steps = 20
clip_norm = 1.0
loss = "bce_dice"
seed = {seed}
{l1_weight}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_of_all_seeds() {
        let row = |seed, iou, psnr, step_ms, peak| BranchRow {
            who: "terrashard".into(),
            bench: "branch".into(),
            branch: true,
            l1_weight: Some(0.001),
            seed: Some(seed),
            steps: 1,
            parameters: 1,
            iou,
            f1: iou,
            psnr,
            ssim: None,
            bicubic_psnr: None,
            bicubic_ssim: None,
            step_ms,
            cpu_ms: None,
            peak_bytes: Some(peak),
            loss: 0.5,
        };
        let rows = [
            row(0, 0.5, Some(20.0), 9.0, 3),
            row(1, 0.7, Some(22.0), 1.0, 5),
            row(2, 0.6, Some(24.0), 2.0, 4),
        ];
        let all: Vec<&BranchRow> = rows.iter().collect();
        let mean = super::mean(&all).expect("rows");
        assert!((mean.iou - 0.6).abs() < 1e-12);
        assert_eq!((mean.psnr, mean.ssim, mean.seed), (Some(22.0), None, None));
        assert_eq!((mean.step_ms, mean.peak_bytes), (2.0, Some(5)));
        assert!(super::mean(&[]).is_none());
    }
}
