//! The border to `loss.cc`.

#![expect(unsafe_code, reason = "calls into C++")]

use std::ffi::c_int;

use tch::Tensor;

use super::{In, Message, Out, Outputs, handle};
use crate::{Numbers, Result};

/// As `Coding` in `loss.cc`.
#[repr(C)]
struct Coding {
    offset: f32,
    scale: f32,
    missing: u32,
}

// SAFETY: the signatures are those of `loss.cc`. Tensors are `at::Tensor` by address.
unsafe extern "C" {
    fn terrashard_mask_loss(
        message: Message,
        map: In,
        labels: In,
        factor: i64,
        loss: i64,
        first: f64,
        second: f64,
        slopes: c_int,
        out: Out,
    ) -> c_int;
    fn terrashard_l1_loss(
        message: Message,
        map: In,
        target: In,
        numbers: *const Coding,
        factor: i64,
        slopes: c_int,
        out: Out,
    ) -> c_int;
}

pub(crate) fn mask_loss(
    [map, labels]: [&Tensor; 2],
    factor: i64,
    (loss, [first, second]): (i64, [f64; 2]),
    slopes: bool,
    out: &mut Outputs<2>,
) -> Result<()> {
    let [map, labels] = [map, labels].map(handle);
    let slopes = c_int::from(slopes);
    // SAFETY: the tensors are borrowed until the call returns and have the sizes that it takes for granted; `out` has the two
    // places it uses.
    out.fill(|message, out| unsafe {
        terrashard_mask_loss(
            message, map, labels, factor, loss, first, second, slopes, out,
        )
    })
}

pub(crate) fn l1_loss(
    [map, target]: [&Tensor; 2],
    numbers: Option<Numbers>,
    factor: i64,
    slopes: bool,
    out: &mut Outputs<2>,
) -> Result<()> {
    let [map, target] = [map, target].map(handle);
    let slopes = c_int::from(slopes);
    let numbers = numbers.map(|numbers| Coding {
        offset: numbers.offset,
        scale: numbers.scale,
        missing: numbers.missing.into(),
    });
    let numbers = numbers
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: as above; the numbers' meaning is null or lives until the call returns.
    out.fill(|message, out| unsafe {
        terrashard_l1_loss(message, map, target, numbers, factor, slopes, out)
    })
}
