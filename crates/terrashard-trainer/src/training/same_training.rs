//! Whether a configuration goes on with the training that a checkpoint was saved from, or asks for another one.

use std::fs;
use std::path::{Path, PathBuf};

use terrashard_models::L1_WEIGHT;
use toml::{Table, Value};

use crate::config::{Config, Resume, SceneEntry};

/// Keys of `[data]` that no training step reads.
const FREE: [&str; 8] = [
    "validation",
    "test",
    "tile",
    "overlap",
    "baseline_note",
    "cache_bytes",
    "medians",
    "on_unreadable",
];

/// A key that differs, with its values as TOML.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub key: String,
    pub ours: String,
    pub theirs: String,
}

/// The first key that makes `ours` another training than `theirs`: of the model, of the data that is trained on, the seed,
/// the loss or the update rule. How it is sharded, how long it goes on, and how fast may change.
pub(super) fn difference(ours: &Config, theirs: &Config) -> Option<Difference> {
    let theirs = with_paths_of(ours, theirs);
    let mut found = Vec::new();
    walk("", &defining(ours), &defining(&theirs), &mut found);
    found.into_iter().next()
}

/// Every key that differs between two configurations of one training, in the order of the sections: what may change, and did.
pub(super) fn changes(ours: &Config, theirs: &Config) -> Vec<Difference> {
    let whole = |config: &Config| {
        let mut config = config.clone();
        // What the program fills in by itself, and where a run starts, are no settings of it.
        config.data.medians = None;
        config.checkpoint.resume = Resume::Auto;
        table(&config)
    };
    let theirs = with_paths_of(ours, theirs);
    let mut found = Vec::new();
    walk("", &whole(ours), &whole(&theirs), &mut found);
    found
}

/// `theirs`, where files that are the same have the paths of `ours`.
fn with_paths_of(ours: &Config, theirs: &Config) -> Config {
    let mut theirs = theirs.clone();
    if same_scenes(&ours.data.scenes, &theirs.data.scenes) {
        theirs.data.scenes.clone_from(&ours.data.scenes);
    }
    let same = |ours: &Option<PathBuf>, theirs: &mut Option<PathBuf>| {
        if let (Some(path), Some(other)) = (ours, &*theirs)
            && same_file(path, other)
        {
            theirs.clone_from(ours);
        }
    };
    same(&ours.data.chips, &mut theirs.data.chips);
    same(&ours.train.init, &mut theirs.train.init);
    theirs
}

fn table(config: &Config) -> Table {
    Table::try_from(config).expect("every section is a table of plain values")
}

/// Whether two lists name the same scenes. Paths may be written differently, and the files may have moved.
pub(crate) fn same_scenes(ours: &[SceneEntry], theirs: &[SceneEntry]) -> bool {
    let same = |ours: &Option<PathBuf>, theirs: &Option<PathBuf>| match (ours, theirs) {
        (Some(ours), Some(theirs)) => same_file(ours, theirs),
        (ours, theirs) => ours == theirs,
    };
    ours.len() == theirs.len()
        && ours.iter().zip(theirs).all(|(ours, theirs)| {
            same_file(&ours.image, &theirs.image)
                && same(&ours.mask, &theirs.mask)
                && same(&ours.highres, &theirs.highres)
                && same(&ours.classification, &theirs.classification)
                && ours.offset == theirs.offset
        })
}

fn same_file(ours: &Path, theirs: &Path) -> bool {
    match (fs::canonicalize(ours), fs::canonicalize(theirs)) {
        (Ok(ours), Ok(theirs)) => ours == theirs,
        // Where the old path is gone, the name has to do.
        _ => ours.file_name() == theirs.file_name(),
    }
}

/// What of a configuration defines a training.
fn defining(config: &Config) -> Table {
    let mut whole = table(config);
    if let Some(Value::Table(data)) = whole.get_mut("data") {
        data.retain(|key, _| !FREE.contains(&key));
        if let Some(Value::Table(highres)) = data.get_mut("highres") {
            highres.remove("baseline");
        }
    }
    if let Some(Value::Table(train)) = whole.get_mut("train") {
        train.retain(|key, _| ["seed", "loss", "optimizer"].contains(&key));
        if config.model.superres {
            let weight = config.train.l1_weight.unwrap_or(L1_WEIGHT);
            train.insert("l1_weight".into(), weight.into());
        }
    }
    whole.retain(|section, _| ["model", "data", "train"].contains(&section));
    whole
}

/// Collects the keys below `prefix` that differ.
fn walk(prefix: &str, ours: &Table, theirs: &Table, found: &mut Vec<Difference>) {
    let keys = ours
        .keys()
        .chain(theirs.keys().filter(|key| !ours.contains_key(*key)));
    for name in keys {
        let key = match prefix {
            "" => name.clone(),
            _ => format!("{prefix}.{name}"),
        };
        match (ours.get(name), theirs.get(name)) {
            (Some(Value::Table(ours)), Some(Value::Table(theirs))) => {
                walk(&key, ours, theirs, found);
            }
            (ours, theirs) => {
                let shown = |value: Option<&Value>| {
                    value.map_or_else(|| "nothing".into(), ToString::to_string)
                };
                // As text, in which a nodata of NaN equals itself.
                let (ours, theirs) = (shown(ours), shown(theirs));
                if ours != theirs {
                    found.push(Difference { key, ours, theirs });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(settings: &[&str]) -> Config {
        let text = r#"data.scenes = [{ image = "a.tif", mask = "b.tif" }]"#;
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        let (path, folder) = (Path::new("run.toml"), Path::new("/nowhere"));
        Config::parse(text, path, folder, &settings).unwrap()
    }

    #[track_caller]
    fn check(setting: &str, key: &str, ours: &str, theirs: &str) {
        let expected = Difference {
            key: key.into(),
            ours: ours.into(),
            theirs: theirs.into(),
        };
        let found = difference(&config(&[setting]), &config(&[]));
        assert_eq!(found, Some(expected), "{setting}");
    }

    #[test]
    fn the_key_that_differs_is_named() {
        check("data.chip=48", "data.chip", "48", "64");
        check("data.stride=16", "data.stride", "16", "32");
        check("data.augment=false", "data.augment", "false", "true");
        check("data.train=north", "data.train", "\"north\"", "\"west\"");
        check("data.nodata=0", "data.nodata", "0.0", "nothing");
        check(
            "data.selection.min_valid=0.5",
            "data.selection.min_valid",
            "0.5",
            "0.0",
        );
        check(
            "train.loss=bce_dice",
            "train.loss",
            "\"bce_dice\"",
            "\"focal\"",
        );
        check("train.seed=3", "train.seed", "3", "0");
        check("train.l1_weight=1.0", "train.l1_weight", "1.0", "0.001");
        check("model.scale=4", "model.scale", "4", "5");
        let scenes = "data.scenes=[{ image = \"c.tif\", mask = \"b.tif\" }]";
        let found = difference(&config(&[scenes]), &config(&[])).unwrap();
        assert_eq!(found.key, "data.scenes");
        let scenes = "data.scenes=[{ image = \"a.tif\", mask = \"b.tif\", highres = \"c.tif\" }]";
        let found = difference(&config(&[scenes]), &config(&[])).unwrap();
        assert_eq!(found.key, "data.scenes");
        check(
            "data.highres.scaling.offset=-1000.0",
            "data.highres.scaling.offset",
            "-1000.0",
            "0.0",
        );
    }

    #[test]
    fn what_may_change_is_no_difference() {
        for setting in [
            "zero.ranks=3",
            "zero.stage=2",
            "train.steps=7",
            "train.lr=1.0",
            "train.micro_batch=2",
            "data.test=south",
            "data.tile=96",
            "data.overlap=8",
            "data.baseline_note=x",
            "data.highres.baseline=[3, 2, 1, 4]",
            "log.seconds=1.0",
            "checkpoint.every=3",
            // The old file is gone, the name is the same.
            "data.scenes=[{ image = \"elsewhere/a.tif\", mask = \"b.tif\" }]",
        ] {
            let found = difference(&config(&[setting]), &config(&[]));
            assert_eq!(found, None, "{setting}");
        }
        // Nothing reads it without the branch.
        let plain = "model.superres=false";
        let weighs = config(&[plain, "train.l1_weight=1.0"]);
        assert_eq!(difference(&weighs, &config(&[plain])), None);
        let nan = ["data.nodata=nan"];
        assert_eq!(difference(&config(&nan), &config(&nan)), None);
    }
}
