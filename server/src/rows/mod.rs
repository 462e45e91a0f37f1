//! The rows of one tensor that one shard owns: a host tier over the layers of a version.
//!
//! The tier has rows of the newest version that this shard serves. A commit switches each shard to
//! its version before it is acknowledged ([`refresh`]).

mod part;
mod refresh;
mod tier;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use lodestore_cache::Tier;
use lodestore_cache::memory_budget::Reservation;
use lodestore_graph::{NodeId, PartId, PartitionBook};
use lodestore_schema::{Failure, FailureCode, Stripes};
use lodestore_store::RowIdx;
use lodestore_store::limits::PAGE_BYTES;
use lodestore_store::plan::{Extent, PlannedRow};
use lodestore_store::update::TensorVersion;

use crate::cut::Cut;
use crate::dma::{LIST_BYTES_PER_ROW, ReadList};
use crate::error::failure;
use crate::limits::{IDLE_SCRATCH_MAX, READ_LIST_BYTES_PER_ROW};
use crate::partitions::Partitions;
use crate::reads::ReadTurn;
use crate::shard::plan::ShardPlan;
use crate::shared_memory::TierFile;
use crate::stats::{Counters, count};
use part::{MissedRow, PartRows, PartScratch};

// Per row, a plan has two list entries, and at most one extent with its end.
const _: () = assert!(
    size_of::<MissedRow>()
        + 2 * size_of::<(RowIdx, u32)>()
        + 2 * size_of::<PlannedRow>()
        + size_of::<Extent>()
        + size_of::<u32>()
        + LIST_BYTES_PER_ROW
        <= READ_LIST_BYTES_PER_ROW
);

/// One tensor on one shard.
pub(crate) struct ShardRows {
    pub(crate) row_bytes: usize,
    /// Position of the tensor in the graph's description.
    position: usize,
    shard: u16,
    stripes: Stripes,
    /// Replaced as a whole, so that a gather continues with the partitions that it began with.
    parts: RefCell<Rc<Parts>>,
    /// By partition, its first key in the tier; `None` for one that is never served here.
    key_bases: Vec<Option<u32>>,
    tier: RefCell<Tier>,
    /// Serial of the last cut whose versions the tier has; 0 if unknown.
    tier_cut: Cell<u64>,
    /// File through which clients of this machine map the tier.
    tier_file: Option<TierFile>,
    /// The tier's share of the server's memory budget.
    memory: Reservation,
    /// Disk time per missed row in recent gathers, in nanoseconds by the disk's cost model.
    row_cost: Cell<u64>,
    /// Idle scratch buffers of gathers.
    scratch: RefCell<Vec<Scratch>>,
}

/// Versions that a pull reads, and its turn to read from disk.
#[derive(Clone, Copy)]
pub(crate) struct Want<'a> {
    pub(crate) turn: &'a ReadTurn,
    /// The versions to read; `None` for the newest that this shard serves.
    pub(crate) cut: Option<&'a Arc<Cut>>,
}

/// The open partitions at one moment.
#[derive(Clone)]
struct Parts {
    by_index: Vec<Option<Rc<PartRows>>>,
    /// Open partitions, ascending.
    open: Vec<PartId>,
}

impl Parts {
    fn get(&self, part: PartId) -> Option<&PartRows> {
        self.by_index.get(part.index())?.as_deref()
    }

    /// Returns whether a partition is still open with exactly these rows.
    fn has(&self, part: PartId, rows: &PartRows) -> bool {
        self.get(part).is_some_and(|open| std::ptr::eq(open, rows))
    }

    /// Returns whether the tier has the versions of `cut`, for the tensor at `position`.
    fn all_are_at(&self, cut: &Cut, position: usize) -> bool {
        let is_at = |part: &PartId| {
            let wanted = cut.tensor(*part, position);
            self.get(*part).zip(wanted).is_some_and(|(rows, wanted)| rows.reads(wanted))
        };
        self.open.iter().all(is_at)
    }
}

/// Buffers of one gather, reused by the next.
#[derive(Default)]
struct Scratch {
    keys: Vec<u32>,
    misses: Vec<u32>,
    /// Slots of leased rows.
    slots: Vec<u32>,
    /// Misses by partition.
    missed: Vec<MissedRow>,
    list: ReadList,
    /// Misses to offer to the tier.
    offered: Vec<u32>,
    /// Partitions that were read from, with the version that was read.
    seen: Vec<(PartId, Arc<TensorVersion>)>,
    part: PartScratch,
}

impl ShardRows {
    /// Opens the segments of the tensor at `position` on this executor, and creates its tier.
    pub(crate) async fn open(
        plan: &ShardPlan,
        position: usize,
        shard: u16,
    ) -> Result<Self, String> {
        let partitions = &plan.partitions;
        let tensor = &partitions.tensors[position];
        let n_parts = partitions.book.n_parts().into();
        let mut key_bases = vec![None; n_parts];
        let mut key_base = 0u64;
        for &part in &*partitions.parts_ever() {
            let base = u32::try_from(key_base).map_err(|_| "more rows than 2^32".to_owned())?;
            key_bases[part.index()] = Some(base);
            key_base += partitions.keys_of(part, tensor);
        }
        let key_space = u32::try_from(key_base).map_err(|_| "more rows than 2^32".to_owned())?;
        let row_bytes = tensor.description.row_bytes as usize;
        let (tier, tier_file) =
            tier::make_tier(plan, plan.tier_bytes[position], row_bytes, key_space)?;
        // A tier without slots still has a few words, which a budget of 0 bytes cannot cover.
        let n_bytes = if tier.n_slots() == 0 { 0 } else { tier.bytes() as u64 };
        let memory = plan.memory_budget.reserve(n_bytes).map_err(|error| error.to_string())?;
        let parts = Parts { by_index: vec![None; n_parts], open: Vec::new() };
        let this = Self {
            row_bytes,
            position,
            shard,
            stripes: tensor.stripes,
            parts: RefCell::new(Rc::new(parts)),
            key_bases,
            tier: RefCell::new(tier),
            tier_cut: Cell::new(0),
            tier_file,
            memory,
            row_cost: Cell::new((partitions.profile.request_seconds(PAGE_BYTES) * 1e9) as u64),
            scratch: RefCell::default(),
        };
        for &part in &*partitions.parts() {
            this.open_part(partitions, part).await?;
        }
        Ok(this)
    }

    /// Returns the bytes reserved for the tier.
    pub(crate) fn tier_bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Copies the rows of `ids` to `out`. Hits are copied from the tier, misses are read from disk
    /// by one plan per layer, within the read budget of `turn`. Returns `false`, with nothing done,
    /// if another shard owns one of the rows.
    ///
    /// `ids` may repeat, in any order; `out` has `ids.len() * row_bytes` bytes.
    pub(crate) async fn gather(
        &self,
        plan: &ShardPlan,
        want: Want<'_>,
        ids: &[NodeId],
        out: &mut [u8],
    ) -> Result<bool, Failure> {
        debug_assert_eq!(out.len(), ids.len() * self.row_bytes);
        let mut scratch = self.scratch.borrow_mut().pop().unwrap_or_default();
        let parts = self.parts();
        let are_ours = self.keys_of(&plan.partitions, &parts, ids, &mut scratch.keys)?;
        if are_ours {
            self.tier.borrow_mut().lookup(&scratch.keys, out, &mut scratch.misses);
            let counters = self.counters(plan);
            let gather = Gather { plan, counters, want, parts: &parts, n_ids: ids.len() };
            if let Some(cut) = want.cut {
                self.miss_others(&gather, cut, ids, &mut scratch.misses);
            }
            count(&counters.tier_hits, ids.len() - scratch.misses.len());
            count(&counters.tier_misses, scratch.misses.len());
            if !scratch.misses.is_empty() {
                self.read_listed(&gather, ids, out, &mut scratch).await?;
                self.admit_misses(&parts, ids.len(), out, &mut scratch);
            }
        }
        self.keep(scratch);
        Ok(are_ours)
    }

    /// Adds the rows to `misses` whose values in the tier may differ from those of `cut`.
    fn miss_others(&self, gather: &Gather<'_>, cut: &Cut, ids: &[NodeId], misses: &mut Vec<u32>) {
        if self.is_at(cut) {
            return;
        }
        let book = &gather.plan.partitions.book;
        let is_other = |id: NodeId| {
            let (part, row) = book.locate(id)?;
            let current = gather.parts.get(part)?.current();
            let wanted = cut.tensor(part, self.position)?;
            let (earlier, later) = match current.version() < wanted.version() {
                true => (current.version(), &**wanted),
                false => (wanted.version(), &*current),
            };
            Some(later.changed_by(RowIdx(row)) > earlier)
        };
        let others = (0u32..).zip(ids).filter(|(_, id)| is_other(**id).unwrap_or(true));
        misses.extend(others.map(|(position, _)| position));
        misses.sort_unstable();
        misses.dedup();
    }

    /// Returns whether the tier has the versions of `cut` for every partition.
    pub(crate) fn is_at(&self, cut: &Cut) -> bool {
        if self.tier_cut.get() == cut.serial() {
            return true;
        }
        let are_at = self.parts.borrow().all_are_at(cut, self.position);
        if are_at {
            self.tier_cut.set(cut.serial());
        }
        are_at
    }

    /// Keeps the buffers for the next gather, but no version, which would keep old files.
    fn keep(&self, mut scratch: Scratch) {
        scratch.seen.clear();
        let mut idle = self.scratch.borrow_mut();
        if idle.len() < IDLE_SCRATCH_MAX {
            idle.push(scratch);
        }
    }

    /// Returns the rows in the tier, the bytes of a row, and the number of evictions.
    pub(crate) fn residents(&self) -> (u64, u64, u64) {
        let tier = self.tier.borrow();
        (tier.n_resident() as u64, self.row_bytes as u64, tier.stats().evictions)
    }

    /// Collects the keys of `ids`; returns `false` if another shard owns one of them.
    fn keys_of(
        &self,
        partitions: &Partitions,
        parts: &Parts,
        ids: &[NodeId],
        keys: &mut Vec<u32>,
    ) -> Result<bool, Failure> {
        keys.clear();
        keys.reserve(ids.len());
        for &id in ids {
            let (part, row) =
                partitions.book.locate(id).ok_or_else(|| wrong_server(partitions, id))?;
            let rows = parts.get(part).ok_or_else(|| wrong_server(partitions, id))?;
            if self.stripes.shard_of(part.0, row) != self.shard {
                return Ok(false);
            }
            keys.push(rows.key_base + self.stripes.key_of(row));
        }
        Ok(true)
    }

    /// Reads the missed rows to their positions in `out`, within the budget of read lists.
    async fn read_listed(
        &self,
        gather: &Gather<'_>,
        ids: &[NodeId],
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), Failure> {
        let (turn, n_missed) = (gather.want.turn, scratch.misses.len());
        // Held until the lists are cleared.
        let _lists = turn.take_lists(n_missed, ids.len(), self.row_cost.get()).await?;
        bucket(&gather.plan.partitions.book, ids, &scratch.misses, &mut scratch.missed);
        let read = self.read_misses(gather, out, scratch).await;
        // A list that is kept would keep old files.
        scratch.list.clear();
        turn.end_chunk();
        read
    }

    /// Reads the missed rows to their positions in `out`, as one list of reads over all partitions.
    async fn read_misses(
        &self,
        gather: &Gather<'_>,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), Failure> {
        let Scratch { missed, list, seen, part: part_scratch, .. } = scratch;
        let &Gather { want: Want { turn, cut }, parts, n_ids, .. } = gather;
        seen.clear();
        for missed in missed.chunk_by(|a, b| a.part == b.part) {
            let part = missed[0].part;
            let rows = parts.get(part).expect("its rows have keys");
            let version = match cut {
                None => rows.current(),
                Some(cut) => {
                    let version = cut.tensor(part, self.position).cloned();
                    // The partition was added after the version was pinned.
                    let later = || rows.live.at(cut.pinned_number()?);
                    version.or_else(later).ok_or_else(|| not_pinned(part, cut))?
                }
            };
            part_scratch.set_rows(missed, n_ids);
            rows.list_reads(gather, &version, part_scratch, list).await?;
            seen.push((part, version));
        }
        let cost = list.cost(&turn.admission);
        turn.set_cost(cost, n_ids);
        let row_cost = cost / missed.len().max(1) as u64;
        self.row_cost.set((3 * self.row_cost.get() + row_cost) / 4);
        list.execute(turn, out, gather.counters).await
    }

    /// Offers the tier the rows that were read and have not changed since. Has no await, so that
    /// they cannot change in between.
    fn admit_misses(&self, open: &Parts, n_ids: usize, out: &[u8], scratch: &mut Scratch) {
        let Scratch { keys, misses, missed, offered, seen, .. } = scratch;
        let mut tier = self.tier.borrow_mut();
        if let Some(file) = &self.tier_file {
            file.take_huge_pages(
                (tier.directory().n_used() as usize + misses.len()) * self.row_bytes,
            );
        }
        let now = self.parts();
        // A partition that was closed, and perhaps reopened, receives no more commits.
        let still_open = |part| open.get(part).filter(|rows| now.has(part, rows));
        let is_still = |(part, seen): &(PartId, Arc<TensorVersion>)| {
            still_open(*part).is_some_and(|rows| rows.is_still(seen))
        };
        if seen.iter().all(is_still) {
            tier.admit(keys, out, misses);
            return;
        }
        offered.clear();
        // The versions are in the order of the missed partitions.
        let missed = missed.chunk_by(|a, b| a.part == b.part);
        for ((part, seen), missed) in seen.iter().zip(missed) {
            let Some(rows) = still_open(*part) else { continue };
            scratch.part.set_rows(missed, n_ids);
            offered.extend(rows.unchanged(seen, &scratch.part));
        }
        tier.admit(keys, out, offered);
    }

    fn parts(&self) -> Rc<Parts> {
        Rc::clone(&self.parts.borrow())
    }

    fn counters<'a>(&self, plan: &'a ShardPlan) -> &'a Counters {
        &plan.counters[usize::from(self.shard)]
    }
}

struct Gather<'a> {
    plan: &'a ShardPlan,
    counters: &'a Counters,
    want: Want<'a>,
    parts: &'a Parts,
    n_ids: usize,
}

/// Lists the missed rows, partition by partition.
fn bucket(book: &PartitionBook, ids: &[NodeId], misses: &[u32], missed: &mut Vec<MissedRow>) {
    missed.clear();
    missed.extend(misses.iter().filter_map(|&position| {
        let (part, row) = book.locate(ids[position as usize])?;
        Some(MissedRow { part, row: RowIdx(row), position })
    }));
    if !missed.is_sorted_by_key(|missed| missed.part) {
        missed.sort_unstable_by_key(|missed| (missed.part, missed.position));
    }
}

/// Returns the failure for a partition that was added after the pull began or after its version was
/// pinned, and that lacks that version.
fn not_pinned(part: PartId, cut: &Cut) -> Failure {
    let Some(version) = cut.pinned_number() else {
        let message =
            format!("partition {part} was added to this server after the pull began; ask again");
        return failure(FailureCode::Elsewhere, message);
    };
    let message = format!(
        "partition {part} was added to this server without rows of version {version}, which were \
         already folded into later ones; start again with the newest version"
    );
    failure(FailureCode::OtherVersion, message)
}

/// Returns the failure for a node that does not exist or belongs to another server.
pub(crate) fn wrong_server(partitions: &Partitions, id: NodeId) -> Failure {
    let n_nodes = partitions.book.n_nodes();
    let Some(part) = partitions.book.part_of(id) else {
        let message =
            format!("node {id} does not exist: the graph has nodes 0 to {n_nodes}, exclusive");
        return failure(FailureCode::NotFound, message);
    };
    let message = format!(
        "node {id} is in partition {part}, which this server does not serve; ask `describe`"
    );
    failure(FailureCode::Elsewhere, message)
}

#[cfg(test)]
mod switching_tests;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn misses_are_bucketed_as_by_a_scan_of_each_partition(
            mut bounds in prop::collection::vec(0u32..500, 0..30),
            picks in prop::collection::vec((0u32..500, any::<bool>()), 0..200),
        ) {
            bounds.extend([0, 500]);
            bounds.sort_unstable();
            let book = PartitionBook::new(bounds.clone()).unwrap();
            let ids: Vec<NodeId> = picks.iter().map(|&(id, _)| NodeId(id)).collect();
            let misses: Vec<u32> = (0u32..).zip(&picks).filter(|(_, pick)| pick.1).map(|(i, _)| i).collect();
            let mut missed = vec![MissedRow { part: PartId(9), row: RowIdx(9), position: 9 }];
            bucket(&book, &ids, &misses, &mut missed);
            let found: Vec<_> = missed
                .chunk_by(|a, b| a.part == b.part)
                .map(|rows| {
                    (rows[0].part, rows.iter().map(|row| (row.row, row.position)).collect::<Vec<_>>())
                })
                .collect();
            let expected: Vec<_> = (0..book.n_parts())
                .map(PartId)
                .map(|part| {
                    let range = book.range(part);
                    let inside = misses.iter().filter(|&&at| range.contains(&ids[at as usize].0));
                    let row = |&at: &u32| (RowIdx(ids[at as usize].0 - range.start), at);
                    (part, inside.map(row).collect::<Vec<_>>())
                })
                .filter(|(_, rows)| !rows.is_empty())
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
