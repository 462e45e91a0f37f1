//! A batch whose remote rows lie in a tier that follows the schedule.

use std::time::Instant;

use lodestore_cache::{NO_SLOT, Tier};
use lodestore_graph::NodeId;

use super::{BatchLoader, Took};
use crate::scatter::{pull_scattered, spread};
use crate::{ClientError, LoadStats, PullKind, Turn};

impl BatchLoader {
    /// Writes the remote rows of a batch to `out`, where its first row is `first`, with those that the
    /// tier of `turn` lacks by one SyncPull. Its own rows are left to the caller.
    ///
    /// The remote rows are put together in the last rows of the batch, so that it needs no second
    /// buffer, and spread from there.
    pub(super) fn load_planned(
        &mut self,
        (nodes, first): (&[NodeId], u32),
        turn: &mut Turn,
        took: &mut Took,
        out: &mut [u8],
    ) -> Result<LoadStats, ClientError> {
        let (start, before) = (Instant::now(), self.split.missing.len());
        let counts = self.split.add(nodes, first, &self.owned, None);
        let remote = self.split.missing.split_off(before);
        let mut remote_at = self.split.missing_at.split_off(before);
        remote_at.iter_mut().for_each(|at| *at -= first);
        took.lookup += start.elapsed();
        let out = &mut out[first as usize * self.row_bytes..][..nodes.len() * self.row_bytes];
        let tail = out.len() - remote.len() * self.row_bytes;
        let waiting = Instant::now();
        let pulled = turn.take(|tier, next_uses| {
            // Waiting for the batch before is waiting for its pull.
            took.pull += waiting.elapsed();
            let (split, rows) = (Instant::now(), &mut out[tail..]);
            let (absent, absent_at) = absent(&remote, tier);
            let (pulling, tensor) = (Instant::now(), &self.tensor);
            let kind = PullKind::Sync;
            let pulled = pull_scattered(&*self.remote, tensor, &absent, &absent_at, rows, kind)?;
            took.count(pulling - split, pulling.elapsed(), pulled);
            let next_use = |&at: &u32| next_uses.get(at as usize).copied();
            let next: Option<Vec<u32>> = remote_at.iter().map(next_use).collect();
            tier.announce(&next.unwrap_or_default());
            let (ids, mut misses) = (bytemuck::cast_slice(&remote), Vec::new());
            tier.lookup(ids, rows, &mut misses);
            debug_assert_eq!(misses, absent_at);
            tier.admit(ids, rows, &misses);
            Ok(pulled)
        })?;
        spread(out, self.row_bytes, &remote_at);
        Ok(LoadStats {
            local_rows: counts.local as u64,
            hit_rows: (remote.len() as u64).saturating_sub(pulled.rows - pulled.ahead_rows),
            found: pulled.found,
            ..LoadStats::from_pull(pulled)
        })
    }
}

/// The remote rows that `tier` lacks, and their positions among all remote ones.
fn absent(remote: &[NodeId], tier: &Tier) -> (Vec<NodeId>, Vec<u32>) {
    let is_absent = |id: &NodeId| tier.directory().slot_of(id.0) == NO_SLOT;
    let remote = (0u32..).zip(remote);
    remote.filter(|(_, id)| is_absent(id)).map(|(at, &id)| (id, at)).unzip()
}
