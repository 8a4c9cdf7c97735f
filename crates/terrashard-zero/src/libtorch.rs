//! The hot path on LibTorch: many parameters in a few kernels, in place, and nothing that waits for the device.
//!
//! Each function is for tensors of LibTorch; for those of another backend it says so and does nothing, and the portable way is
//! taken.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use burn::backend::DispatchTensor;
use burn::tensor::{DType, Device, Tensor};
use terrashard_layout::{Bucket, ShardTable, Stage};
use terrashard_torch::{
    HostBuffer, LibTorch, Pieces, WithoutGraphs, inner, outer, sums_of_squares, tch,
};

use crate::config::{AdamW, Offload, ZeroConfig};
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::rule::{Elements, Update};

/// Elements from which a tensor in a buffer begins: matrix products read 16 bytes at once where they can.
const ALIGNED: usize = 64;

/// LibTorch's own tensor, which shares the memory.
pub(crate) fn torch(tensor: &Tensor<1>) -> Option<tch::Tensor> {
    let primitive = tensor.clone().try_into_primitive::<LibTorch>().ok()?;
    Some(inner(&primitive).shallow_clone())
}

pub(crate) fn burn(tensor: tch::Tensor) -> Tensor<1> {
    Tensor::from_primitive::<LibTorch>(outer(tensor))
}

/// The elements in another shape, which they have. `None` where they are not LibTorch's.
pub(crate) fn reshaped(tensor: &DispatchTensor, shape: &[usize]) -> Option<DispatchTensor> {
    let primitive = Tensor::<1>::from_dispatch(tensor.clone())
        .try_into_primitive::<LibTorch>()
        .ok()?;
    let reshaped = terrashard_torch::reshaped(&primitive, shape).ok()?;
    Some(Tensor::<1>::from_primitive::<LibTorch>(reshaped).into_dispatch())
}

fn kind(dtype: DType) -> tch::Kind {
    match dtype {
        DType::F64 => tch::Kind::Double,
        DType::BF16 => tch::Kind::BFloat16,
        DType::F16 => tch::Kind::Half,
        _ => tch::Kind::Float,
    }
}

pub(crate) fn computed<T>(result: Result<T, impl std::fmt::Display>) -> Result<T> {
    result.map_err(|error| Error::Compute {
        reason: error.to_string(),
    })
}

/// Holds graphs of kernels off where parameters are gathered for each use, so that they lie elsewhere each time, or states are in host
/// memory, so that the GPU's memory is what counts.
///
/// # Errors
/// [`Error::Compute`].
pub(crate) fn without_graphs(config: &ZeroConfig) -> Result<Option<WithoutGraphs>> {
    let lasts = config.stage != Stage::Three && config.offload == Offload::None;
    (!lasts).then(|| computed(WithoutGraphs::new())).transpose()
}

/// Where the pieces of a bucket lie in its buffer.
fn places(table: &ShardTable, bucket: &Bucket) -> Pieces {
    Pieces {
        rows: table.ranks(),
        columns: bucket.chunk,
        offsets: bucket.pieces.iter().map(|piece| piece.offset).collect(),
        lengths: bucket.pieces.iter().map(|piece| piece.len).collect(),
    }
}

/// The bucket's buffer in `dtype` from one gradient for each piece, zeros where there is none. `None` without any of LibTorch.
///
/// # Errors
/// [`Error::Compute`].
pub(crate) fn pack(
    table: &ShardTable,
    bucket: &Bucket,
    flats: &[Option<Tensor<1>>],
    dtype: DType,
) -> Result<Option<Tensor<1>>> {
    let tensors: Vec<_> = flats
        .iter()
        .map(|flat| flat.as_ref().and_then(torch))
        .collect();
    let Some(device) = tensors.iter().flatten().map(tch::Tensor::device).next() else {
        return Ok(None);
    };
    let len = bucket.flat_len(table.ranks()) as i64;
    let mut buffer = computed(tch::Tensor::f_empty([len], (kind(dtype), device)))?;
    let tensors: Vec<_> = tensors.iter().map(Option::as_ref).collect();
    computed(places(table, bucket).pack(&tensors, &mut buffer))?;
    Ok(Some(burn(buffer)))
}

/// Copies a bucket's buffer into `rows`, one flat tensor for each piece, each in its own type. Returns whether they are
/// LibTorch's.
///
/// # Errors
/// [`Error::Compute`].
pub(crate) fn unpack_into(
    table: &ShardTable,
    bucket: &Bucket,
    buffer: &Tensor<1>,
    rows: &[Tensor<1>],
) -> Result<bool> {
    let Some(buffer) = torch(buffer) else {
        return Ok(false);
    };
    let rows: Option<Vec<_>> = rows.iter().map(torch).collect();
    let Some(mut rows) = rows else {
        return Ok(false);
    };
    computed(places(table, bucket).unpack(&buffer, &mut rows))?;
    Ok(true)
}

/// Whole parameters of `elements` each from a buffer of `ranks` rows, in which each has a piece of the given length after
/// another. `None` where the buffer is not LibTorch's.
///
/// # Errors
/// [`Error::Compute`].
pub(crate) fn gathered(
    buffer: &Tensor<1>,
    ranks: usize,
    lengths: Vec<usize>,
    elements: &[usize],
) -> Result<Option<Vec<Tensor<1>>>> {
    let Some(buffer) = torch(buffer) else {
        return Ok(None);
    };
    let sums = |lengths: &mut dyn Iterator<Item = usize>| -> Vec<usize> {
        let sum = |sum: &mut usize, length: usize| Some(std::mem::replace(sum, *sum + length));
        lengths.scan(0, sum).collect()
    };
    let columns = lengths.iter().sum();
    let pieces = Pieces {
        rows: ranks,
        columns,
        offsets: sums(&mut lengths.iter().copied()),
        lengths,
    };
    let aligned = |elements: &usize| elements.next_multiple_of(ALIGNED);
    let all: usize = elements.iter().map(aligned).sum();
    let options = (buffer.kind(), buffer.device());
    let memory = computed(tch::Tensor::f_empty([all as i64], options))?;
    let starts = sums(&mut elements.iter().map(aligned));
    let part = |(start, elements): (usize, &usize)| {
        computed(memory.f_narrow(0, start as i64, *elements as i64))
    };
    let mut parts = starts
        .into_iter()
        .zip(elements)
        .map(part)
        .collect::<Result<Vec<_>>>()?;
    computed(pieces.unpack(&buffer, &mut parts))?;
    Ok(Some(parts.into_iter().map(burn).collect()))
}

/// Whether an update in one pass gives an element the same bits wherever it lies in its buffer, which stages rely on: on GPUs. On
/// the CPU the last elements of a buffer are rounded otherwise.
pub(crate) fn is_gpu(tensor: &Tensor<1>) -> bool {
    torch(tensor).is_some_and(|tensor| tensor.device().is_cuda())
}

/// Elements in host memory that the device reads and writes by itself.
#[derive(Debug)]
pub(crate) struct HostElements {
    buffer: HostBuffer,
    len: usize,
    dtype: DType,
}

impl HostElements {
    /// Room for `len` elements.
    ///
    /// # Errors
    /// [`Error::Compute`].
    pub(crate) fn new(len: usize, dtype: DType) -> Result<Self> {
        let buffer = computed(HostBuffer::new(len * dtype.size()))?;
        Ok(Self { buffer, len, dtype })
    }

    /// A tensor's elements, which come while the host goes on. `None` where it is not LibTorch's.
    ///
    /// # Errors
    /// [`Error::Compute`].
    pub(crate) fn of(tensor: &Tensor<1>) -> Result<Option<Self>> {
        let Some(from) = torch(tensor) else {
            return Ok(None);
        };
        let mut elements = Self::new(tensor.dims()[0], tensor.dtype())?;
        if from.device().is_cuda() && !elements.buffer.is_pinned() {
            static WARNED: Once = Once::new();
            WARNED.call_once(|| {
                eprintln!(
                    "warning: no pinned memory is to be had, so what is offloaded travels slowly; raise the limit of locked memory"
                );
            });
        }
        computed(elements.buffer.read(&from))?;
        Ok(Some(elements))
    }

    /// The elements, once they are there.
    ///
    /// # Errors
    /// [`Error::Compute`].
    pub(crate) fn elements(&mut self) -> Result<Elements<'_>> {
        Ok(Elements {
            dtype: self.dtype,
            bytes: computed(self.buffer.bytes())?,
        })
    }

    /// Their bytes, to be written.
    ///
    /// # Errors
    /// [`Error::Compute`].
    pub(crate) fn bytes(&mut self) -> Result<&mut [u8]> {
        computed(self.buffer.bytes())
    }

    /// The elements as a tensor on `device`, LibTorch's, where they arrive before they are used.
    ///
    /// # Errors
    /// [`Error::Compute`].
    pub(crate) fn into_tensor(mut self, device: &Device) -> Result<Tensor<1>> {
        let tensor = Tensor::empty([self.len], (device, self.dtype));
        if let Some(mut to) = torch(&tensor) {
            computed(self.buffer.write(&mut to))?;
        }
        Ok(tensor)
    }
}

/// Elements of host memory as a tensor on `device`, by way of memory that the device reads by itself. `None` where it is not LibTorch's.
///
/// # Errors
/// [`Error::Compute`].
pub(crate) fn uploaded(bytes: &[u8], dtype: DType, device: &Device) -> Result<Option<Tensor<1>>> {
    if torch(&Tensor::empty([0], (device, dtype))).is_none() {
        return Ok(None);
    }
    let mut elements = HostElements::new(bytes.len() / dtype.size(), dtype)?;
    elements.bytes()?.copy_from_slice(bytes);
    elements.into_tensor(device).map(Some)
}

/// Parameters that stay in host memory, of which a device takes pieces by itself.
#[derive(Clone, Debug)]
pub(crate) struct HostValues {
    elements: Arc<Mutex<HostElements>>,
    len: usize,
    dtype: DType,
}

impl From<HostElements> for HostValues {
    fn from(elements: HostElements) -> Self {
        let (len, dtype) = (elements.len, elements.dtype);
        Self {
            elements: Arc::new(Mutex::new(elements)),
            len,
            dtype,
        }
    }
}

impl HostValues {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len * self.dtype.size()
    }

    /// These elements as a tensor on `device`, LibTorch's, where they arrive before they are used.
    ///
    /// # Errors
    /// [`Error::Compute`].
    pub(crate) fn range(&self, range: Range<usize>, device: &Device) -> Result<Tensor<1>> {
        let tensor = Tensor::empty([range.len()], (device, self.dtype));
        if let Some(mut to) = torch(&tensor) {
            let start = range.start * self.dtype.size();
            computed(self.lock().buffer.write_part(start, &mut to))?;
        }
        Ok(tensor)
    }

    fn lock(&self) -> MutexGuard<'_, HostElements> {
        self.elements.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One step of AdamW, in place; changes the gradient, too. Returns whether the tensors are LibTorch's.
///
/// # Errors
/// [`Error::Compute`].
pub(crate) fn adamw(
    update: &Update,
    rule: AdamW,
    weights: &Tensor<1>,
    gradient: &Tensor<1>,
    moments: [&Tensor<1>; 2],
) -> Result<bool> {
    let [Some(mut weights), Some(mut gradient)] = [weights, gradient].map(torch) else {
        return Ok(false);
    };
    let [Some(mut m), Some(mut v)] = moments.map(torch) else {
        return Ok(false);
    };
    let settings = terrashard_torch::AdamW {
        lr: update.lr,
        betas: [rule.beta1, rule.beta2],
        epsilon: rule.epsilon,
        weight_decay: update.weight_decay,
        gradient_factor: update.gradient_factor,
    };
    let moments = [&mut m, &mut v];
    let gate = update.gate.as_ref().and_then(Gate::torch);
    let gate = gate.as_ref();
    computed(settings.step(update.step, &mut weights, &mut gradient, moments, gate))?;
    Ok(true)
}

/// What the ranks add up to decide on a step: the sum of squares over all of `own` if it `counts` and is finite, whether it is
/// not, then `scalars`; in double precision. `None` where `own` is not LibTorch's.
///
/// # Errors
/// [`Error::Compute`].
pub(crate) fn message(
    own: &[Tensor<1>],
    counts: bool,
    scalars: &Tensor<1>,
) -> Result<Option<Tensor<1>>> {
    let all: Option<Vec<_>> = own.iter().map(torch).collect();
    let (Some(own), Some(scalars)) = (all.filter(|own| !own.is_empty()), torch(scalars)) else {
        return Ok(None);
    };
    // Kernels add up in another order where memory does not begin at a multiple of 16 bytes, as a part of a buffer may.
    let aligned = |own: tch::Tensor| match own.data_ptr() as usize % 16 {
        0 => own,
        _ => own.copy(),
    };
    let own: Vec<tch::Tensor> = own.into_iter().map(aligned).collect();
    let own: Vec<&tch::Tensor> = own.iter().collect();
    let assemble = |squares: tch::Tensor| -> Result<tch::Tensor, tch::TchError> {
        let sum = squares.f_sum(tch::Kind::Double)?.f_reshape([1])?;
        let failed = sum.f_isfinite()?.f_logical_not()?;
        let sum = match counts {
            true => sum.f_nan_to_num(0.0, 0.0, 0.0)?,
            false => sum.f_zeros_like()?,
        };
        let double = |tensor: tch::Tensor| tensor.f_to_kind(tch::Kind::Double);
        tch::Tensor::f_cat(&[sum, double(failed)?, double(scalars)?], 0)
    };
    let squares = computed(sums_of_squares(&own))?;
    Ok(Some(burn(computed(assemble(squares))?)))
}

/// The sum over a buffer, `[1]`, in a type in which finite values do not overflow. `None` where it is not LibTorch's.
pub(crate) fn wide_sum(buffer: &Tensor<1>) -> Option<Tensor<1>> {
    let buffer = torch(buffer)?;
    let kind = match buffer.kind() {
        tch::Kind::Double => tch::Kind::Double,
        _ => tch::Kind::Float,
    };
    let sum = buffer.f_sum(kind).and_then(|sum| sum.f_reshape([1]));
    sum.ok().map(burn)
}

/// The values in memory of their own, for updates in place. `None` where they are not LibTorch's.
pub(crate) fn owned(values: &Tensor<1>) -> Option<Tensor<1>> {
    torch(values).map(|values| burn(values.copy()))
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;
    use terrashard_layout::ElementType;

    use super::*;
    use crate::config::Optimizer;
    use crate::rule::Part;

    fn tensor(values: &[f32], device: &Device) -> Tensor<1> {
        Tensor::from_data(TensorData::from(values), device)
    }

    /// In place on LibTorch as by operations on burn's backend.
    #[test]
    fn adamw_in_place_is_adamw() {
        let rule = AdamW::default();
        let states = |device: &Device| Part {
            master: Some(tensor(&[1.0, -2.0, 0.0], device)),
            m: Some(tensor(&[0.1, 0.0, 0.0], device)),
            v: Some(tensor(&[0.01, 0.5, 0.0], device)),
            ema: None,
        };
        let update = Update {
            rule: Optimizer::AdamW(rule),
            lr: 0.1,
            weight_decay: 0.01,
            step: 3,
            gradient_factor: 0.5,
            ema: None,
            compute: ElementType::F32,
            gate: None,
        };
        let gradient = [0.5, -3.0, 0.0];
        let flex = Device::flex();
        let mut expected = states(&flex);
        let _ = update
            .on_device(&mut expected, None, tensor(&gradient, &flex))
            .unwrap();
        let torch = terrashard_torch::cpu();
        let part = states(&torch);
        let (Some(master), Some(m), Some(v)) = (&part.master, &part.m, &part.v) else {
            unreachable!("all three were made");
        };
        let gradient = tensor(&gradient, &torch);
        assert!(adamw(&update, rule, master, &gradient, [m, v]).unwrap());
        let values = |part: &Part<Tensor<1>>| -> Vec<f64> {
            let data = part.states().map(|state| state.to_data());
            data.flat_map(|data| data.iter::<f64>().collect::<Vec<_>>())
                .collect()
        };
        for (got, expected) in values(&part).into_iter().zip(values(&expected)) {
            assert!((got - expected).abs() < 1e-6, "{got} not {expected}");
        }
        assert_eq!(values(&part)[2], 0.0, "padding stays zero");
        let foreign = tensor(&[1.0], &flex);
        assert!(!adamw(&update, rule, &foreign, &foreign, [&foreign, &foreign]).unwrap());
    }

    #[test]
    fn what_ranks_decide_by_is_added_up_on_the_device() {
        let device = terrashard_torch::cpu();
        let scalars = tensor(&[7.0], &device);
        let read = |own: &[Tensor<1>], counts| -> Vec<f64> {
            let message = message(own, counts, &scalars).unwrap();
            let data = message.expect("these are LibTorch's").into_data();
            data.iter::<f64>().collect()
        };
        let whole = tensor(&[9.0, 1.0, 2.0, 3.0], &device);
        // A part that begins where kernels would add up otherwise.
        let own = [whole.clone().slice(1..4), whole.clone().slice(0..1)];
        let sums = read(&own, true);
        // Each sum goes through its root in 32 bits.
        assert!((sums[0] - 95.0).abs() < 1e-5, "{sums:?}");
        assert_eq!(sums[1..], [0.0, 7.0]);
        assert_eq!(read(&own, false), [0.0, 0.0, 7.0]);
        for spoilt in [f32::NAN, f32::INFINITY] {
            let own = [whole.clone(), tensor(&[spoilt], &device)];
            assert_eq!(read(&own, true), [0.0, 1.0, 7.0]);
        }
        let foreign = tensor(&[1.0], &Device::flex());
        assert!(message(&[foreign], true, &scalars).unwrap().is_none());
    }
}
