//! From the id of a row to the slot that holds it.

mod sparse;

use crate::huge_vec::{HugeVec, MemoryError};
use crate::slots::NO_SLOT;

use sparse::SparseIndex;

/// An entry at or above this, except [`NO_SLOT`], is not a slot but a place of [`crate::ghosts`]:
/// the row is not resident, but remembered.
pub(crate) const REMEMBERED: u32 = 1 << 31;

/// Map id → entry of at most a fixed number of ids: the slot of a resident row, or the place of one
/// that is remembered. Its memory never grows.
pub(crate) enum RowIndex {
    /// One entry per id of the id space.
    Dense(HugeVec<u32>),
    /// Open addressing over the resident ids only.
    Sparse(SparseIndex),
}

impl RowIndex {
    /// Ids that may be in the index beyond `n_slots`, so that a few can be inserted before those
    /// that they replace are removed together.
    pub(crate) const SLACK_IDS: usize = 128;

    /// Returns an index for ids below `id_space`, of which at most `n_ids` have an entry at a time.
    /// It is dense or sparse, whichever takes less memory.
    ///
    /// At the same size a dense index is faster (one line, no hash). A larger one is not, for it
    /// pushes everything else out of the processor's caches.
    ///
    /// Fails when there is no memory, or `n_ids` is 2³¹ or more.
    pub(crate) fn new(id_space: u32, n_ids: u32) -> Result<Self, MemoryError> {
        if n_ids >= REMEMBERED {
            return Err(MemoryError::TooLarge { n_slots: n_ids, row_bytes: size_of::<u32>() });
        }
        Ok(if n_ids == 0 {
            Self::Dense(HugeVec::new(0)?)
        } else if dense_bytes(id_space) <= SparseIndex::planned_bytes(n_ids) {
            Self::Dense(HugeVec::filled(id_space as usize, NO_SLOT)?)
        } else {
            Self::Sparse(SparseIndex::new(n_ids)?)
        })
    }

    /// Returns the memory that [`RowIndex::new`] will take, in bytes.
    pub(crate) fn planned_bytes(id_space: u32, n_ids: u32) -> usize {
        if n_ids == 0 {
            return 0;
        }
        dense_bytes(id_space).min(SparseIndex::planned_bytes(n_ids))
    }

    /// Returns the memory taken, in bytes.
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
                    *slot = slot_of(index.get(id as usize).copied().unwrap_or(NO_SLOT));
                }
            }
            Self::Sparse(index) => {
                index.find(ids, slots);
                slots.iter_mut().for_each(|slot| *slot = slot_of(*slot));
            }
        }
    }

    /// Writes where to look for each id, which never changes, and has it read. Both slices have the
    /// same length.
    pub(crate) fn locate(&self, ids: &[u32], homes: &mut [u32]) {
        debug_assert_eq!(ids.len(), homes.len());
        match self {
            Self::Dense(index) => {
                homes.copy_from_slice(ids);
                ids.iter().for_each(|&id| index.prefetch(id as usize));
            }
            Self::Sparse(index) => index.locate(ids, homes),
        }
    }

    /// Returns the slot of one id, or [`NO_SLOT`].
    #[inline]
    pub(crate) fn get(&self, id: u32) -> u32 {
        slot_of(self.entry(self.home(id), id))
    }

    /// Returns the place where the look-up of an id starts.
    #[inline]
    pub(crate) fn home(&self, id: u32) -> u32 {
        match self {
            Self::Dense(_) => id,
            Self::Sparse(index) => index.home(id),
        }
    }

    /// Returns the entry of one id, or [`NO_SLOT`].
    #[inline]
    pub(crate) fn entry(&self, home: u32, id: u32) -> u32 {
        match self {
            Self::Dense(index) => index.get(home as usize).copied().unwrap_or(NO_SLOT),
            Self::Sparse(index) => index.get(home, id),
        }
    }

    /// Adds an id that is not in the index. Once it has as many ids as it is for, at most
    /// [`RowIndex::SLACK_IDS`] times before as many are removed.
    #[inline]
    pub(crate) fn insert(&mut self, home: u32, id: u32, entry: u32) {
        debug_assert!(entry != NO_SLOT && self.entry(home, id) == NO_SLOT);
        match self {
            Self::Dense(index) => index[home as usize] = entry,
            Self::Sparse(index) => index.insert(home, id, entry),
        }
    }

    /// Changes the entry of an id that is in the index.
    #[inline]
    pub(crate) fn replace(&mut self, home: u32, id: u32, entry: u32) {
        debug_assert!(entry != NO_SLOT && self.entry(home, id) != NO_SLOT);
        match self {
            Self::Dense(index) => index[home as usize] = entry,
            Self::Sparse(index) => index.replace(home, id, entry),
        }
    }

    /// Removes an id that is in the index.
    #[inline]
    pub(crate) fn remove(&mut self, home: u32, id: u32) {
        match self {
            Self::Dense(index) => index[home as usize] = NO_SLOT,
            Self::Sparse(index) => index.remove(home, id),
        }
    }
}

/// Returns the slot that an entry says, or [`NO_SLOT`].
#[inline]
fn slot_of(entry: u32) -> u32 {
    // Spreads the highest bit, without a branch.
    entry | (entry.cast_signed() >> 31).cast_unsigned()
}

fn dense_bytes(id_space: u32) -> usize {
    size_of::<u32>() * id_space as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn insert(index: &mut RowIndex, id: u32, entry: u32) {
        index.insert(index.home(id), id, entry);
    }

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
        insert(&mut index, u32::MAX, 1);
        insert(&mut index, 0, 0);
        assert_eq!((index.get(u32::MAX), index.get(0)), (1, 0));
        index.remove(index.home(u32::MAX), u32::MAX);
        assert_eq!((index.get(u32::MAX), index.get(0)), (NO_SLOT, 0));
    }

    proptest! {
        /// Toggles ids in and out of both kinds beside a standard map.
        #[test]
        fn both_kinds_agree_with_a_map(toggled in prop::collection::vec(0u32..40, 0..400)) {
            const N_SLOTS: u32 = 16;
            let dense = RowIndex::Dense(HugeVec::filled(40, NO_SLOT).unwrap());
            for mut index in [dense, RowIndex::Sparse(SparseIndex::new(N_SLOTS).unwrap())] {
                let mut naive = HashMap::new();
                for (time, &id) in (0..).zip(&toggled) {
                    if naive.remove(&id).is_some() {
                        index.remove(index.home(id), id);
                    } else if naive.len() < N_SLOTS as usize {
                        naive.insert(id, time);
                        insert(&mut index, id, time);
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
