//! Numbers that look random and follow from a seed, for tests.

/// The finalizer of SplitMix64 over a Weyl step.
pub(crate) fn scramble(state: u64) -> u64 {
    let bits = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
