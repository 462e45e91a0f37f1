//! Ids that a directory processes together.

use crate::ghosts::Ghosts;
use crate::index::{REMEMBERED, RowIndex};
use crate::slots::NO_SLOT;

/// Ids looked up before any is processed. These are enough to keep many memory accesses in flight,
/// and few enough for their slots to stay in the nearest cache.
pub(crate) const CHUNK_IDS: usize = 256;

/// The hits of a chunk.
pub(super) struct Hits {
    slots: [u32; CHUNK_IDS],
    positions: [u32; CHUNK_IDS],
}

impl Hits {
    pub(super) fn new() -> Self {
        Self { slots: [0; CHUNK_IDS], positions: [0; CHUNK_IDS] }
    }

    /// Returns the slots found, without [`NO_SLOT`], and their positions, counted from `first`.
    #[inline]
    pub(super) fn of(&mut self, first: u32, found: &[u32]) -> (&[u32], &[u32]) {
        let mut n = 0;
        for (position, &slot) in (first..).zip(found) {
            // A miss is overwritten by what comes after it.
            (self.slots[n], self.positions[n]) = (slot, position);
            n += usize::from(slot != NO_SLOT);
        }
        (&self.slots[..n], &self.positions[..n])
    }
}

/// Rows that are admitted together, so that the cache misses that this takes overlap.
#[derive(Default)]
pub(super) struct Chunk {
    /// Ids offered and their positions.
    pub(super) offers: Vec<(u32, u32)>,
    /// The ids alone, and where the index looks for them.
    pub(super) ids: Vec<u32>,
    pub(super) homes: Vec<u32>,
    /// Ids that are pushed out, and the entry that the index gets of them, or [`NO_SLOT`].
    pub(super) evicted: Vec<(u32, u32)>,
    /// Ids that are remembered no more.
    pub(super) forgotten: Vec<u32>,
}

impl Chunk {
    /// Takes the ids at `positions` that are below `id_space`.
    pub(super) fn begin(&mut self, ids: &[u32], positions: &[u32], id_space: u32) {
        self.offers.clear();
        self.offers.extend(positions.iter().map(|&position| (ids[position as usize], position)));
        self.offers.retain(|&(id, _)| id < id_space);
    }

    /// Has what the index says of the offers read.
    pub(super) fn locate(&mut self, index: &RowIndex) {
        self.ids.clear();
        self.ids.extend(self.offers.iter().map(|offer| offer.0));
        self.homes.resize(self.ids.len(), 0);
        index.locate(&self.ids, &mut self.homes);
    }

    /// Updates the index with the rows that were evicted.
    pub(super) fn end(&mut self, index: &mut RowIndex, ghosts: &Ghosts) {
        let Self { ids, homes, evicted, forgotten, .. } = self;
        ids.clear();
        ids.extend(evicted.iter().map(|evicted| evicted.0));
        ids.extend_from_slice(forgotten);
        homes.resize(ids.len(), 0);
        index.locate(ids, homes);
        let (of_evicted, of_forgotten) = homes.split_at(evicted.len());
        for ((id, after), &home) in evicted.drain(..).zip(of_evicted) {
            match after {
                NO_SLOT => index.remove(home, id),
                after => index.replace(home, id, after),
            }
        }
        for (id, &home) in forgotten.drain(..).zip(of_forgotten) {
            // It may have come back, or may be remembered again.
            let entry = index.entry(home, id);
            if entry >= REMEMBERED && entry != NO_SLOT && ghosts.place(id, entry).is_none() {
                index.remove(home, id);
            }
        }
    }
}
