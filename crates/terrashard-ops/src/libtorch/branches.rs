//! The branches of a transformer block, each by one call into LibTorch.

use super::{computed, gradients};
use crate::Activation;
use crate::branch::{self, Backward, Branch, Kind, Saved};
use crate::kernels::Gradients;
use terrashard_torch::{
    AttentionBranch, BranchActivation, FeedForwardBranch, LibTorch, Primitive as Torch, inner,
    outer,
};

/// The call for a branch.
enum Call {
    Attention(AttentionBranch),
    FeedForward(FeedForwardBranch),
}

/// Where the reducing convolution is more than LibTorch's body takes, there is none.
fn call(branch: &Branch) -> Option<Call> {
    let grid = branch.grid;
    let epsilon = branch.epsilon;
    match branch.kind {
        Kind::Attention { heads, reduction } => {
            let (ratio, reduced_epsilon) = match reduction {
                None => (1, epsilon),
                Some(reduction) if reduction.shape.padding == 0 && reduction.shape.groups == 1 => {
                    (reduction.shape.stride, reduction.epsilon)
                }
                Some(_) => return None,
            };
            Some(Call::Attention(AttentionBranch {
                heads,
                grid,
                ratio,
                epsilon,
                reduced_epsilon,
            }))
        }
        Kind::FeedForward(activation) => Some(Call::FeedForward(FeedForwardBranch {
            grid,
            epsilon,
            activation: match activation {
                Activation::Gelu => BranchActivation::Gelu,
                Activation::Silu => BranchActivation::Silu,
                Activation::Relu => BranchActivation::Relu,
                Activation::Mish => BranchActivation::Mish,
            },
        })),
    }
}

pub(super) fn forward(
    branch: &Branch,
    x: Torch,
    parameters: Vec<Torch>,
) -> (Torch, Saved<LibTorch>) {
    let Some(call) = call(branch) else {
        return branch::forward::<LibTorch>(branch, x, parameters);
    };
    let kept = branch.kept::<LibTorch>(&x);
    let (x, kept) = (inner(&x), kept.as_ref().map(inner));
    let parameters: Vec<_> = parameters.iter().map(inner).collect();
    let (y, saved) = computed(match call {
        Call::Attention(call) => call.forward(x, &parameters, kept),
        Call::FeedForward(call) => call.forward(x, &parameters, kept),
    });
    let saved = saved.into_iter().map(|saved| saved.map(outer));
    (outer(y), saved.collect())
}

pub(super) fn backward(branch: &Branch, given: Backward<LibTorch>) -> Gradients<LibTorch> {
    let Some(call) = call(branch) else {
        return branch::backward::<LibTorch>(branch, given);
    };
    let kept = branch.kept::<LibTorch>(&given.x);
    let (gradient, x, kept) = (
        inner(&given.gradient),
        inner(&given.x),
        kept.as_ref().map(inner),
    );
    let parameters: Vec<_> = given.parameters.iter().map(inner).collect();
    let saved: Vec<_> = given.saved.iter().map(|s| s.as_ref().map(inner)).collect();
    let wanted = &given.wanted;
    let results = computed(match call {
        Call::Attention(call) => call.backward(gradient, x, &parameters, &saved, kept, wanted),
        Call::FeedForward(call) => call.backward(gradient, x, &parameters, &saved, kept, wanted),
    });
    gradients(results, wanted.len())
}
