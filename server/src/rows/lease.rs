//! A tier whose rows clients of this machine read in place.

use std::io;
use std::os::fd::OwnedFd;

use lodestore_cache::directory::DirectoryError;
use lodestore_cache::{PolicySpec, Tier};
use lodestore_graph::NodeId;
use lodestore_schema::Failure;
use tracing::info;

use super::{Scratch, ShardRows};
use crate::shard::plan::ShardPlan;
use crate::shared_memory::TierFile;
use crate::stats::count;

impl ShardRows {
    /// Writes the slots of the rows of `ids` in the memory of [`Self::tier_file`], each as a u32.
    /// Returns `false` unless all rows are resident and stay in place while they are leased.
    /// `slots` has four bytes for each id.
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

    /// Returns the file of the tier's rows, their offset in it, and their bytes; `None` where no
    /// rows are leased.
    pub(crate) fn tier_file(&self) -> io::Result<Option<(OwnedFd, u64, u64)>> {
        self.tier_file.as_ref().map(TierFile::place).transpose()
    }

    /// Keeps the tier's rows in place until [`Self::end_lease`] was called as often as this.
    pub(crate) fn lease(&self) {
        self.tier.borrow_mut().lease();
    }

    /// Ends a lease.
    pub(crate) fn end_lease(&self) {
        self.tier.borrow_mut().end_lease();
    }
}

/// Returns a tier, and the file of its rows where clients may map it.
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
                info!(%error, "rows are copied for clients of this machine, and not lent");
            }
        }
    }
    Ok((Tier::new(n_bytes, row_bytes, key_space, plan.policy).map_err(told)?, None))
}
