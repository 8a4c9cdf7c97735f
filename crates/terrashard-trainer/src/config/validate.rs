//! What a section cannot say, and what does not fit together.

use std::path::Path;

use terrashard_layout::{Offload, Stage};
use terrashard_models::SUPERRES_CHANNELS;

use super::train::{GroupEntry, Length, NonFinite, OptimizerRule, Schedule, TrainSection};
use super::zero::{Ranks, RecomputeChoice, ZeroSection};
use super::{Band, Config, DataSection};
use crate::error::{Error, Result};
use crate::record::counted;
use crate::training::{METRICS, Terms};

/// The largest height and width of samples and windows in pixels of the image: a map of 20480 pixels squared at 2 m, far
/// above what a model is given at once.
const LARGEST_SIDE: usize = 4096;

const SECONDS_OF_A_DAY: f64 = 86_400.0;

/// Blocks that may be gathered ahead: more would hold most of a small model.
const LARGEST_PREFETCH: usize = 2;

impl Config {
    /// Checks every value and what does not fit together.
    pub(super) fn validate(&self, path: &Path) -> Result<()> {
        let (model, data) = (&self.model, &self.data);
        if data.scenes.is_empty() && data.chips.is_none() {
            return Err(Error::MissingKey {
                path: path.into(),
                key: "data.scenes".into(),
                remedy: "write `scenes = [{ image = \"scene.tif\", mask = \"label.tif\" }]` under [data]".into(),
            });
        }
        if data.bands.len() != model.bands {
            let expected = format!(
                "{}, in the order of the model's channels, or `model.bands = {}`",
                counted(model.bands, "band"),
                data.bands.len()
            );
            let got = counted(data.bands.len(), "band");
            return Err(Error::invalid("data.bands", got, expected));
        }
        let highres = &data.highres;
        four("data.highres.bands", &highres.bands)?;
        if let Some(bands) = &highres.baseline {
            four("data.highres.baseline", bands)?;
        }
        model.validate()?;
        let loss = self.train.loss;
        if loss.is_of_classes() != (model.classes > 1) {
            let expected = match model.classes {
                1 => "`focal` or `bce_dice`, since `model.classes` = 1 is a binary task".into(),
                several => format!("`cross_entropy_dice`, since `model.classes` = {several}"),
            };
            return Err(Error::invalid("train.loss", loss.name(), expected));
        }
        data.scaling.validate(model.bands)?;
        windows(data)?;
        length(&self.train)?;
        rates(&self.train)?;
        rule(&self.train)?;
        self.train.groups.iter().try_for_each(group)?;
        sharding(&self.zero)?;
        offload(&self.zero)?;
        positive("log.seconds", self.log.seconds)?;
        check(
            self.log.seconds <= SECONDS_OF_A_DAY,
            "log.seconds",
            self.log.seconds,
            "at most a day, 86400",
        )?;
        at_least_one("checkpoint.keep_last", self.checkpoint.keep_last as u64)?;
        validation(self)
    }
}

/// Of how often and by what a model is measured while it is trained.
fn validation(config: &Config) -> Result<()> {
    let data = &config.data;
    // Whether an index of chips has some for validation is seen when it is read.
    let measured = data.validation.is_some() || data.chips.is_some();
    if let Some(every) = config.train.validate_every {
        at_least_one("train.validate_every", every)?;
        check(
            measured,
            "train.validate_every",
            every,
            "a part of the scenes to measure on: set `data.validation`, for example to \"north\"",
        )?;
    }
    let best_by = config.checkpoint.best_by.as_str();
    let mut metrics = Terms::metrics(config);
    if measured {
        metrics.extend(METRICS);
    }
    let beside = match measured {
        true => String::new(),
        false => format!("; with `data.validation` also {}", METRICS.join(", ")),
    };
    check(
        metrics.contains(&best_by),
        "checkpoint.best_by",
        best_by,
        metrics.join(" or ") + &beside,
    )
}

fn check(fits: bool, key: &str, got: impl ToString, expected: impl Into<String>) -> Result<()> {
    match fits {
        true => Ok(()),
        false => Err(Error::invalid(key, got, expected)),
    }
}

fn at_least_one(key: &str, value: u64) -> Result<()> {
    check(value > 0, key, value, "at least 1")
}

fn positive(key: &str, value: f64) -> Result<()> {
    check(
        value.is_finite() && value > 0.0,
        key,
        value,
        "a number above 0",
    )
}

fn not_negative(key: &str, value: f64) -> Result<()> {
    check(value.is_finite() && value >= 0.0, key, value, "0 or more")
}

/// A factor by which something decays.
fn decay(key: &str, value: f64) -> Result<()> {
    check(
        (0.0..1.0).contains(&value),
        key,
        value,
        "at least 0 and below 1",
    )
}

/// A key that only one value of another key reads.
fn only_with(given: bool, key: &str, other: &str) -> Result<()> {
    check(
        !given,
        key,
        "a value",
        format!("none, since only {other} reads it"),
    )
}

fn four(key: &str, bands: &[Band]) -> Result<()> {
    check(
        bands.len() == SUPERRES_CHANNELS,
        key,
        format!("{} names", bands.len()),
        format!(
            "{SUPERRES_CHANNELS} names, in the order of the super-resolution branch's channels"
        ),
    )
}

fn windows(data: &DataSection) -> Result<()> {
    let side = |key: &str, value: usize| {
        check(
            (1..=LARGEST_SIDE).contains(&value),
            key,
            value,
            format!("1 to {LARGEST_SIDE} pixels"),
        )
    };
    side("data.chip", data.chip)?;
    at_least_one("data.stride", data.stride as u64)?;
    side("data.tile", data.tile())?;
    check(
        data.overlap < data.tile(),
        "data.overlap",
        data.overlap,
        format!("less than `data.tile` = {}", data.tile()),
    )
}

fn length(train: &TrainSection) -> Result<()> {
    if let (Some(_), Some(epochs)) = (train.steps, train.epochs) {
        let expected = "no `train.steps` beside it: give one of the two";
        return Err(Error::invalid("train.epochs", epochs, expected));
    }
    match train.length() {
        Length::Epochs(epochs) => at_least_one("train.epochs", epochs),
        Length::Steps(steps) => {
            at_least_one("train.steps", steps)?;
            train.check_warmup(steps)
        }
    }
}

impl TrainSection {
    /// Refuses a warm-up that does not end within the run.
    pub(crate) fn check_warmup(&self, steps: u64) -> Result<()> {
        let expected = match self.epochs {
            Some(epochs) => {
                format!("less than the {steps} steps of `train.epochs` = {epochs}")
            }
            None => format!("less than `train.steps` = {steps}"),
        };
        check(
            self.warmup_steps < steps,
            "train.warmup_steps",
            self.warmup_steps,
            expected,
        )
    }
}

fn rates(train: &TrainSection) -> Result<()> {
    positive("train.lr", train.lr)?;
    not_negative("train.weight_decay", train.weight_decay)?;
    check(
        (0.0..=train.lr).contains(&train.min_lr),
        "train.min_lr",
        train.min_lr,
        format!("0 to `train.lr` = {}", train.lr),
    )?;
    not_negative("train.l1_weight", train.l1_weight.unwrap_or(0.0))?;
    let falls = train.schedule != Schedule::Constant;
    only_with(
        train.min_lr > 0.0 && !falls,
        "train.min_lr",
        "`schedule = \"poly\"` or `\"cosine\"`",
    )?;
    if let Some(power) = train.power {
        only_with(
            train.schedule != Schedule::Poly,
            "train.power",
            "`schedule = \"poly\"`",
        )?;
        positive("train.power", power)?;
    }
    if let Some(norm) = train.clip_norm {
        positive("train.clip_norm", norm)?;
    }
    Ok(())
}

fn rule(train: &TrainSection) -> Result<()> {
    match train.optimizer {
        OptimizerRule::AdamW => {
            let reader = "`optimizer = \"sgd\"`";
            only_with(train.momentum.is_some(), "train.momentum", reader)?;
            only_with(train.nesterov.is_some(), "train.nesterov", reader)?;
        }
        OptimizerRule::Sgd => {
            let reader = "`optimizer = \"adamw\"`";
            only_with(train.betas.is_some(), "train.betas", reader)?;
            only_with(train.eps.is_some(), "train.eps", reader)?;
        }
    }
    for beta in train.betas.iter().flatten() {
        decay("train.betas", *beta)?;
    }
    if let Some(eps) = train.eps {
        positive("train.eps", eps)?;
    }
    if let Some(momentum) = train.momentum {
        decay("train.momentum", momentum)?;
    }
    check(
        !(train.nesterov == Some(true) && train.momentum == Some(0.0)),
        "train.nesterov",
        true,
        "`false`, or a `train.momentum` above 0",
    )?;
    if let Some(average) = train.ema {
        positive("train.ema", average)?;
        decay("train.ema", average)?;
    }
    match train.nonfinite {
        NonFinite::SkipThenAbort(steps) => {
            at_least_one("train.nonfinite.skip_then_abort", steps.into())
        }
        NonFinite::Abort | NonFinite::Skip => Ok(()),
    }
}

fn group(group: &GroupEntry) -> Result<()> {
    check(
        !group.pattern.is_empty(),
        "train.groups.match",
        "\"\"",
        "a pattern of names such as `stages.0.*`",
    )?;
    not_negative("train.groups.lr_factor", group.lr_factor)?;
    not_negative(
        "train.groups.weight_decay",
        group.weight_decay.unwrap_or(0.0),
    )
}

fn sharding(zero: &ZeroSection) -> Result<()> {
    if let Ranks::Count(count) = zero.ranks {
        at_least_one("zero.ranks", count as u64)?;
        zero.check_group(count)?;
    }
    if let Some(bytes) = zero.bucket_bytes {
        at_least_one("zero.bucket_bytes", bytes as u64)?;
    }
    check(
        zero.prefetch <= LARGEST_PREFETCH,
        "zero.prefetch",
        zero.prefetch,
        format!("0 to {LARGEST_PREFETCH} blocks"),
    )?;
    if let Some(group) = zero.shard_group {
        at_least_one("zero.shard_group", group as u64)?;
    }
    Ok(())
}

impl ZeroSection {
    /// Refuses groups that do not divide the ranks.
    pub(crate) fn check_group(&self, ranks: usize) -> Result<()> {
        let group = self.shard_group.unwrap_or(1);
        check(
            group > 0 && ranks.is_multiple_of(group),
            "zero.shard_group",
            group,
            format!("a divisor of the {ranks} ranks"),
        )
    }
}

fn offload(zero: &ZeroSection) -> Result<()> {
    let ZeroSection { stage, .. } = zero;
    let (name, least) = match zero.offload {
        Offload::None => ("none", Stage::Zero),
        Offload::Optimizer => ("optimizer", Stage::One),
        Offload::Parameters => ("parameters", Stage::Three),
    };
    let allowed = match stage {
        Stage::Zero => "`none`",
        Stage::One | Stage::Two | Stage::Three => "`none` or `optimizer`",
    };
    check(
        *stage >= least,
        "zero.offload",
        name,
        format!("{allowed} at stage {stage}; it needs stage {least} at least"),
    )?;
    if let Some(fraction) = zero.offload_fraction {
        check(
            (0.0..=1.0).contains(&fraction),
            "zero.offload_fraction",
            fraction,
            "0 to 1",
        )?;
        only_with(
            zero.offload == Offload::None,
            "zero.offload_fraction",
            "`offload = \"optimizer\"` or `\"parameters\"`",
        )?;
    }
    match &zero.recompute {
        RecomputeChoice::ByBlock(patterns) if patterns.contains_key("") => Err(Error::invalid(
            "zero.recompute",
            "\"\"",
            "patterns of block names such as `stages.0.*`",
        )),
        _ => Ok(()),
    }
}
