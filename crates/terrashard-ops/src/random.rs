//! A counter-based random generator: each value follows from what it is for and from its index alone.

/// The key of everything that is drawn for this name: FNV-1a of the name, mixed with the seed.
pub(crate) fn stream(name: &str, seed: u64) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mix(hash ^ mix(seed))
}

/// The key of a part of what is drawn by a key, or the bits of one value.
pub(crate) fn part(key: u64, index: u64) -> u64 {
    mix(key ^ mix(index))
}

/// The finaliser of splitmix64: a bijection whose output passes for random.
pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Between 0 and 1, never either.
pub(crate) fn uniform(bits: u64) -> f64 {
    ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}
