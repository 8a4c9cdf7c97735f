//! Attention whose matrix of scores never exists, and its gradients.

use tch::Tensor;

use crate::shim::{Call, Outputs};
use crate::{Result, shim};

/// The result of `softmax(q k^T scale) v` and what its gradients need beside the inputs.
///
/// On the CPU and for 16 bits on a GPU the kernel is flash attention, else on a GPU the memory-efficient one, which
/// has none for `f64`.
#[derive(Debug)]
pub struct Attention {
    output: Tensor,
    /// The logarithm of each row's sum of exponentials.
    sums: Tensor,
    /// Seed and offset of the generator, of which a kernel without dropout makes no use but which it asks for.
    generator: [Option<Tensor>; 2],
    scale: f64,
}

impl Attention {
    /// Computes the result.
    ///
    /// # Shapes
    /// q `[N, heads, queries, dim]`, k and v `[N, heads, keys, dim]`; the last dimension contiguous.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) if shapes, types or devices do not fit together, there is no kernel for the
    /// type, or memory is used up.
    pub fn forward(q: &Tensor, k: &Tensor, v: &Tensor, scale: f64) -> Result<Self> {
        let mut out = Outputs::new(Call::Attention);
        shim::attention([q, k, v], scale, &mut out)?;
        let [output, sums] = [out.tensor(0)?, out.tensor(1)?];
        let [_, _, seed, offset] = out.take();
        Ok(Self {
            output,
            sums,
            generator: [seed, offset],
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
        let generator = self.generator.each_ref().map(Option::as_ref);
        let saved = [&self.output, &self.sums];
        let mut out = Outputs::new(Call::AttentionBackward);
        shim::attention_backward(gradient, [q, k, v], saved, generator, self.scale, &mut out)?;
        Ok([out.tensor(0)?, out.tensor(1)?, out.tensor(2)?])
    }
}
