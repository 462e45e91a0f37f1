//! A directory whose rows have an age, and which says what goes.

use crate::directory::{Directory, DirectoryError, Placement, TierStats};
use crate::index::NO_SLOT;
use crate::pages::PageVec;
use crate::policy::PolicySpec;
use crate::slots::VACANT;

/// A [`Directory`] with a stamp on every row: the epoch in which its bytes were right (CaPGNN,
/// section 4.2, bounded staleness).
///
/// A row may be used while its stamp is at least the current epoch less `max_age_epochs`. That is
/// enforced by the lookup: an older row misses. It keeps its slot, and what is read in its place
/// is written over it.
pub(crate) struct StampedDirectory {
    directory: Directory,
    /// The id in each slot, or [`VACANT`].
    ids: PageVec<u32>,
    /// The stamp of each slot; means nothing where the slot is vacant.
    stamps: PageVec<u32>,
    epoch: u32,
    max_age_epochs: Option<u32>,
    n_stale: u64,
}

/// A row that had to go for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evicted {
    pub(crate) id: u32,
    /// Where its bytes are until the row in its place is written.
    pub(crate) slot: u32,
    pub(crate) stamp: u32,
}

impl StampedDirectory {
    /// Rows of any age may be used without a `max_age_epochs`.
    pub(crate) fn new(
        capacity_rows: u32,
        id_space: u32,
        spec: &PolicySpec,
        max_age_epochs: Option<u32>,
    ) -> Result<Self, DirectoryError> {
        let directory = Directory::new(capacity_rows, id_space, spec)?;
        let n_slots = directory.n_slots() as usize;
        Ok(Self {
            directory,
            ids: PageVec::filled(n_slots, VACANT)?,
            stamps: PageVec::new(n_slots)?,
            epoch: 0,
            max_age_epochs,
            n_stale: 0,
        })
    }

    pub(crate) fn begin_epoch(&mut self, epoch: u32) {
        self.epoch = epoch;
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    fn is_fresh(&self, stamp: u32) -> bool {
        self.max_age_epochs.is_none_or(|age| stamp >= self.epoch.saturating_sub(age))
    }

    /// See [`Directory::lookup`]. A row that is too old misses.
    pub(crate) fn lookup(&mut self, ids: &[u32], slots: &mut Vec<u32>) {
        self.directory.lookup(ids, slots);
        if self.max_age_epochs.is_none() {
            return;
        }
        for slot in slots.iter_mut().filter(|slot| **slot != NO_SLOT) {
            if !self.is_fresh(self.stamps[*slot as usize]) {
                *slot = NO_SLOT;
                self.n_stale += 1;
            }
        }
    }

    /// The stamp of the row in a slot.
    pub(crate) fn stamp(&self, slot: u32) -> u32 {
        self.stamps[slot as usize]
    }

    /// Offers the rows at `positions`, with their stamps; see [`Directory::admit`]. A row that is
    /// resident with an older stamp is written over. `placements` gets every slot to be written,
    /// each once; `evicted` the rows that are lost thereby and are not too old to be of use.
    pub(crate) fn admit(
        &mut self,
        (ids, stamps): (&[u32], &[u32]),
        positions: &[u32],
        placements: &mut Vec<Placement>,
        evicted: &mut Vec<Evicted>,
    ) {
        evicted.clear();
        self.directory.admit(ids, positions, placements);
        for &Placement { position, slot } in &*placements {
            let lost = std::mem::replace(&mut self.ids[slot as usize], ids[position as usize]);
            let stamp =
                std::mem::replace(&mut self.stamps[slot as usize], stamps[position as usize]);
            if lost != VACANT && self.is_fresh(stamp) {
                evicted.push(Evicted { id: lost, slot, stamp });
            }
        }
        self.rewrite((ids, stamps), positions.iter().copied(), placements);
    }

    /// Appends the slots of the resident rows among `positions` whose stamps are older.
    fn rewrite(
        &mut self,
        (ids, stamps): (&[u32], &[u32]),
        positions: impl Iterator<Item = u32>,
        placements: &mut Vec<Placement>,
    ) {
        for position in positions {
            let slot = self.directory.slot_of(ids[position as usize]);
            let stamp = stamps[position as usize];
            if slot != NO_SLOT && self.stamps[slot as usize] < stamp {
                self.stamps[slot as usize] = stamp;
                placements.push(Placement { position, slot });
            }
        }
    }

    /// All resident rows among `ids` are read anew for the current epoch, whatever their stamps:
    /// `placements` gets their slots, each once. An id that stands twice counts where it stands
    /// first.
    pub(crate) fn refresh(&mut self, ids: &[u32], placements: &mut Vec<Placement>) {
        placements.clear();
        for (position, &id) in (0..).zip(ids) {
            let slot = self.directory.slot_of(id);
            if slot != NO_SLOT {
                self.stamps[slot as usize] = self.epoch;
                placements.push(Placement { position, slot });
            }
        }
        placements.sort_unstable_by_key(|placed| (placed.slot, placed.position));
        placements.dedup_by_key(|placed| placed.slot);
    }

    /// See [`Directory::remove`].
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

    /// For what needs no stamps: announcements and targets.
    pub(crate) fn directory_mut(&mut self) -> &mut Directory {
        &mut self.directory
    }

    /// Memory of the bookkeeping, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.directory.bytes() + self.ids.bytes() + self.stamps.bytes()
    }

    /// Counts since the start; what was too old is a miss.
    pub(crate) fn stats(&self) -> TierStats {
        let stats = self.directory.stats();
        TierStats { hits: stats.hits - self.n_stale, misses: stats.misses + self.n_stale, ..stats }
    }

    /// Positions of lookups whose row was there, but too old.
    pub(crate) fn n_stale(&self) -> u64 {
        self.n_stale
    }
}
