//! Ids of rows that are gone, remembered for a while.

use crate::huge_vec::{HugeVec, MemoryError};
use crate::index::REMEMBERED;
use crate::slots::NO_SLOT;
use crate::slots::VACANT;

/// The last ids pushed, as many as there are places; one that is taken leaves its place empty.
///
/// The index entry of an id has its place, since the index line of an id is read anyway. An entry
/// whose place has another id by now is void.
pub(crate) struct Ghosts {
    /// A ring.
    ids: HugeVec<u32>,
    /// The place that is overwritten next.
    next: u32,
}

impl Ghosts {
    pub(crate) fn planned_bytes(n_places: u32) -> usize {
        n_places as usize * size_of::<u32>()
    }

    pub(crate) fn new(n_places: u32) -> Result<Self, MemoryError> {
        Ok(Self { ids: HugeVec::filled(n_places as usize, VACANT)?, next: 0 })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.ids.bytes()
    }

    /// Returns whether there are places.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        !self.ids.is_empty()
    }

    /// Returns the place of an id with this entry in the index, if it is remembered.
    #[inline]
    pub(crate) fn place(&self, id: u32, entry: u32) -> Option<usize> {
        if entry < REMEMBERED || entry == NO_SLOT {
            return None;
        }
        let place = (entry - REMEMBERED) as usize;
        (self.ids.get(place) == Some(&id)).then_some(place)
    }

    /// Remembers an id that it does not remember yet. Returns the entry that the index must have of
    /// it, and the id that is forgotten for it, or [`VACANT`]; `None` without any places.
    #[inline]
    pub(crate) fn push(&mut self, id: u32) -> Option<(u32, u32)> {
        let place = self.next;
        let oldest = std::mem::replace(self.ids.get_mut(place as usize)?, id);
        self.next = if place as usize + 1 == self.ids.len() { 0 } else { place + 1 };
        Some((REMEMBERED + place, oldest))
    }

    /// Forgets the id at a place.
    #[inline]
    pub(crate) fn forget(&mut self, place: usize) {
        self.ids[place] = VACANT;
    }
}
