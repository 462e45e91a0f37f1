//! Keeps exactly the given rows: the common part of `degree` and `frequency`.
//!
//! - The target is the first ids of a ranking, one per slot. Only they are admitted.
//! - When the target changes, slots whose row is no longer in it are given up as rows of the new
//!   target come, the lowest first. Until then they serve. A hand looks for them when one is
//!   needed, and passes rows of the new target and of the batch. So a change costs no walk of all
//!   slots.

use super::{Offer, Policy};
use crate::huge_vec::{HugeVec, MemoryError};
use crate::slots::{Slots, VACANT};

pub(crate) struct Target {
    /// One bit per id.
    members: HugeVec<u64>,
    ids: Vec<u32>,
    /// Slots from here on may have rows that are no longer in the target.
    hand: u32,
    /// Slots before it with such rows, for a batch held them; those to give up first last.
    passed: Vec<u32>,
    /// Those that the current batch holds, the first first.
    postponed: Vec<u32>,
    n_slots: u32,
    id_space: u32,
    n_targets: u64,
}

impl Target {
    pub(super) fn planned_bytes(n_slots: u32, id_space: u32) -> usize {
        (id_space as usize).div_ceil(64) * size_of::<u64>() + n_slots as usize * size_of::<u32>()
    }

    /// Returns a target of `ids`, best first. Ids that repeat count once, those outside the id
    /// space not at all.
    pub(super) fn new(ids: &[u32], n_slots: u32, id_space: u32) -> Result<Self, MemoryError> {
        let mut target = Self {
            members: HugeVec::new((id_space as usize).div_ceil(64))?,
            ids: Vec::with_capacity(n_slots as usize),
            hand: n_slots,
            passed: Vec::new(),
            postponed: Vec::new(),
            n_slots,
            id_space,
            n_targets: 0,
        };
        target.set(ids);
        Ok(target)
    }

    fn set(&mut self, ids: &[u32]) {
        self.n_targets += 1;
        for id in self.ids.drain(..) {
            self.members[id as usize / 64] = 0;
        }
        for &id in ids {
            if self.ids.len() == self.n_slots as usize {
                break;
            }
            if id < self.id_space && !self.has(id) {
                self.members[id as usize / 64] |= 1 << (id % 64);
                self.ids.push(id);
            }
        }
    }

    /// Returns the lowest slot that was not read since the target changed or the batch began.
    fn next_candidate(&mut self) -> Option<u32> {
        self.passed.pop().or_else(|| {
            let slot = self.hand;
            self.hand += u32::from(slot < self.n_slots);
            (slot < self.n_slots).then_some(slot)
        })
    }

    fn has(&self, id: u32) -> bool {
        self.members[id as usize / 64] >> (id % 64) & 1 != 0
    }
}

impl Policy for Target {
    fn retarget(&mut self, ids: &[u32]) {
        self.set(ids);
        self.hand = 0;
        self.passed.clear();
        self.postponed.clear();
    }

    fn heeds_reads(&self) -> bool {
        self.hand < self.n_slots || !self.passed.is_empty()
    }

    fn wanted(&self) -> &[u32] {
        &self.ids
    }

    fn wanted_revision(&self) -> u64 {
        self.n_targets
    }

    fn retain(&mut self, offers: &mut Vec<(u32, u32)>, _slots: &Slots) {
        offers.iter().for_each(|&(id, _)| self.members.prefetch(id as usize / 64));
        offers.retain(|&(id, _)| self.has(id));
    }

    fn begin_batch(&mut self) {
        self.postponed.reverse();
        self.passed.append(&mut self.postponed);
    }

    fn evict(&mut self, _offer: Offer, slots: &mut Slots) -> Option<u32> {
        while let Some(slot) = self.next_candidate() {
            let id = slots.id(slot);
            if id == VACANT || self.has(id) {
                continue; // still wanted, or removed and perhaps filled again
            }
            if !slots.is_held(slot) {
                return Some(slot);
            }
            self.postponed.push(slot);
        }
        None
    }

    fn bytes(&self) -> usize {
        self.members.bytes() + self.ids.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tests::Naive;

    #[derive(Default)]
    pub(crate) struct NaiveTarget {
        pub(crate) target: Vec<u32>,
        /// By slot.
        pub(crate) rows: Vec<Option<u32>>,
        /// Slots without a row, the next to fill last.
        pub(crate) free: Vec<usize>,
    }

    impl Naive for NaiveTarget {
        fn retarget(&mut self, ids: &[u32]) {
            self.target = ids.to_vec();
        }

        fn admits(&self, id: u32) -> bool {
            self.target.contains(&id)
        }

        fn evict(&mut self, _id: u32, held: &dyn Fn(u32) -> bool) -> Option<u32> {
            let goes = |row: &u32| !self.target.contains(row) && !held(*row);
            let id = self.rows.iter().flatten().copied().find(goes)?;
            self.remove(id);
            Some(id)
        }

        fn insert(&mut self, id: u32) {
            match self.free.pop() {
                Some(slot) => self.rows[slot] = Some(id),
                None => self.rows.push(Some(id)),
            }
        }

        fn remove(&mut self, id: u32) {
            let slot = self.rows.iter().position(|row| *row == Some(id)).unwrap();
            self.rows[slot] = None;
            self.free.push(slot);
        }
    }
}
