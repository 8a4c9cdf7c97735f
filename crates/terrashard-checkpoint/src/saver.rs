//! Writing a checkpoint from several ranks.
//!
//! # Protocol
//! The ranks share a file system and nothing else that this module knows of; the barriers are the caller's.
//!
//! | all ranks call | rank 0 | every rank |
//! |---|---|---|
//! | [`Saver::prepare`] | removes what crashes left, makes the hidden folder `.step-NNNNNN.tmp` | |
//! | *barrier* | | |
//! | [`Saver::write`] | | writes and flushes its own data file, then its part of the manifest |
//! | *barrier* | | |
//! | [`Saver::publish`] | merges and checks the parts, writes `manifest.json`, renames the folder, replaces `latest` | |
//! | *barrier* | | |
//!
//! Each line is durable before the next begins, so a crash at any moment leaves the previous checkpoint or the
//! new one in force, whole. If one rank fails, no rank may go on to the next line.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::container::{self, Entry, Written};
use crate::durable::{self, io};
use crate::folder::{self, MANIFEST, StepFolder};
use crate::manifest::{Manifest, Part, PieceEntry, TensorEntry, piece_key};
use crate::{Error, Piece, Result, Slot, State};

/// One rank's side of writing one checkpoint; see the module's protocol.
#[derive(Debug, Clone)]
pub struct Saver {
    root: PathBuf,
    folder: StepFolder,
    step: u64,
    rank: usize,
    ranks: usize,
}

impl Saver {
    /// A saver for `step` in the `checkpoints` folder `root`. Touches no file.
    ///
    /// # Errors
    /// [`Error::Rank`] if `rank` is not below `ranks`.
    pub fn create(root: impl AsRef<Path>, step: u64, rank: usize, ranks: usize) -> Result<Self> {
        if rank >= ranks {
            return Err(Error::Rank { rank, ranks });
        }
        let root = root.as_ref().to_owned();
        let folder = StepFolder::new(&root, step);
        Ok(Self {
            root,
            folder,
            step,
            rank,
            ranks,
        })
    }

    /// Rank 0 creates the folders and removes what earlier crashes left of any step; other ranks do nothing.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn prepare(&self) -> Result<()> {
        if self.rank != 0 {
            return Ok(());
        }
        durable::create_folder(&self.root)?;
        folder::clean(&self.root)?;
        durable::create_folder(&self.folder.unpublished())
    }

    /// Writes this rank's pieces. Each element of each tensor is to be written by exactly one rank: a replicated
    /// tensor by one of them, or by each its interval. Every rank calls this, also with no pieces.
    ///
    /// # Errors
    /// [`Error::Length`] if the bytes of a piece are no whole elements or too many, [`Error::Malformed`] for a piece that
    /// is given twice, [`Error::Io`].
    pub fn write(&self, pieces: &[Piece<'_>]) -> Result<()> {
        let slots = pieces
            .iter()
            .map(|piece| {
                let width = piece.tensor.dtype.bytes();
                let len = piece.bytes.len() / width;
                let slot = Slot {
                    tensor: piece.tensor.clone(),
                    interval: piece.start..piece.start.saturating_add(len),
                };
                if piece.bytes.len() % width == 0 {
                    return Ok(slot);
                }
                Err(Error::Length {
                    tensor: piece.tensor.label(),
                    expected: len * width,
                    got: piece.bytes.len(),
                })
            })
            .collect::<Result<Vec<Slot>>>()?;
        self.write_slots(&slots, |index| Ok(Cow::from(&*pieces[index].bytes)))
    }

    /// Writes this rank's slots, asking for the little-endian bytes of one at a time, so that no more than one is
    /// in memory. Otherwise as [`Self::write`].
    ///
    /// # Errors
    /// [`Error::Fetch`] with the error of `fetch`, and those of [`Self::write`].
    pub fn write_with<'a, E>(
        &self,
        slots: &[Slot],
        mut fetch: impl FnMut(&Slot) -> Result<Cow<'a, [u8]>, E>,
    ) -> Result<()>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.write_slots(slots, |index| {
            fetch(&slots[index]).map_err(|error| Error::Fetch {
                tensor: slots[index].tensor.label(),
                source: error.into(),
            })
        })
    }

    pub(crate) fn write_slots<'a>(
        &self,
        slots: &[Slot],
        mut fetch: impl FnMut(usize) -> Result<Cow<'a, [u8]>>,
    ) -> Result<()> {
        // Slots that hold elements, as indices; the others only make their tensors known.
        let full: Vec<usize> = (0..slots.len())
            .filter(|&index| !slots[index].interval.is_empty())
            .collect();
        let entries: Vec<Entry> = full
            .iter()
            .map(|&index| {
                let Slot { tensor, interval } = &slots[index];
                Entry {
                    key: piece_key(&tensor.name, tensor.kind, interval.start),
                    shape: vec![interval.len()],
                    dtype: tensor.dtype,
                    label: tensor.label(),
                }
            })
            .collect();
        let unpublished = self.folder.unpublished();
        let file = data_name(self.rank);
        let (bytes, written) = container::write(
            &unpublished.join(&file),
            &entries,
            |index| fetch(full[index]),
            |_| Ok(self.metadata()),
        )?;
        let places = full.iter().copied().zip(entries.into_iter().zip(written));
        let part = Part {
            step: self.step,
            rank: self.rank,
            ranks: self.ranks,
            tensors: tensor_entries(slots, places, &file),
            file,
            bytes,
        };
        durable::write_file(&unpublished.join(part_name(self.rank)), &part.text()?)?;
        durable::sync_folder(&unpublished)
    }

    /// Rank 0 makes the checkpoint the one in force; other ranks do nothing. Returns the checkpoint's folder.
    ///
    /// # Errors
    /// [`Error::Step`] if the state is another step's; [`Error::MissingRank`], [`Error::Gap`], [`Error::Overlap`],
    /// [`Error::Disagreement`], [`Error::Malformed`] or [`Error::Truncated`] if the ranks' parts are not one whole;
    /// [`Error::Encode`], [`Error::Io`]. The previous checkpoint then stays in force.
    pub fn publish(&self, state: &State) -> Result<PathBuf> {
        let complete = self.folder.complete();
        if self.rank != 0 {
            return Ok(complete);
        }
        if state.step != self.step {
            return Err(Error::Step {
                expected: self.step,
                got: state.step,
            });
        }
        let unpublished = self.folder.unpublished();
        let path = unpublished.join(MANIFEST);
        let parts = self.read_parts(&unpublished)?;
        let manifest = Manifest::merge(&path, parts, state)?;
        check_lengths(&unpublished, &manifest)?;
        durable::write_file(&path, &manifest.text()?)?;
        for rank in 0..self.ranks {
            durable::remove_file(&unpublished.join(part_name(rank)))?;
        }
        durable::sync_folder(&unpublished)?;
        self.folder.publish()?;
        folder::point_at(&self.folder)?;
        self.folder.discard(&self.folder.replaced())?;
        Ok(complete)
    }

    /// Removes what this rank wrote of a save that failed on any rank, so that it does not keep a full disk full. Each rank calls this
    /// once its own part has ended; the last one removes the folder. What cannot be removed is left to the next [`Self::prepare`].
    pub fn abandon(&self) {
        let unpublished = self.folder.unpublished();
        let mut names = vec![data_name(self.rank), part_name(self.rank)];
        if self.rank == 0 {
            names.push(MANIFEST.into());
        }
        for name in names {
            let _ = durable::remove_file(&unpublished.join(name));
        }
        // Others' files are in it until they have gone.
        let _ = fs::remove_dir(&unpublished);
    }

    /// The folder of checkpoints.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn read_parts(&self, unpublished: &Path) -> Result<Vec<Part>> {
        (0..self.ranks)
            .map(|rank| {
                let missing = || Error::MissingRank {
                    rank,
                    ranks: self.ranks,
                    folder: unpublished.to_owned(),
                };
                let path = unpublished.join(part_name(rank));
                if !path.exists() {
                    return Err(missing());
                }
                let part = Part::read(&path)?;
                if (part.step, part.rank, part.ranks) != (self.step, rank, self.ranks) {
                    return Err(missing());
                }
                Ok(part)
            })
            .collect()
    }

    fn metadata(&self) -> BTreeMap<String, String> {
        [
            ("terrashard.step", self.step.to_string()),
            ("terrashard.rank", self.rank.to_string()),
            ("terrashard.ranks", self.ranks.to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }
}

/// Groups what was written by tensor, in the order in which the tensors were given.
fn tensor_entries(
    slots: &[Slot],
    places: impl Iterator<Item = (usize, (Entry, Written))>,
    file: &str,
) -> Vec<TensorEntry> {
    let mut tensors: Vec<TensorEntry> = slots
        .iter()
        .map(|slot| TensorEntry {
            spec: slot.tensor.clone(),
            pieces: Vec::new(),
        })
        .collect();
    for (index, (entry, written)) in places {
        let interval = slots[index].interval.clone();
        tensors[index].pieces.push(PieceEntry {
            start: interval.start,
            end: interval.end,
            file: file.to_owned(),
            key: entry.key,
            bytes: [written.bytes.start, written.bytes.end],
            hashes: written.hashes,
        });
    }
    tensors
}

/// Checks that the data files have the lengths that the ranks gave: one that another node wrote may not have
/// arrived.
pub(crate) fn check_lengths(folder: &Path, manifest: &Manifest) -> Result<()> {
    let mut files = manifest.files.keys();
    files.try_for_each(|name| check_length(folder, manifest, name))
}

/// Checks that one of the manifest's data files is there, in its length.
pub(crate) fn check_length(folder: &Path, manifest: &Manifest, name: &str) -> Result<()> {
    let (path, expected) = (folder.join(name), manifest.files[name]);
    let metadata = match fs::metadata(&path) {
        Ok(metadata) if metadata.is_file() => metadata,
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(io("inspect", &path)(error));
        }
        _ => {
            let (tensor, others) = manifest.held_by(name);
            return Err(Error::MissingFile {
                path,
                tensor,
                others,
            });
        }
    };
    match metadata.len() == expected {
        true => Ok(()),
        false => Err(Error::Truncated {
            path,
            expected,
            got: metadata.len(),
            tensor: manifest.held_by(name).0,
        }),
    }
}

/// The name of a rank's data file.
fn data_name(rank: usize) -> String {
    format!("rank-{rank:05}.safetensors")
}

/// The name of a rank's part of the manifest.
fn part_name(rank: usize) -> String {
    format!("rank-{rank:05}.json")
}
