//! The parameters' values that one rank holds, in the type of the computation.

use std::ops::Range;

#[cfg(feature = "tch")]
use burn::tensor::DType;
use burn::tensor::{Device, Tensor, TensorData};

use crate::config::Offload;
#[cfg(feature = "tch")]
use crate::libtorch::{HostElements, HostValues, uploaded};

/// A run of elements on the device or in host memory.
#[derive(Clone, Debug)]
pub(crate) enum Resident {
    Device(Tensor<1>),
    Host(TensorData),
    /// In host memory that the device reads by itself: what is no master weight, of LibTorch.
    #[cfg(feature = "tch")]
    Shared(HostValues),
}

impl Resident {
    /// A shard of parameters, where `offload` says that they live.
    pub(crate) fn placed(shard: Tensor<1>, offload: Offload) -> Self {
        if offload != Offload::Parameters {
            return Self::Device(shard);
        }
        #[cfg(feature = "tch")]
        if matches!(shard.dtype(), DType::BF16 | DType::F16)
            && let Ok(Some(elements)) = HostElements::of(&shard)
        {
            return Self::Shared(elements.into());
        }
        Self::Host(shard.into_data())
    }

    pub(crate) fn is_in_host_memory(&self) -> bool {
        !matches!(self, Resident::Device(_))
    }

    /// These elements as a tensor on `device`.
    pub(crate) fn range(&self, range: Range<usize>, device: &Device) -> Tensor<1> {
        match self {
            Resident::Device(tensor) => tensor.clone().slice(range),
            Resident::Host(data) => {
                let size = data.dtype().size();
                let bytes = &data.as_bytes()[range.start * size..range.end * size];
                #[cfg(feature = "tch")]
                if let Ok(Some(uploaded)) = uploaded(bytes, data.dtype(), device) {
                    return uploaded;
                }
                let part = TensorData::from_bytes_vec(bytes.to_vec(), [range.len()], data.dtype());
                Tensor::from_data(part, (device, data.dtype()))
            }
            #[cfg(feature = "tch")]
            Resident::Shared(values) => values
                .range(range, device)
                .expect("memory that a device reads by itself was given by it"),
        }
    }

    /// All elements as a tensor on `device`.
    pub(crate) fn into_tensor(self, device: &Device) -> Tensor<1> {
        match self {
            Resident::Device(tensor) => tensor,
            Resident::Host(data) => {
                let dtype = data.dtype();
                #[cfg(feature = "tch")]
                if let Ok(Some(uploaded)) = uploaded(data.as_bytes(), dtype, device) {
                    return uploaded;
                }
                Tensor::from_data(data, (device, dtype))
            }
            #[cfg(feature = "tch")]
            Resident::Shared(_) => self.range(0..self.len(), device),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Resident::Device(tensor) => tensor.dims()[0],
            Resident::Host(data) => data.num_elements(),
            #[cfg(feature = "tch")]
            Resident::Shared(values) => values.len(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Resident::Device(tensor) => tensor.dims()[0] * tensor.dtype().size(),
            Resident::Host(data) => data.as_bytes().len(),
            #[cfg(feature = "tch")]
            Resident::Shared(values) => values.bytes(),
        }
    }

    fn device_bytes(&self) -> usize {
        if self.is_in_host_memory() {
            return 0;
        }
        self.bytes()
    }
}

/// How one parameter is held.
#[derive(Clone, Debug)]
pub(crate) enum Held {
    /// Whole, `[numel]`.
    Whole(Tensor<1>),
    /// A piece of its bucket's chunk, padded with zeros.
    InChunk {
        bucket: usize,
        offset: usize,
        len: usize,
    },
    /// This rank's shard of a parameter that is in no bucket, padded with zeros.
    Shard(Resident),
    /// Not at all: the parameter that it is tied to has the value.
    Tied,
}

/// The values of one rank.
#[derive(Debug)]
pub(crate) struct Values {
    /// For each row of the table.
    pub(crate) rows: Vec<Held>,
    /// For each bucket: this rank's chunk, where parameters are sharded.
    pub(crate) chunks: Vec<Option<Resident>>,
}

impl Values {
    /// The whole value of `row`, if it is held whole.
    pub(crate) fn whole(&self, row: usize) -> Option<Tensor<1>> {
        match &self.rows[row] {
            Held::Whole(flat) => Some(flat.clone()),
            _ => None,
        }
    }

    /// This rank's shard of `row`, padded, on `device`; `None` where the row is held whole or tied.
    pub(crate) fn shard(&self, row: usize, device: &Device) -> Option<Tensor<1>> {
        match &self.rows[row] {
            Held::Whole(_) | Held::Tied => None,
            Held::InChunk {
                bucket,
                offset,
                len,
            } => {
                let chunk = self.chunks[*bucket]
                    .as_ref()
                    .expect("a piece of a chunk is only recorded where its bucket has one");
                Some(chunk.range(*offset..offset + len, device))
            }
            Held::Shard(resident) => Some(resident.range(0..resident.len(), device)),
        }
    }

    /// Bytes on the device and in host memory.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let rows = self.rows.iter().map(|held| match held {
            Held::Whole(flat) => {
                let bytes = flat.dims()[0] * flat.dtype().size();
                (bytes, bytes)
            }
            Held::Shard(resident) => (resident.device_bytes(), resident.bytes()),
            Held::InChunk { .. } | Held::Tied => (0, 0),
        });
        let chunks = self
            .chunks
            .iter()
            .flatten()
            .map(|resident| (resident.device_bytes(), resident.bytes()));
        let (device, all) = rows
            .chain(chunks)
            .fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
        (device, all - device)
    }
}
