//! Reading a checkpoint by name and interval, whatever rank count wrote it.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::chunk::{self, Extent};
use crate::container::Header;
use crate::durable::io;
use crate::folder::{MANIFEST, resolve};
use crate::manifest::{Manifest, PieceEntry, TensorEntry};
use crate::saver::{check_length, check_lengths};
use crate::{Error, Kind, Result, State, TensorSpec};

/// A tensor of a checkpoint that cannot be read.
#[derive(Debug)]
pub struct Fault {
    /// Its name.
    pub name: String,
    /// What its values are to the parameter of that name.
    pub kind: Kind,
    /// Why.
    pub error: Error,
}

/// The first reason why each of some tensors cannot be read.
type Faults = BTreeMap<(String, Kind), Error>;

/// A chunk to be checked.
#[derive(Debug)]
struct Task<'a> {
    entry: &'a TensorEntry,
    piece: &'a PieceEntry,
    chunk: usize,
}

/// A complete checkpoint, open for reading.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    manifest: Manifest,
    state: State,
    /// Bytes that were read of tensors.
    read: AtomicU64,
}

impl Checkpoint {
    /// Opens a checkpoint. `path` is a run's folder or its `checkpoints` folder, for the one in force there, or
    /// one step's folder. Reads the manifest and checks it, and that all data files are there in full length;
    /// their contents are checked as they are read.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`], [`Error::Pointer`], [`Error::NewerVersion`], [`Error::Manifest`],
    /// [`Error::Malformed`], [`Error::Gap`], [`Error::Overlap`], [`Error::MissingFile`], [`Error::Truncated`],
    /// [`Error::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let checkpoint = Self::open_damaged(path)?;
        check_lengths(&checkpoint.folder, &checkpoint.manifest)?;
        Ok(checkpoint)
    }

    /// As [`Self::open`] where data files may be missing or too short: [`Self::faults`] tells which tensors that costs, and
    /// those cannot be read.
    ///
    /// # Errors
    /// As [`Self::open`] but for the data files.
    pub fn open_damaged(path: impl AsRef<Path>) -> Result<Self> {
        let folder = resolve(path.as_ref())?;
        let path = folder.join(MANIFEST);
        let manifest = Manifest::read(&path)?;
        let state = manifest.state(&path)?;
        Ok(Self {
            folder,
            manifest,
            state,
            read: AtomicU64::new(0),
        })
    }

    /// The folder that is read.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// How many ranks wrote it.
    pub fn ranks(&self) -> usize {
        self.manifest.ranks
    }

    /// The state of the run.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// All tensors, sorted by name and kind.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        self.manifest.tensors.iter().map(|entry| &entry.spec)
    }

    /// Bytes of its files, the manifest included.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn disk_bytes(&self) -> Result<u64> {
        let path = self.folder.join(MANIFEST);
        let manifest = path.metadata().map_err(io("inspect", &path))?.len();
        Ok(manifest + self.manifest.files.values().sum::<u64>())
    }

    /// A tensor by name and kind. A name that is tied has the optimizer states of its owner.
    pub fn tensor(&self, name: &str, kind: Kind) -> Option<&TensorSpec> {
        Some(&self.entry(name, kind)?.spec)
    }

    /// Reads elements `interval` of a tensor, flattened in row-major order, as little-endian bytes. A tied name
    /// gives its owner's values. Only the chunks that the interval touches are read, into the result but for the two at its
    /// ends, and each is checked against its hash.
    ///
    /// # Errors
    /// [`Error::UnknownTensor`], [`Error::Interval`] past the tensor's end, [`Error::Damaged`] naming file and tensor,
    /// [`Error::Io`].
    pub fn read(&self, name: &str, kind: Kind, interval: Range<usize>) -> Result<Vec<u8>> {
        let entry = self.values_of(name, kind, &interval)?;
        // No more than the files hold: `Manifest::read` has checked that pieces cover the tensor with bytes of
        // their own, `open` that the files are as long as they need to be.
        let mut out = vec![0; interval.len() * entry.spec.dtype.bytes()];
        self.fill(entry, interval, &mut out)?;
        Ok(out)
    }

    /// As [`Self::read`] into memory that is there, which saves the system from making it: all of `out` is filled, or what is
    /// in it after an error means nothing.
    ///
    /// # Errors
    /// As [`Self::read`], and [`Error::Length`] if `out` has another length than the interval's bytes.
    pub fn read_into(
        &self,
        name: &str,
        kind: Kind,
        interval: Range<usize>,
        out: &mut [u8],
    ) -> Result<()> {
        let entry = self.values_of(name, kind, &interval)?;
        let expected = interval.len() * entry.spec.dtype.bytes();
        if out.len() != expected {
            return Err(Error::Length {
                tensor: entry.spec.label(),
                expected,
                got: out.len(),
            });
        }
        self.fill(entry, interval, out)
    }

    /// The tensor that holds the values of a name, which an interval lies in.
    fn values_of(&self, name: &str, kind: Kind, interval: &Range<usize>) -> Result<&TensorEntry> {
        let entry = self
            .entry(name, kind)
            .and_then(|entry| match &entry.spec.tied_to {
                Some(owner) => self.manifest.tensor(owner, kind),
                None => Some(entry),
            })
            .ok_or_else(|| Error::UnknownTensor {
                path: self.folder.clone(),
                name: name.to_owned(),
                kind,
            })?;
        check_interval(&self.folder, &entry.spec, interval)?;
        Ok(entry)
    }

    fn fill(&self, entry: &TensorEntry, interval: Range<usize>, out: &mut [u8]) -> Result<()> {
        let width = entry.spec.dtype.bytes();
        let first = entry
            .pieces
            .partition_point(|piece| piece.end <= interval.start);
        for piece in &entry.pieces[first..] {
            let common = piece.start.max(interval.start)..piece.end.min(interval.end);
            if common.is_empty() {
                break;
            }
            let extent = self.extent(entry, piece);
            let mut file = File::open(&extent.path).map_err(io("open", &extent.path))?;
            extent.read(
                &mut file,
                (common.start - piece.start) * width,
                &mut out[(common.start - interval.start) * width
                    ..(common.end - interval.start) * width],
            )?;
        }
        Ok(())
    }

    /// Reads a whole tensor; see [`Self::read`].
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub fn read_whole(&self, name: &str, kind: Kind) -> Result<Vec<u8>> {
        let numel = self.tensor(name, kind).map_or(0, TensorSpec::numel);
        self.read(name, kind, 0..numel)
    }

    /// Checks everything: each file's header against the manifest, each chunk of each tensor against its hash.
    /// Returns the bytes of tensors that were checked.
    ///
    /// # Errors
    /// The first fault, by name: [`Error::Damaged`], [`Error::Header`], [`Error::Malformed`], [`Error::Io`].
    pub fn verify(&self) -> Result<u64> {
        self.verify_share(0, 1)
    }

    /// One of `shares` shares of [`Self::verify`], of about the same number of bytes each: what ranks that are processes
    /// check, so that together they read all of it once. Returns the bytes of tensors that were checked.
    ///
    /// # Errors
    /// As [`Self::verify`], for what lies in this share.
    ///
    /// # Panics
    /// If there is no share of that number.
    pub fn verify_share(&self, share: usize, shares: usize) -> Result<u64> {
        assert!(share < shares, "share {share} of {shares}");
        for name in self.manifest.files.keys().skip(share).step_by(shares) {
            let path = self.folder.join(name);
            let mut file = File::open(&path).map_err(io("open", &path))?;
            let header = Header::read(&mut file, &path)?;
            for (entry, piece) in self.pieces().filter(|(_, piece)| &piece.file == name) {
                check_header(&path, &header, entry, piece)?;
            }
        }
        let mut faults = BTreeMap::new();
        let tasks = self.tasks(&mut faults);
        let end = |share: usize| tasks.len() * share / shares;
        let checked = self.check(&tasks[end(share)..end(share + 1)], &mut faults);
        match faults.into_values().next() {
            Some(error) => Err(error),
            None => Ok(checked),
        }
    }

    /// The tensors that cannot be read, sorted by name and kind, each with the first reason. All values of all others were read
    /// and have their hashes.
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = BTreeMap::new();
        let tasks = self.tasks(&mut faults);
        self.check(&tasks, &mut faults);
        let fault = |((name, kind), error)| Fault { name, kind, error };
        faults.into_iter().map(fault).collect()
    }

    /// Bytes of tensors that were read from the files since the checkpoint was opened, over all threads, to give values back or
    /// to check them.
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// All chunks of all tensors, but those that lie in no file any more.
    fn tasks(&self, faults: &mut Faults) -> Vec<Task<'_>> {
        let lengths: BTreeMap<&String, Result<()>> = self
            .manifest
            .files
            .keys()
            .map(|name| (name, check_length(&self.folder, &self.manifest, name)))
            .filter(|(_, length)| length.is_err())
            .collect();
        let mut tasks = Vec::new();
        for (entry, piece) in self.pieces() {
            match lengths.get(&piece.file) {
                // What lies before the end of a file that was cut may be sound.
                Some(Err(Error::Truncated { got, .. })) if piece.bytes[1] <= *got => {}
                Some(_) => {
                    if let Err(error) = check_length(&self.folder, &self.manifest, &piece.file) {
                        let key = (entry.spec.name.clone(), entry.spec.kind);
                        faults.entry(key).or_insert(error);
                    }
                    continue;
                }
                None => {}
            }
            let chunk = |chunk| Task {
                entry,
                piece,
                chunk,
            };
            tasks.extend((0..piece.hashes.len()).map(chunk));
        }
        tasks
    }

    /// Checks chunks, on several threads that take one after another. Returns the bytes that were checked.
    fn check(&self, tasks: &[Task<'_>], faults: &mut Faults) -> u64 {
        let (next, checked) = (AtomicUsize::new(0), AtomicU64::new(0));
        let found = Mutex::new(Vec::new());
        let work = || {
            let mut open: Option<(&str, File)> = None;
            let mut buffer = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(Task {
                    entry,
                    piece,
                    chunk,
                }) = tasks.get(index)
                else {
                    break;
                };
                let extent = self.extent(entry, piece);
                let file = match open.take() {
                    Some((name, file)) if name == piece.file => Ok(file),
                    _ => File::open(&extent.path).map_err(io("open", &extent.path)),
                };
                let verified = file.and_then(|mut file| {
                    let verified = extent.verify(&mut file, *chunk, &mut buffer);
                    open = Some((&piece.file, file));
                    verified
                });
                match verified {
                    Ok(()) => {
                        let bytes = extent.chunk_bytes(*chunk) as u64;
                        checked.fetch_add(bytes, Ordering::Relaxed);
                    }
                    Err(error) => {
                        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                        found.push((index, error));
                    }
                }
            }
        };
        thread::scope(|scope| {
            (1..chunk::threads()).for_each(|_| {
                scope.spawn(work);
            });
            work();
        });
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sort_by_key(|(index, _)| *index);
        for (index, error) in found {
            let spec = &tasks[index].entry.spec;
            let key = (spec.name.clone(), spec.kind);
            faults.entry(key).or_insert(error);
        }
        checked.into_inner()
    }

    fn pieces(&self) -> impl Iterator<Item = (&TensorEntry, &PieceEntry)> {
        let entries = self.manifest.tensors.iter();
        entries.flat_map(|entry| entry.pieces.iter().map(move |piece| (entry, piece)))
    }

    fn entry(&self, name: &str, kind: Kind) -> Option<&TensorEntry> {
        self.manifest.tensor(name, kind).or_else(|| {
            let parameter = self.manifest.tensor(name, Kind::Parameter)?;
            self.manifest
                .tensor(parameter.spec.tied_to.as_deref()?, kind)
        })
    }

    fn extent<'a>(&'a self, entry: &TensorEntry, piece: &'a PieceEntry) -> Extent<'a> {
        Extent {
            path: self.folder.join(&piece.file),
            bytes: piece.bytes[0]..piece.bytes[1],
            hashes: &piece.hashes,
            label: entry.spec.label(),
            read: &self.read,
        }
    }
}

/// Checks that what is asked for lies within a tensor.
pub(crate) fn check_interval(
    path: &Path,
    spec: &TensorSpec,
    interval: &Range<usize>,
) -> Result<()> {
    if interval.start <= interval.end && interval.end <= spec.numel() {
        return Ok(());
    }
    Err(Error::Interval {
        path: path.to_owned(),
        name: spec.name.clone(),
        kind: spec.kind,
        interval: interval.clone(),
        numel: spec.numel(),
    })
}

/// Checks that other readers of a data file see what the manifest says.
fn check_header(
    path: &Path,
    header: &Header,
    entry: &TensorEntry,
    piece: &PieceEntry,
) -> Result<()> {
    let agrees = header
        .tensor(&piece.key)
        .is_some_and(|(dtype, shape, bytes)| {
            dtype == Some(entry.spec.dtype)
                && shape == [piece.interval().len()]
                && [bytes.start, bytes.end] == piece.bytes
        });
    if agrees {
        return Ok(());
    }
    Err(Error::Malformed {
        path: path.to_owned(),
        subject: entry.spec.label(),
        rule: "the file's header must place it as the manifest does",
    })
}
