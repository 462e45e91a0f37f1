//! A batch whose remote rows lie in a tier that follows the schedule.

use std::time::Instant;

use lodestore_cache::{NO_SLOT, Tier};
use lodestore_graph::NodeId;

use super::BatchLoader;
use crate::scatter::{pull_scattered, spread};
use crate::{ClientError, LoadStats, PullKind, PullStats, Turn};

impl BatchLoader {
    /// As [`BatchLoader::load`], with the rows that the tier of `turn` lacks by one SyncPull.
    ///
    /// The remote rows are put together in the last rows of `out`, so that the batch needs no second
    /// buffer, and spread from there.
    pub(super) fn load_planned(
        &mut self,
        nodes: &[NodeId],
        turn: Turn,
        out: &mut [u8],
    ) -> Result<LoadStats, ClientError> {
        let start = Instant::now();
        ClientError::check_buffer(&self.tensor, nodes.len(), self.row_bytes, out.len())?;
        self.split_nodes(nodes, |_| false);
        let mut split = Instant::now();
        let n_remote = self.split.missing.len();
        let tail = out.len() - n_remote * self.row_bytes;
        let (mut pull_seconds, mut lookup_seconds) = (0.0, (split - start).as_secs_f64());
        let pulled = turn.take(|tier, next_uses| {
            // Waiting for the batch before is waiting for its pull.
            pull_seconds = split.elapsed().as_secs_f64();
            split = Instant::now();
            let (absent, absent_at) = self.absent(tier);
            lookup_seconds += split.elapsed().as_secs_f64();
            let pulling = Instant::now();
            let rows = &mut out[tail..];
            let pulled = self.pull_into(&absent, &absent_at, rows)?;
            pull_seconds += pulling.elapsed().as_secs_f64();
            let next_use = |&at: &u32| next_uses.get(at as usize).copied();
            let next: Option<Vec<u32>> = self.split.missing_at.iter().map(next_use).collect();
            tier.announce(&next.unwrap_or_default());
            let (ids, mut misses) = (bytemuck::cast_slice(&self.split.missing), Vec::new());
            tier.lookup(ids, rows, &mut misses);
            debug_assert_eq!(misses, absent_at);
            tier.admit(ids, rows, &misses);
            Ok(pulled)
        })?;
        spread(out, self.row_bytes, &self.split.missing_at);
        self.pull_local(out)?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(LoadStats {
            local_rows: self.split.local.len() as u64,
            hit_rows: (n_remote as u64).saturating_sub(pulled.rows - pulled.ahead_rows),
            found: pulled.found,
            seconds,
            lookup_seconds,
            pull_seconds,
            copy_seconds: (seconds - lookup_seconds - pull_seconds).max(0.0),
            ..LoadStats::from_pull(pulled)
        })
    }

    /// The remote rows that `tier` lacks, and their positions among all remote ones.
    fn absent(&self, tier: &Tier) -> (Vec<NodeId>, Vec<u32>) {
        let is_absent = |id: &NodeId| tier.directory().slot_of(id.0) == NO_SLOT;
        let remote = (0u32..).zip(&self.split.missing);
        remote.filter(|(_, id)| is_absent(id)).map(|(at, &id)| (id, at)).unzip()
    }

    fn pull_into(
        &self,
        ids: &[NodeId],
        positions: &[u32],
        rows: &mut [u8],
    ) -> Result<PullStats, ClientError> {
        pull_scattered(&*self.remote, &self.tensor, ids, positions, rows, PullKind::Sync)
    }
}
