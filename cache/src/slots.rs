//! What each slot of a directory holds, and which slots must stay as they are.

use std::hint::black_box;

use bytemuck::{Pod, Zeroable};

use crate::arena::ArenaError;
use crate::index::NO_SLOT;
use crate::pages::PageVec;

/// In the place of an id: a slot whose row was removed. Ids are below the id space, so none is it.
pub(crate) const VACANT: u32 = u32::MAX;

/// Side by side, for one needs the other.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct SlotState {
    id: u32,
    /// The last batch that read or filled the slot.
    batch: u32,
}

/// The slots of a directory. A slot that the current batch has read or filled, or that is pinned,
/// is held: no policy may give it to another row.
pub(crate) struct Slots {
    states: PageVec<SlotState>,
    /// How often each slot is pinned; empty until the first pin.
    pins: Vec<u32>,
    /// Slots that were ever filled: those below.
    n_used: u32,
    /// Slots below `n_used` that are free.
    free: Vec<u32>,
    n_resident: u32,
    /// Number of the current batch; the first is 1.
    batch: u32,
}

impl Slots {
    /// Bytes that a slot takes here: its state, and a place among the free ones.
    pub(crate) const SLOT_BYTES: usize = size_of::<SlotState>() + size_of::<u32>();

    pub(crate) fn new(n_slots: u32) -> Result<Self, ArenaError> {
        Ok(Self {
            states: PageVec::new(n_slots as usize)?,
            pins: Vec::new(),
            n_used: 0,
            free: Vec::new(),
            n_resident: 0,
            batch: 0,
        })
    }

    pub(crate) fn n_slots(&self) -> u32 {
        self.states.len() as u32
    }

    pub(crate) fn n_resident(&self) -> u32 {
        self.n_resident
    }

    /// Number of the current batch. Unique as long as 2³² batches do not pass between two uses
    /// of a row; after that a row is held once without need.
    pub(crate) fn batch(&self) -> u32 {
        self.batch
    }

    pub(crate) fn begin_batch(&mut self) {
        self.batch = self.batch.wrapping_add(1);
    }

    /// The current batch reads these slots; [`NO_SLOT`] may stand among them.
    pub(crate) fn read(&mut self, slots: &[u32]) {
        let (states, batch) = (&mut *self.states, self.batch);
        black_box(slots.iter().fold(0, |seen, &slot| {
            seen ^ states.get(slot as usize).map_or(0, |state| state.batch)
        }));
        for &slot in slots {
            if let Some(state) = states.get_mut(slot as usize) {
                state.batch = batch;
            }
        }
    }

    /// Whether the row in a slot must stay.
    #[inline]
    pub(crate) fn is_held(&self, slot: u32) -> bool {
        self.states[slot as usize].batch == self.batch || self.is_pinned(slot)
    }

    /// Whether someone holds the slot beyond the current batch.
    #[inline]
    pub(crate) fn is_pinned(&self, slot: u32) -> bool {
        self.pins.get(slot as usize).is_some_and(|&pins| pins > 0)
    }

    /// The id in a slot, or [`VACANT`].
    #[inline]
    pub(crate) fn id(&self, slot: u32) -> u32 {
        self.states[slot as usize].id
    }

    /// All rows held: ids with their slots, in the order of slots.
    pub(crate) fn residents(&self) -> impl Iterator<Item = (u32, u32)> {
        let used = &self.states[..self.n_used as usize];
        (0..)
            .zip(used)
            .filter(|(_, state)| state.id != VACANT)
            .map(|(slot, state)| (state.id, slot))
    }

    /// A slot without a row: the one that was freed last, then those never filled, from 0 on.
    pub(crate) fn take_free(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let slot = self.n_used;
        if slot as usize == self.states.len() {
            return None;
        }
        self.n_used += 1;
        self.states[slot as usize].id = VACANT;
        Some(slot)
    }

    /// The current batch fills `slot`; gives the id that had to go, or [`VACANT`].
    pub(crate) fn fill(&mut self, slot: u32, id: u32) -> u32 {
        let filled = SlotState { id, batch: self.batch };
        let before = std::mem::replace(&mut self.states[slot as usize], filled).id;
        self.n_resident += u32::from(before == VACANT);
        before
    }

    /// The row in `slot` is gone. A pinned slot becomes free when its last pin goes.
    pub(crate) fn vacate(&mut self, slot: u32) {
        self.states[slot as usize].id = VACANT;
        self.n_resident -= 1;
        if !self.is_pinned(slot) {
            self.free.push(slot);
        }
    }

    pub(crate) fn pin(&mut self, slot: u32) {
        if self.pins.is_empty() {
            self.pins = vec![0; self.states.len()];
        }
        self.pins[slot as usize] += 1;
    }

    pub(crate) fn unpin(&mut self, slot: u32) {
        self.pins[slot as usize] -= 1;
        if self.pins[slot as usize] == 0 && self.id(slot) == VACANT {
            self.free.push(slot);
        }
    }
}

/// Slots that stay as they are until [`crate::Directory::release`] takes them back.
#[must_use = "slots stay pinned until the ticket is released"]
pub struct PinTicket(pub(crate) Vec<u32>);

impl PinTicket {
    pub(crate) fn of(slots: &[u32]) -> Self {
        Self(slots.iter().copied().filter(|&slot| slot != NO_SLOT).collect())
    }
}
