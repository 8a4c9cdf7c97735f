//! The fusing convolution of an all-MLP head, over levels of different sizes.

use crate::convolution::ConvShape;
use crate::graph::operate;
use crate::kernels::{Gradients, Kernels};
use crate::operation::Operation;
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{Slice, Tensor};

/// In which order levels stand in the input channels of a fusing convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LevelOrder {
    /// The first level has the first channels.
    ShallowFirst,
    /// The last level has the first channels.
    DeepestFirst,
}

impl LevelOrder {
    /// Where this level stands among so many.
    pub fn position(self, level: usize, levels: usize) -> usize {
        match self {
            Self::ShallowFirst => level,
            Self::DeepestFirst => levels - 1 - level,
        }
    }
}

/// The 1x1 convolution of all levels, each enlarged bilinearly to the first one's size, concatenated in this order.
///
/// Enlarging is linear, so each level goes through its part of the convolution before it is enlarged: the same values at a
/// fraction of the work, and the levels are never concatenated.
///
/// # Shapes
/// levels `[N, C, h, w]` of four sizes, weight `[out, 4 C, 1, 1]`, bias `[out]`; result `[N, out, h, w]` of the first level.
pub fn fuse_levels(
    levels: [Tensor<4>; 4],
    weight: Tensor<4>,
    bias: Option<Tensor<1>>,
    order: LevelOrder,
) -> Tensor<4> {
    let mut inputs: Vec<_> = levels.into_iter().map(Tensor::into_dispatch).collect();
    inputs.push(weight.into_dispatch());
    inputs.extend(bias.map(Tensor::into_dispatch));
    operate(inputs, Operation::FuseLevels(order))
}

/// The level's part of the weight.
fn part<B: Kernels>(weight: &FloatTensor<B>, position: usize, levels: usize) -> FloatTensor<B> {
    let channels = weight.shape()[1] / levels;
    let (start, end) = (
        (position * channels) as isize,
        ((position + 1) * channels) as isize,
    );
    B::float_slice(
        weight.clone(),
        &[Slice::full(), Slice::new(start, Some(end), 1)],
    )
}

fn size<B: Kernels>(map: &FloatTensor<B>) -> [usize; 2] {
    [map.shape()[2], map.shape()[3]]
}

pub(crate) fn forward<B: Kernels>(
    levels: Vec<FloatTensor<B>>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    order: LevelOrder,
) -> FloatTensor<B> {
    let (count, to) = (levels.len(), size::<B>(&levels[0]));
    let maps = levels.into_iter().enumerate().map(|(level, map)| {
        let weight = part::<B>(&weight, order.position(level, count), count);
        let bias = bias.clone().filter(|_| level == 0);
        let map = B::conv2d_forward(map, weight, bias, ConvShape::POINTWISE);
        let map = if size::<B>(&map) == to {
            map
        } else {
            B::resize_forward(map, to)
        };
        // Channels last is how maps lie in memory.
        B::float_permute(map, &[0, 2, 3, 1])
    });
    let sum = maps
        .reduce(|sum, map| B::float_add(sum, map))
        .expect("there are four levels");
    B::float_permute(sum, &[0, 3, 1, 2])
}

pub(crate) fn backward<B: Kernels>(
    gradient: FloatTensor<B>,
    levels: Vec<FloatTensor<B>>,
    weight: FloatTensor<B>,
    order: LevelOrder,
    wanted: &[bool],
) -> Gradients<B> {
    let (count, to) = (levels.len(), size::<B>(&gradient));
    let mut results = Vec::with_capacity(count + 2);
    let mut parts = vec![None; count];
    let mut bias = None;
    for (level, map) in levels.into_iter().enumerate() {
        let position = order.position(level, count);
        let from = size::<B>(&map);
        let own = if from == to {
            gradient.clone()
        } else {
            B::resize_backward(gradient.clone(), from)
        };
        let wanted = [
            wanted[level],
            wanted[count],
            level == 0 && wanted.get(count + 1).is_some_and(|wanted| *wanted),
        ];
        let mut own = B::conv2d_backward(
            own,
            map,
            part::<B>(&weight, position, count),
            ConvShape::POINTWISE,
            &wanted,
        );
        bias = own.pop().flatten().or(bias);
        parts[position] = own.pop().flatten();
        results.push(own.pop().flatten());
    }
    let parts: Option<Vec<_>> = parts.into_iter().collect();
    results.push(parts.map(|parts| B::float_cat(parts, 1)));
    results.push(bias);
    results
}
