//! Bounds of messages and waits.

use std::time::Duration;

use crate::error::CollectiveError;

/// Longest message between two ranks: what MPI can count.
pub const MAX_MESSAGE_BYTES: u64 = i32::MAX as u64;

/// Fails if a message from or to `rank` is longer than [`MAX_MESSAGE_BYTES`].
pub(crate) fn check_length(rank: u32, found: u64) -> Result<(), CollectiveError> {
    let most = MAX_MESSAGE_BYTES;
    if found <= most { Ok(()) } else { Err(CollectiveError::TooLong { rank, found, most }) }
}

/// Returns how long `rank` waits for others. The leader waits for `timeout`, the others twice as
/// long, so the leader reports first which rank is silent.
pub(crate) fn wait_limit(rank: u32, timeout: Duration) -> Duration {
    if rank == 0 { timeout } else { timeout.saturating_mul(2) }
}
