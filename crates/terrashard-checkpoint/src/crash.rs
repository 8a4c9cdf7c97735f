//! Saves that end at every possible point, as a kill or a power cut would end them.

mod kill;

use std::cell::Cell;
use std::path::Path;

use crate::{Error, Result};

thread_local! {
    /// How many more points this thread passes; `None` for all.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Fails once the armed number of points is passed, and from then on, as nothing is done after a death. In a process that is to
/// be killed it does not return.
pub(crate) fn point(path: &Path) -> Result<()> {
    match LEFT.get() {
        None => Ok(()),
        Some(0) if kill::is_awaited() => kill::await_it(path),
        Some(0) => Err(Error::Io {
            action: "survive",
            path: path.to_owned(),
            source: std::io::Error::other("simulated crash"),
        }),
        Some(left) => {
            LEFT.set(Some(left - 1));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{Checkpoint, ElementType, Keep, Kind, Piece, Saver, State, TensorSpec, prune};

    /// Ranks of the saves that crash in one process.
    const RANKS: usize = 2;

    /// Elements of each rank.
    const OWN: usize = 2;

    /// What one rank of `ranks` writes of a save whose values are all `mark`.
    pub(super) fn pieces(rank: usize, ranks: usize, mark: u8) -> [Piece<'static>; 2] {
        [Kind::Parameter, Kind::M].map(|kind| Piece {
            tensor: TensorSpec::new("w", kind, [OWN * ranks], ElementType::F32),
            start: OWN * rank,
            bytes: vec![mark; 4 * OWN].into(),
        })
    }

    /// The state of such a save.
    pub(super) fn state(step: u64, mark: u8) -> State {
        State {
            step,
            cursor: mark.into(),
            ..State::default()
        }
    }

    /// Saves a step whose values and cursor are `mark`, until a crash if one is armed. Then prunes, as a trainer
    /// does.
    pub(super) fn save(root: &Path, step: u64, ranks: usize, mark: u8) -> Result<()> {
        let savers = (0..ranks).map(|rank| Saver::create(root, step, rank, ranks).unwrap());
        let savers: Vec<Saver> = savers.collect();
        for saver in &savers {
            saver.prepare()?;
        }
        for (rank, saver) in savers.iter().enumerate() {
            saver.write(&pieces(rank, ranks, mark))?;
        }
        for saver in &savers {
            saver.publish(&state(step, mark))?;
        }
        prune(root, KEEP).map(|_| ())
    }

    /// What a save leaves of the earlier ones.
    pub(super) const KEEP: Keep = Keep { last: 2, best: 0 };

    /// The mark of the checkpoint in force, `None` where there is none. It and all others must be whole.
    pub(super) fn mark(root: &Path, ranks: usize) -> Option<u8> {
        for name in names(root).iter().filter(|name| name.starts_with("step-")) {
            Checkpoint::open(root.join(name)).unwrap().verify().unwrap();
        }
        let checkpoint = match Checkpoint::open(root) {
            Ok(checkpoint) => checkpoint,
            Err(Error::NoCheckpoint { .. }) => return None,
            Err(error) => panic!("a crash left a checkpoint that cannot be opened: {error}"),
        };
        let values = 4 * OWN * ranks;
        assert_eq!(checkpoint.verify().unwrap(), 2 * values as u64);
        let mark = checkpoint.state().cursor as u8;
        assert_eq!(
            checkpoint.read_whole("w", Kind::M).unwrap(),
            vec![mark; values],
            "all values are of one save"
        );
        Some(mark)
    }

    /// The names in a folder, none where it does not exist yet.
    pub(super) fn names(root: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(root)
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    pub(super) fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for name in names(from) {
            let (from, to) = (from.join(&name), to.join(&name));
            match from.is_dir() {
                true => copy(&from, &to),
                false => fs::copy(from, to).map(|_| ()).unwrap(),
            }
        }
    }

    /// Makes the `before` saves, then one of `step` that dies at each possible point in turn; after each death the
    /// previous checkpoint or the new one must be in force, and the same save must then succeed and leave
    /// nothing else behind. Returns how many points there were.
    fn check(before: &[u64], step: u64, left: &[&str]) -> usize {
        let earlier = tempfile::tempdir().unwrap();
        for (index, &step) in before.iter().enumerate() {
            save(earlier.path(), step, RANKS, index as u8 + 1).unwrap();
        }
        let previous = mark(earlier.path(), RANKS);
        assert_eq!(previous.unwrap_or(0) as usize, before.len());
        for point in 0.. {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().join("run").join("checkpoints");
            if !before.is_empty() {
                copy(earlier.path(), &root);
            }

            LEFT.set(Some(point));
            let result = save(&root, step, RANKS, 100);
            LEFT.set(None);
            let now = mark(&root, RANKS);
            assert!(
                now == previous || now == Some(100),
                "point {point}: {now:?}"
            );
            if result.is_ok() {
                assert_eq!(now, Some(100));
                return point;
            }
            save(&root, step, RANKS, 101).unwrap();
            assert_eq!(mark(&root, RANKS), Some(101), "point {point}");
            assert_eq!(names(&root), left, "point {point}");
        }
        unreachable!("a save has an end");
    }

    #[test]
    fn the_first_save() {
        let points = check(&[], 1, &["latest", "step-000001"]);
        assert!(points >= 25, "{points} points");
    }

    #[test]
    fn a_further_save_that_prunes() {
        check(&[1, 2], 3, &["latest", "step-000002", "step-000003"]);
    }

    #[test]
    fn a_save_over_the_one_in_force() {
        check(&[1, 2], 2, &["latest", "step-000001", "step-000002"]);
    }

    #[test]
    fn a_save_over_one_that_is_not_in_force() {
        check(&[1, 3, 2], 3, &["latest", "step-000002", "step-000003"]);
    }
}
