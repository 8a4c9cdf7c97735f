//! Decoded tiles kept for the next window.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Samples;

/// The tiles used last, up to a number of bytes, for all threads that read.
pub(crate) struct TileCache {
    kept: Mutex<Kept>,
    limit: usize,
}

#[derive(Default)]
struct Kept {
    /// By the number of the tile, with the moment of its last use.
    tiles: HashMap<usize, (u64, Arc<Samples>)>,
    /// By that moment.
    order: BTreeMap<u64, usize>,
    bytes: usize,
    now: u64,
}

impl fmt::Debug for TileCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TileCache")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

fn size(samples: &Samples) -> usize {
    samples.len() * samples.data_type().bytes()
}

impl TileCache {
    /// Keeps at most `limit` bytes of samples.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            kept: Mutex::default(),
            limit,
        }
    }

    /// A thread that panicked while it held the lock left whole values behind.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tile `index`, decoded unless it is kept. Two threads that ask at once may both decode it.
    pub(crate) fn get_or<E>(
        &self,
        index: usize,
        decode: impl FnOnce() -> Result<Samples, E>,
    ) -> Result<Arc<Samples>, E> {
        if let Some(samples) = self.kept().get(index) {
            return Ok(samples);
        }
        let samples = Arc::new(decode()?);
        if size(&samples) <= self.limit {
            self.kept().insert(index, &samples, self.limit);
        }
        Ok(samples)
    }
}

impl Kept {
    fn get(&mut self, index: usize) -> Option<Arc<Samples>> {
        let (moment, samples) = self.tiles.get_mut(&index)?;
        self.order.remove(moment);
        self.now += 1;
        *moment = self.now;
        self.order.insert(self.now, index);
        Some(Arc::clone(samples))
    }

    fn insert(&mut self, index: usize, samples: &Arc<Samples>, limit: usize) {
        if self.get(index).is_some() {
            return;
        }
        self.bytes += size(samples);
        while self.bytes > limit {
            let Some((_, oldest)) = self.order.pop_first() else {
                break;
            };
            let (_, gone) = self.tiles.remove(&oldest).expect("it is in both maps");
            self.bytes -= size(&gone);
        }
        self.now += 1;
        self.order.insert(self.now, index);
        self.tiles.insert(index, (self.now, Arc::clone(samples)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tile_that_was_not_used_for_longest_goes() {
        let cache = TileCache::new(8);
        let mut decoded = Vec::new();
        for (index, bytes) in [
            (1, 4),
            (2, 4),
            (1, 4),
            (3, 4),
            (1, 4),
            (2, 4),
            (4, 9),
            (4, 9),
        ] {
            let got = cache.get_or(index, || {
                decoded.push(index);
                Ok::<_, ()>(Samples::U8(vec![index as u8; bytes]))
            });
            assert_eq!(
                *got.expect("decodes"),
                Samples::U8(vec![index as u8; bytes])
            );
        }
        assert_eq!(decoded, [1, 2, 3, 2, 4, 4]);
        assert!(cache.get_or(5, || Err("damaged")).is_err());
    }
}
