//! Inputs of any size: padded for the encoder, results cropped.
//!
//! Padding repeats the edge pixels. Zeros would be a dark object along two sides of every tile, which the first stage's
//! normalisation would spread; mirroring needs as many pixels as it adds, which a small tile does not have.

use burn::tensor::{Int, Tensor, TensorData};

/// The size of an input and of what it is padded to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Padding {
    size: [usize; 2],
    padded: [usize; 2],
}

impl Padding {
    pub(crate) fn new(image: &Tensor<4>, multiple: usize) -> Self {
        let [_, _, h, w] = image.dims();
        assert!(h > 0 && w > 0, "an image has pixels");
        Self {
            size: [h, w],
            padded: [h, w].map(|extent| extent.next_multiple_of(multiple)),
        }
    }

    pub(crate) fn pad(self, image: Tensor<4>) -> Tensor<4> {
        (0..2).fold(image, |image, axis| {
            if self.size[axis] == self.padded[axis] {
                return image;
            }
            let last = self.size[axis] as i64 - 1;
            let indices: Vec<i64> = (0..self.padded[axis] as i64).map(|i| i.min(last)).collect();
            let length = indices.len();
            let indices =
                Tensor::<1, Int>::from_data(TensorData::new(indices, [length]), &image.device());
            image.select(2 + axis, indices)
        })
    }

    /// The part of a map that belongs to the input, where one input pixel is `scale` pixels of the map.
    pub(crate) fn crop(self, map: Tensor<4>, scale: usize) -> Tensor<4> {
        if self.size == self.padded {
            return map;
        }
        let [n, c, ..] = map.dims();
        let [h, w] = self.size.map(|extent| extent * scale);
        if n == 0 {
            // An empty slice would not be part of the graph, which a rank without samples needs as the others do.
            return map.reshape([n, c, h, w]);
        }
        map.slice([0..n, 0..c, 0..h, 0..w])
    }
}
