//! The residual branches of a Mix Transformer's block ([Xie et al. 2021](https://arxiv.org/abs/2105.15203)), each computed by one call.
//!
//! A branch is `x + kept f(norm(x))`: attention whose keys and values come from a reduced map, or two layers with a depthwise
//! 3x3 convolution between them. `kept` is a factor for each sample, for stochastic depth.

use tch::Tensor;

use crate::shim::branch::{
    self as border, ATTENTION_PARAMETERS, ATTENTION_SAVED, FEED_FORWARD_PARAMETERS,
    FEED_FORWARD_SAVED,
};
use crate::shim::{Call, Outputs};
use crate::{Error, Result};

/// The branch with attention. Its parameters are weights and biases of the norm, of queries, of keys with values, of the last
/// layer, and where `ratio` is not 1 of the reducing convolution and of the norm after it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionBranch {
    /// Heads, which divide the channels.
    pub heads: usize,
    /// Height and width of the map whose pixels are the tokens.
    pub grid: [usize; 2],
    /// Keys and values come from a map reduced by this in height and width.
    pub ratio: usize,
    /// Of the norm.
    pub epsilon: f64,
    /// Of the norm after the reduction.
    pub reduced_epsilon: f64,
}

/// The branch with two layers. Its parameters are weights and biases of the norm, of the first layer, of the depthwise
/// convolution and of the second layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FeedForwardBranch {
    /// Height and width of the map whose pixels are the tokens.
    pub grid: [usize; 2],
    /// Before the second layer.
    pub activation: BranchActivation,
    /// Of the norm.
    pub epsilon: f64,
}

/// A function of each value by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BranchActivation {
    /// `x Phi(x)` by the error function.
    Gelu = 0,
    /// `x sigmoid(x)`.
    Silu = 1,
    /// `max(x, 0)`.
    Relu = 2,
    /// `x tanh(ln(1 + e^x))`.
    Mish = 3,
}

/// What a branch keeps between forward and backward beside its input.
pub type Saved = Vec<Option<Tensor>>;

fn fixed<const N: usize, T>(call: Call, what: &'static str, items: Vec<T>) -> Result<[T; N]> {
    let got = items.len();
    items.try_into().map_err(|_| Error::Count {
        call: call.name(),
        what,
        expected: N,
        got,
    })
}

/// The result, and what is kept.
fn parted<const N: usize>(mut out: Outputs<N>) -> Result<(Tensor, Saved)> {
    let result = out.tensor(0)?;
    Ok((result, out.take().into_iter().skip(1).collect()))
}

impl AttentionBranch {
    fn border(&self) -> border::Attention {
        border::Attention {
            heads: self.heads as i64,
            height: self.grid[0] as i64,
            width: self.grid[1] as i64,
            ratio: self.ratio as i64,
            epsilon: self.epsilon,
            reduced_epsilon: self.reduced_epsilon,
        }
    }

    /// All parameters, or those that there are without a reduction.
    fn parameters<T: Copy>(
        &self,
        call: Call,
        what: &'static str,
        parameters: &[T],
        absent: T,
    ) -> Result<[T; ATTENTION_PARAMETERS]> {
        let mut all = parameters.to_vec();
        if self.ratio == 1 {
            all.extend([absent; 4]);
        }
        fixed(call, what, all)
    }

    /// The branch's result and what [`backward`](Self::backward) needs.
    ///
    /// # Shapes
    /// x and the result `[N, tokens, channels]`, kept `[N, 1, 1]`.
    ///
    /// # Errors
    /// [`Error::Count`] if there are not 8 parameters, or 12 with a reduction. [`Error::Exception`] if shapes, types or
    /// devices do not fit together, or memory is used up.
    pub fn forward(
        &self,
        x: &Tensor,
        parameters: &[&Tensor],
        kept: Option<&Tensor>,
    ) -> Result<(Tensor, Saved)> {
        let call = Call::AttentionBranch;
        let parameters: Vec<_> = parameters.iter().copied().map(Some).collect();
        let parameters = self.parameters(call, "parameters", &parameters, None)?;
        let mut out = Outputs::new(call);
        border::attention(self.border(), x, parameters, kept, &mut out)?;
        parted(out)
    }

    /// Gradients of x and of the parameters, those that are `wanted`.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn backward(
        &self,
        gradient: &Tensor,
        x: &Tensor,
        parameters: &[&Tensor],
        saved: &[Option<&Tensor>],
        kept: Option<&Tensor>,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let call = Call::AttentionBranchBackward;
        let parameters: Vec<_> = parameters.iter().copied().map(Some).collect();
        let count = parameters.len();
        let parameters = self.parameters(call, "parameters", &parameters, None)?;
        let saved = fixed::<ATTENTION_SAVED, _>(call, "kept tensors", saved.to_vec())?;
        let mut all = wanted.to_vec();
        all.resize(1 + ATTENTION_PARAMETERS, false);
        let wanted = fixed(call, "wanted gradients", all)?;
        let mut out = Outputs::new(call);
        border::attention_backward(
            self.border(),
            [gradient, x],
            parameters,
            saved,
            kept,
            wanted,
            &mut out,
        )?;
        Ok(out.take().into_iter().take(1 + count).collect())
    }
}

impl FeedForwardBranch {
    fn border(&self) -> border::FeedForward {
        border::FeedForward {
            height: self.grid[0] as i64,
            width: self.grid[1] as i64,
            activation: self.activation as i64,
            epsilon: self.epsilon,
        }
    }

    /// The branch's result and what [`backward`](Self::backward) needs.
    ///
    /// # Shapes
    /// x and the result `[N, tokens, channels]`, kept `[N, 1, 1]`.
    ///
    /// # Errors
    /// [`Error::Count`] if there are not 8 parameters. [`Error::Exception`] if shapes, types or devices do not fit
    /// together, or memory is used up.
    pub fn forward(
        &self,
        x: &Tensor,
        parameters: &[&Tensor],
        kept: Option<&Tensor>,
    ) -> Result<(Tensor, Saved)> {
        let call = Call::FeedForwardBranch;
        let parameters =
            fixed::<FEED_FORWARD_PARAMETERS, _>(call, "parameters", parameters.to_vec())?;
        let mut out = Outputs::new(call);
        border::feed_forward(self.border(), x, parameters, kept, &mut out)?;
        parted(out)
    }

    /// Gradients of x and of the parameters, those that are `wanted`.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn backward(
        &self,
        gradient: &Tensor,
        x: &Tensor,
        parameters: &[&Tensor],
        saved: &[Option<&Tensor>],
        kept: Option<&Tensor>,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let call = Call::FeedForwardBranchBackward;
        let parameters = fixed(call, "parameters", parameters.to_vec())?;
        let saved = fixed::<FEED_FORWARD_SAVED, _>(call, "kept tensors", saved.to_vec())?;
        let wanted = fixed(call, "wanted gradients", wanted.to_vec())?;
        let mut out = Outputs::new(call);
        border::feed_forward_backward(
            self.border(),
            [gradient, x],
            parameters,
            saved,
            kept,
            wanted,
            &mut out,
        )?;
        Ok(out.take().into())
    }
}
