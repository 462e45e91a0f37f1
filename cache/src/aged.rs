//! A directory whose rows have an age, and which returns the rows that it evicts.

use crate::directory::{Directory, DirectoryError, Placement, TierStats};
use crate::huge_vec::HugeVec;
use crate::policy::PolicySpec;
use crate::slots::{NO_SLOT, VACANT};

/// A [`Directory`] with a stamp on every row: when its bytes were right (CaPGNN, section 4.2,
/// bounded staleness). Time is counted by the owner, in batches say; without a bound on the age
/// nothing is stamped, and every row is as of now.
///
/// A row may be used while its stamp is at least the present time less `max_age`. That is enforced
/// by the lookup: an older row misses. It keeps its slot, and what is read in its place is written
/// over it.
pub(crate) struct AgedDirectory {
    directory: Directory,
    /// The id in each slot, or [`VACANT`].
    ids: HugeVec<u32>,
    /// The stamp of each slot; means nothing where the slot is vacant. None without a bound.
    stamps: HugeVec<u32>,
    now: u32,
    max_age: Option<u32>,
    n_stale: u64,
}

/// An evicted row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evicted {
    pub(crate) id: u32,
    /// Where its bytes are until the row in its place is written.
    pub(crate) slot: u32,
    pub(crate) stamp: u32,
}

impl AgedDirectory {
    /// Returns the memory of a slot beside its row and its part of the directory, in bytes.
    pub(crate) const fn slot_bytes(max_age: Option<u32>) -> usize {
        if max_age.is_some() { 2 * size_of::<u32>() } else { size_of::<u32>() }
    }

    /// Returns an empty directory. Without a `max_age` rows of any age may be used.
    pub(crate) fn new(
        capacity_rows: u32,
        id_space: u32,
        spec: &PolicySpec,
        max_age: Option<u32>,
    ) -> Result<Self, DirectoryError> {
        let directory = Directory::new(capacity_rows, id_space, spec)?;
        let n_slots = directory.n_slots() as usize;
        Ok(Self {
            directory,
            ids: HugeVec::filled(n_slots, VACANT)?,
            stamps: HugeVec::new(if max_age.is_some() { n_slots } else { 0 })?,
            now: 0,
            max_age,
            n_stale: 0,
        })
    }

    /// Sets the time, which never runs back.
    pub(crate) fn advance(&mut self, now: u32) {
        self.now = self.now.max(now);
    }

    pub(crate) fn now(&self) -> u32 {
        self.now
    }

    /// Returns the earliest stamp of a row that may be used, if there is a bound.
    fn earliest(&self) -> Option<u32> {
        self.max_age.map(|age| self.now.saturating_sub(age))
    }

    /// Like [`Directory::lookup`], but a row that is too old misses.
    pub(crate) fn lookup(&mut self, ids: &[u32], slots: &mut Vec<u32>) {
        self.directory.lookup(ids, slots);
        let Some(earliest) = self.earliest() else { return };
        for slot in slots.iter_mut().filter(|slot| **slot != NO_SLOT) {
            if self.stamps.get(*slot as usize).is_none_or(|&stamp| stamp < earliest) {
                *slot = NO_SLOT;
                self.n_stale += 1;
            }
        }
    }

    /// Returns the stamp of the row in a slot.
    pub(crate) fn stamp(&self, slot: u32) -> u32 {
        self.stamps.get(slot as usize).copied().unwrap_or(self.now)
    }

    /// Sets the stamp of the row in a slot; returns the one before.
    pub(crate) fn restamp(&mut self, slot: u32, stamp: u32) -> u32 {
        let own = self.stamps.get_mut(slot as usize);
        own.map_or(self.now, |own| std::mem::replace(own, stamp))
    }

    /// Offers the rows at `positions`, with their stamps; see [`Directory::admit`]. A row that is
    /// resident with an older stamp is written over. `placements` gets every slot to be written,
    /// each once; `evicted` the rows that are lost thereby and are not too old to be of use.
    pub(crate) fn admit(
        &mut self,
        ids: &[u32],
        stamps: &[u32],
        positions: &[u32],
        placements: &mut Vec<Placement>,
        evicted: &mut Vec<Evicted>,
    ) {
        evicted.clear();
        self.directory.admit(ids, positions, placements);
        for &Placement { position, slot } in &*placements {
            let lost = std::mem::replace(&mut self.ids[slot as usize], ids[position as usize]);
            let stamp = self.restamp(slot, stamps[position as usize]);
            if lost != VACANT && self.earliest().is_none_or(|earliest| stamp >= earliest) {
                evicted.push(Evicted { id: lost, slot, stamp });
            }
        }
        if self.max_age.is_none() {
            return;
        }
        for &position in positions {
            let slot = self.directory.slot_of(ids[position as usize]);
            let stamp = stamps[position as usize];
            if slot != NO_SLOT && self.stamps[slot as usize] < stamp {
                self.stamps[slot as usize] = stamp;
                placements.push(Placement { position, slot });
            }
        }
    }

    /// Removes rows, see [`Directory::remove`].
    pub(crate) fn remove(&mut self, ids: &[u32]) {
        for &id in ids {
            let slot = self.directory.slot_of(id);
            if slot != NO_SLOT {
                self.ids[slot as usize] = VACANT;
            }
        }
        self.directory.remove(ids);
    }

    /// Takes out what was placed but could not be written.
    pub(crate) fn retract(&mut self, placements: &[Placement]) {
        for &Placement { slot, .. } in placements {
            let id = self.ids[slot as usize];
            if id != VACANT {
                self.remove(&[id]);
            }
        }
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Ends the last batch and sets the rows of the next epoch, see [`Directory::retarget`].
    pub(crate) fn retarget(&mut self, ids: &[u32]) {
        // Its slots are free for others.
        self.directory.lookup(&[], &mut Vec::new());
        self.directory.retarget(ids);
    }

    /// Returns the memory of the bookkeeping, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.directory.bytes() + self.ids.bytes() + self.stamps.bytes()
    }

    /// Returns counts since the start; a row that was too old is a miss.
    pub(crate) fn stats(&self) -> TierStats {
        let (stats, stale) = (self.directory.stats(), self.n_stale);
        TierStats { hits: stats.hits - stale, misses: stats.misses + stale, stale, ..stats }
    }
}
