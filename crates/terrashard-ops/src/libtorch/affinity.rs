//! The affinity loss with its gradients: one batched product for each tile of the difference between both similarities.

use super::blocks::size4;
use super::enlarge::wide;
use super::sampled;
use crate::affinity::{SHORTEST, tiles};
use terrashard_torch::tch::{Kind, Tensor};

/// The loss `[1]`, without its divisor, and its gradients at the sampled positions, `[N, C, rows, columns]` each.
pub(super) struct Affinity {
    pub(super) value: Tensor,
    pub(super) slopes: Option<[Tensor; 2]>,
}

/// Sampled vectors.
struct Vectors {
    /// Of length 1, `[N, C, positions]`, in the wide type.
    unit: Tensor,
    /// What they were divided by, `[N, 1, positions]`.
    length: Tensor,
    size: [i64; 4],
}

impl Vectors {
    fn of(map: &Tensor, every: usize) -> Self {
        let sample = sampled(map, every);
        let size = size4(&sample);
        let x = sample
            .to_kind(wide(map.kind()))
            .reshape([size[0], size[1], size[2] * size[3]]);
        let squares = &x * &x;
        let length = squares
            .sum_dim_intlist([1].as_slice(), true, x.kind())
            .sqrt();
        let length = length.clamp_min(SHORTEST);
        Self {
            unit: x / &length,
            length,
            size,
        }
    }

    /// The gradient of the vectors from that of the unit vectors.
    fn slope(&self, unit_slope: &Tensor) -> Tensor {
        let along =
            (unit_slope * &self.unit).sum_dim_intlist([1].as_slice(), true, self.unit.kind());
        let along = along.masked_fill(&self.length.le(SHORTEST), 0.0);
        ((unit_slope - &self.unit * along) / &self.length).view(self.size)
    }
}

/// See [`affinity`](crate::affinity).
pub(super) fn affinity(a: &Tensor, b: &Tensor, every: usize, slopes: bool) -> Affinity {
    let kind = a.kind();
    let (a, b) = (Vectors::of(a, every), Vectors::of(b, every));
    let (of_a, of_b) = (a.size[1], b.size[1]);
    // S_a - S_b as one product: of (a, b) with (a, -b).
    let both = Tensor::cat(&[&a.unit, &b.unit], 1).to_kind(kind);
    let signed = Tensor::cat(&[&a.unit, &b.unit.neg()], 1).to_kind(kind);
    let turned = both.transpose(1, 2).contiguous();
    let positions = turned.size()[1];
    let mut value = Tensor::zeros([1], (Kind::Double, both.device()));
    let mut rows = Vec::new();
    for (start, count) in tiles(positions as usize) {
        let mut tile = turned.narrow(1, start as i64, count as i64).bmm(&signed);
        value += tile
            .norm_scalaropt_dim_dtype(1, [2].as_slice(), false, wide(kind))
            .sum(Kind::Double);
        if slopes {
            let _ = tile.sign_();
            // S and with it the matrix of signs are symmetric, so each row of signs serves both factors: hence the 2.
            rows.push(tile.bmm(&turned).to_kind(wide(kind)) * 2.0);
        }
    }
    let slopes = slopes.then(|| {
        let units = Tensor::cat(&rows, 1).transpose(1, 2);
        [
            a.slope(&units.narrow(1, 0, of_a)),
            b.slope(&units.narrow(1, of_a, of_b).neg()),
        ]
    });
    Affinity {
        value: value.to_kind(wide(kind)),
        slopes,
    }
}
