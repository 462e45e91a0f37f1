//! Mass damage: every flipped bit and every page in a wrong place is reported, or nothing that
//! anybody reads has changed.
//!
//! `LODE_LONG=1` runs 100 000 trials of each kind, otherwise 1 000.

mod catalogs;
mod flips;
mod pages;
mod still;
mod torn_puts;

/// Trials of one kind.
fn n_trials() -> u64 {
    if std::env::var_os("LODE_LONG").is_some() { 100_000 } else { 1_000 }
}

/// Numbers from a seed (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}
