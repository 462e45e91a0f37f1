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
//! Only pinned rows cannot go.

use bytemuck::{Pod, Zeroable};

use super::bit_tree::BitTree;
use super::{Offer, Policy};
use crate::arena::ArenaError;
use crate::index::{NO_SLOT, RowIndex};
use crate::pages::PageVec;
use crate::slots::Slots;

/// In the place of a next use: the row is not used again.
pub const NEVER: u32 = u32::MAX;

/// A row in a stack of rows with the same next use.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Use {
    next_use: u32,
    /// The slot below it, or [`NO_SLOT`].
    below: u32,
}

/// The rows that one batch uses next.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Stack {
    top: u32,
    n_rows: u32,
}

const EMPTY: Stack = Stack { top: NO_SLOT, n_rows: 0 };

pub(crate) struct Oracle {
    /// By slot.
    uses: PageVec<Use>,
    /// By batch; the last one is of rows that are never used again.
    stacks: PageVec<Stack>,
    /// Which of them have rows.
    taken: BitTree,
    /// Of the current batch, by position.
    next_uses: Vec<u32>,
    /// `next use << 32 | position` of the rows that are offered.
    offers: Vec<u64>,
    n_batches: u32,
    /// Batches that have begun.
    n_begun: u32,
    /// Rows that are due in the current batch and in no stack.
    n_due: u32,
}

impl Oracle {
    pub(super) fn planned_bytes(n_slots: u32, n_batches: u32) -> usize {
        let n_stacks = n_batches.saturating_add(1);
        n_slots as usize * size_of::<Use>()
            + n_stacks as usize * size_of::<Stack>()
            + BitTree::planned_bytes(n_stacks)
    }

    pub(super) fn new(n_slots: u32, n_batches: u32) -> Result<Self, ArenaError> {
        let n_stacks = n_batches.saturating_add(1);
        Ok(Self {
            uses: PageVec::new(n_slots as usize)?,
            stacks: PageVec::filled(n_stacks as usize, EMPTY)?,
            taken: BitTree::new(n_stacks),
            next_uses: Vec::new(),
            offers: Vec::new(),
            n_batches,
            n_begun: 0,
            n_due: 0,
        })
    }

    /// Number of the current batch; the first is 0.
    fn now(&self) -> u32 {
        self.n_begun.wrapping_sub(1)
    }

    /// The stack of a position's row; `None` when a later position of this batch has it too.
    #[inline]
    fn next_use(&self, position: usize) -> Option<u32> {
        let next_use = self.next_uses.get(position).copied().unwrap_or(NEVER);
        (next_use > self.now()).then(|| next_use.min(self.n_batches))
    }

    /// Whether the row was announced for this batch, and so is in no stack.
    #[inline]
    fn is_due(&self, slot: u32) -> bool {
        let now = self.now();
        now < self.n_batches && self.uses[slot as usize].next_use == now
    }

    fn push(&mut self, slot: u32, next_use: u32) {
        let stack = &mut self.stacks[next_use as usize];
        self.uses[slot as usize] = Use { next_use, below: stack.top };
        *stack = Stack { top: slot, n_rows: stack.n_rows + 1 };
        self.taken.set(next_use);
    }

    /// Takes a slot out of its stack by going down to it: for what happens rarely.
    fn unlink(&mut self, slot: u32) {
        let Use { next_use, below } = self.uses[slot as usize];
        let stack = &mut self.stacks[next_use as usize];
        if stack.top == slot {
            stack.top = below;
        } else {
            let mut above = stack.top;
            while self.uses[above as usize].below != slot {
                above = self.uses[above as usize].below;
            }
            self.uses[above as usize].below = below;
        }
        stack.n_rows -= 1;
        if stack.n_rows == 0 {
            self.taken.clear(next_use);
        }
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
            let due = std::mem::replace(&mut self.stacks[now as usize], EMPTY);
            self.taken.clear(now);
            self.n_due = due.n_rows;
        }
    }

    fn on_lookup(&mut self, first: usize, _ids: &[u32], found: &[u32], _slots: &mut Slots) {
        found.iter().for_each(|&slot| self.uses.prefetch(slot as usize));
        for (position, &slot) in (first..).zip(found) {
            if slot != NO_SLOT
                && let Some(next_use) = self.next_use(position)
            {
                if self.is_due(slot) {
                    self.n_due -= 1;
                } else {
                    self.unlink(slot); // it was announced for another batch
                }
                self.push(slot, next_use);
            }
        }
    }

    /// Rows that were announced for this batch, and are not in it, are not used again.
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
        offers.sort_unstable();
        chosen.extend(offers.iter().map(|&offer| offer as u32));
        self.offers = offers;
        true
    }

    fn evict(&mut self, offer: Offer, slots: &mut Slots) -> Option<u32> {
        let next_use = self.next_use(offer.position as usize)?;
        let mut bound = self.n_batches;
        while let Some(farthest) = self.taken.last_up_to(bound)
            && farthest > next_use
        {
            let mut slot = self.stacks[farthest as usize].top;
            while slot != NO_SLOT && slots.is_pinned(slot) {
                slot = self.uses[slot as usize].below;
            }
            if slot != NO_SLOT {
                self.unlink(slot);
                return Some(slot);
            }
            bound = farthest - 1;
        }
        None
    }

    fn insert(&mut self, offer: Offer, slot: u32, _slots: &mut Slots) {
        let next_use = self.next_use(offer.position as usize).unwrap_or(self.n_batches);
        self.push(slot, next_use);
    }

    fn on_remove(&mut self, _id: u32, slot: u32, _slots: &mut Slots) {
        self.unlink(slot);
    }

    fn bytes(&self) -> usize {
        self.uses.bytes() + self.stacks.bytes() + self.taken.bytes()
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

    #[test]
    fn next_uses_are_those_of_a_search() {
        let ids = [3, 1, 3, 9, 1, 1, 3, u32::MAX];
        let uses = next_uses(&ids, &[0, 3, 3, 5, 8]).unwrap();
        assert_eq!(uses, [0, 2, 3, NEVER, 3, NEVER, NEVER, NEVER]);
        assert!(next_uses(&[], &[0]).unwrap().is_empty());
    }
}
