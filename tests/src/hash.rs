//! Weights and batches of the reference sets, which follow from names alone through an integer hash, exact in `f32`.
//!
//! `tests/fixtures/README.md` states the rules.

/// A bijection of 32-bit integers (lowbias32).
fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// FNV-1a in 32 bits.
fn fnv1a(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// `count` values in `[0, 1)`, keyed by a name.
pub fn uniform(name: &str, count: usize) -> Vec<f32> {
    let key = mix(fnv1a(name));
    (0..count as u32)
        .map(|i| (mix(mix(i) ^ key) >> 8) as f32 * 2f32.powi(-24))
        .collect()
}

/// `count` values in `[-1, 1)`.
fn signed(name: &str, count: usize) -> Vec<f32> {
    uniform(name, count)
        .into_iter()
        .map(|u| u * 2.0 - 1.0)
        .collect()
}

/// The initial value of a parameter.
pub fn initial(name: &str, shape: &[usize]) -> Vec<f32> {
    let values = signed(name, shape.iter().product());
    if name.ends_with("bias") {
        values.into_iter().map(|s| s * 0.02).collect()
    } else if shape.len() == 1 {
        values.into_iter().map(|s| s * 0.1 + 1.0).collect()
    } else {
        let fan_in: usize = shape[1..].iter().product();
        let scale = (3.0 / fan_in as f64).sqrt() as f32;
        values.into_iter().map(|s| s * scale).collect()
    }
}

/// Samples of the reference sets, one after another.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// `[N, 6, size, size]`.
    pub image: Vec<f32>,
    /// `[N, 5 size, 5 size]`, 0 or 1.
    pub mask: Vec<u8>,
    /// `[N, 4, 5 size, 5 size]`.
    pub hres: Vec<f32>,
}

/// The samples with these global indices, images of `size` pixels squared.
pub fn batch(size: usize, samples: impl IntoIterator<Item = usize>) -> Batch {
    let large = 25 * size * size;
    samples.into_iter().fold(Batch::default(), |mut batch, n| {
        batch
            .image
            .extend(signed(&format!("image/{n}"), 6 * size * size));
        batch.mask.extend(
            uniform(&format!("mask/{n}"), large)
                .iter()
                .map(|u| u8::from(*u < 0.25)),
        );
        batch.hres.extend(uniform(&format!("hres/{n}"), 4 * large));
        batch
    })
}
