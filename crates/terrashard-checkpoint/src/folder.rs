//! The names in a `checkpoints` folder, and which checkpoint is in force.
//!
//! | name | is |
//! |---|---|
//! | `step-000100` | a complete checkpoint: the folder gets this name last |
//! | `latest` | a file with the name of the one in force |
//! | `.step-000100.tmp` | one that is being written, or was when a process died |
//! | `.step-000100.replaced` | the previous one of that step, until the new one stands in its place |
//! | `.step-000100.discarded` | one that is being removed |

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::durable::{self, io};
use crate::manifest::Manifest;
use crate::{Error, Result};

/// The folder of checkpoints in a run's folder.
pub const FOLDER: &str = "checkpoints";

/// The file that names the checkpoint in force.
pub(crate) const LATEST: &str = "latest";

/// The file that describes a checkpoint.
pub(crate) const MANIFEST: &str = "manifest.json";

/// A step's folder in a `checkpoints` folder under its several names.
#[derive(Debug, Clone)]
pub(crate) struct StepFolder {
    root: PathBuf,
    step: u64,
}

impl StepFolder {
    pub(crate) fn new(root: &Path, step: u64) -> Self {
        Self {
            root: root.to_owned(),
            step,
        }
    }

    /// The folder's name: `step-` and at least six digits.
    pub(crate) fn name(&self) -> String {
        format!("step-{:06}", self.step)
    }

    /// Where the complete checkpoint stands.
    pub(crate) fn complete(&self) -> PathBuf {
        self.root.join(self.name())
    }

    /// Where it is written.
    pub(crate) fn unpublished(&self) -> PathBuf {
        self.hidden("tmp")
    }

    /// Where the previous one of this step waits until the new one is in place.
    pub(crate) fn replaced(&self) -> PathBuf {
        self.hidden("replaced")
    }

    /// The complete checkpoint of this step: under its own name or, after a crash between the two renames of a
    /// replacement, under that of the replaced one.
    pub(crate) fn find(&self) -> Option<PathBuf> {
        [self.complete(), self.replaced()]
            .into_iter()
            .find(|path| path.join(MANIFEST).is_file())
    }

    /// Makes the new folder the complete one, whether or not one of this step exists.
    pub(crate) fn publish(&self) -> Result<()> {
        let (complete, replaced) = (self.complete(), self.replaced());
        if complete.exists() {
            durable::rename(&complete, &replaced)?;
        }
        durable::rename(&self.unpublished(), &complete)
    }

    /// Removes a folder of this step. It loses its name first, so that no half of it is ever taken for whole.
    pub(crate) fn discard(&self, folder: &Path) -> Result<()> {
        let discarded = self.hidden("discarded");
        durable::remove_folder(&discarded)?;
        if folder.exists() {
            durable::rename(folder, &discarded)?;
            durable::remove_folder(&discarded)?;
        }
        Ok(())
    }

    fn hidden(&self, suffix: &str) -> PathBuf {
        self.root.join(format!(".{}.{suffix}", self.name()))
    }
}

/// The step of a folder's name; `None` for any other name, so that nothing with a path in it passes.
pub(crate) fn parse_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?;
    let step = digits.parse().ok()?;
    (format!("{step:06}") == digits).then_some(step)
}

/// The steps of all complete checkpoints in a `checkpoints` folder, ascending.
///
/// # Errors
/// [`Error::Io`] if the folder cannot be listed.
pub fn steps(root: impl AsRef<Path>) -> Result<Vec<u64>> {
    let mut steps: Vec<u64> = entries(root.as_ref())?
        .iter()
        .filter_map(|name| {
            let visible = name.strip_prefix('.').unwrap_or(name);
            parse_name(visible.strip_suffix(".replaced").unwrap_or(visible))
        })
        .filter(|&step| StepFolder::new(root.as_ref(), step).find().is_some())
        .collect();
    steps.sort_unstable();
    steps.dedup();
    Ok(steps)
}

/// Where a step's complete checkpoint stands in a `checkpoints` folder, if it is there.
pub fn step_folder(root: impl AsRef<Path>, step: u64) -> PathBuf {
    StepFolder::new(root.as_ref(), step).complete()
}

/// The step of the checkpoint in force in a `checkpoints` folder: the one that `latest` names or, where a crash
/// came before the first `latest`, the newest complete one.
///
/// # Errors
/// [`Error::Pointer`] if `latest` names none that is complete, [`Error::Io`] if the folder cannot be read.
pub fn in_force(root: impl AsRef<Path>) -> Result<Option<u64>> {
    let root = root.as_ref();
    let path = root.join(LATEST);
    let mut text = Vec::new();
    // A pipe would be waited for.
    if path.exists() && !path.is_file() {
        let found = "no regular file".into();
        return Err(Error::Pointer { path, found });
    }
    match File::open(&path) {
        Ok(file) => {
            // A name is short; whatever else is there is not read into memory.
            file.take(64)
                .read_to_end(&mut text)
                .map_err(io("read", &path))?;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(steps(root)?.pop()),
        Err(error) => return Err(io("open", &path)(error)),
    }
    let found = String::from_utf8_lossy(&text).trim().to_owned();
    match parse_name(&found) {
        Some(step) if StepFolder::new(root, step).find().is_some() => Ok(Some(step)),
        _ => Err(Error::Pointer { path, found }),
    }
}

/// Points `latest` at a step.
pub(crate) fn point_at(folder: &StepFolder) -> Result<()> {
    let text = format!("{}\n", folder.name());
    durable::replace_file(&folder.root.join(LATEST), |path| {
        durable::write_file(path, text.as_bytes())
    })
}

/// What crashes have left in a `checkpoints` folder: the names of folders and files that no checkpoint needs, sorted. A replaced
/// checkpoint whose successor never came is none of them.
///
/// # Errors
/// [`Error::Io`] if the folder cannot be listed.
pub fn remains(root: impl AsRef<Path>) -> Result<Vec<String>> {
    let root = root.as_ref();
    let is_left = |name: &String| match parse_hidden(name) {
        Some((_, "tmp" | "discarded")) => true,
        Some((step, "replaced")) => StepFolder::new(root, step).complete().exists(),
        _ => root.join(name) == durable::temporary(&root.join(LATEST)),
    };
    Ok(entries(root)?.into_iter().filter(is_left).collect())
}

/// Removes what crashes have left, and puts a replaced checkpoint back whose successor never came. Nobody may be saving.
///
/// # Errors
/// [`Error::Io`].
pub fn clean(root: impl AsRef<Path>) -> Result<()> {
    let root = root.as_ref();
    for name in entries(root)? {
        let path = root.join(&name);
        if path == durable::temporary(&root.join(LATEST)) {
            durable::remove_file(&path)?;
        }
        let Some((step, suffix)) = parse_hidden(&name) else {
            continue;
        };
        let folder = StepFolder::new(root, step);
        match suffix {
            "tmp" | "discarded" => durable::remove_folder(&path)?,
            "replaced" if folder.complete().exists() => folder.discard(&path)?,
            "replaced" => durable::rename(&path, &folder.complete())?,
            _ => {}
        }
    }
    Ok(())
}

/// Step and suffix of a hidden name.
fn parse_hidden(name: &str) -> Option<(u64, &str)> {
    let (name, suffix) = name.strip_prefix('.')?.split_once('.')?;
    Some((parse_name(name)?, suffix))
}

/// Which checkpoints stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// The newest, at least one.
    pub last: usize,
    /// Those with the least [`State::score`](crate::State::score) of all, whether or not they are among the newest: `last` 1 and `best` 2 keep
    /// two where the newest is one of the best, else three.
    pub best: usize,
}

/// The steps that [`prune`] would remove from a `checkpoints` folder.
///
/// # Errors
/// [`Error::Pointer`] if `latest` is damaged, [`Error::Io`].
pub fn superfluous(root: impl AsRef<Path>, keep: Keep) -> Result<Vec<u64>> {
    let root = root.as_ref();
    let Some(newest) = in_force(root)? else {
        return Ok(Vec::new());
    };
    let mut old = steps(root)?;
    old.retain(|&step| step <= newest);
    let last = old.split_off(old.len().saturating_sub(keep.last.max(1)));
    if keep.best == 0 {
        return Ok(old);
    }
    let ranked = ranked(root, newest, old.iter().chain(&last));
    let best = &ranked[..ranked.len().min(keep.best)];
    old.retain(|step| !best.contains(step));
    Ok(old)
}

/// The steps of a `checkpoints` folder up to the one in force that have a score by the same metric as that, the best first.
///
/// # Errors
/// [`Error::Pointer`] if `latest` is damaged, [`Error::Io`].
pub fn ranking(root: impl AsRef<Path>) -> Result<Vec<u64>> {
    let root = root.as_ref();
    let Some(newest) = in_force(root)? else {
        return Ok(Vec::new());
    };
    let mut steps = steps(root)?;
    steps.retain(|&step| step <= newest);
    Ok(ranked(root, newest, &steps))
}

/// Those of `steps` that have a score by the metric of the newest, the best first.
fn ranked<'a>(root: &Path, newest: u64, steps: impl IntoIterator<Item = &'a u64>) -> Vec<u64> {
    let metric = scored(root, newest).and_then(|(_, by)| by);
    let same = |by: &Option<String>| by.is_none() || metric.is_none() || *by == metric;
    let mut scores: Vec<(f64, u64)> = steps
        .into_iter()
        .filter_map(|&step| {
            let (score, by) = scored(root, step)?;
            Some((score.filter(|_| same(&by))?, step))
        })
        .collect();
    // Of equal ones the newer is the better.
    scores.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    scores.into_iter().map(|(_, step)| step).collect()
}

/// A step's score and by what it is; none where it cannot be read, which is no reason to keep it.
fn scored(root: &Path, step: u64) -> Option<(Option<f64>, Option<String>)> {
    let path = StepFolder::new(root, step).find()?.join(MANIFEST);
    let state = Manifest::read(&path).ok()?.state(&path).ok()?;
    Some((state.score, state.scored_by))
}

/// Removes old checkpoints from a `checkpoints` folder: of those up to the one in force, the newest and the best
/// stay. Later ones belong to a run that was resumed from before them; they stay until training
/// gets there and replaces them. Returns the steps that were removed.
///
/// # Errors
/// [`Error::Pointer`] if `latest` is damaged (nothing is removed then), [`Error::Io`].
pub fn prune(root: impl AsRef<Path>, keep: Keep) -> Result<Vec<u64>> {
    let root = root.as_ref();
    let old = superfluous(root, keep)?;
    for &step in &old {
        let folder = StepFolder::new(root, step);
        folder.discard(&folder.complete())?;
        folder.discard(&folder.replaced())?;
    }
    Ok(old)
}

/// The step's folder that a path means: a run's folder, its `checkpoints` folder, or a step's own.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf> {
    let missing = || Error::NoCheckpoint {
        path: path.to_owned(),
    };
    if path.join(MANIFEST).is_file() {
        return Ok(path.to_owned());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if let Some(step) = parse_name(&name) {
        return StepFolder::new(durable::parent(path), step)
            .find()
            .ok_or_else(missing);
    }
    let inner = path.join(FOLDER);
    let root = if inner.is_dir() { &inner } else { path };
    if !root.is_dir() {
        return Err(missing());
    }
    let step = in_force(root)?.ok_or_else(missing)?;
    StepFolder::new(root, step).find().ok_or_else(missing)
}

/// The names in a folder; none that is not Unicode is ours.
fn entries(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root).map_err(io("list", root))? {
        let entry = entry.map_err(io("list", root))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Saver, State};

    fn put(root: &Path, name: &str) {
        fs::create_dir_all(root.join(name)).unwrap();
        fs::write(root.join(name).join(MANIFEST), "{}").unwrap();
    }

    #[test]
    fn names_are_exact() {
        let check = |name, step| assert_eq!(parse_name(name), step, "{name}");
        check("step-000100", Some(100));
        check("step-1234567", Some(1_234_567));
        check("step-100", None);
        check("step-0000100", None);
        check("step-+00100", None);
        check("../step-000100", None);
        check("step-000100/..", None);
        check("", None);
    }

    #[test]
    fn the_pointer_decides_and_only_its_absence_is_forgiven() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        assert_eq!(in_force(root).unwrap(), None);
        put(root, "step-000003");
        put(root, "step-000020");
        fs::create_dir(root.join("step-000030")).unwrap();
        assert_eq!(in_force(root).unwrap(), Some(20));
        fs::write(root.join(LATEST), "step-000003\n").unwrap();
        assert_eq!(in_force(root).unwrap(), Some(3));
        for text in ["", "step-000030", "step-000004", "../step-000003", "\u{ff}"] {
            fs::write(root.join(LATEST), text).unwrap();
            let error = in_force(root).unwrap_err();
            assert!(
                matches!(&error, Error::Pointer { found, .. } if found == text),
                "{error}"
            );
        }
    }

    #[test]
    fn prune_keeps_the_newest_up_to_the_one_in_force_and_all_after_it() {
        let check = |latest: &str, keep, removed: &[u64]| {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path();
            for step in 1..=5 {
                put(root, &StepFolder::new(root, step).name());
            }
            fs::write(root.join(LATEST), latest).unwrap();
            let keep = Keep {
                last: keep,
                best: 0,
            };
            assert_eq!(superfluous(root, keep).unwrap(), removed);
            assert_eq!(prune(root, keep).unwrap(), removed);
            let kept: Vec<u64> = (1..=5).filter(|step| !removed.contains(step)).collect();
            assert_eq!(steps(root).unwrap(), kept);
            assert_eq!(
                entries(root).unwrap().len(),
                kept.len() + 1,
                "no remains, and `latest`"
            );
        };
        check("step-000005", 2, &[1, 2, 3]);
        check("step-000005", 0, &[1, 2, 3, 4]);
        check("step-000003", 1, &[1, 2]);
        check("step-000003", 9, &[]);
    }

    /// Saves steps with these scores, and by what they are.
    fn scored_steps(root: &Path, scores: &[(Option<f64>, Option<&str>)]) {
        for (step, (score, scored_by)) in (1..).zip(scores) {
            let saver = Saver::create(root, step, 0, 1).unwrap();
            saver.prepare().unwrap();
            saver.write(&[]).unwrap();
            let state = State {
                step,
                score: *score,
                scored_by: scored_by.map(str::to_owned),
                ..State::default()
            };
            saver.publish(&state).unwrap();
        }
    }

    #[test]
    fn the_best_stay_beside_the_newest() {
        let check = |scores: &[Option<f64>], keep: Keep, kept: &[u64]| {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path();
            let scores: Vec<_> = scores.iter().map(|score| (*score, None)).collect();
            scored_steps(root, &scores);
            prune(root, keep).unwrap();
            assert_eq!(steps(root).unwrap(), kept, "{scores:?} {keep:?}");
        };
        let scores = [Some(0.5), Some(0.2), None, Some(0.3), Some(0.2), Some(0.9)];
        check(&scores, Keep { last: 1, best: 0 }, &[6]);
        check(&scores, Keep { last: 1, best: 1 }, &[5, 6]);
        check(&scores, Keep { last: 1, best: 2 }, &[2, 5, 6]);
        check(&scores, Keep { last: 2, best: 3 }, &[2, 4, 5, 6]);
        check(&scores, Keep { last: 1, best: 9 }, &[1, 2, 4, 5, 6]);
        check(&[None, None], Keep { last: 1, best: 1 }, &[2]);
        check(
            &[Some(-1.0), Some(f64::MAX)],
            Keep { last: 1, best: 1 },
            &[1, 2],
        );
    }

    #[test]
    fn scores_by_another_metric_are_not_compared() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let (loss, iou) = (Some("loss"), Some("iou"));
        let scores = [
            (Some(0.01), loss),
            (Some(0.02), None),
            (Some(0.2), iou),
            (Some(0.1), iou),
            (Some(0.3), iou),
        ];
        scored_steps(root, &scores);
        assert_eq!(ranking(root).unwrap(), [2, 4, 3, 5]);
        prune(root, Keep { last: 1, best: 2 }).unwrap();
        assert_eq!(steps(root).unwrap(), [2, 4, 5]);
    }

    #[test]
    fn a_replacement_that_never_came_is_undone() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        put(root, ".step-000007.replaced");
        put(root, "step-000008");
        put(root, ".step-000008.replaced");
        put(root, ".step-000009.tmp");
        put(root, ".step-000001.discarded");
        fs::write(root.join(LATEST), "step-000007").unwrap();
        assert_eq!(resolve(root).unwrap(), root.join(".step-000007.replaced"));
        assert_eq!(
            resolve(&root.join("step-000007")).unwrap(),
            root.join(".step-000007.replaced")
        );
        let left = [
            ".step-000001.discarded",
            ".step-000008.replaced",
            ".step-000009.tmp",
        ];
        assert_eq!(remains(root).unwrap(), left);
        clean(root).unwrap();
        assert!(remains(root).unwrap().is_empty());
        assert_eq!(
            entries(root).unwrap(),
            ["latest", "step-000007", "step-000008"]
        );
    }
}
