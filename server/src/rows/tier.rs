//! The tier of a tensor on a shard: preloaded rows, hot rows, and rows leased to clients of this
//! machine.

use std::os::fd::OwnedFd;

use lodestore_cache::directory::DirectoryError;
use lodestore_cache::slots::NO_SLOT;
use lodestore_cache::{PolicySpec, Tier};
use lodestore_graph::{NodeId, PartId};
use lodestore_schema::Failure;
use tracing::info;

use super::{Gather, Scratch, ShardRows, Want};
use crate::partitions::Partitions;
use crate::reads::ReadTurn;
use crate::shard::plan::ShardPlan;
use crate::shared_memory::TierFile;
use crate::stats::count;

impl ShardRows {
    /// Returns the number of rows that the tier can hold.
    pub(crate) fn n_slots(&self) -> u64 {
        self.tier.borrow().n_slots().into()
    }

    /// Reads the rows of `ids` that are not resident into free slots of the tier. It reads as a
    /// gather does, with the same guard against concurrent switches. No row is evicted, and no
    /// lookup is counted. This shard must own all rows. Returns whether free slots remain.
    ///
    /// `out` has `ids.len() * row_bytes` bytes, and is scratch.
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
                let want = Want { turn, cut: None };
                let (counters, n_ids) = (self.counters(plan), ids.len());
                let gather = Gather { plan, counters, want, parts: &parts, n_ids };
                self.read_listed(&gather, ids, out, &mut scratch).await?;
                // Pulls may have filled some slots meanwhile.
                scratch.misses.truncate(self.n_free());
                scratch.missed.truncate(scratch.misses.len());
                self.admit_misses(&parts, ids.len(), out, &mut scratch);
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
            // A released partition may have left keys.
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

    /// Writes the slots of the rows of `ids` in the memory of [`Self::tier_file`], each as a u32.
    /// Returns `false` unless all rows are resident and stay in place during a lease. `slots` has
    /// four bytes per id.
    pub(crate) fn slots_of(
        &self,
        plan: &ShardPlan,
        ids: &[NodeId],
        slots: &mut [u8],
    ) -> Result<bool, Failure> {
        let mut scratch = self.scratch.borrow_mut().pop().unwrap_or_default();
        let Scratch { keys, slots: found, .. } = &mut scratch;
        let are_there = self.keys_of(&plan.partitions, &self.parts(), ids, keys)?
            && self.tier.borrow_mut().lookup_for_lease(keys, found);
        if are_there {
            slots.copy_from_slice(bytemuck::cast_slice(found));
            count(&self.counters(plan).tier_hits, ids.len());
        }
        self.keep(scratch);
        Ok(are_there)
    }

    /// Returns the file of the tier's rows, their offset in it, and their bytes; `None` if rows are
    /// not leased or the file cannot be opened.
    pub(crate) fn tier_file(&self) -> Option<(OwnedFd, u64, u64)> {
        self.tier_file.as_ref()?.place().ok()
    }

    /// Keeps the tier's rows in place until as many calls of [`Self::end_lease`].
    pub(crate) fn lease(&self) {
        self.tier.borrow_mut().lease();
    }

    pub(crate) fn end_lease(&self) {
        self.tier.borrow_mut().end_lease();
    }
}

/// Returns a tier, and its file if clients may map it.
pub(super) fn make_tier(
    plan: &ShardPlan,
    n_bytes: usize,
    row_bytes: usize,
    key_space: u32,
) -> Result<(Tier, Option<TierFile>), String> {
    let told = |error: DirectoryError| error.to_string();
    if plan.shared_bytes > 0 {
        let spec = PolicySpec::try_from(plan.policy).map_err(|error| told(error.into()))?;
        let mut file = None;
        let make = |n_bytes| {
            let (memory, made) = TierFile::new(n_bytes)?;
            file = Some(made);
            Ok(memory)
        };
        match Tier::with_memory(make, n_bytes, row_bytes, key_space, &spec) {
            Ok(tier) => return Ok((tier, file)),
            Err(error) => {
                info!(%error, "cannot lease rows to clients of this machine; copying them instead");
            }
        }
    }
    Ok((Tier::new(n_bytes, row_bytes, key_space, plan.policy).map_err(told)?, None))
}
