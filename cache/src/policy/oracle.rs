//! `oracle`: Belady's MIN for batches, with bypass.
//!
//! The problem: a batch hits the rows that are resident when it begins, and none of these goes
//! before the whole batch is served. After that any of them may go, and any of its missed rows may
//! take a slot, or none (bypass). Which choices give the most hits over all batches, a row that
//! several positions of a batch ask for counted once?
//!
//! - The missed rows are offered in order of their next use, nearest first. While slots are free
//!   they are kept; then each replaces the row with the farthest next use, if that is farther than
//!   its own. A row that is never used again is not kept.
//!
//! This is the optimum, and so an upper bound of every policy of the same capacity: take an optimal
//! sequence and its first choice that differs, to keep z instead of x with next(x) ≤ next(z). Keep
//! x in the place of z until x is used, then go on as the sequence does: that loses at most the
//! next hit of z, and only after it has gained one of x.
//!
//! Where a batch reads its rows in their slots, hits cannot go while it is admitted
//! ([`OracleRule::HitsStay`]). The same choice is then good but not always the best: among rows
//! with the same next use it matters which one will be in the way later.

use super::Policy;
use super::buckets::Buckets;
use crate::arena::ArenaError;
use crate::index::{NO_SLOT, RowIndex};
use crate::slots::Slots;

/// In the place of a next use: the row is not used again.
pub const NEVER: u32 = u32::MAX;

/// What the oracle may evict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OracleRule {
    /// Rows that the current batch read may go when it is served: Belady's optimum.
    #[default]
    Optimum,
    /// Rows that the current batch read stay until the next one, as under every other policy.
    HitsStay,
}

pub(crate) struct Oracle {
    /// Rows by the batch that uses them next; the last bucket is of those never used again.
    buckets: Buckets,
    /// Of the current batch, by position.
    next_uses: Vec<u32>,
    /// `next use << 32 | position` of the rows that are offered.
    offers: Vec<u64>,
    rule: OracleRule,
    n_batches: u32,
    /// Number of the batch to come; the first is 0.
    n_begun: u32,
}

impl Oracle {
    pub(super) fn planned_bytes(n_slots: u32, n_batches: u32) -> usize {
        Buckets::planned_bytes(n_slots, n_batches.saturating_add(1))
    }

    pub(super) fn new(n_slots: u32, n_batches: u32, rule: OracleRule) -> Result<Self, ArenaError> {
        Ok(Self {
            buckets: Buckets::new(n_slots, n_batches.saturating_add(1))?,
            next_uses: Vec::new(),
            offers: Vec::new(),
            rule,
            n_batches,
            n_begun: 0,
        })
    }

    /// The bucket of a position's row; `None` when a later position of this batch has the row too.
    #[inline]
    fn bucket(&self, position: usize) -> Option<u32> {
        let next_use = self.next_uses.get(position).copied().unwrap_or(NEVER);
        (next_use.wrapping_add(1) != self.n_begun).then(|| next_use.min(self.n_batches))
    }
}

impl Policy for Oracle {
    fn announce(&mut self, next_uses: &[u32]) {
        self.next_uses.clear();
        self.next_uses.extend_from_slice(next_uses);
    }

    fn begin_batch(&mut self) {
        self.n_begun += 1;
    }

    fn on_lookup(&mut self, first: usize, _ids: &[u32], slots: &[u32]) {
        self.buckets.touch(slots);
        for (position, &slot) in (first..).zip(slots) {
            if slot != NO_SLOT
                && let Some(bucket) = self.bucket(position)
            {
                self.buckets.unlink(slot);
                self.buckets.push(slot, bucket);
            }
        }
    }

    fn choose(&mut self, positions: &[u32], chosen: &mut Vec<u32>) -> bool {
        let mut offers = std::mem::take(&mut self.offers);
        offers.clear();
        offers.extend(positions.iter().filter_map(|&position| {
            let bucket = self.bucket(position as usize)?;
            (bucket < self.n_batches).then(|| u64::from(bucket) << 32 | u64::from(position))
        }));
        offers.sort_unstable();
        chosen.extend(offers.iter().map(|&offer| offer as u32));
        self.offers = offers;
        true
    }

    fn evict(&mut self, _id: u32, position: u32, slots: &Slots) -> Option<u32> {
        let bucket = self.bucket(position as usize)?;
        let (slot, farthest) = match self.rule {
            OracleRule::HitsStay => self.buckets.highest(slots, |slot| slots.is_held(slot)),
            OracleRule::Optimum => self.buckets.highest(slots, |slot| slots.is_pinned(slot)),
        }?;
        if farthest <= bucket {
            return None;
        }
        self.buckets.unlink(slot);
        Some(slot)
    }

    fn insert(&mut self, _id: u32, position: u32, slot: u32) {
        let bucket = self.bucket(position as usize).unwrap_or(self.n_batches);
        self.buckets.push(slot, bucket);
    }

    fn on_remove(&mut self, _id: u32, slot: u32) {
        self.buckets.unlink(slot);
    }

    fn bytes(&self) -> usize {
        self.buckets.bytes()
    }
}

/// For each position of a trace the number of the batch that uses its id next, or [`NEVER`]; the
/// batch itself when a later position of it has the same id. Batch `i` is
/// `ids[bounds[i]..bounds[i + 1]]`. This is what [`crate::Directory::announce`] takes, in pieces.
///
/// Fails when there is no memory.
///
/// # Panics
///
/// Unless `bounds` ascend, from 0 to the number of ids.
pub fn next_uses(ids: &[u32], bounds: &[usize]) -> Result<Vec<u32>, ArenaError> {
    assert!(
        bounds.is_sorted() && bounds.first() == Some(&0) && bounds.last() == Some(&ids.len()),
        "bounds do not divide {} ids into batches",
        ids.len()
    );
    let id_space = ids.iter().max().map_or(0, |&max| max.saturating_add(1));
    let too_many = ArenaError::TooLarge { n_slots: NO_SLOT, row_bytes: size_of::<u32>() };
    let n_ids = u32::try_from(ids.len()).map_err(|_| too_many)?.min(id_space);
    let mut numbers = RowIndex::new(id_space, n_ids)?;
    let mut last_uses = Vec::new();
    let mut uses = vec![NEVER; ids.len()];
    for (batch, bounds) in bounds.windows(2).enumerate().rev() {
        let batch = batch as u32;
        let range = bounds[0]..bounds[1];
        for (&id, next_use) in ids[range.clone()].iter().zip(&mut uses[range]).rev() {
            let number = numbers.get(id);
            if number == NO_SLOT {
                numbers.insert(id, last_uses.len() as u32);
                last_uses.push(batch);
            } else {
                *next_use = std::mem::replace(&mut last_uses[number as usize], batch);
            }
        }
    }
    Ok(uses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_uses_are_those_of_a_search() {
        let ids = [3, 1, 3, 9, 1, 1, 3, u32::MAX];
        let uses = next_uses(&ids, &[0, 3, 3, 5, 8]).unwrap();
        assert_eq!(uses, [0, 2, 3, NEVER, 3, NEVER, NEVER, NEVER]);
        assert!(next_uses(&[], &[0]).unwrap().is_empty());
    }
}
