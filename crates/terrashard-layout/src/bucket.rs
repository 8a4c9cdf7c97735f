//! Which parameters travel in one collective call.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{ElementType, Row};

/// Parameters of one group and one element type that are communicated together.
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
pub(crate) fn pack(rows: &[Row], completes: &[usize], ranks: usize, limit: usize) -> Vec<Bucket> {
    let mut order: Vec<usize> = (0..rows.len())
        .filter(|&row| rows[row].parameter.is_reduced())
        .collect();
    order.sort_by_key(|&row| std::cmp::Reverse((completes[row], rows[row].order)));

    let mut buckets: Vec<Bucket> = Vec::new();
    let mut open: BTreeMap<(usize, ElementType), usize> = BTreeMap::new();
    for row in order {
        let parameter = &rows[row].parameter;
        let len = rows[row].shard_len(ranks);
        let key = (parameter.group, parameter.dtype);
        let fits = |&index: &usize| {
            let chunk = buckets[index].chunk + len;
            chunk * ranks * parameter.dtype.bytes() <= limit
        };
        let index = open.get(&key).copied().filter(fits).unwrap_or_else(|| {
            buckets.push(Bucket {
                group: key.0,
                dtype: key.1,
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
    // Stable, and every bucket has a last piece: buckets of several groups interleave as they complete.
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
