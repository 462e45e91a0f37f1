//! Ids of rows that are gone, remembered for a while.

use crate::arena::ArenaError;
use crate::index::{NO_SLOT, RowIndex};
use crate::pages::PageVec;
use crate::slots::VACANT;

/// The last ids pushed, as many as there are places; one that is taken leaves its place empty.
pub(crate) struct Ghosts {
    /// A ring.
    ids: PageVec<u32>,
    index: RowIndex,
    /// The place that is overwritten next.
    next: u32,
}

impl Ghosts {
    pub(crate) fn planned_bytes(n_places: u32, id_space: u32) -> usize {
        n_places as usize * size_of::<u32>() + RowIndex::planned_bytes(id_space, n_places)
    }

    pub(crate) fn new(n_places: u32, id_space: u32) -> Result<Self, ArenaError> {
        Ok(Self {
            ids: PageVec::filled(n_places as usize, VACANT)?,
            index: RowIndex::new(id_space, n_places)?,
            next: 0,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.ids.bytes() + self.index.bytes()
    }

    /// Reads what offering some ids and pushing others needs.
    pub(crate) fn touch(&self, offered: &[u32], pushed: impl Iterator<Item = u32>) {
        let overwritten = self.ids.get(self.next as usize..).unwrap_or_default();
        let overwritten = overwritten.iter().take(offered.len());
        self.index.touch(offered.iter().chain(overwritten).copied().chain(pushed));
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        self.index.get(id) != NO_SLOT
    }

    /// Remembers an id that it does not remember yet.
    pub(crate) fn push(&mut self, id: u32) {
        let place = self.next;
        let Some(oldest) = self.ids.get_mut(place as usize) else { return };
        let oldest = std::mem::replace(oldest, id);
        if oldest != VACANT {
            self.index.remove_all(&[oldest]);
        }
        self.index.insert(id, place);
        self.next = if place as usize + 1 == self.ids.len() { 0 } else { place + 1 };
    }

    /// Forgets an id; whether it was there.
    pub(crate) fn take(&mut self, id: u32) -> bool {
        let place = self.index.get(id);
        if place == NO_SLOT {
            return false;
        }
        self.index.remove_all(&[id]);
        self.ids[place as usize] = VACANT;
        true
    }
}
