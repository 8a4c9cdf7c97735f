//! Random numbers without a state: a pure function of (seed, name, index).
//!
//! A generator with a state gives each rank other numbers as soon as one rank draws one more. Here every number
//! has an address, so initial values, sampling and augmentation do not depend on the number of ranks or on who
//! asks first. The mixing is that of SplitMix64 (Steele, Lea, Flood 2014), applied twice with two keys; it is not
//! cryptographic.

/// SplitMix64's increment: 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's finalizer: a bijection in which each bit of the input flips each bit of the output half the time.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The numbers of one seed and name.
///
/// ```
/// use terrashard_layout::counter::Stream;
///
/// let weight = Stream::new(7, "head.weight");
/// let value = weight.uniform(3); // the same wherever and whenever it is asked for
/// assert!((0.0..1.0).contains(&value));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    inner: u64,
    outer: u64,
}

impl Stream {
    /// The stream of `seed` and `name`, for instance a parameter's name or a purpose.
    pub fn new(seed: u64, name: &str) -> Self {
        let mut digest = Digest::new();
        digest.number(seed);
        digest.text(name);
        let inner = digest.finish();
        Self {
            inner,
            outer: mix(inner.wrapping_add(GOLDEN)),
        }
    }

    /// The stream that belongs to `key` within this one, for instance an epoch, a sample or a layer.
    pub fn child(self, key: u64) -> Self {
        let inner = self.bits(key);
        Self {
            inner,
            outer: mix(inner.wrapping_add(GOLDEN)),
        }
    }

    /// 64 uniform bits.
    pub fn bits(self, index: u64) -> u64 {
        mix(mix(index.wrapping_mul(GOLDEN).wrapping_add(self.inner)) ^ self.outer)
    }

    /// A number in `[0, 1)`: a multiple of 2^-53.
    pub fn uniform(self, index: u64) -> f64 {
        (self.bits(index) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// An integer in `0..bound`; 0 if `bound` is 0. The bias is below `bound / 2^64`.
    pub fn below(self, index: u64, bound: u64) -> u64 {
        ((u128::from(self.bits(index)) * u128::from(bound)) >> 64) as u64
    }

    /// A number of the standard normal distribution (Box and Muller 1958), from uniforms `2 index` and `2 index + 1`.
    pub fn normal(self, index: u64) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform(2 * index)).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform(2 * index + 1)).cos()
    }
}

/// 64 uniform bits for (seed, name, index). [`Stream`] hashes the name only once.
pub fn hash(seed: u64, name: &str, index: u64) -> u64 {
    Stream::new(seed, name).bits(index)
}

/// A number in `[0, 1)` for (seed, name, index). [`Stream`] hashes the name only once.
pub fn uniform(seed: u64, name: &str, index: u64) -> f64 {
    Stream::new(seed, name).uniform(index)
}

/// A 64-bit hash of a sequence of numbers and texts, each with its length, so that no two sequences read alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) fn new() -> Self {
        Self(GOLDEN)
    }

    pub(crate) fn number(&mut self, number: u64) {
        self.0 = mix(self.0.rotate_left(5).wrapping_add(GOLDEN) ^ mix(number.wrapping_add(GOLDEN)));
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        for word in text.as_bytes().chunks(8) {
            let mut bytes = [0; 8];
            bytes[..word.len()].copy_from_slice(word);
            self.number(u64::from_le_bytes(bytes));
        }
    }

    pub(crate) fn finish(self) -> u64 {
        mix(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and variance of `draw` over many indices.
    fn moments(draw: impl Fn(u64) -> f64) -> (f64, f64) {
        let n = 100_000;
        let mean = (0..n).map(&draw).sum::<f64>() / n as f64;
        (
            mean,
            (0..n)
                .map(|index| (draw(index) - mean).powi(2))
                .sum::<f64>()
                / n as f64,
        )
    }

    #[test]
    fn mixes_as_splitmix64_does() {
        // The first outputs of SplitMix64 seeded with 1234567, as published with the Java and C implementations.
        let outputs =
            [1, 2, 3].map(|i: u64| mix(1_234_567_u64.wrapping_add(GOLDEN.wrapping_mul(i))));
        assert_eq!(
            outputs,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn addresses_are_independent() {
        let a = hash(1, "a", 0);
        for other in [
            hash(2, "a", 0),
            hash(1, "b", 0),
            hash(1, "a", 1),
            hash(1, "a\0", 0),
            hash(1, "", 0),
        ] {
            // Half of 64 bits differ, give or take five standard deviations.
            assert!(
                (12..=52).contains(&(a ^ other).count_ones()),
                "{a:x} {other:x}"
            );
        }
        let stream = Stream::new(1, "a");
        assert_eq!(stream.bits(0), a);
        assert_ne!(stream.child(0), stream.child(1));
        assert_ne!(stream.child(0).bits(0), a);
    }

    #[test]
    fn distributions_have_their_moments() {
        let stream = Stream::new(3, "moments");
        let (mean, variance) = moments(|index| stream.uniform(index));
        assert!(
            (mean - 0.5).abs() < 0.005 && (variance - 1.0 / 12.0).abs() < 0.001,
            "{mean} {variance}"
        );
        let (mean, variance) = moments(|index| stream.normal(index));
        assert!(
            mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02,
            "{mean} {variance}"
        );
        let (mean, variance) = moments(|index| stream.below(index, 7) as f64);
        assert!(
            (mean - 3.0).abs() < 0.04 && (variance - 4.0).abs() < 0.06,
            "{mean} {variance}"
        );
        assert_eq!(stream.below(0, 0), 0);
    }

    #[test]
    fn digests_separate_their_parts() {
        let digest = |texts: &[&str]| {
            let mut digest = Digest::new();
            texts.iter().for_each(|text| digest.text(text));
            digest.finish()
        };
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
        assert_ne!(digest(&["ab"]), digest(&["ab", ""]));
        assert_ne!(digest(&["12345678"]), digest(&["12345678\0"]));
    }
}
