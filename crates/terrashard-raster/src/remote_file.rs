//! Byte ranges of a scene that lies in an object store or on a web server.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path as Place;
use object_store::{GetOptions, GetRange, ObjectStore};
use tiff_reader::TiffError;
use tiff_reader::source::TiffSource;
use tokio::runtime::{Builder, Runtime};

use crate::address;
use crate::remote_store::store_of;
use crate::{Error, ReadLimits, Result};

/// Small reads are rounded up to this many bytes: directories, and tiles that are packed well.
const BLOCK: u64 = 64 << 10;
/// Reads of more blocks than this go past the cache.
const CACHED_BLOCKS: u64 = 4;
/// Bytes of blocks that are kept at most.
const KEPT: usize = 4 << 20;
/// The first wait before a range whose transfer was cut is asked for again; it doubles up to the last.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LAST_WAIT: Duration = Duration::from_secs(5);
/// Characters of an error of others that are shown.
const SHOWN: usize = 200;

/// A file of which ranges are read.
pub(crate) struct RemoteFile {
    shown: PathBuf,
    whole: String,
    store: Box<dyn ObjectStore>,
    place: Place,
    bytes: u64,
    /// What the server says that changes with the content.
    tag: Option<String>,
    patience: Duration,
    /// By the number of the block, the one used last at the back.
    kept: Mutex<VecDeque<(u64, Arc<Vec<u8>>)>>,
    kept_blocks: usize,
    /// What has been read, while the directories are.
    noted: Mutex<Option<Vec<Noted>>>,
}

/// Where bytes begin, and the bytes.
pub(crate) type Noted = (u64, Vec<u8>);

impl fmt::Debug for RemoteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteFile")
            .field("path", &self.shown)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// A range that could not be read; travels through the decoder as the source of an [`io::Error`].
#[derive(Clone, Debug, thiserror::Error)]
#[error("bytes {}-{}: {reason}", range.start, range.end)]
pub(crate) struct RangeFailure {
    pub(crate) range: Range<u64>,
    pub(crate) reason: String,
}

impl RangeFailure {
    pub(crate) fn at(self, path: &Path) -> Error {
        Error::Remote {
            path: path.to_owned(),
            start: self.range.start,
            end: self.range.end,
            reason: self.reason,
        }
    }
}

/// Why one attempt gave no bytes.
enum Failed {
    /// Another attempt would fail as well, or the store has tried again already.
    Finally(String),
    /// The transfer was cut.
    Cut(String),
}

/// What an answer holds beside the bytes.
struct Answer {
    bytes: Vec<u8>,
    of: u64,
    tag: Option<String>,
}

/// One thread that waits for all transfers of this process.
fn runtime() -> io::Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let made = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("remote")
        .enable_all()
        .build()?;
    Ok(RUNTIME.get_or_init(|| made))
}

fn wait_for<T>(what: impl Future<Output = Result<T, Failed>>) -> Result<T, Failed> {
    let runtime = runtime().map_err(|e| Failed::Finally(e.to_string()))?;
    runtime.block_on(what)
}

impl RemoteFile {
    /// Reads the first block of a file, which tells how long it is.
    pub(crate) fn open(shown: &Path, limits: ReadLimits) -> Result<Self> {
        let start = 0..BLOCK;
        let failed = |reason: String| RangeFailure {
            range: 0..BLOCK,
            reason,
        };
        let whole = address::whole(shown).ok_or_else(|| {
            failed("its credentials were left out where it was written down; give the whole address again".to_owned())
                .at(shown)
        })?;
        let (store, place) = store_of(&whole, limits.patience)
            .map_err(|e| failed(reason_of(&e, &whole)).at(shown))?;
        let mut file = Self {
            shown: shown.to_owned(),
            whole,
            store,
            place,
            bytes: 0,
            tag: None,
            patience: limits.patience,
            kept: Mutex::default(),
            kept_blocks: KEPT.min(limits.cache_bytes) / BLOCK as usize,
            noted: Mutex::new(Some(Vec::new())),
        };
        let answer = file.answer(start).map_err(|failure| failure.at(shown))?;
        file.bytes = answer.of;
        file.tag = answer.tag;
        file.keep(0, &Arc::new(answer.bytes));
        Ok(file)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bytes of a range that lies in the file.
    pub(crate) fn read(&self, range: Range<u64>) -> Result<Vec<u8>, RangeFailure> {
        let (first, end) = (range.start / BLOCK, range.end.div_ceil(BLOCK));
        if end - first > CACHED_BLOCKS {
            return Ok(self.answer(range)?.bytes);
        }
        let mut blocks: Vec<Option<Arc<Vec<u8>>>> = (first..end).map(|n| self.kept(n)).collect();
        // What lacks is asked for in as few requests as there are gaps.
        while let Some(lacks) = blocks.iter().position(Option::is_none) {
            let gap = blocks[lacks..].iter().take_while(|b| b.is_none()).count();
            let at = first + lacks as u64;
            let until = ((at + gap as u64) * BLOCK).min(self.bytes);
            let bytes = self.answer(at * BLOCK..until)?.bytes;
            for (n, bytes) in bytes.chunks(BLOCK as usize).enumerate() {
                let block = Arc::new(bytes.to_vec());
                self.keep(at + n as u64, &block);
                blocks[lacks + n] = Some(block);
            }
        }
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        for (block, n) in blocks.iter().flatten().zip(first..) {
            let from = range.start.saturating_sub(n * BLOCK) as usize;
            let to = ((range.end - n * BLOCK) as usize).min(block.len());
            bytes.extend_from_slice(&block[from.min(to)..to]);
        }
        Ok(bytes)
    }

    fn kept(&self, number: u64) -> Option<Arc<Vec<u8>>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(n, _)| *n == number)?;
        let found = kept.remove(at)?;
        let block = Arc::clone(&found.1);
        kept.push_back(found);
        Some(block)
    }

    fn keep(&self, number: u64, block: &Arc<Vec<u8>>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(n, _)| *n != number);
        kept.push_back((number, Arc::clone(block)));
        while kept.len() > self.kept_blocks.max(1) {
            kept.pop_front();
        }
    }

    /// What has been read so far; from now on that is not noted any more.
    pub(crate) fn noted(&self) -> Vec<Noted> {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.take().unwrap_or_default()
    }

    /// Asks for a range until it is there, patience ends or there is no hope.
    fn answer(&self, range: Range<u64>) -> Result<Answer, RangeFailure> {
        let begun = Instant::now();
        let mut wait = FIRST_WAIT;
        loop {
            let reason = match wait_for(self.attempt(range.clone())) {
                Ok(answer) => return Ok(answer),
                Err(Failed::Finally(reason)) => return Err(RangeFailure { range, reason }),
                Err(Failed::Cut(reason)) => reason,
            };
            if begun.elapsed() + wait > self.patience {
                let reason = format!("{reason}, again and again for {:.0?}", begun.elapsed());
                return Err(RangeFailure { range, reason });
            }
            std::thread::sleep(wait);
            wait = (2 * wait).min(LAST_WAIT);
        }
    }

    async fn attempt(&self, range: Range<u64>) -> Result<Answer, Failed> {
        let strong = |tag: &&String| !tag.starts_with("W/");
        let options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            if_match: self.tag.as_ref().filter(strong).cloned(),
            ..GetOptions::default()
        };
        let finally = |e: object_store::Error| Failed::Finally(reason_of(&e, &self.whole));
        let found = self
            .store
            .get_opts(&self.place, options)
            .await
            .map_err(finally)?;
        let (of, tag) = (found.meta.size, found.meta.e_tag.clone());
        if self.bytes != 0 && of != self.bytes {
            let reason = format!("the file had {} bytes before and has {of} now", self.bytes);
            return Err(Failed::Finally(reason));
        }
        let wanted = (range.end.min(of) - range.start) as usize;
        let mut bytes = Vec::with_capacity(wanted);
        let mut stream = found.into_stream();
        while let Some(part) = stream.next().await {
            let part = part.map_err(|e| Failed::Cut(reason_of(&e, &self.whole)))?;
            bytes.extend_from_slice(&part);
            if bytes.len() > wanted {
                let reason = format!("the server sent more than the {wanted} bytes asked for");
                return Err(Failed::Finally(reason));
            }
        }
        if bytes.len() < wanted {
            let got = bytes.len();
            let reason = format!("the server sent {got} of the {wanted} bytes asked for");
            return Err(Failed::Cut(reason));
        }
        Ok(Answer { bytes, of, tag })
    }
}

impl TiffSource for RemoteFile {
    fn len(&self) -> u64 {
        self.bytes
    }

    fn read_exact_at(&self, offset: u64, len: usize) -> Result<Vec<u8>, TiffError> {
        let end = offset.checked_add(len as u64);
        let Some(end) = end.filter(|end| *end <= self.bytes) else {
            return Err(TiffError::OffsetOutOfBounds {
                offset,
                length: len as u64,
                data_len: self.bytes,
            });
        };
        let bytes = self.read(offset..end).map_err(|failure| {
            TiffError::Io(io::Error::other(failure), self.shown.display().to_string())
        })?;
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(noted) = noted.as_mut() {
            noted.push((offset, bytes.clone()));
        }
        Ok(bytes)
    }
}

/// In a few words, without addresses and credentials.
fn reason_of(error: &object_store::Error, whole: &str) -> String {
    use object_store::Error as E;
    match error {
        E::NotFound { .. } => return "there is no such file (404); check the address".to_owned(),
        E::PermissionDenied { .. } => {
            return "access is denied (403); check the credentials in the environment or the address".to_owned();
        }
        E::Unauthenticated { .. } => {
            return "credentials are missing or wrong (401); check the environment or the address"
                .to_owned();
        }
        E::Precondition { .. } => return "the file changed while it was read".to_owned(),
        _ => {}
    }
    let text = error.to_string();
    if text.contains("non-partial response") || text.contains("Range request not supported") {
        return "the server does not serve ranges of bytes; download the file".to_owned();
    }
    const STATUS: &str = "status code: ";
    if let Some(at) = text.find(STATUS) {
        // The text behind it is the server's, which may repeat what it was asked.
        let code: String = text[at + STATUS.len()..].chars().take(3).collect();
        return format!("the server answered {code}");
    }
    let mut root: &dyn std::error::Error = error;
    let mut kind = None;
    while let Some(next) = root.source() {
        kind = kind.or_else(|| next.downcast_ref::<HttpError>().map(HttpError::kind));
        root = next;
    }
    let root = address::scrubbed(&root.to_string(), whole);
    let root: String = root.chars().take(SHOWN).collect();
    match kind {
        Some(HttpErrorKind::Timeout) => "no answer in time".to_owned(),
        Some(HttpErrorKind::Connect) => format!("no connection: {root}"),
        Some(_) => format!("the transfer was cut: {root}"),
        None => root,
    }
}
