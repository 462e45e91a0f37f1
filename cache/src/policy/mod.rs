//! Which rows a directory keeps. A policy sees ids, slots and batches; it does no I/O and knows no
//! clock.

mod bit_tree;
mod buckets;
mod clock;
mod decay;
mod degree;
mod fifo;
mod fixed;
mod frequency;
mod kind;
mod lru;
mod oracle;
mod overlap;
mod s3_fifo;
mod sieve;
mod spec;
mod target;
mod tiny_lfu;

#[cfg(test)]
mod tests;

pub use decay::{Candidate, DecaySpec, Replacement, Scoreboard};
pub use degree::rank_by_degree;
pub use frequency::{hottest, rank_by_frequency};
pub use kind::{PolicyKind, UnknownPolicy};
pub use oracle::{NEVER, next_uses};
pub use spec::{NeedsPlan, PolicySpec};

use crate::slots::Slots;

/// A piece of a batch, looked up.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) ids: &'a [u32],
    /// The slot of each; `NO_SLOT` stands for a miss.
    pub(crate) found: &'a [u32],
    /// The slots alone, without a branch on hit or miss, which cannot be predicted.
    pub(crate) hits: &'a [u32],
    /// The positions of these in the batch.
    pub(crate) positions: &'a [u32],
}

/// A row that might be kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) id: u32,
    /// In its batch.
    pub(crate) position: u32,
    /// Whether it was here before and is remembered: see [`Policy::remembers`].
    pub(crate) is_remembered: bool,
}

/// The state of one directory's policy, which learns of everything that happens to its slots.
///
/// In the life of a batch: `begin_batch`, `on_lookup` for its ids in pieces, `end_lookup`, then
/// any number of admissions. In an admission `choose`, then in pieces `retain`, `prepare`, and for
/// each new row, when no slot is free, `evict`, and `insert`.
pub(crate) trait Policy: Send {
    /// Sets for each position of the batch to come the batch that uses its id next.
    fn announce(&mut self, _next_uses: &[u32]) {}

    /// Sets the best rows, best first.
    fn retarget(&mut self, _ids: &[u32]) {}

    fn begin_batch(&mut self) {}

    /// Notes the look-up of a piece of the batch.
    fn on_lookup(&mut self, _piece: &Piece<'_>, _slots: &mut Slots) {}

    fn end_lookup(&mut self, _slots: &Slots) {}

    /// Returns whether a slot that a batch reads must be held until the next one.
    fn heeds_reads(&self) -> bool {
        true
    }

    /// Reads what the next offers of these ids need, so that cache misses overlap.
    fn prepare(&mut self, _ids: &[u32], _slots: &Slots) {}

    /// Returns the rows that the policy wants beside those that miss, some of them resident.
    fn wanted(&self) -> &[u32] {
        &[]
    }

    /// Grows whenever ids come to `wanted`, except those of rows that were removed.
    fn wanted_revision(&self) -> u64 {
        0
    }

    /// Puts the positions of an admission that shall be offered into `chosen`, which is empty, in
    /// the order of offers. Returns `false` when all shall be offered as they are.
    fn choose(&mut self, _positions: &[u32], _chosen: &mut Vec<u32>) -> bool {
        false
    }

    /// Takes out of an admission, of ids and positions, what shall certainly not be kept.
    fn retain(&mut self, _offers: &mut Vec<(u32, u32)>, _slots: &Slots) {}

    /// Gives up a slot, which is not held, for a new row; `None` when the row shall not be kept.
    fn evict(&mut self, offer: Offer, slots: &mut Slots) -> Option<u32>;

    /// Returns whether a row is remembered among the last [`PolicySpec::n_ghosts`] such rows.
    /// Called once after each `evict`, for the evicted row or, when there is none, the row that is
    /// not kept. A row that comes back is no longer remembered.
    fn remembers(&mut self) -> bool {
        false
    }

    /// Notes a new row in a slot that was free or was given up.
    fn insert(&mut self, _offer: Offer, _slot: u32, _slots: &mut Slots) {}

    /// Notes that the row in `slot` was removed.
    fn on_remove(&mut self, _id: u32, _slot: u32, _slots: &mut Slots) {}

    /// Returns whether the row in `slot` was read since the policy last thought of giving it up,
    /// where it keeps that.
    fn is_hot(&self, _slot: u32) -> bool {
        false
    }

    /// Returns the memory of the state, in bytes, except what only follows the size of a batch.
    fn bytes(&self) -> usize;
}
