//! From the id of a row to the slot that holds it.

use std::hash::{BuildHasher, RandomState};

/// What [`RowIndex::find`] gives for an id that has no slot.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// Bytes of one id of the id space in a dense index.
const DENSE_BYTES: usize = size_of::<u32>();
/// Bytes of one slot in a sparse index: two entries, so that half of them stay empty.
const SPARSE_BYTES: usize = 2 * size_of::<u64>();

/// Map id → slot of at most a fixed number of ids. Its memory never grows.
pub(crate) enum RowIndex {
    /// One entry per id of the id space.
    Dense(Vec<u32>),
    /// Open addressing over the resident ids only.
    Sparse(SparseIndex),
}

impl RowIndex {
    /// An index for ids below `id_space` of which at most `n_slots` are resident at once: dense
    /// or sparse, whichever takes less memory.
    pub(crate) fn new(id_space: u32, n_slots: u32) -> Self {
        if DENSE_BYTES * id_space as usize <= SPARSE_BYTES * n_slots as usize {
            Self::Dense(vec![NO_SLOT; id_space as usize])
        } else {
            Self::Sparse(SparseIndex::new(n_slots))
        }
    }

    /// Memory that [`RowIndex::new`] will take, in bytes.
    pub(crate) fn planned_bytes(id_space: u32, n_slots: u32) -> usize {
        (DENSE_BYTES * id_space as usize).min(SPARSE_BYTES * n_slots as usize)
    }

    /// Memory taken, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Dense(slots) => size_of_val(slots.as_slice()),
            Self::Sparse(index) => size_of_val(index.entries.as_slice()),
        }
    }

    /// Writes the slot of each id, or [`NO_SLOT`]. Both slices have the same length.
    pub(crate) fn find(&self, ids: &[u32], slots: &mut [u32]) {
        debug_assert_eq!(ids.len(), slots.len());
        let pairs = slots.iter_mut().zip(ids);
        match self {
            Self::Dense(index) => {
                pairs.for_each(|(slot, &id)| {
                    *slot = index.get(id as usize).copied().unwrap_or(NO_SLOT);
                });
            }
            Self::Sparse(index) => pairs.for_each(|(slot, &id)| *slot = index.get(id)),
        }
    }

    /// The slot of one id, or [`NO_SLOT`].
    pub(crate) fn get(&self, id: u32) -> u32 {
        match self {
            Self::Dense(index) => index.get(id as usize).copied().unwrap_or(NO_SLOT),
            Self::Sparse(index) => index.get(id),
        }
    }

    /// Adds an id that is not in the index. There must be room for it: the caller removes before
    /// it inserts once all slots are taken.
    pub(crate) fn insert(&mut self, id: u32, slot: u32) {
        debug_assert!(slot != NO_SLOT && self.get(id) == NO_SLOT);
        match self {
            Self::Dense(index) => index[id as usize] = slot,
            Self::Sparse(index) => index.insert(id, slot),
        }
    }

    /// Removes an id that is in the index.
    pub(crate) fn remove(&mut self, id: u32) {
        debug_assert!(self.get(id) != NO_SLOT);
        match self {
            Self::Dense(index) => index[id as usize] = NO_SLOT,
            Self::Sparse(index) => index.remove(id),
        }
    }
}

/// Linear probing at a load of at most one half, with removal by shifting back: no tombstones, so
/// probes stay short however many ids come and go.
pub(crate) struct SparseIndex {
    /// `id << 32 | slot`, or [`EMPTY`].
    entries: Vec<u64>,
    /// Random and odd, so that nobody outside can choose ids that collide.
    multiplier: u64,
}

/// No entry: its upper half is a possible id, but its lower half is never a slot.
const EMPTY: u64 = u64::MAX;

impl SparseIndex {
    fn new(n_slots: u32) -> Self {
        let multiplier = RandomState::new().hash_one(0) | 1;
        Self { entries: vec![EMPTY; 2 * n_slots as usize], multiplier }
    }

    /// Where the probe for `id` starts: the upper bits of a product, scaled to the table.
    #[inline]
    fn home(&self, id: u32) -> usize {
        let hash = u64::from(id).wrapping_mul(self.multiplier) >> 32;
        ((hash * self.entries.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.entries.len() { 0 } else { at + 1 }
    }

    /// How many steps of a probe lead from one entry to another.
    #[inline]
    fn steps(&self, from: usize, to: usize) -> usize {
        if from <= to { to - from } else { to + self.entries.len() - from }
    }

    #[inline]
    fn get(&self, id: u32) -> u32 {
        if self.entries.is_empty() {
            return NO_SLOT;
        }
        let mut at = self.home(id);
        loop {
            let entry = self.entries[at];
            if (entry >> 32) as u32 == id || entry == EMPTY {
                return entry as u32;
            }
            at = self.after(at);
        }
    }

    fn insert(&mut self, id: u32, slot: u32) {
        let mut at = self.home(id);
        while self.entries[at] != EMPTY {
            at = self.after(at);
        }
        self.entries[at] = u64::from(id) << 32 | u64::from(slot);
    }

    fn remove(&mut self, id: u32) {
        let mut hole = self.home(id);
        while (self.entries[hole] >> 32) as u32 != id {
            hole = self.after(hole);
        }
        let mut at = self.after(hole);
        while self.entries[at] != EMPTY {
            // An entry may fill the hole when its probe starts at the hole or before it.
            let home = self.home((self.entries[at] >> 32) as u32);
            if self.steps(home, at) >= self.steps(hole, at) {
                self.entries[hole] = self.entries[at];
                hole = at;
            }
            at = self.after(at);
        }
        self.entries[hole] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn the_smaller_kind_is_chosen() {
        assert!(matches!(RowIndex::new(400, 100), RowIndex::Dense(_)));
        assert!(matches!(RowIndex::new(401, 100), RowIndex::Sparse(_)));
        for (id_space, n_slots) in [(400, 100), (401, 100), (0, 0), (9, 0)] {
            let index = RowIndex::new(id_space, n_slots);
            assert_eq!(index.bytes(), RowIndex::planned_bytes(id_space, n_slots));
        }
    }

    #[test]
    fn an_empty_index_has_nothing() {
        assert_eq!(RowIndex::new(0, 0).get(0), NO_SLOT);
        assert_eq!(RowIndex::new(9, 0).get(3), NO_SLOT);
        assert_eq!(RowIndex::new(9, 9).get(9), NO_SLOT);
    }

    #[test]
    fn the_largest_id_is_an_id_like_any_other() {
        let mut index = RowIndex::new(u32::MAX, 2);
        assert_eq!(index.get(u32::MAX), NO_SLOT);
        index.insert(u32::MAX, 1);
        index.insert(0, 0);
        assert_eq!((index.get(u32::MAX), index.get(0)), (1, 0));
        index.remove(u32::MAX);
        assert_eq!((index.get(u32::MAX), index.get(0)), (NO_SLOT, 0));
    }

    proptest! {
        /// Toggles ids in and out of both kinds beside a standard map.
        #[test]
        fn both_kinds_agree_with_a_map(toggled in prop::collection::vec(0u32..40, 0..400)) {
            const N_SLOTS: u32 = 16;
            let dense = RowIndex::Dense(vec![NO_SLOT; 40]);
            for mut index in [dense, RowIndex::Sparse(SparseIndex::new(N_SLOTS))] {
                let mut naive = HashMap::new();
                for (time, &id) in (0..).zip(&toggled) {
                    if naive.remove(&id).is_some() {
                        index.remove(id);
                    } else if naive.len() < N_SLOTS as usize {
                        naive.insert(id, time);
                        index.insert(id, time);
                    }
                    let ids: Vec<u32> = (0..41).collect();
                    let mut found = vec![0; ids.len()];
                    index.find(&ids, &mut found);
                    for (id, slot) in ids.iter().zip(found) {
                        prop_assert_eq!(slot, naive.get(id).copied().unwrap_or(NO_SLOT));
                        prop_assert_eq!(slot, index.get(*id));
                    }
                }
            }
        }
    }
}
