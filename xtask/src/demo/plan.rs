//! How far to train, and on what, read from the configuration.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// What the demo has to know of the configuration before it starts.
#[derive(Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) steps: u64,
    /// The step that the first run ends after.
    pub(super) half: u64,
    /// The image of the first scene.
    pub(super) scene: PathBuf,
    /// `key=value`, for `--set`.
    pub(super) overrides: Vec<String>,
}

impl Plan {
    /// `steps` replaces the configuration's number.
    pub(super) fn read(config: &Path, steps: Option<u64>) -> Result<Self> {
        let text = fs::read_to_string(config).map_err(|source| Error::file(config, source))?;
        let folder = config.parent().unwrap_or(Path::new(""));
        Self::parse(&text, folder, steps)
            .map_err(|message| Error::content(config.display(), message))
    }

    fn parse(text: &str, folder: &Path, steps: Option<u64>) -> Result<Self, String> {
        let config: toml::Table = text
            .parse()
            .map_err(|error: toml::de::Error| error.message().to_owned())?;
        let number = |section: &str, key: &str| {
            let value = config
                .get(section)
                .and_then(|section| section.get(key)?.as_integer());
            value.and_then(|value| u64::try_from(value).ok())
        };
        let image = config
            .get("data")
            .and_then(|data| data.get("scenes")?.get(0)?.get("image")?.as_str());
        let scene = folder.join(image.ok_or("has no `data.scenes` with an `image`")?);
        let mut overrides = Vec::new();
        if let Some(steps) = steps {
            overrides.push(format!("train.steps={steps}"));
            if number("train", "warmup_steps").is_some_and(|warmup| warmup >= steps) {
                overrides.push("train.warmup_steps=0".to_owned());
            }
        }
        let steps = steps
            .or_else(|| number("train", "steps"))
            .ok_or("has no number `train.steps`")?;
        if steps < 2 {
            return Err(format!(
                "{steps} step(s) cannot be trained in two runs: take at least 2"
            ));
        }
        Ok(Self {
            steps,
            half: steps / 2,
            scene,
            overrides,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str =
        "[data]\nscenes = [{ image = \"water/a.tif\" }]\n[train]\nsteps = 301\nwarmup_steps = 20\n";

    fn check(steps: Option<u64>, expected: (u64, u64, &[&str])) {
        let plan = Plan::parse(CONFIG, Path::new("examples"), steps).unwrap();
        assert_eq!(plan.scene, Path::new("examples/water/a.tif"));
        assert_eq!((plan.steps, plan.half), (expected.0, expected.1));
        assert_eq!(plan.overrides, expected.2);
    }

    #[test]
    fn steps_of_the_configuration_or_others() {
        check(None, (301, 150, &[]));
        check(Some(40), (40, 20, &["train.steps=40"]));
        check(Some(4), (4, 2, &["train.steps=4", "train.warmup_steps=0"]));
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = |text, steps| Plan::parse(text, Path::new(""), steps).unwrap_err();
        assert_eq!(
            error("[train]\nsteps = 4\n", None),
            "has no `data.scenes` with an `image`"
        );
        assert_eq!(
            error("[data]\nscenes = [{ image = \"a\" }]\n", None),
            "has no number `train.steps`"
        );
        assert_eq!(
            error(CONFIG, Some(1)),
            "1 step(s) cannot be trained in two runs: take at least 2"
        );
    }
}
