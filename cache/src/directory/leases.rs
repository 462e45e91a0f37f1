//! Rows that others read in place, without asking again. Meanwhile no slot that has had a row gets
//! another.

use super::{CHUNK_IDS, Directory};
use crate::slots::NO_SLOT;

/// How often a directory is lent.
#[derive(Default)]
pub(super) struct Leases {
    n_leases: u32,
    /// Whether a row found no slot because of leases. Then no new lease begins until all have
    /// ended, and the row comes again.
    is_slot_wanted: bool,
}

impl Leases {
    pub(super) fn are_none(&self) -> bool {
        self.n_leases == 0
    }
}

impl Directory {
    /// Does a [`Directory::lookup`] if all ids are resident and rows can stay in place while they
    /// are [lent](Self::lease). They can as long as no row must be evicted for another, and no
    /// removed row that was admitted again waits for a slot. Else returns `false`, without any
    /// change.
    pub fn lookup_for_lease(&mut self, ids: &[u32], slots: &mut Vec<u32>) -> bool {
        let has_room = self.slots.n_slots() == self.id_space || self.slots.has_unused();
        if !has_room || self.leases.is_slot_wanted {
            return false;
        }
        slots.clear();
        slots.resize(ids.len(), NO_SLOT);
        let mut pieces = ids.chunks(CHUNK_IDS).zip(slots.chunks_mut(CHUNK_IDS));
        let are_resident = pieces.all(|(ids, slots)| {
            self.index.find(ids, slots);
            !slots.contains(&NO_SLOT)
        });
        if are_resident {
            let found_before = |_: &_, first: usize, _: &[u32], found: &mut [u32]| {
                found.copy_from_slice(&slots[first..first + found.len()]);
            };
            self.begin_with(ids, found_before, |_, _| {});
        }
        are_resident
    }

    /// Lends all slots. Until as many calls of [`Directory::end_lease`], no slot that has had a row
    /// gets another. Rows that come meanwhile go to slots that never had one, or are not kept.
    pub fn lease(&mut self) {
        self.leases.n_leases += 1;
    }

    /// Ends a [`Directory::lease`].
    ///
    /// # Panics
    ///
    /// When it is not lent.
    pub fn end_lease(&mut self) {
        let n_leases = self.leases.n_leases.checked_sub(1).expect("what is taken back was lent");
        let is_slot_wanted = self.leases.is_slot_wanted && n_leases > 0;
        self.leases = Leases { n_leases, is_slot_wanted };
    }

    /// Returns a slot that no lease covers, for none has had a row.
    pub(super) fn take_unused(&mut self) -> Option<u32> {
        let slot = self.slots.take_unused();
        self.leases.is_slot_wanted |= slot.is_none();
        slot
    }
}
