//! The memory budget that the tiers of all tensors share.

use std::sync::Arc;

use lodestore_cache::PolicySpec;
use lodestore_cache::memory_budget::{MemoryRequest, shares};

use crate::config::ServerConfig;
use crate::connection::REGION_BYTES;
use crate::error::ServerError;
use crate::limits::{SHARED_BYTES_PER_SHARD, SHARED_ONE_IN};
use crate::partitions::{Partitions, ServedTensor};

/// Returns the bytes of a shard's budget that clients of this machine may map: whole regions, and
/// none without a Unix socket.
pub(crate) fn shared_bytes(config: &ServerConfig, n_shards: u16) -> u64 {
    if config.unix.is_none() {
        return 0;
    }
    let share = config.tier_bytes / SHARED_ONE_IN / u64::from(n_shards);
    let share = share.min(SHARED_BYTES_PER_SHARD);
    share - share % REGION_BYTES as u64
}

/// Returns the bytes of each tensor's tier on one shard, bookkeeping included. Shards get equal
/// shares of the budget, after volatile tensors and memory shared with clients. Tensors divide a
/// share in proportion to the bytes of their rows, and what one tensor does not need is left to the
/// others. A tier uses no more memory than its rows need, so a large budget is only a limit.
pub(crate) fn tier_bytes(
    partitions: &Partitions,
    config: &ServerConfig,
    volatile_bytes: u64,
    n_shards: u16,
) -> Result<Arc<[usize]>, ServerError> {
    let spec = PolicySpec::try_from(config.policy)
        .map_err(|_| ServerError::Policy { found: config.policy })?;
    let sizes: Vec<(u32, u64)> = partitions.tensors.iter().map(|t| size(partitions, t)).collect();
    let largest = sizes.iter().map(|&(_, bytes)| bytes).max().unwrap_or(0).max(1);
    let claims = partitions.tensors.iter().zip(&sizes).map(|(tensor, &(n_keys, bytes))| {
        let weight = u128::from(bytes) * u128::from(u32::MAX) / u128::from(largest);
        MemoryRequest::of_tier(tensor.description.row_bytes as usize, n_keys, &spec, weight as u32)
    });
    let claims: Vec<MemoryRequest> = claims.collect();
    let of_tiers = config.tier_bytes.saturating_sub(volatile_bytes) / u64::from(n_shards);
    let budget = of_tiers.saturating_sub(shared_bytes(config, n_shards));
    let rows = shares(budget, &claims);
    let bytes = claims.iter().zip(rows).map(|(claim, n_rows)| claim.slot_bytes * u64::from(n_rows));
    Ok(bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)).collect())
}

/// Returns the approximate number of rows of a tensor on one shard, and the bytes of all its rows.
fn size(partitions: &Partitions, tensor: &ServedTensor) -> (u32, u64) {
    let parts = partitions.parts_ever();
    let n_keys = parts.iter().map(|&part| partitions.keys_of(part, tensor)).sum::<u64>();
    let n_rows = parts.iter().map(|&part| partitions.book.range(part).len() as u64);
    let bytes = n_rows.sum::<u64>() * u64::from(tensor.description.row_bytes);
    (u32::try_from(n_keys).unwrap_or(u32::MAX), bytes)
}
