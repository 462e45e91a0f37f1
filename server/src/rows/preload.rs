//! Rows that are loaded before a pull asks for them, and which of them are hot.

use lodestore_cache::slots::NO_SLOT;
use lodestore_graph::{NodeId, PartId};
use lodestore_schema::Failure;

use super::{Gather, ShardRows, Want};
use crate::partitions::Partitions;
use crate::reads::ReadTurn;
use crate::shard::plan::ShardPlan;

impl ShardRows {
    /// Returns the number of rows that the tier can hold.
    pub(crate) fn n_slots(&self) -> u64 {
        self.tier.borrow().n_slots().into()
    }

    /// Reads those rows of `ids` that are not resident into free slots of the tier. It reads as a
    /// gather does, through the same fence. No row is evicted for them, and no look-up is counted.
    /// This shard must own all of them. Returns whether slots are left.
    ///
    /// `out` is `ids.len() * row_bytes` long; its content afterwards means nothing.
    pub(crate) async fn load_ahead(
        &self,
        plan: &ShardPlan,
        turn: &ReadTurn,
        ids: &[NodeId],
        out: &mut [u8],
    ) -> Result<bool, Failure> {
        let mut scratch = self.scratch.borrow_mut().pop().unwrap_or_default();
        let parts = self.parts();
        if self.keys_of(&plan.partitions, &parts, ids, &mut scratch.keys)? {
            {
                let tier = self.tier.borrow();
                let is_missing = |key: &u32| tier.directory().slot_of(*key) == NO_SLOT;
                let all = (0u32..).zip(&scratch.keys);
                let missing = all.filter(|(_, key)| is_missing(key)).map(|(position, _)| position);
                scratch.misses.clear();
                scratch.misses.extend(missing.take(self.n_free()));
            }
            if !scratch.misses.is_empty() {
                let want = Want { turn, pinned: None };
                let gather = Gather { plan, want, parts: &parts, n_ids: ids.len() };
                self.read_listed(&gather, ids, out, &mut scratch).await?;
                // Pulls may have filled some meanwhile.
                scratch.misses.truncate(self.n_free());
                scratch.missed.truncate(scratch.misses.len());
                self.admit_misses(&parts, ids.len(), out, &mut scratch);
                scratch.seen.clear();
            }
        }
        self.keep(scratch);
        Ok(self.n_free() > 0)
    }

    /// Returns the resident rows by partition, hottest first.
    pub(crate) fn hottest(&self, partitions: &Partitions) -> Vec<(PartId, Vec<u32>)> {
        let parts = partitions.parts();
        let base_of = |part: &PartId| Some((self.key_bases[part.index()]?, *part));
        let bases: Vec<(u32, PartId)> = parts.iter().filter_map(base_of).collect();
        let mut rows: Vec<(PartId, Vec<u32>)> =
            bases.iter().map(|&(_, part)| (part, Vec::new())).collect();
        for key in self.tier.borrow().directory().hottest() {
            let after = bases.partition_point(|&(base, _)| base <= key);
            let Some(at) = after.checked_sub(1) else { continue };
            let (base, part) = bases[at];
            let row = self.stripes.row_of(part.0, self.shard, key - base);
            let range = partitions.book.range(part);
            // A partition that has gone may have left some.
            if row < range.end - range.start {
                rows[at].1.push(row);
            }
        }
        rows.retain(|(_, rows)| !rows.is_empty());
        rows
    }

    fn n_free(&self) -> usize {
        let tier = self.tier.borrow();
        (tier.n_slots() as usize).saturating_sub(tier.n_resident())
    }
}
