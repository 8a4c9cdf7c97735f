//! The border to AdamW's step in `shim.cc`.

#![expect(unsafe_code, reason = "calls into C++")]

use std::ffi::c_int;
use std::ptr;

use tch::Tensor;

use super::{Call, Handle, In, Message, changed, handle};
use crate::Result;
use crate::adamw::{AdamW, Gate};

// SAFETY: the signature is that of `shim.cc`. Tensors are `at::Tensor` by address.
unsafe extern "C" {
    fn terrashard_adamw(
        message: Message,
        parameter: *mut Handle,
        gradient: *mut Handle,
        momentum: *mut Handle,
        variance: *mut Handle,
        step: i64,
        lr: f64,
        beta1: f64,
        beta2: f64,
        epsilon: f64,
        weight_decay: f64,
        factor: f64,
        divisor: In,
        failed: In,
    ) -> c_int;
}

pub(crate) fn step(
    settings: &AdamW,
    step: u64,
    parameter: &mut Tensor,
    gradient: &mut Tensor,
    moments: [&mut Tensor; 2],
    gate: Option<&Gate>,
) -> Result<()> {
    let [momentum, variance] = moments.map(changed);
    let [parameter, gradient] = [parameter, gradient].map(changed);
    let [beta1, beta2] = settings.betas;
    let divisor = gate.map_or(ptr::null(), |gate| handle(&gate.divisor));
    let failed = gate.map_or(ptr::null(), |gate| handle(&gate.failed));
    Call::AdamW.run(|message| {
        // SAFETY: the tensors are borrowed until the call returns, mutably those that it changes.
        unsafe {
            terrashard_adamw(
                message,
                parameter,
                gradient,
                momentum,
                variance,
                step as i64,
                settings.lr,
                beta1,
                beta2,
                settings.epsilon,
                settings.weight_decay,
                settings.gradient_factor,
                divisor,
                failed,
            )
        }
    })
}
