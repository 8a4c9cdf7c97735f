//! The processes that start from one checkpoint: together they read and check all of it once, and agree on which it is.

use std::fmt::{self, Debug};
use std::path::Path;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_checkpoint::{Checkpoint, in_force, step_folder, steps};
use terrashard_collectives::Communicator;

use crate::error::{Error, Result};

/// Who checks a checkpoint before a run starts from it.
pub(super) enum Readers {
    /// This process, whose threads the ranks are.
    Alone,
    /// One process for each rank.
    Together(Arc<dyn Communicator>, Device),
}

impl Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (index, of) = self.share();
        write!(f, "Readers({index} of {of})")
    }
}

impl Readers {
    /// A checkpoint of which every byte was read by one of them and is as it was written. Collective: all get it, or all an error.
    ///
    /// # Errors
    /// [`Error::Checkpoint`]; [`Error::Collective`].
    pub(super) fn sound(&self, path: &Path) -> Result<Checkpoint> {
        let (share, shares) = self.share();
        let own = Checkpoint::open(path);
        let checked = own.and_then(|checkpoint| {
            checkpoint.verify_share(share, shares)?;
            Ok(checkpoint)
        });
        let sound = self.gather(f64::from(u8::from(checked.is_ok())))?;
        let Some(other) = sound.iter().position(|sound| *sound == 0.0) else {
            return Ok(checked?);
        };
        // So that all tell the same of it.
        let checkpoint = Checkpoint::open(path)?;
        checkpoint.verify()?;
        Err(Error::UnlikeFiles {
            path: checkpoint.folder().to_owned(),
            rank: other,
        })
    }

    /// Of a run's checkpoints, that in force if it is sound, or else the newest before it that is, with a warning. Collective, as
    /// [`Self::sound`].
    pub(super) fn newest_sound(
        &self,
        root: &Path,
        warnings: &mut Vec<String>,
    ) -> Result<Checkpoint> {
        let mut steps = steps(root)?;
        let mut first = None;
        match in_force(root) {
            Ok(Some(newest)) => steps.retain(|step| *step <= newest),
            Ok(None) => {}
            // Without the pointer, what it would point at is not known, but the newest is the best guess.
            Err(error @ terrashard_checkpoint::Error::Pointer { .. }) => first = Some(error.into()),
            Err(error) => return Err(error.into()),
        }
        for step in steps.into_iter().rev() {
            match self.sound(&step_folder(root, step)) {
                Ok(checkpoint) => {
                    warnings.extend(
                        first.map(|error: Error| format!("{error}; going on from step {step}")),
                    );
                    return Ok(checkpoint);
                }
                // It is not damaged, and going on from an older one would replace it.
                Err(error) if is_of_newer_version(&error) => return Err(error),
                Err(error @ (Error::Checkpoint(_) | Error::UnlikeFiles { .. })) => {
                    first.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        let none = || terrashard_checkpoint::Error::NoCheckpoint { path: root.into() };
        Err(first.unwrap_or_else(|| none().into()))
    }

    /// An error unless all of them see the same checkpoints of a run, of which the newest is `newest`. Collective.
    ///
    /// # Errors
    /// [`Error::UnlikeFiles`]; [`Error::Collective`].
    pub(super) fn agree(&self, root: &Path, newest: Option<u64>) -> Result<()> {
        let newest = self.gather(newest.map_or(-1.0, |step| step as f64))?;
        match newest.iter().position(|theirs| *theirs != newest[0]) {
            None => Ok(()),
            Some(rank) => Err(Error::UnlikeFiles {
                path: root.to_owned(),
                rank,
            }),
        }
    }

    /// Which share of the reading is this process's, and of how many.
    fn share(&self) -> (usize, usize) {
        match self {
            Self::Alone => (0, 1),
            Self::Together(communicator, _) => (communicator.rank(), communicator.ranks()),
        }
    }

    /// A number of each of them, for all of them.
    fn gather(&self, own: f64) -> Result<Vec<f64>> {
        let Self::Together(communicator, device) = self else {
            return Ok(vec![own]);
        };
        let own = Tensor::from_data(TensorData::from([own]), (device, DType::F64));
        let all = communicator.all_gather(own)?.wait()?.try_into_data();
        let all = all.map_err(|source| terrashard_collectives::Error::Read {
            source: Arc::new(source),
        })?;
        Ok(all.iter::<f64>().collect())
    }
}

fn is_of_newer_version(error: &Error) -> bool {
    matches!(error, Error::Checkpoint(source) if matches!(**source, terrashard_checkpoint::Error::NewerVersion { .. }))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use terrashard_checkpoint::{ElementType, Kind, Piece, Saver, State, TensorSpec};
    use terrashard_collectives::local::{self, LocalCommunicator};

    use super::*;

    const BYTES: u64 = 12 << 20;

    fn saved(root: &Path, step: u64) -> PathBuf {
        let saver = Saver::create(root, step, 0, 1).unwrap();
        saver.prepare().unwrap();
        let pieces = [Kind::Parameter, Kind::M, Kind::V].map(|kind| Piece {
            tensor: TensorSpec::new("w", kind, [1 << 20], ElementType::F32),
            start: 0,
            bytes: vec![7 + kind as u8; 4 << 20].into(),
        });
        saver.write(&pieces).unwrap();
        let state = State {
            step,
            ..State::default()
        };
        saver.publish(&state).unwrap()
    }

    fn flip(folder: &Path) {
        let path = folder.join("rank-00000.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(path, bytes).unwrap();
    }

    fn on_ranks<T: Send>(
        ranks: usize,
        body: impl Fn(Readers) -> Result<T> + Sync,
    ) -> Vec<Result<T, String>> {
        let body = |communicator: LocalCommunicator| {
            let readers = Readers::Together(Arc::new(communicator), Device::flex());
            Ok::<_, String>(body(readers).map_err(|error| error.to_string()))
        };
        local::run(ranks, body).unwrap()
    }

    #[test]
    fn processes_read_a_checkpoint_once_together() {
        let folder = tempfile::tempdir().unwrap();
        let path = saved(folder.path(), 2);
        assert_eq!(Readers::Alone.sound(&path).unwrap().bytes_read(), BYTES);
        for ranks in [2, 3, 4] {
            let read = on_ranks(ranks, |readers| Ok(readers.sound(&path)?.bytes_read()));
            let read: Vec<u64> = read.into_iter().map(Result::unwrap).collect();
            assert_eq!(read.iter().sum::<u64>(), BYTES, "{read:?}");
            let share = BYTES.div_ceil(ranks as u64).next_multiple_of(1 << 20);
            assert!(read.iter().all(|read| *read <= share), "{read:?}");
        }
    }

    #[test]
    fn damage_that_one_process_finds_is_told_by_all() {
        let folder = tempfile::tempdir().unwrap();
        saved(folder.path(), 2);
        flip(&saved(folder.path(), 4));
        let found = on_ranks(3, |readers| {
            let mut warnings = Vec::new();
            let checkpoint = readers.newest_sound(folder.path(), &mut warnings)?;
            Ok((checkpoint.state().step, warnings.join("\n")))
        });
        for found in found {
            let (step, warnings) = found.unwrap();
            assert_eq!(step, 2);
            assert!(
                warnings.contains("step-000004")
                    && warnings.contains("v `w`")
                    && warnings.contains("going on from step 2"),
                "{warnings}"
            );
        }
    }

    #[test]
    fn nodes_that_see_other_files_are_told_so() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = saved(one.path(), 2);
        flip(&saved(other.path(), 2));
        let own = |readers: &Readers| match readers.share().0 {
            2 => other.path().join("step-000002"),
            _ => path.clone(),
        };
        let found = on_ranks(3, |readers| Ok(readers.sound(&own(&readers))?.ranks()));
        let told = |found: &Result<usize, String>| found.clone().unwrap_err();
        assert!(told(&found[0]).contains("rank 2"), "{}", told(&found[0]));
        assert_eq!(told(&found[0]), told(&found[1]));
        assert!(told(&found[2]).contains("v `w`"), "{}", told(&found[2]));
        let agreed = on_ranks(2, |readers| {
            let newest = (readers.share().0 == 0).then_some(2);
            readers.agree(Path::new("run"), newest)
        });
        for agreed in agreed {
            let told = agreed.unwrap_err();
            assert!(told.contains("rank 1") && told.contains("run"), "{told}");
        }
    }
}
