//! Ids for gathers without locality.

use lodestore_graph::splitmix64;

/// Returns `n` node ids below `n_nodes`, drawn at random and with repetitions, the same for each
/// seed.
#[must_use]
pub fn random_ids(n_nodes: u32, n: usize, seed: u64) -> Vec<u32> {
    let id_of = |i: u64| {
        ((u128::from(splitmix64(seed ^ splitmix64(i))) * u128::from(n_nodes)) >> 64) as u32
    };
    (0..n as u64).map(id_of).collect()
}
