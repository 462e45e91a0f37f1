//! A mixing function for hashes and random streams that need no secrecy.

/// Mixes a 64-bit word by one step of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). It is a
/// bijection in which every input bit moves about half of the output bits.
#[inline]
#[must_use]
pub const fn splitmix64(mut word: u64) -> u64 {
    word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    #[test]
    fn returns_the_published_stream() {
        // The first outputs of SplitMix64 seeded with 1234567, as in its reference code.
        let stream = [0u64, 1, 2].map(|i| {
            super::splitmix64(1_234_567u64.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
        });
        let expected =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(stream, expected);
    }
}
