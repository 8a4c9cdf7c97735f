//! Decoded tiles of scenes, kept within a budget of memory that the scenes of a training share.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use terrashard_raster::Window;

use crate::target::Stored;
use crate::{Patch, Result};

/// Side of a tile in image pixels: a tile of six bands with its label at a fifth takes 0.8 MB.
pub(crate) const TILE: usize = 128;

/// Decoded tiles of any number of scenes, the longest unused of which go where the budget is spent.
///
/// A tile is decoded once while it is kept, whoever asks for it; what it holds does not depend on the cache.
#[derive(Debug)]
pub struct TileCache {
    budget: u64,
    tiles: Mutex<Tiles>,
    next_scene: AtomicU64,
}

#[derive(Debug, Default)]
struct Tiles {
    kept: HashMap<Key, Kept>,
    /// When each was used last; the first is the one to go.
    used: BTreeMap<u64, Key>,
    bytes: u64,
    clock: u64,
}

/// Which tile of which raster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// The scene, by the number that its cache gave it.
    pub scene: u64,
    /// Which raster of it.
    pub layer: Layer,
    /// Column and row of the tile.
    pub place: (usize, usize),
}

/// A raster of a scene.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Layer {
    /// The image, as a model takes it.
    Image,
    /// The label, with what is ignored.
    Labels,
    /// The image at high resolution, as it is stored.
    Target,
}

/// What is decoded.
#[derive(Clone, Debug)]
pub(crate) enum Tile {
    /// Of [`Layer::Image`].
    Image(Arc<Patch>),
    /// Of [`Layer::Labels`].
    Labels(Arc<Vec<u8>>),
    /// Of [`Layer::Target`].
    Target(Arc<Stored>),
}

impl Tile {
    fn bytes(&self) -> u64 {
        let bytes = match self {
            Self::Image(patch) => 4 * patch.values.len() + patch.valid.len(),
            Self::Labels(labels) => labels.len(),
            Self::Target(stored) => stored.bytes(),
        };
        bytes as u64
    }
}

#[derive(Debug)]
struct Kept {
    tile: Tile,
    used: u64,
}

impl TileCache {
    /// A cache that keeps at most this many bytes; none for 0.
    pub fn new(budget: usize) -> Self {
        Self {
            budget: budget as u64,
            tiles: Mutex::default(),
            next_scene: AtomicU64::new(0),
        }
    }

    /// Bytes of tiles that are kept now.
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// A number for one more scene.
    pub(crate) fn enter(&self) -> u64 {
        self.next_scene.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether a tile of this many bytes could be kept.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        bytes <= self.budget
    }

    /// The tile that is kept, or the one that `decode` makes, which is kept then. Nothing is locked while it works.
    pub(crate) fn get(&self, key: Key, decode: impl FnOnce() -> Result<Tile>) -> Result<Tile> {
        if let Some(tile) = self.lock().find(key) {
            return Ok(tile);
        }
        let tile = decode()?;
        let bytes = tile.bytes();
        if self.has_room(bytes) {
            self.lock().keep(key, &tile, bytes, self.budget);
        }
        Ok(tile)
    }

    fn lock(&self) -> MutexGuard<'_, Tiles> {
        // Whoever panicked did so elsewhere: the cache is consistent between any two of its statements that could.
        self.tiles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tiles {
    fn find(&mut self, key: Key) -> Option<Tile> {
        self.clock += 1;
        let kept = self.kept.get_mut(&key)?;
        self.used.remove(&kept.used);
        self.used.insert(self.clock, key);
        kept.used = self.clock;
        Some(kept.tile.clone())
    }

    fn keep(&mut self, key: Key, tile: &Tile, bytes: u64, budget: u64) {
        self.forget(key);
        while self.bytes + bytes > budget {
            let Some((_, &oldest)) = self.used.first_key_value() else {
                break;
            };
            self.forget(oldest);
        }
        self.clock += 1;
        let kept = Kept {
            tile: tile.clone(),
            used: self.clock,
        };
        self.used.insert(self.clock, key);
        self.kept.insert(key, kept);
        self.bytes += bytes;
    }

    fn forget(&mut self, key: Key) {
        if let Some(kept) = self.kept.remove(&key) {
            self.used.remove(&kept.used);
            self.bytes -= kept.tile.bytes();
        }
    }
}

/// The tiles that a window touches: each with its place and with its own window within `whole`.
pub(crate) fn touched(
    window: Window,
    whole: Window,
) -> impl Iterator<Item = ((usize, usize), Window)> {
    let rows = window.row / TILE..window.row_end().div_ceil(TILE);
    rows.flat_map(move |row| {
        let cols = window.col / TILE..window.col_end().div_ceil(TILE);
        cols.filter_map(move |col| {
            let tile = Window::new(col * TILE, row * TILE, TILE, TILE);
            Some(((col, row), tile.intersection(&whole)?))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(bytes: usize) -> Result<Tile> {
        Ok(Tile::Labels(Arc::new(vec![0; bytes])))
    }

    #[test]
    fn the_longest_unused_goes_and_the_budget_holds() {
        let cache = TileCache::new(100);
        let key = |col| Key {
            scene: 0,
            layer: Layer::Labels,
            place: (col, 0),
        };
        let decoded = |col: usize, bytes: usize| {
            let mut asked = false;
            let tile = cache.get(key(col), || {
                asked = true;
                labels(bytes)
            });
            assert!(tile.is_ok());
            assert!(cache.bytes() <= 100, "{}", cache.bytes());
            asked
        };
        assert!(decoded(0, 40) && decoded(1, 40));
        assert!(!decoded(0, 40), "it is kept");
        assert!(decoded(2, 40), "room is made");
        assert!(!decoded(0, 40), "it was used after the other");
        assert!(decoded(1, 40), "it had to go");
        assert!(
            decoded(3, 101) && decoded(3, 101),
            "never kept: larger than the budget"
        );
        assert!(decoded(4, 100));
        assert_eq!(cache.bytes(), 100, "all others went for it");
    }

    #[test]
    fn a_failure_is_told_and_not_kept() {
        let cache = TileCache::new(100);
        let key = Key {
            scene: 1,
            layer: Layer::Image,
            place: (0, 0),
        };
        assert!(
            cache
                .get(key, || Err(crate::Error::LoaderPanicked))
                .is_err()
        );
        assert!(cache.get(key, || labels(3)).is_ok());
    }

    #[test]
    fn touched_tiles_lie_within_the_whole() {
        let whole = Window::new(0, 0, 300, 200);
        let tiles: Vec<_> = touched(Window::new(120, 130, 20, 70), whole).collect();
        let expected = [
            ((0, 1), Window::new(0, 128, 128, 72)),
            ((1, 1), Window::new(128, 128, 128, 72)),
        ];
        assert_eq!(tiles, expected);
        assert_eq!(touched(whole, whole).count(), 6);
    }
}
