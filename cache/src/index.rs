//! From the id of a row to the slot that holds it.

mod sparse;

use std::hint::black_box;

use crate::arena::ArenaError;
use crate::pages::PageVec;

use sparse::SparseIndex;

/// In the place of a slot: the row is not resident.
pub const NO_SLOT: u32 = u32::MAX;

/// Map id → slot of at most a fixed number of ids. Its memory never grows.
pub(crate) enum RowIndex {
    /// One entry per id of the id space.
    Dense(PageVec<u32>),
    /// Open addressing over the resident ids only.
    Sparse(SparseIndex),
}

impl RowIndex {
    /// Ids that may be in the index beyond `n_slots`, so that a few can be inserted before those
    /// that they replace are removed together.
    pub(crate) const SLACK_IDS: usize = 128;

    /// An index for ids below `id_space` of which at most `n_slots` are resident at once: dense
    /// or sparse, whichever takes less memory.
    ///
    /// At the same size a dense index is faster (one line, no hash); a larger one is not, for it
    /// pushes everything else out of the processor's caches.
    pub(crate) fn new(id_space: u32, n_slots: u32) -> Result<Self, ArenaError> {
        Ok(if n_slots == 0 {
            Self::Dense(PageVec::new(0)?)
        } else if dense_bytes(id_space) <= SparseIndex::planned_bytes(n_slots) {
            Self::Dense(PageVec::filled(id_space as usize, NO_SLOT)?)
        } else {
            Self::Sparse(SparseIndex::new(n_slots)?)
        })
    }

    /// Memory that [`RowIndex::new`] will take, in bytes.
    pub(crate) fn planned_bytes(id_space: u32, n_slots: u32) -> usize {
        if n_slots == 0 {
            return 0;
        }
        dense_bytes(id_space).min(SparseIndex::planned_bytes(n_slots))
    }

    /// Memory taken, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Dense(slots) => slots.bytes(),
            Self::Sparse(index) => index.bytes(),
        }
    }

    /// Writes the slot of each id, or [`NO_SLOT`]. Both slices have the same length.
    pub(crate) fn find(&self, ids: &[u32], slots: &mut [u32]) {
        debug_assert_eq!(ids.len(), slots.len());
        match self {
            Self::Dense(index) => {
                let index: &[u32] = index;
                for (slot, &id) in slots.iter_mut().zip(ids) {
                    *slot = index.get(id as usize).copied().unwrap_or(NO_SLOT);
                }
            }
            Self::Sparse(index) => index.find(ids, slots),
        }
    }

    /// Reads what inserting or removing these ids needs, so that the cache misses overlap.
    pub(crate) fn touch(&self, ids: impl Iterator<Item = u32>) {
        black_box(match self {
            Self::Dense(index) => {
                ids.fold(0, |seen, id| seen ^ index.get(id as usize).copied().unwrap_or(0))
            }
            Self::Sparse(index) => index.touch(ids),
        });
    }

    /// The slot of one id, or [`NO_SLOT`].
    pub(crate) fn get(&self, id: u32) -> u32 {
        match self {
            Self::Dense(index) => index.get(id as usize).copied().unwrap_or(NO_SLOT),
            Self::Sparse(index) => index.get(id),
        }
    }

    /// Adds an id that is not in the index; once all slots are taken, at most
    /// [`RowIndex::SLACK_IDS`] times before the ids that they replace are removed.
    pub(crate) fn insert(&mut self, id: u32, slot: u32) {
        debug_assert!(slot != NO_SLOT && self.get(id) == NO_SLOT);
        match self {
            Self::Dense(index) => index[id as usize] = slot,
            Self::Sparse(index) => index.insert(id, slot),
        }
    }

    /// Removes ids that are in the index, each of them once.
    pub(crate) fn remove_all(&mut self, ids: &[u32]) {
        self.touch(ids.iter().copied());
        match self {
            Self::Dense(index) => ids.iter().for_each(|&id| index[id as usize] = NO_SLOT),
            Self::Sparse(index) => ids.iter().for_each(|&id| index.remove(id)),
        }
    }
}

fn dense_bytes(id_space: u32) -> usize {
    size_of::<u32>() * id_space as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn the_smaller_kind_is_chosen() {
        // 42 lines of 64 bytes.
        assert!(matches!(RowIndex::new(672, 100).unwrap(), RowIndex::Dense(_)));
        assert!(matches!(RowIndex::new(673, 100).unwrap(), RowIndex::Sparse(_)));
        for (id_space, n_slots) in [(672, 100), (673, 100), (0, 0), (9, 0)] {
            let index = RowIndex::new(id_space, n_slots).unwrap();
            assert_eq!(index.bytes(), RowIndex::planned_bytes(id_space, n_slots));
        }
    }

    #[test]
    fn an_empty_index_has_nothing() {
        assert_eq!(RowIndex::new(0, 0).unwrap().get(0), NO_SLOT);
        assert_eq!(RowIndex::new(9, 0).unwrap().get(3), NO_SLOT);
        assert_eq!(RowIndex::new(9, 9).unwrap().get(9), NO_SLOT);
    }

    #[test]
    fn the_largest_id_is_an_id_like_any_other() {
        let mut index = RowIndex::new(u32::MAX, 2).unwrap();
        assert_eq!(index.get(u32::MAX), NO_SLOT);
        index.insert(u32::MAX, 1);
        index.insert(0, 0);
        assert_eq!((index.get(u32::MAX), index.get(0)), (1, 0));
        index.remove_all(&[u32::MAX]);
        assert_eq!((index.get(u32::MAX), index.get(0)), (NO_SLOT, 0));
    }

    proptest! {
        /// Toggles ids in and out of both kinds beside a standard map.
        #[test]
        fn both_kinds_agree_with_a_map(toggled in prop::collection::vec(0u32..40, 0..400)) {
            const N_SLOTS: u32 = 16;
            let dense = RowIndex::Dense(PageVec::filled(40, NO_SLOT).unwrap());
            for mut index in [dense, RowIndex::Sparse(SparseIndex::new(N_SLOTS).unwrap())] {
                let mut naive = HashMap::new();
                for (time, &id) in (0..).zip(&toggled) {
                    if naive.remove(&id).is_some() {
                        index.remove_all(&[id]);
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
