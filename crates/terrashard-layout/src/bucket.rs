//! Which parameters travel in one collective call.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{ElementType, Row};

/// How a rank holds a parameter's value between its uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Residence {
    /// Whole, on every rank.
    Whole,
    /// Its own shard only: the value is gathered for each use.
    Shard,
}

/// Parameters of one group, one element type and one residence that are communicated together.
///
/// # The flat buffer
///
/// A bucket's flat buffer has `ranks * chunk` elements and is rank-major: rank `r`'s chunk is its pieces one
/// after another, each padded with zeros past the end of its parameter. One reduce-scatter of the buffer
/// therefore yields exactly the shards of this rank, and one all-gather of the shards yields the buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// The optimizer group of all its parameters.
    pub group: usize,
    /// The element type of all its parameters.
    pub dtype: ElementType,
    /// How a rank holds the values of all its parameters. What is whole needs one gather after the update, what is
    /// a shard one at each use, so no bucket mixes the two.
    pub residence: Residence,
    /// Elements per rank, padding included: the sum of the pieces' `len`.
    pub chunk: usize,
    /// Its parameters, in the order in which backward completes them.
    pub pieces: Vec<Piece>,
}

/// One parameter's place in a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Index into [`crate::ShardTable::rows`].
    pub row: usize,
    /// Where the piece starts in each rank's chunk, in elements.
    pub offset: usize,
    /// Elements of the piece with padding: `ceil(numel / ranks)`.
    pub len: usize,
}

impl Bucket {
    /// Elements of the flat buffer.
    pub fn flat_len(&self, ranks: usize) -> usize {
        self.chunk * ranks
    }

    /// Bytes of the flat buffer in the parameters' element type.
    pub fn bytes(&self, ranks: usize) -> usize {
        self.flat_len(ranks) * self.dtype.bytes()
    }

    /// Where rank `rank`'s part of `piece` lies in the flat buffer, padding included.
    pub fn flat_range(&self, piece: &Piece, rank: usize) -> Range<usize> {
        let start = rank * self.chunk + piece.offset;
        start..start + piece.len
    }
}

/// Packs the reduced rows into buckets of at most `limit` bytes, in launch order.
///
/// `completes[row]` is the forward position at which backward has seen the last use of a row. Backward walks
/// positions downwards, so a bucket may leave as soon as the lowest position among its pieces is done; that is
/// what orders the buckets.
pub(crate) fn pack(
    rows: &[Row],
    completes: &[usize],
    residence: impl Fn(&Row) -> Residence,
    ranks: usize,
    limit: usize,
) -> Vec<Bucket> {
    let mut order: Vec<usize> = (0..rows.len())
        .filter(|&row| rows[row].parameter.is_reduced())
        .collect();
    order.sort_by_key(|&row| std::cmp::Reverse((completes[row], rows[row].order)));

    let mut buckets: Vec<Bucket> = Vec::new();
    let mut open: BTreeMap<(usize, ElementType, Residence), usize> = BTreeMap::new();
    for row in order {
        let parameter = &rows[row].parameter;
        let len = rows[row].shard_len(ranks);
        let key = (parameter.group, parameter.dtype, residence(&rows[row]));
        let fits = |&index: &usize| {
            let chunk = buckets[index].chunk + len;
            chunk * ranks * parameter.dtype.bytes() <= limit
        };
        let index = open.get(&key).copied().filter(fits).unwrap_or_else(|| {
            buckets.push(Bucket {
                group: key.0,
                dtype: key.1,
                residence: key.2,
                chunk: 0,
                pieces: Vec::new(),
            });
            buckets.len() - 1
        });
        open.insert(key, index);
        let bucket = &mut buckets[index];
        bucket.pieces.push(Piece {
            row,
            offset: bucket.chunk,
            len,
        });
        bucket.chunk += len;
    }
    // Stable, and every bucket has a last piece: buckets of several kinds interleave as they complete.
    buckets.sort_by_key(|bucket| {
        std::cmp::Reverse(
            bucket
                .pieces
                .last()
                .map(|piece| (completes[piece.row], rows[piece.row].order)),
        )
    });
    buckets
}
