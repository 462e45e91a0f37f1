//! Keeps exactly the rows that it is told are best: what `degree` and `frequency` have in common.
//!
//! - The target is the first ids of a ranking, one per slot. Only they are admitted.
//! - When the target changes, slots whose row is no longer in it are given up, first filled first,
//!   as rows of the new target come; until then they serve.

use super::{Offer, Policy};
use crate::arena::ArenaError;
use crate::pages::PageVec;
use crate::slots::{Slots, VACANT};

pub(crate) struct Target {
    /// One bit per id.
    members: PageVec<u64>,
    ids: Vec<u32>,
    /// Slots of rows that are no longer in the target, those to give up first last.
    stale: Vec<u32>,
    /// Such slots that the current batch holds.
    postponed: Vec<u32>,
    n_slots: u32,
    id_space: u32,
}

impl Target {
    pub(super) fn planned_bytes(n_slots: u32, id_space: u32) -> usize {
        (id_space as usize).div_ceil(64) * size_of::<u64>()
            + n_slots as usize * (size_of::<u32>() + size_of::<u32>())
    }

    /// `ids`, best first; those that repeat count once, those outside the id space not at all.
    pub(super) fn new(ids: &[u32], n_slots: u32, id_space: u32) -> Result<Self, ArenaError> {
        let mut target = Self {
            members: PageVec::new((id_space as usize).div_ceil(64))?,
            ids: Vec::with_capacity(n_slots as usize),
            stale: Vec::with_capacity(n_slots as usize),
            postponed: Vec::new(),
            n_slots,
            id_space,
        };
        target.set(ids);
        Ok(target)
    }

    fn set(&mut self, ids: &[u32]) {
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

    fn has(&self, id: u32) -> bool {
        self.members[id as usize / 64] >> (id % 64) & 1 != 0
    }
}

impl Policy for Target {
    fn retarget(&mut self, ids: &[u32], slots: &Slots) {
        self.set(ids);
        self.stale.clear();
        self.postponed.clear();
        for (id, slot) in slots.residents() {
            if !self.has(id) {
                self.stale.push(slot);
            }
        }
        self.stale.reverse();
    }

    fn heeds_reads(&self) -> bool {
        !self.stale.is_empty()
    }

    fn wanted(&self) -> &[u32] {
        &self.ids
    }

    fn retain(&mut self, offers: &mut Vec<(u32, u32)>, _slots: &Slots) {
        offers.iter().for_each(|&(id, _)| self.members.prefetch(id as usize / 64));
        offers.retain(|&(id, _)| self.has(id));
    }

    fn begin_batch(&mut self) {
        self.postponed.reverse();
        self.stale.append(&mut self.postponed);
    }

    fn evict(&mut self, _offer: Offer, slots: &mut Slots) -> Option<u32> {
        while let Some(slot) = self.stale.pop() {
            let id = slots.id(slot);
            if id == VACANT || self.has(id) {
                continue; // removed since, and perhaps filled anew
            }
            if !slots.is_held(slot) {
                return Some(slot);
            }
            self.postponed.push(slot);
        }
        None
    }

    fn bytes(&self) -> usize {
        self.members.bytes() + (self.ids.capacity() + self.stale.capacity()) * size_of::<u32>()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tests::Naive;

    pub(crate) struct NaiveTarget {
        pub(crate) target: Vec<u32>,
        pub(crate) rows: Vec<u32>,
    }

    impl Naive for NaiveTarget {
        fn admits(&self, id: u32) -> bool {
            self.target.contains(&id)
        }

        fn evict(&mut self, _id: u32, held: &dyn Fn(u32) -> bool) -> Option<u32> {
            let goes = |row: &u32| !self.target.contains(row) && !held(*row);
            let at = self.rows.iter().position(goes)?;
            Some(self.rows.remove(at))
        }

        fn insert(&mut self, id: u32) {
            self.rows.push(id);
        }

        fn remove(&mut self, id: u32) {
            self.rows.retain(|&row| row != id);
        }
    }
}
