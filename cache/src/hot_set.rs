//! A hot set: rows chosen ahead of time, fixed once built.

use thiserror::Error;

use crate::arena::Arena;
use crate::huge_vec::MemoryError;
use crate::index::RowIndex;
use crate::slots::NO_SLOT;

/// The steady cache of one epoch (RapidGNN, section 3): the rows most used in it.
///
/// It never changes, so any number of threads read it without a lock.
pub struct HotSet {
    ids: Vec<u32>,
    arena: Arena,
    index: RowIndex,
}

/// Why ids and rows do not make a hot set.
#[derive(Debug, Error)]
pub enum HotSetError {
    /// A repeated id has no single row.
    #[error("id {id} is at positions {first} and {second}; pass each id once")]
    Repeated {
        /// The id.
        id: u32,
        /// Its first position.
        first: u32,
        /// Its next position.
        second: usize,
    },
    /// More ids than slots can be numbered.
    #[error("a hot set holds fewer than {} rows, found {found}", u32::MAX)]
    TooMany {
        /// Ids given.
        found: usize,
    },
    /// The memory cannot be allocated.
    #[error(transparent)]
    Arena(#[from] MemoryError),
}

impl HotSet {
    /// Returns a set of the rows of distinct `ids`, in any order. `fill` writes them: its argument
    /// has one row of `row_bytes` bytes per id, in the order of `ids`, zeroed.
    ///
    /// Fails with the error of `fill`, when an id repeats, or when there is no memory.
    pub fn build<E: From<HotSetError>>(
        ids: Vec<u32>,
        row_bytes: usize,
        fill: impl FnOnce(&[u32], &mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let index = index_of(&ids)?;
        let n_slots = ids.len() as u32;
        let mut arena = Arena::new(n_slots, row_bytes).map_err(HotSetError::from)?;
        fill(&ids, arena.rows_mut())?;
        Ok(Self { ids, arena, index })
    }

    /// Returns the set of no rows.
    ///
    /// Fails when `row_bytes` is 0.
    pub fn empty(row_bytes: usize) -> Result<Self, HotSetError> {
        Self::build(Vec::new(), row_bytes, |_, _| Ok(()))
    }

    /// Returns the row of `id`, if it is in the set.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&[u8]> {
        match self.index.get(id) {
            NO_SLOT => None,
            slot => Some(self.arena.row(slot)),
        }
    }

    /// Writes for each id where its row is, for [`HotSet::row`], or [`NO_SLOT`].
    pub fn find(&self, ids: &[u32], slots: &mut Vec<u32>) {
        slots.resize(ids.len(), NO_SLOT);
        self.index.find(ids, slots);
    }

    /// Returns the row that [`HotSet::find`] has found.
    ///
    /// # Panics
    ///
    /// When `slot` is none of this set.
    #[must_use]
    pub fn row(&self, slot: u32) -> &[u8] {
        self.arena.row(slot)
    }

    /// Returns the ids, in the order in which they were given.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.ids.len()
    }

    /// Returns the bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.arena.row_bytes()
    }

    /// Returns the memory of rows, ids and index, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.arena.bytes() + self.index.bytes() + size_of_val(self.ids.as_slice())
    }
}

/// Numbers the ids in their order.
fn index_of(ids: &[u32]) -> Result<RowIndex, HotSetError> {
    let n_slots = u32::try_from(ids.len())
        .ok()
        .filter(|&n_slots| n_slots != NO_SLOT)
        .ok_or(HotSetError::TooMany { found: ids.len() })?;
    let id_space = ids.iter().max().map_or(0, |&max| max.saturating_add(1));
    let mut index = RowIndex::new(id_space, n_slots)?;
    for (slot, &id) in (0..).zip(ids) {
        let first = index.get(id);
        if first != NO_SLOT {
            return Err(HotSetError::Repeated { id, first, second: slot as usize });
        }
        index.insert(index.home(id), id, slot);
    }
    Ok(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set_of(ids: &[u32]) -> Result<HotSet, HotSetError> {
        HotSet::build(ids.to_vec(), 4, |ids, rows| {
            for (id, row) in ids.iter().zip(rows.chunks_mut(4)) {
                row.copy_from_slice(&id.to_le_bytes());
            }
            Ok(())
        })
    }

    #[test]
    fn an_empty_set_misses_everything() {
        let set = HotSet::empty(8).unwrap();
        let mut slots = vec![9];
        set.find(&[0, 3], &mut slots);
        assert_eq!(slots, [NO_SLOT; 2]);
        assert_eq!((set.n_rows(), set.row_bytes(), set.get(0)), (0, 8, None));
    }

    #[test]
    fn a_repeated_id_is_refused() {
        let error = set_of(&[4, 9, 4]).err().unwrap();
        assert!(matches!(error, HotSetError::Repeated { id: 4, first: 0, second: 2 }));
    }

    #[test]
    fn the_error_of_the_filler_comes_back() {
        #[derive(Debug)]
        struct Broken;
        impl From<HotSetError> for Broken {
            fn from(_: HotSetError) -> Self {
                panic!("not the filler's error")
            }
        }
        assert!(HotSet::build(vec![1], 4, |_, _| Err(Broken)).is_err());
    }

    proptest! {
        #[test]
        fn what_is_found_agrees_with_a_search(
            ids in prop::collection::hash_set(prop_oneof![0u32..50, Just(u32::MAX)], 0..30),
            wanted in prop::collection::vec(prop_oneof![0u32..60, Just(u32::MAX)], 0..600),
        ) {
            let ids: Vec<u32> = ids.into_iter().collect();
            let (set, mut slots) = (set_of(&ids).unwrap(), vec![3; 7]);
            set.find(&wanted, &mut slots);
            prop_assert_eq!(slots.len(), wanted.len());
            for (&id, &slot) in wanted.iter().zip(&slots) {
                let bytes = id.to_le_bytes();
                let is_hit = ids.contains(&id);
                prop_assert_eq!((slot != NO_SLOT).then(|| set.row(slot)), is_hit.then_some(&bytes[..]));
                prop_assert_eq!(set.get(id), is_hit.then_some(&bytes[..]));
            }
        }
    }
}
