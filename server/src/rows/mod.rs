//! The rows of one tensor that one shard owns: host tier over segments, and rows over these.
//!
//! Why no pull sees an old row once a push is acknowledged: a push is durable and in the overlay's
//! index first, then the owners of its rows take them out of their tiers, then it is acknowledged;
//! and the tier is offered only rows that do not lie under the overlay at that moment, on the
//! segment that they were read from. Rows over a segment are never resident.

mod lent;
mod moving;
mod part;
mod preload;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use glommio::sync::Semaphore;
use lodestore_cache::{Grant, Tier};
use lodestore_graph::{NodeId, PartId};
use lodestore_schema::{Failure, FailureCode, Stripes};
use lodestore_store::Base;

use crate::error::failure;
use crate::holdings::Holdings;
use crate::limits::IDLE_SCRATCH_MAX;
use crate::map::TierFile;
use crate::shard::ShardPlan;
use crate::stats::{Counters, count};
use part::{PartRows, PartScratch};

/// One tensor on one shard.
pub(crate) struct ShardRows {
    pub(crate) row_bytes: usize,
    shard: u16,
    stripes: Stripes,
    /// Replaced as a whole: who gathers goes on with those of the moment when it began.
    parts: RefCell<Rc<Parts>>,
    /// By partition: its first key in the tier; `None` for one that is never here.
    key_bases: Vec<Option<u32>>,
    tier: RefCell<Tier>,
    /// By which clients of this machine read the rows of the tier.
    tier_file: Option<TierFile>,
    /// The tier's part of the server's budget.
    memory: Grant,
    /// Bytes that requests of this shard may still take.
    room: Rc<Semaphore>,
    /// Scratch of gathers that are not running.
    scratch: RefCell<Vec<Scratch>>,
}

/// The partitions of one moment.
#[derive(Clone)]
struct Parts {
    by_index: Vec<Option<Rc<PartRows>>>,
    /// Those that are open, ascending.
    open: Vec<PartId>,
}

impl Parts {
    fn get(&self, part: PartId) -> Option<&PartRows> {
        self.by_index.get(part.index())?.as_deref()
    }
}

/// Buffers of one gather, kept for the next.
#[derive(Default)]
struct Scratch {
    keys: Vec<u32>,
    misses: Vec<u32>,
    /// Slots of rows that are lent.
    slots: Vec<u32>,
    /// Misses that the tier is offered.
    offered: Vec<u32>,
    /// Keys of rows that were read from over a segment.
    overlaid: Vec<u32>,
    /// Partitions that were read from, each with the segment of that moment.
    bases: Vec<(PartId, Arc<Base>)>,
    part: PartScratch,
}

impl ShardRows {
    /// Opens the segments of the tensor at `position` on this executor with a tier of `tier_bytes`.
    pub(crate) async fn open(
        plan: &ShardPlan,
        position: usize,
        shard: u16,
        tier_bytes: usize,
        room: Rc<Semaphore>,
    ) -> Result<Self, String> {
        let holdings = &plan.holdings;
        let tensor = &holdings.tensors[position];
        let n_parts = holdings.book.n_parts().into();
        let mut key_bases = vec![None; n_parts];
        let mut key_base = 0u64;
        for &part in &*holdings.parts_ever() {
            let base = u32::try_from(key_base).map_err(|_| "more rows than 2^32".to_owned())?;
            key_bases[part.index()] = Some(base);
            key_base += holdings.keys_of(part, tensor);
        }
        let key_space = u32::try_from(key_base).map_err(|_| "more rows than 2^32".to_owned())?;
        let row_bytes = tensor.description.row_bytes as usize;
        let (tier, tier_file) = lent::make_tier(plan, tier_bytes, row_bytes, key_space)?;
        // Without slots there are a few words, of which a budget of 0 bytes knows nothing.
        let n_bytes = if tier.n_slots() == 0 { 0 } else { tier.bytes() as u64 };
        let memory = plan.governor.grant(n_bytes).map_err(|error| error.to_string())?;
        let parts = Parts { by_index: vec![None; n_parts], open: Vec::new() };
        let this = Self {
            row_bytes,
            shard,
            stripes: tensor.stripes,
            parts: RefCell::new(Rc::new(parts)),
            key_bases,
            tier: RefCell::new(tier),
            tier_file,
            memory,
            room,
            scratch: RefCell::default(),
        };
        for &part in &*holdings.parts() {
            this.open_part(holdings, position, part).await?;
        }
        Ok(this)
    }

    /// Memory that the tier may take, in bytes.
    pub(crate) fn tier_bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Copies the rows of `ids` to `out`: hits from the tier, the rest from disk through one plan
    /// per partition. `false`, and nothing done, when one of them is another shard's.
    ///
    /// `ids` may repeat and come in any order; `out` is `ids.len() * row_bytes` long.
    pub(crate) async fn gather(
        &self,
        plan: &ShardPlan,
        ids: &[NodeId],
        out: &mut [u8],
    ) -> Result<bool, Failure> {
        debug_assert_eq!(out.len(), ids.len() * self.row_bytes);
        let mut scratch = self.scratch.borrow_mut().pop().unwrap_or_default();
        let parts = self.parts();
        let are_ours = self.keys_of(&plan.holdings, &parts, ids, &mut scratch.keys)?;
        if are_ours {
            self.tier.borrow_mut().lookup(&scratch.keys, out, &mut scratch.misses);
            let counters = self.counters(plan);
            count(&counters.tier_hits, ids.len() - scratch.misses.len());
            count(&counters.tier_misses, scratch.misses.len());
            if !scratch.misses.is_empty() {
                self.read_misses(plan, &parts, ids, out, &mut scratch).await?;
                self.admit_misses(&plan.holdings, &parts, ids, out, &mut scratch);
                // Not kept for the next: they would keep old segments from being removed.
                scratch.bases.clear();
            }
        }
        self.keep(scratch);
        Ok(are_ours)
    }

    /// Takes rows of this shard out of the tier: they have changed.
    pub(crate) fn forget(&self, holdings: &Holdings, ids: &[NodeId]) -> Result<(), Failure> {
        let mut scratch = self.scratch.borrow_mut().pop().unwrap_or_default();
        self.keys_of(holdings, &self.parts(), ids, &mut scratch.keys)?;
        self.tier.borrow_mut().remove(&scratch.keys);
        self.keep(scratch);
        Ok(())
    }

    /// Keeps buffers for the next gather.
    fn keep(&self, scratch: Scratch) {
        let mut idle = self.scratch.borrow_mut();
        if idle.len() < IDLE_SCRATCH_MAX {
            idle.push(scratch);
        }
    }

    /// Rows in the tier, bytes of one, and rows that had to go for others.
    pub(crate) fn residents(&self) -> (u64, u64, u64) {
        let tier = self.tier.borrow();
        (tier.n_resident() as u64, self.row_bytes as u64, tier.stats().evictions)
    }

    /// Lets go of the segment that a compaction has taken out of use, once no read needs it.
    pub(crate) async fn rebase(&self, part: PartId) -> Result<(), Failure> {
        match self.parts().get(part) {
            Some(rows) => rows.rebase().await,
            None => Ok(()),
        }
    }

    /// The keys of rows of this shard; `false` when one of them is another shard's.
    fn keys_of(
        &self,
        holdings: &Holdings,
        parts: &Parts,
        ids: &[NodeId],
        keys: &mut Vec<u32>,
    ) -> Result<bool, Failure> {
        keys.clear();
        keys.reserve(ids.len());
        for &id in ids {
            let (part, row) = holdings.book.locate(id).ok_or_else(|| not_here(holdings, id))?;
            let rows = parts.get(part).ok_or_else(|| not_here(holdings, id))?;
            if self.stripes.shard_of(part.0, row) != self.shard {
                return Ok(false);
            }
            keys.push(rows.key_base + self.stripes.key_of(row));
        }
        Ok(true)
    }

    async fn read_misses(
        &self,
        plan: &ShardPlan,
        parts: &Parts,
        ids: &[NodeId],
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), Failure> {
        scratch.overlaid.clear();
        let reading = part::Reading {
            threads: &plan.threads,
            profile: &plan.holdings.profile,
            room: &self.room,
            counters: self.counters(plan),
            row_bytes: self.row_bytes,
        };
        for &part in &parts.open {
            let Some(part_rows) = parts.get(part) else { continue };
            scratch.part.take_rows(&plan.holdings.book, part, ids, &scratch.misses);
            if scratch.part.is_empty() {
                continue;
            }
            let base = part_rows.read(&reading, &mut scratch.part, out).await?;
            scratch.bases.push((part, base));
            let keys = &scratch.keys;
            let overlaid = scratch.part.overlaid().iter().map(|&position| keys[position as usize]);
            scratch.overlaid.extend(overlaid);
        }
        Ok(())
    }

    /// Offers the tier what was read and has not changed since. Does not wait for anything, so that
    /// it cannot change in between.
    fn admit_misses(
        &self,
        holdings: &Holdings,
        open: &Parts,
        ids: &[NodeId],
        out: &[u8],
        scratch: &mut Scratch,
    ) {
        let Scratch { keys, misses, offered, overlaid, bases, part: part_scratch, .. } = scratch;
        let mut tier = self.tier.borrow_mut();
        if let Some(file) = &self.tier_file {
            file.take_huge_pages((tier.n_used() as usize + misses.len()) * self.row_bytes);
        }
        let parts = || bases.iter().filter_map(|(part, base)| Some((open.get(*part)?, base)));
        if parts().all(|(rows, base)| rows.is_still_plain(base)) {
            tier.admit(keys, out, misses);
            return;
        }
        offered.clear();
        for (part, base) in bases.iter() {
            let Some(rows) = open.get(*part) else { continue };
            part_scratch.take_rows(&holdings.book, *part, ids, misses);
            offered.extend(rows.unchanged(base, part_scratch));
        }
        // Who has seen a row that is being put never sees the one before: this shard may still hold
        // it, since it has not been told to forget it yet.
        tier.remove(overlaid);
        tier.admit(keys, out, offered);
    }

    fn parts(&self) -> Rc<Parts> {
        Rc::clone(&self.parts.borrow())
    }

    fn counters<'a>(&self, plan: &'a ShardPlan) -> &'a Counters {
        &plan.counters[usize::from(self.shard)]
    }

    /// Closes the files; glommio wants that said, not dropped.
    pub(crate) async fn close(self) {
        if let Ok(parts) = Rc::try_unwrap(self.parts.into_inner()) {
            for part in parts.by_index.into_iter().flatten() {
                if let Ok(part) = Rc::try_unwrap(part) {
                    part.close().await;
                }
            }
        }
    }
}

/// The failure for a node that does not exist or lives on another server.
pub(crate) fn not_here(holdings: &Holdings, id: NodeId) -> Failure {
    let n_nodes = holdings.book.n_nodes();
    let Some(part) = holdings.book.part_of(id) else {
        let message =
            format!("node {id} does not exist: the graph has nodes 0 to {n_nodes}, exclusive");
        return failure(FailureCode::NotFound, message);
    };
    let message = format!(
        "node {id} is in partition {part}, which this server does not hold; ask `describe`"
    );
    failure(FailureCode::Elsewhere, message)
}
