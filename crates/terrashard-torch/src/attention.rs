//! Attention whose matrix of scores never exists, and its gradients.

use tch::Tensor;

use crate::shim::{Call, Outputs};
use crate::{Result, shim};

/// The result of `softmax(q k^T scale) v` and what its gradients need beside the inputs.
///
/// On the CPU and for 16 bits on a GPU the kernel is flash attention. On a GPU, `f32` is computed by the memory-efficient kernel,
/// but its gradients by matrix products over parts of the matrix of scores, as everything is in `f64`, and where the width of a
/// head suits no kernel.
#[derive(Debug)]
pub struct Attention {
    output: Tensor,
    /// What the kernel's gradients need: the logarithm of each row's sum of exponentials, seed and offset of the generator.
    others: [Option<Tensor>; 3],
    scale: f64,
}

impl Attention {
    /// Computes the result.
    ///
    /// # Shapes
    /// q `[N, heads, queries, dim]`, k and v `[N, heads, keys, dim]`; the last dimension contiguous.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) if shapes, types or devices do not fit together, or memory is used up.
    pub fn forward(q: &Tensor, k: &Tensor, v: &Tensor, scale: f64) -> Result<Self> {
        let mut out = Outputs::new(Call::Attention);
        shim::attention([q, k, v], scale, &mut out)?;
        let output = out.tensor(0)?;
        let [_, sums, seed, offset] = out.take();
        Ok(Self {
            output,
            others: [sums, seed, offset],
            scale,
        })
    }

    /// The result, like q.
    pub fn output(&self) -> &Tensor {
        &self.output
    }

    /// The result, where no gradient is asked for.
    pub fn into_output(self) -> Tensor {
        self.output
    }

    /// Gradients of q, k and v, which are those of [`forward`](Self::forward).
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) as for [`forward`](Self::forward).
    pub fn backward(
        &self,
        gradient: &Tensor,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
    ) -> Result<[Tensor; 3]> {
        let others = self.others.each_ref().map(Option::as_ref);
        let inputs = [q, k, v];
        let mut out = Outputs::new(Call::AttentionBackward);
        shim::attention_backward(gradient, inputs, &self.output, others, self.scale, &mut out)?;
        Ok([out.tensor(0)?, out.tensor(1)?, out.tensor(2)?])
    }
}
