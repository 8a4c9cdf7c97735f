//! The configuration of a run: one TOML file, flags on top, checked before any work starts.
//!
//! Every key is read by something; a key that nothing reads is an error ([`Error::UnknownKey`]).
//! Paths are relative to the configuration's own folder and become absolute when it is loaded; an address (`https://`, `s3://`)
//! stays as it is, but for its credentials, which no record of a run holds.

mod batch;
mod device;
pub(crate) mod file;
mod keys;
mod overrides;
mod presets;
mod sections;
mod size;
mod train;
mod validate;
mod zero;

pub use batch::Batch;
pub use device::{Arithmetic, Device};
pub use sections::{
    CheckpointSection, Config, DataSection, HighresSection, LogSection, OnFailure, Resume,
    SceneEntry,
};
pub use size::bytes;
pub use terrashard_data::{
    Band, IgnoreFrom, Jitter, Offset, OnUnreadable, Region, Scaling, Selection,
};
pub use terrashard_layout::Offload;
pub use terrashard_models::{Loss, ModelConfig};
pub use train::{
    BatchNormStatistics, GroupEntry, Length, NonFinite, OptimizerRule, Precision, Schedule,
    TrainSection, Unused,
};
pub use zero::{Ranks, Recompute, RecomputeChoice, ReduceDtype, ZeroSection};

use std::path::Path;

use terrashard_raster::resolved;
use toml::{Table, Value};

use crate::dataset::indexed_scenes;
use crate::error::{Error, Result};

impl Config {
    /// Reads a configuration and lays `overrides` (`section.key=value`, the value in TOML) over it.
    ///
    /// # Errors
    /// [`Error::Read`] and [`Error::Syntax`] for the file, [`Error::UnknownKey`], [`Error::NotSupported`],
    /// [`Error::MissingKey`] and [`Error::InvalidValue`] for what stands in it.
    pub fn load(path: &Path, overrides: &[String]) -> Result<Self> {
        let whole = std::path::absolute(path).map_err(Error::read(path))?;
        let folder = whole.parent().unwrap_or(Path::new("/"));
        let mut config = Self::parse(&file::text(path)?, path, folder, overrides)?;
        if let Some(chips) = &config.data.chips {
            let scenes = indexed_scenes(chips)?;
            // The configuration of a run has both, without the scenes that were left out.
            let given = &config.data.scenes;
            if !given.iter().all(|scene| scenes.contains(scene)) {
                let expected = "no `data.scenes` beside it: it names the scenes";
                return Err(Error::invalid("data.chips", chips.display(), expected));
            }
            if given.is_empty() {
                config.data.scenes = scenes;
            }
        }
        Ok(config)
    }

    /// The same from text; `path` stands in messages, and paths are relative to `folder`.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, path: &Path, folder: &Path, overrides: &[String]) -> Result<Self> {
        let mut table: Table = text
            .parse()
            .map_err(|error: toml::de::Error| Error::Syntax {
                path: path.into(),
                message: located(text, &error),
            })?;
        let file = table.clone();
        for each in overrides {
            overrides::set(&mut table, each)?;
        }
        let mut config =
            typed(table, path).map_err(|error| overrides::blamed(error, file, path, overrides))?;
        for scene in &mut config.data.scenes {
            scene.image = resolved(folder, &scene.image);
            for path in [
                &mut scene.mask,
                &mut scene.highres,
                &mut scene.classification,
            ] {
                *path = path.take().map(|path| resolved(folder, &path));
            }
        }
        config.data.chips = config.data.chips.take().map(|chips| folder.join(chips));
        config.train.init = config.train.init.take().map(|init| folder.join(init));
        if let Resume::From(resume) = &mut config.checkpoint.resume {
            *resume = folder.join(&resume);
        }
        config.validate(path)?;
        config.train.settle();
        Ok(config)
    }

    /// The configuration as TOML, with every default written out.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("every section is a table of plain values")
    }
}

/// The configuration that a table holds; `path` stands in messages.
fn typed(mut table: Table, path: &Path) -> Result<Config> {
    presets::expand(&mut table)?;
    keys::check(&table, path)?;
    for section in keys::SECTIONS {
        table
            .entry(section)
            .or_insert_with(|| Value::Table(Table::new()));
    }
    let config = Value::Table(table).try_into();
    config.map_err(|error: toml::de::Error| Error::Syntax {
        path: path.into(),
        message: one_line(&error.to_string()),
    })
}

/// A TOML error in one line, with the line number of where it was seen.
fn located(text: &str, error: &toml::de::Error) -> String {
    let message = one_line(error.message());
    match error.span() {
        Some(span) => format!(
            "line {}: {message}",
            1 + text[..span.start.min(text.len())].matches('\n').count()
        ),
        None => message,
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        [data]
        scenes = [{ image = "a.tif", mask = "b.tif" }]
        bands = ["B02", "B03", "B04", "B08", "B11", "B12"]
        [train]
        steps = 10
        lr = 1e-3
    "#;

    fn load(extra: &str, overrides: &[&str]) -> Result<Config> {
        let overrides: Vec<String> = overrides.iter().map(|each| each.to_string()).collect();
        Config::parse(
            &format!("{SMALL}{extra}"),
            Path::new("run.toml"),
            Path::new("/scenes"),
            &overrides,
        )
    }

    #[test]
    fn an_address_is_written_down_without_what_gives_access() {
        let scene = "data.scenes=[{ image = 'https://anna:s3cret@host/a.tif?sig=abc', mask = 's3://bucket/b.tif' }]";
        let config = load("", &[scene]).expect("it is right");
        let entry = &config.data.scenes[0];
        assert_eq!(entry.image, Path::new("https://***@host/a.tif?***"));
        assert_eq!(
            entry.mask.as_deref(),
            Some(Path::new("s3://bucket/b.tif")),
            "no path from a folder"
        );
        let written = config.to_toml();
        assert!(written.contains("https://***@host/a.tif?***"), "{written}");
        assert!(!written.contains("s3cret") && !written.contains("sig=abc"));
    }

    #[track_caller]
    fn check(extra: &str, overrides: &[&str], expected: &str) {
        let error = load(extra, overrides).expect_err("the configuration is wrong");
        assert_eq!(error.exit_code(), 2);
        assert_eq!(error.to_string().lines().count(), 1);
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[test]
    fn paths_are_relative_to_the_configuration() {
        let config = load("", &[]).unwrap();
        assert_eq!(config.data.scenes[0].image, Path::new("/scenes/a.tif"));
        assert_eq!(
            config.data.scenes[0].mask.as_deref(),
            Some(Path::new("/scenes/b.tif"))
        );
    }

    #[test]
    fn unknown_keys_name_the_nearest() {
        check(
            "stpes = 3",
            &[],
            "unknown key `train.stpes`; the nearest known one is `train.steps`",
        );
        check(
            "stage = 3",
            &[],
            "unknown key `train.stage`; the nearest known one is `zero.stage`",
        );
        check(
            "[zreo]\nstage = 1",
            &[],
            "unknown key `zreo`; the nearest known one is `zero`",
        );
        check(
            "",
            &["data.scaling.scal=1.0"],
            "unknown key `data.scaling.scal`; the nearest known one is `data.scaling.scale`",
        );
        check(
            "",
            &["data.highres.scaling.scal=1.0"],
            "unknown key `data.highres.scaling.scal`; the nearest known one is `data.highres.scaling.scale`",
        );
        check(
            "",
            &["data.scenes=[{ imag = \"x.tif\" }]"],
            "unknown key `data.scenes.imag`; the nearest known one is `data.scenes.image`",
        );
    }

    #[test]
    fn what_is_like_no_key_gets_no_suggestion() {
        let expected = "unknown key `train.banana`; no known one is similar, so remove it";
        check("banana = 3", &[], expected);
    }

    #[test]
    fn values_are_checked_by_key() {
        check("", &["train.steps=many"], "train.steps");
        check(
            "",
            &["train.lr=-1.0"],
            "failed to use `train.lr`: got -1, expected a number above 0",
        );
        check("", &["data.overlap=64"], "data.overlap");
        check(
            "",
            &["data.chip=5000"],
            "`data.chip`: got 5000, expected 1 to 4096 pixels",
        );
        check("", &["log.seconds=1e300"], "log.seconds");
        check("", &["train.weight_decay=nan"], "train.weight_decay");
        check("", &["train.weight_decay=inf"], "train.weight_decay");
        check("", &["train.l1_weight=-0.1"], "train.l1_weight");
        check("", &["zero.bucket_bytes=0"], "zero.bucket_bytes");
        check("", &["model.depths=[1, 1, 1, 1000000]"], "model.depths");
        check(
            "",
            &["data.bands=[\"B02\"]"],
            "failed to use `data.bands`: got 1 band, expected 6 bands, in the order of the model's channels, or `model.bands = 1`",
        );
        check(
            "",
            &["data.highres.bands=[1, 2, 3]"],
            "failed to use `data.highres.bands`: got 3 names, expected 4 names",
        );
        check("", &["zero.stage=4"], "zero.stage");
        check(
            "",
            &["data.train=wset"],
            "\"wset\" is no region, write \"all\", \"west\"",
        );
        check(
            "",
            &["data.train=[0, 0, 32, 32]"],
            "{ pixels = [column, row, width, height] }",
        );
        check("", &["train.schedule=linear"], "train.schedule");
        check("", &["zero.ranks=0"], "zero.ranks");
        check("", &["nonsense"], "`section.key=value`");
    }

    #[test]
    fn arithmetic_is_that_of_the_process() {
        let arithmetic = |overrides: &[&str]| load("", overrides).unwrap().train.arithmetic();
        assert_eq!(arithmetic(&[]), Arithmetic::default());
        let tf32 = arithmetic(&["train.precision=tf32", "train.deterministic=true"]);
        assert!(tf32.tf32 && tf32.deterministic);
    }

    #[test]
    fn settings_that_do_not_fit_together_are_errors() {
        let refused = |settings: &[&str], expected: &str| check("", settings, expected);
        let key = |key: &str| format!("failed to use `{key}`: got ");
        refused(
            &["train.epochs=3"],
            "`train.epochs`: got 3, expected no `train.steps` beside it",
        );
        refused(&["train.warmup_steps=10"], "less than `train.steps` = 10");
        refused(
            &["train.momentum=0.9"],
            "since only `optimizer = \"sgd\"` reads it",
        );
        refused(
            &["train.optimizer=sgd", "train.betas=[0.9, 0.99]"],
            "since only `optimizer = \"adamw\"` reads it",
        );
        refused(
            &[
                "train.optimizer=sgd",
                "train.nesterov=true",
                "train.momentum=0.0",
            ],
            &key("train.nesterov"),
        );
        refused(&["train.betas=[0.9, 1.0]"], &key("train.betas"));
        refused(&["train.eps=0.0"], &key("train.eps"));
        refused(&["train.ema=1.0"], &key("train.ema"));
        refused(&["train.ema=0.0"], &key("train.ema"));
        refused(
            &["train.power=2.0"],
            "`train.power`: got a value, expected none",
        );
        refused(
            &["train.schedule=poly", "train.power=0.0"],
            &key("train.power"),
        );
        refused(
            &["train.schedule=cosine", "train.min_lr=1.0"],
            "`train.min_lr`: got 1, expected 0 to `train.lr` = 0.001",
        );
        refused(&["train.min_lr=1e-4"], "`train.min_lr`: got a value");
        refused(
            &["train.nonfinite={ skip_then_abort = 0 }"],
            &key("train.nonfinite.skip_then_abort"),
        );
        for wrong in ["skip_then_abort", "0", "{ skip_then_abort = -1 }"] {
            let setting = format!("train.nonfinite={wrong}");
            refused(
                &[&setting],
                "write \"abort\", \"skip\", or { skip_then_abort = 3 } for at most 3 steps in a row in `train.nonfinite`",
            );
        }
        for wrong in ["true", "cpu", "1"] {
            let setting = format!("zero.offload={wrong}");
            let expected = "write \"none\", \"optimizer\" (from stage 1) or \"parameters\" (at stage 3) in `zero.offload`";
            refused(&["zero.stage=3", &setting], expected);
        }
        refused(
            &["train.groups=[{ match = \"\" }]"],
            &key("train.groups.match"),
        );
        refused(
            &["train.groups=[{ match = \"*\", lr_factor = -1.0 }]"],
            &key("train.groups.lr_factor"),
        );
        refused(
            &["train.groups=[{ match = \"*\", lr_facto = 1.0 }]"],
            "unknown key `train.groups.lr_facto`; the nearest known one is `train.groups.lr_factor`",
        );
        refused(
            &["zero.offload=optimizer"],
            "`none` at stage 0; it needs stage 1 at least",
        );
        refused(
            &["zero.stage=2", "zero.offload=parameters"],
            "got parameters, expected `none` or `optimizer` at stage 2; it needs stage 3 at least",
        );
        refused(
            &["zero.offload_fraction=0.5"],
            &key("zero.offload_fraction"),
        );
        refused(
            &[
                "zero.stage=1",
                "zero.offload=optimizer",
                "zero.offload_fraction=1.5",
            ],
            "`zero.offload_fraction`: got 1.5, expected 0 to 1",
        );
        refused(
            &["zero.stage=3", "zero.prefetch=3"],
            "expected 0 to 2 blocks",
        );
        // What only other stages use does not stand in the way of changing the stage.
        let of_stage_3 = [
            "zero.persist_bytes=1",
            "zero.prefetch=1",
            "zero.shard_group=1",
        ];
        load("", &of_stage_3).unwrap();
        refused(
            &["zero.stage=1", "zero.ranks=6", "zero.shard_group=4"],
            "`zero.shard_group`: got 4, expected a divisor of the 6 ranks",
        );
        refused(
            &["zero.recompute=always"],
            "expected \"keep\", \"recompute\"",
        );
        refused(
            &["zero.recompute={ \"stages.0.*\" = \"always\" }"],
            "in `zero.recompute`",
        );
        for setting in ["best_by=iou", "best_by=affinity"] {
            let setting = format!("checkpoint.{setting}");
            refused(
                &["model.superres=false", &setting],
                &key("checkpoint.best_by"),
            );
        }
        load("", &["model.superres=true", "checkpoint.best_by=affinity"]).unwrap();
        refused(
            &["checkpoint.on_failure=ignore"],
            "expected `abort` or `continue` in `checkpoint.on_failure`",
        );
        refused(
            &["zero.offlod=none"],
            "the nearest known one is `zero.offload`",
        );
    }

    #[test]
    fn the_longest_pattern_decides_what_is_recomputed() {
        let setting = r#"zero.recompute={ "stages.*" = "recompute", "stages.0.blocks.*" = "offload", "*.norm" = "keep" }"#;
        let recompute = load("", &[setting]).unwrap().zero.recompute;
        assert_eq!(recompute.of("stages.0.blocks.1"), Recompute::Offload);
        assert_eq!(recompute.of("stages.1.blocks.1"), Recompute::Recompute);
        assert_eq!(recompute.of("tail.head"), Recompute::Keep);
        assert!(!recompute.keeps_all());
    }

    #[test]
    fn epochs_stand_in_place_of_steps() {
        let text = "data.scenes = [{ image = \"a.tif\" }]";
        let load = |settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
            Config::parse(text, Path::new("run.toml"), Path::new("/scenes"), &settings).unwrap()
        };
        assert_eq!(load(&[]).train.steps, Some(1000));
        assert_eq!(load(&[]).train.length(), Length::Steps(1000));
        let epochs = load(&["train.epochs=3"]).train;
        assert_eq!((epochs.steps, epochs.length()), (None, Length::Epochs(3)));
        assert_eq!(epochs.length().end(21), Some(63));
    }

    #[test]
    fn overrides_take_toml_values_and_bare_words() {
        let config = load(
            "",
            &[
                "zero.stage=1",
                "train.schedule=cosine",
                "zero.ranks=\"auto\"",
                "data.test={ fraction = [0.25, 0.0, 0.5, 1.0] }",
            ],
        )
        .unwrap();
        assert_eq!(config.zero.stage, terrashard_layout::Stage::One);
        assert_eq!(config.train.schedule, Schedule::Cosine);
        assert_eq!(config.zero.ranks, Ranks::Auto);
        assert_eq!(config.data.test, Region::Fraction([0.25, 0.0, 0.5, 1.0]));
    }

    #[test]
    fn the_effective_configuration_reads_back_as_itself() {
        let config = load(
            "",
            &[
                "zero.ranks=3",
                "train.clip_norm=1.0",
                "data.train=north",
                "train.nonfinite={ skip_then_abort = 3 }",
                "train.groups=[{ match = \"*.bias\", frozen = true }]",
                "zero.recompute={ \"stages.0.*\" = \"offload\" }",
            ],
        )
        .unwrap();
        let again = Config::parse(
            &config.to_toml(),
            Path::new("run.toml"),
            Path::new("/elsewhere"),
            &[],
        )
        .unwrap();
        assert_eq!(config, again);
    }

    #[test]
    fn broken_toml_names_the_line() {
        check("lr = ", &[], "failed to parse run.toml: line");
    }
}
