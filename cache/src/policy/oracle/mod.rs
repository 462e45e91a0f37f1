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
//! This is the optimum, and so an upper bound of every policy of the same capacity. To see that,
//! take an optimal sequence and its first choice that differs: it keeps z instead of x, with
//! next(x) ≤ next(z). Keep x in the place of z until x is used, then continue as the sequence does.
//! That loses at most the next hit of z, and only after it has gained one of x.

mod stacks;

use super::{Offer, Piece, Policy};
use crate::huge_vec::{HugeVec, MemoryError};
use crate::index::RowIndex;
use crate::slots::NO_SLOT;
use crate::slots::Slots;

use stacks::Stacks;

/// In the place of a next use: the row is not used again.
pub const NEVER: u32 = u32::MAX;

pub(crate) struct Oracle {
    /// By slot.
    uses: HugeVec<u32>,
    /// The rows that each batch uses next; the last stack is of rows that are never used again.
    stacks: Stacks,
    /// Next uses of the current batch, by position.
    next_uses: Vec<u32>,
    /// `next use << 32 | position` of the rows that are offered.
    offers: Vec<u64>,
    sorted: Vec<u64>,
    n_batches: u32,
    /// Batches that have begun.
    n_begun: u32,
    /// Rows that are due in the current batch and in no stack.
    n_due: u32,
}

impl Oracle {
    pub(super) fn planned_bytes(n_slots: u32, n_batches: u32) -> usize {
        let n_stacks = n_batches.saturating_add(1);
        n_slots as usize * size_of::<u32>() + Stacks::planned_bytes(n_slots, n_stacks)
    }

    pub(super) fn new(n_slots: u32, n_batches: u32) -> Result<Self, MemoryError> {
        Ok(Self {
            uses: HugeVec::new(n_slots as usize)?,
            stacks: Stacks::new(n_slots, n_batches.saturating_add(1))?,
            next_uses: Vec::new(),
            offers: Vec::new(),
            sorted: Vec::new(),
            n_batches,
            n_begun: 0,
            n_due: 0,
        })
    }

    /// Returns the number of the current batch; the first is 0.
    fn now(&self) -> u32 {
        self.n_begun.wrapping_sub(1)
    }

    /// Returns the stack of a position's row; `None` when a later position of this batch has it
    /// too.
    #[inline]
    fn next_use(&self, position: usize) -> Option<u32> {
        let next_use = self.next_uses.get(position).copied().unwrap_or(NEVER);
        (next_use > self.now()).then(|| next_use.min(self.n_batches))
    }

    /// Returns whether the row was announced for this batch, and so is in no stack.
    #[inline]
    fn is_due(&self, slot: u32) -> bool {
        let now = self.now();
        now < self.n_batches && self.uses[slot as usize] == now
    }

    fn push(&mut self, slot: u32, next_use: u32) {
        self.uses[slot as usize] = next_use;
        self.stacks.push(next_use, slot);
    }

    fn unlink(&mut self, slot: u32) {
        self.stacks.remove(self.uses[slot as usize], slot);
    }
}

impl Policy for Oracle {
    fn announce(&mut self, next_uses: &[u32]) {
        self.next_uses.clear();
        self.next_uses.extend_from_slice(next_uses);
    }

    fn begin_batch(&mut self) {
        self.n_begun = self.n_begun.saturating_add(1);
        // All rows that are due will be hit: their stack goes as a whole.
        self.n_due = 0;
        let now = self.now();
        if now < self.n_batches {
            self.n_due = self.stacks.clear(now);
        }
    }

    fn on_lookup(&mut self, piece: &Piece<'_>, _slots: &mut Slots) {
        piece.hits.iter().for_each(|&slot| self.uses.prefetch(slot as usize));
        for (&position, &slot) in piece.positions.iter().zip(piece.hits) {
            if let Some(next_use) = self.next_use(position as usize) {
                if self.is_due(slot) {
                    self.n_due -= 1;
                } else {
                    self.unlink(slot); // it was announced for another batch
                }
                self.push(slot, next_use);
            }
        }
    }

    /// Marks rows that were announced for this batch, and are not in it, as never used again.
    fn end_lookup(&mut self, slots: &Slots) {
        if self.n_due > 0 {
            for (_, slot) in slots.residents() {
                if self.is_due(slot) {
                    self.push(slot, self.n_batches);
                }
            }
        }
    }

    fn heeds_reads(&self) -> bool {
        false
    }

    fn choose(&mut self, positions: &[u32], chosen: &mut Vec<u32>) -> bool {
        let mut offers = std::mem::take(&mut self.offers);
        offers.clear();
        offers.extend(positions.iter().filter_map(|&position| {
            let next_use = self.next_use(position as usize)?;
            (next_use < self.n_batches).then(|| u64::from(next_use) << 32 | u64::from(position))
        }));
        if positions.is_sorted() {
            sort_by_next_use(&mut offers, &mut self.sorted);
        } else {
            offers.sort_unstable();
        }
        chosen.extend(offers.iter().map(|&offer| offer as u32));
        self.offers = offers;
        true
    }

    fn evict(&mut self, offer: Offer, _slots: &mut Slots) -> Option<u32> {
        let next_use = self.next_use(offer.position as usize)?;
        self.stacks.take_highest(next_use)
    }

    fn prepare(&mut self, ids: &[u32], slots: &Slots) {
        for slot in self.stacks.in_order().take(ids.len()) {
            slots.prefetch(std::iter::once(slot));
            self.uses.prefetch(slot as usize);
        }
    }

    fn insert(&mut self, offer: Offer, slot: u32, _slots: &mut Slots) {
        let next_use = self.next_use(offer.position as usize).unwrap_or(self.n_batches);
        self.push(slot, next_use);
    }

    fn on_remove(&mut self, _id: u32, slot: u32, _slots: &mut Slots) {
        self.unlink(slot);
    }

    fn bytes(&self) -> usize {
        self.uses.bytes() + self.stacks.bytes()
    }
}

/// Sorts by the upper halves; equal ones keep their order. It is a radix sort from the lowest
/// digit, since a comparison costs more than the few digits that batches have.
fn sort_by_next_use(offers: &mut Vec<u64>, sorted: &mut Vec<u64>) {
    const DIGIT_BITS: u32 = 11;
    let least = offers.iter().min().map_or(0, |&offer| offer >> 32);
    let most = offers.iter().max().map_or(0, |&offer| offer >> 32);
    let n_bits = u64::BITS - (most - least).leading_zeros();
    for shift in (0..n_bits).step_by(DIGIT_BITS as usize) {
        let digit = |offer: u64| ((offer >> 32) - least) >> shift & ((1 << DIGIT_BITS) - 1);
        let mut starts = [0u32; 1 << DIGIT_BITS];
        offers.iter().for_each(|&offer| starts[digit(offer) as usize] += 1);
        let mut n_before = 0;
        for start in &mut starts {
            n_before += std::mem::replace(start, n_before);
        }
        sorted.resize(offers.len(), 0);
        for &offer in offers.iter() {
            let start = &mut starts[digit(offer) as usize];
            sorted[*start as usize] = offer;
            *start += 1;
        }
        std::mem::swap(offers, sorted);
    }
}

/// Returns for each position of a trace the number of the batch that uses its id next, or
/// [`NEVER`]. It is the batch itself when a later position of it has the same id. Batch `i` is
/// `ids[bounds[i]..bounds[i + 1]]`. [`crate::directory::Directory::announce`] takes the result in
/// pieces.
///
/// Fails when there is no memory.
///
/// # Panics
///
/// Unless `bounds` ascend, from 0 to the number of ids.
pub fn next_uses(ids: &[u32], bounds: &[usize]) -> Result<Vec<u32>, MemoryError> {
    assert!(
        bounds.is_sorted() && bounds.first() == Some(&0) && bounds.last() == Some(&ids.len()),
        "bounds do not divide {} ids into batches",
        ids.len()
    );
    let id_space = ids.iter().max().map_or(0, |&max| max.saturating_add(1));
    let too_many = MemoryError::TooLarge { n_slots: NO_SLOT, row_bytes: size_of::<u32>() };
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
                numbers.insert(numbers.home(id), id, last_uses.len() as u32);
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

    use proptest::prelude::*;

    proptest! {
        #[test]
        fn offers_are_sorted_as_a_stable_sort_does(
            uses in prop::collection::vec(prop_oneof![0..5u32, 0..5000u32, any::<u32>()], 0..300),
        ) {
            let offers = (0u64..).zip(&uses).map(|(at, &next)| u64::from(next) << 32 | at);
            let mut offers: Vec<u64> = offers.collect();
            let mut naive = offers.clone();
            naive.sort();
            sort_by_next_use(&mut offers, &mut vec![7; 3]);
            prop_assert_eq!(offers, naive);
        }
    }

    #[test]
    fn next_uses_are_those_of_a_search() {
        let ids = [3, 1, 3, 9, 1, 1, 3, u32::MAX];
        let uses = next_uses(&ids, &[0, 3, 3, 5, 8]).unwrap();
        assert_eq!(uses, [0, 2, 3, NEVER, 3, NEVER, NEVER, NEVER]);
        assert!(next_uses(&[], &[0]).unwrap().is_empty());
    }
}
