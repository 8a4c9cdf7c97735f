//! The one place that names burn's LibTorch backend.

#![expect(
    deprecated,
    reason = "no other backend of burn 0.22 computes on a GPU without its own compiler at run time"
)]

use std::sync::Once;

use burn::backend::tensor::FloatTensor;
use burn::tensor::Device;
use tch::Tensor;

use crate::shim;

/// burn's LibTorch backend, under a name of which the compiler does not warn wherever it stands.
pub type LibTorch = burn::backend::LibTorch;

/// LibTorch on the CPU.
pub fn cpu() -> Device {
    Device::libtorch()
}

/// LibTorch on the GPU with this index. What is computed on one that is not there panics.
///
/// Takes the first memory of all GPUs, so that it comes after [`limit_memory`](crate::limit_memory).
pub fn gpu(index: usize) -> Device {
    // LibTorch's allocator finds out how it can take memory when it takes the first, and does so for all GPUs without a lock: two threads
    // that are the first on two of them make it fail.
    static FIRST: Once = Once::new();
    FIRST.call_once(|| {
        // Where there is no such GPU, whoever computes on it is told.
        let _ = shim::first_memory(index);
    });
    Device::libtorch_cuda(index)
}

/// A tensor of the backend, as burn's operations have it.
pub type Primitive = FloatTensor<LibTorch>;

/// LibTorch's own tensor in one of burn's.
pub fn inner(tensor: &Primitive) -> &Tensor {
    &tensor.tensor
}

/// A tensor that shares its memory with no other one of burn's, as one of burn's: burn may change it in place.
pub fn outer(tensor: Tensor) -> Primitive {
    Primitive::new(tensor)
}

/// A tensor that may share its memory with `parent`, as one of burn's: burn changes neither in place while both are there.
pub(crate) fn sharing(tensor: Tensor, parent: &Primitive) -> Primitive {
    Primitive::from_existing(tensor, parent.storage.clone())
}

/// Whether no other tensor of burn's shares its memory, so that it may be changed in place.
pub fn is_unshared(tensor: &Primitive) -> bool {
    tensor.can_mut()
}
