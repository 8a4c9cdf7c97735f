//! Parameters to bucket buffers and back.
//!
//! A bucket's buffer is rank-major: the chunk of rank 0, then that of rank 1, and so on; in each chunk one piece of
//! every parameter of the bucket, padded with zeros. One reduce-scatter and one all-gather serve it.

use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::{DType, Device, Shape, Tensor};
use terrashard_layout::{Bucket, ShardTable};

/// A plain tensor's elements in another shape.
pub(crate) fn reshaped(tensor: DispatchTensor, shape: &[usize]) -> DispatchTensor {
    #[cfg(feature = "tch")]
    if let Some(tensor) = crate::libtorch::reshaped(&tensor, shape) {
        return tensor;
    }
    Dispatch::float_reshape(tensor, Shape::from(shape.to_vec()))
}

/// The bucket's buffer from one flat tensor for each piece, in the order of the pieces.
///
/// # Shapes
/// `[numel]` each; result `[ranks * chunk]`.
pub(crate) fn pack_whole(table: &ShardTable, bucket: &Bucket, flats: Vec<Tensor<1>>) -> Tensor<1> {
    let ranks = table.ranks();
    let pieces = bucket
        .pieces
        .iter()
        .zip(flats)
        .map(|(piece, flat)| pad(flat, ranks * piece.len).reshape([ranks, piece.len]));
    Tensor::cat(pieces.collect(), 1).reshape([bucket.flat_len(ranks)])
}

/// The chunk of `rank` from one flat tensor for each piece.
///
/// # Shapes
/// `[numel]` each; result `[chunk]`.
pub(crate) fn pack_shard(
    table: &ShardTable,
    bucket: &Bucket,
    rank: usize,
    flats: Vec<Tensor<1>>,
) -> Tensor<1> {
    let pieces = bucket.pieces.iter().zip(flats).map(|(piece, flat)| {
        let interval = table.rows()[piece.row].interval(rank, table.ranks());
        pad(flat.slice(interval), piece.len)
    });
    join(pieces.collect())
}

/// One flat tensor for each piece from the bucket's buffer: the inverse of [`pack_whole`].
///
/// # Shapes
/// `[ranks * chunk]`; results `[numel]`.
pub(crate) fn unpack_whole(
    table: &ShardTable,
    bucket: &Bucket,
    buffer: Tensor<1>,
) -> Vec<Tensor<1>> {
    let ranks = table.ranks();
    let rows = buffer.reshape([ranks, bucket.chunk]);
    let piece = |piece: &terrashard_layout::Piece| {
        let columns = piece.offset..piece.offset + piece.len;
        let flat = rows
            .clone()
            .slice([0..ranks, columns])
            .reshape([ranks * piece.len]);
        flat.slice(0..table.rows()[piece.row].numel())
    };
    bucket.pieces.iter().map(piece).collect()
}

/// The parts one after another, in memory of their own: where a tensor is a view, a single part would keep all that it
/// was cut from.
pub(crate) fn join(mut parts: Vec<Tensor<1>>) -> Tensor<1> {
    match parts.pop() {
        Some(only) if parts.is_empty() && only.device() == Device::flex() => {
            let (device, dtype) = (only.device(), only.dtype());
            Tensor::from_data(only.into_data(), (&device, dtype))
        }
        last => {
            parts.extend(last);
            Tensor::cat(parts, 0)
        }
    }
}

/// `flat` with zeros behind it up to `len` elements.
pub(crate) fn pad(flat: Tensor<1>, len: usize) -> Tensor<1> {
    let [numel] = flat.dims();
    if numel == len {
        return flat;
    }
    let zeros = zeros(len - numel, &flat.device(), flat.dtype());
    if numel == 0 {
        zeros
    } else {
        Tensor::cat(vec![flat, zeros], 0)
    }
}

/// `len` zeros.
pub(crate) fn zeros(len: usize, device: &Device, dtype: DType) -> Tensor<1> {
    Tensor::zeros([len], (device, dtype))
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;
    use terrashard_layout::{ElementType, LayoutConfig, ParameterSpec, Stage};

    use super::*;

    fn table(sizes: &[usize], ranks: usize) -> ShardTable {
        let spec = |(index, &numel): (usize, &usize)| ParameterSpec {
            name: format!("p{index}"),
            shape: vec![numel],
            dtype: ElementType::F32,
            group: 0,
            trainable: true,
            tied_to: None,
        };
        let config = LayoutConfig {
            ranks,
            stage: Stage::Two,
            persist_bytes: 0,
            bucket_bytes: Some(1 << 20),
        };
        ShardTable::new(sizes.iter().enumerate().map(spec).collect(), &config).unwrap()
    }

    #[test]
    fn joined_parts_have_memory_of_their_own() {
        let whole = Tensor::<1>::from_floats([1.0, 2.0, 3.0, 4.0], &Device::flex());
        let joined = join(vec![whole.clone().slice(0..2)]);
        let own = joined.into_data();
        assert_eq!(own, TensorData::from([1.0f32, 2.0]));
        let joined = join(vec![whole.clone().slice(1..2), whole.slice(0..1)]);
        assert_eq!(joined.into_data(), TensorData::from([2.0f32, 1.0]));
    }

    #[test]
    fn whole_and_shards_agree_and_unpack_to_what_was_packed() {
        let device = Device::flex();
        for ranks in 1..=5 {
            let sizes = [7, 1, 35, 4];
            let table = table(&sizes, ranks);
            for bucket in table.buckets() {
                let flats: Vec<Tensor<1>> = bucket
                    .pieces
                    .iter()
                    .map(|piece| {
                        let numel = table.rows()[piece.row].numel();
                        let values: Vec<f32> = (0..numel)
                            .map(|i| (piece.row * 100 + i + 1) as f32)
                            .collect();
                        Tensor::from_data(TensorData::from(values.as_slice()), &device)
                    })
                    .collect();
                let whole = pack_whole(&table, bucket, flats.clone());
                let shards = (0..ranks).map(|rank| pack_shard(&table, bucket, rank, flats.clone()));
                let joined = Tensor::cat(shards.collect(), 0);
                assert_eq!(whole.to_data(), joined.to_data(), "{ranks} ranks");
                for (unpacked, flat) in unpack_whole(&table, bucket, whole).into_iter().zip(flats) {
                    assert_eq!(unpacked.to_data(), flat.to_data(), "{ranks} ranks");
                }
            }
        }
    }
}
