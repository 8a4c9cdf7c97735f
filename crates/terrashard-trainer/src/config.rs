//! The configuration of a run: one TOML file, flags on top, checked before any work starts.
//!
//! Every key is read by something; a key that nothing reads is an error ([`Error::UnknownKey`]).
//! Paths are relative to the configuration's own folder and become absolute when it is loaded.

mod batch;
mod keys;
mod sections;

pub use batch::Batch;
pub use sections::{
    CheckpointSection, Config, DataSection, Device, LogSection, NonFinite, Precision, Ranks,
    Resume, SceneEntry, Schedule, TrainSection, ZeroSection,
};
pub use terrashard_data::{Band, Region, Scaling, Selection};
pub use terrashard_models::{Loss, ModelConfig};

use std::path::Path;

use terrashard_layout::Stage;
use toml::{Table, Value};

use crate::error::{Error, Result};

impl Config {
    /// Reads a configuration and lays `overrides` (`section.key=value`, the value in TOML) over it.
    ///
    /// # Errors
    /// [`Error::Read`] and [`Error::Syntax`] for the file, [`Error::UnknownKey`], [`Error::NotSupported`],
    /// [`Error::MissingKey`] and [`Error::InvalidValue`] for what stands in it.
    pub fn load(path: &Path, overrides: &[String]) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::read(path))?;
        let whole = std::path::absolute(path).map_err(Error::read(path))?;
        let folder = whole.parent().unwrap_or(Path::new("/"));
        Self::parse(&text, path, folder, overrides)
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
        for each in overrides {
            set(&mut table, each)?;
        }
        keys::check(&mut table, path)?;
        for section in keys::SECTIONS {
            table
                .entry(section)
                .or_insert_with(|| Value::Table(Table::new()));
        }
        let mut config: Config =
            Value::Table(table)
                .try_into()
                .map_err(|error: toml::de::Error| Error::Syntax {
                    path: path.into(),
                    message: one_line(&error.to_string()),
                })?;
        for scene in &mut config.data.scenes {
            scene.image = folder.join(&scene.image);
            scene.mask = scene.mask.take().map(|mask| folder.join(mask));
        }
        if let Resume::From(resume) = &mut config.checkpoint.resume {
            *resume = folder.join(&resume);
        }
        config.validate(path)?;
        Ok(config)
    }

    /// The configuration as TOML, with every default written out.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("every section is a table of plain values")
    }

    fn validate(&self, path: &Path) -> Result<()> {
        let at_least_one = |key: &str, value: usize| match value {
            0 => Err(Error::invalid(key, 0, "at least 1")),
            _ => Ok(()),
        };
        let positive = |key: &str, value: f64| match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => Err(Error::invalid(key, value, "a number above 0")),
        };
        let (model, data, train) = (&self.model, &self.data, &self.train);
        if data.scenes.is_empty() {
            return Err(Error::MissingKey {
                path: path.into(),
                key: "data.scenes".into(),
                remedy: "write `scenes = [{ image = \"scene.tif\", mask = \"label.tif\" }]` under [data]".into(),
            });
        }
        if data.bands.len() != model.bands {
            let expected = format!(
                "`model.bands` = {} names, in the order of the model's channels",
                model.bands
            );
            return Err(Error::invalid(
                "data.bands",
                format!("{} names", data.bands.len()),
                expected,
            ));
        }
        model.validate()?;
        if model.classes != 1 {
            return Err(Error::NotSupported {
                key: format!("model.classes = {}", model.classes),
                remedy: "train a binary task with `classes = 1`".into(),
            });
        }
        data.scaling.validate(model.bands)?;
        let side = |key: &str, value: usize| match (1..=LARGEST_SIDE).contains(&value) {
            true => Ok(()),
            false => Err(Error::invalid(
                key,
                value,
                format!("1 to {LARGEST_SIDE} pixels"),
            )),
        };
        side("data.chip", data.chip)?;
        at_least_one("data.stride", data.stride)?;
        side("data.tile", data.tile())?;
        if data.overlap >= data.tile() {
            return Err(Error::invalid(
                "data.overlap",
                data.overlap,
                format!("less than `data.tile` = {}", data.tile()),
            ));
        }
        at_least_one("train.steps", train.steps as usize)?;
        positive("train.lr", train.lr)?;
        positive("log.seconds", self.log.seconds)?;
        if self.log.seconds > SECONDS_OF_A_DAY {
            return Err(Error::invalid(
                "log.seconds",
                self.log.seconds,
                "at most a day, 86400",
            ));
        }
        at_least_one("checkpoint.keep_last", self.checkpoint.keep_last)?;
        if !(train.weight_decay.is_finite() && train.weight_decay >= 0.0) {
            return Err(Error::invalid(
                "train.weight_decay",
                train.weight_decay,
                "0 or more",
            ));
        }
        if let Some(norm) = train.clip_norm {
            positive("train.clip_norm", norm)?;
        }
        if train.warmup_steps >= train.steps {
            return Err(Error::invalid(
                "train.warmup_steps",
                train.warmup_steps,
                format!("less than `train.steps` = {}", train.steps),
            ));
        }
        if self.zero.persist_bytes > 0 && self.zero.stage != Stage::Three {
            return Err(Error::invalid(
                "zero.persist_bytes",
                self.zero.persist_bytes,
                format!(
                    "0 at stage {}, which keeps all parameters whole on every rank",
                    self.zero.stage
                ),
            ));
        }
        if let Ranks::Count(count) = self.zero.ranks {
            at_least_one("zero.ranks", count)?;
        }
        if let Some(bytes) = self.zero.bucket_bytes {
            at_least_one("zero.bucket_bytes", bytes)?;
        }
        Ok(())
    }
}

/// The largest height and width of samples and windows in pixels of the image: a map of 20480 pixels squared at 2 m, far
/// above what a model is given at once.
const LARGEST_SIDE: usize = 4096;

const SECONDS_OF_A_DAY: f64 = 86_400.0;

/// Lays one `section.key=value` over a table.
fn set(table: &mut Table, assignment: &str) -> Result<()> {
    let malformed = || {
        Error::invalid(
            "--set",
            assignment,
            "`section.key=value`, for example `zero.stage=1`",
        )
    };
    let (key, text) = assignment.split_once('=').ok_or_else(malformed)?;
    let mut parts: Vec<&str> = key.trim().split('.').collect();
    let last = parts
        .pop()
        .filter(|last| !last.is_empty())
        .ok_or_else(malformed)?;
    let mut at = table;
    for part in parts {
        let entry = at.entry(part).or_insert_with(|| Value::Table(Table::new()));
        at = entry.as_table_mut().ok_or_else(malformed)?;
    }
    at.insert(last.into(), value(text.trim()));
    Ok(())
}

/// A TOML value, or a bare word as a string: shells eat quotes, so `--set train.schedule=cosine` has to do.
fn value(text: &str) -> Value {
    match format!("value = {text}").parse::<Table>() {
        Ok(mut table) if table.len() == 1 => table.remove("value").expect("the only key"),
        _ => Value::String(text.into()),
    }
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
        check("", &["zero.bucket_bytes=0"], "zero.bucket_bytes");
        check("", &["model.depths=[1, 1, 1, 1000000]"], "model.depths");
        check(
            "",
            &["data.bands=[\"B02\"]"],
            "failed to use `data.bands`: got 1 names",
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
    fn options_of_later_versions_are_refused_unless_off() {
        check(
            "",
            &["zero.offload=true"],
            "`zero.offload` is not supported yet",
        );
        check(
            "",
            &["zero.stage=3"],
            "`zero.stage = 3` is not supported yet",
        );
        check(
            "",
            &["train.precision=bf16"],
            "`train.precision` is not supported yet",
        );
        load(
            "",
            &["zero.offload=false", "zero.stage=2", "train.precision=fp32"],
        )
        .unwrap();
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
            &["zero.ranks=3", "train.clip_norm=1.0", "data.train=north"],
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
