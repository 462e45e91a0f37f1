//! Contents of each slot of a directory, and the slots that must stay as they are.

use bytemuck::{Pod, Zeroable};

use crate::huge_vec::{HugeVec, MemoryError};

/// In the place of a slot: the row is not resident.
pub const NO_SLOT: u32 = u32::MAX;

/// Returns the positions of a look-up whose rows are not resident, ascending.
pub(crate) fn absent(slots: &[u32]) -> impl Iterator<Item = u32> {
    (0..).zip(slots).filter(|&(_, &slot)| slot == NO_SLOT).map(|(position, _)| position)
}

/// In the place of an id: a slot whose row was removed. Ids are below the id space, so none is it.
pub(crate) const VACANT: u32 = u32::MAX;

/// Both are adjacent, since most uses of one need the other.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct SlotState {
    id: u32,
    /// Word of the policy for the slot.
    word: u32,
}

/// The slots of a directory. A slot that the current batch has read or filled is held: no policy
/// may give it to another row.
pub(crate) struct Slots {
    states: HugeVec<SlotState>,
    /// A bit per slot: the current batch has read or filled it. Bits, so that they stay in the
    /// processor's caches.
    held: Vec<u64>,
    /// The first `n_words_held` are the words of `held` that are not 0.
    words_held: Vec<u32>,
    n_words_held: usize,
    /// Slots that were ever filled: those below.
    n_used: u32,
    /// Slots below `n_used` that are free.
    free: Vec<u32>,
    n_resident: u32,
    /// Number of the current batch; the first is 1.
    batch: u32,
}

impl Slots {
    /// Returns the memory of `n` slots, in bytes: their states, a place among the free ones, and
    /// bits.
    pub(crate) fn planned_bytes(n_slots: u32) -> usize {
        let per_slot = size_of::<SlotState>() + size_of::<u32>();
        let n_words = (n_slots as usize).div_ceil(64);
        n_slots as usize * per_slot
            + n_words * (size_of::<u64>() + size_of::<u32>())
            + size_of::<u32>()
    }

    pub(crate) fn new(n_slots: u32) -> Result<Self, MemoryError> {
        let n_words = (n_slots as usize).div_ceil(64);
        Ok(Self {
            states: HugeVec::new(n_slots as usize)?,
            held: vec![0; n_words],
            // One more, for the word that is written and not counted.
            words_held: vec![0; n_words + 1],
            n_words_held: 0,
            n_used: 0,
            // Memory that is taken when rows are removed.
            free: Vec::with_capacity(n_slots as usize),
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

    /// Returns the number of the current batch.
    #[inline]
    pub(crate) fn batch(&self) -> u32 {
        self.batch
    }

    /// Begins a batch: slots that the last one held may be given up.
    pub(crate) fn begin_batch(&mut self) {
        for &at in &self.words_held[..self.n_words_held] {
            self.held[at as usize] = 0;
        }
        self.n_words_held = 0;
        self.batch = self.batch.wrapping_add(1);
    }

    /// Holds slots that the current batch reads.
    pub(crate) fn read(&mut self, slots: &[u32]) {
        slots.iter().for_each(|&slot| self.hold(slot));
    }

    #[inline]
    fn hold(&mut self, slot: u32) {
        let at = slot as usize / 64;
        let word = &mut self.held[at];
        // Without a branch, for nothing would predict it.
        self.words_held[self.n_words_held] = at as u32;
        self.n_words_held += usize::from(*word == 0);
        *word |= 1 << (slot % 64);
    }

    /// Has the words and ids of these slots read.
    pub(crate) fn prefetch(&self, slots: impl Iterator<Item = u32>) {
        slots.for_each(|slot| self.states.prefetch(slot as usize));
    }

    /// Returns the policy's word for a slot.
    #[inline]
    pub(crate) fn word(&self, slot: u32) -> u32 {
        self.states[slot as usize].word
    }

    #[inline]
    pub(crate) fn set_word(&mut self, slot: u32, word: u32) {
        self.states[slot as usize].word = word;
    }

    /// Returns whether the row in a slot must stay.
    #[inline]
    pub(crate) fn is_held(&self, slot: u32) -> bool {
        self.held[slot as usize / 64] >> (slot % 64) & 1 != 0
    }

    /// Returns the id in a slot, or [`VACANT`].
    #[inline]
    pub(crate) fn id(&self, slot: u32) -> u32 {
        self.states[slot as usize].id
    }

    /// Returns all rows held: ids with their slots, in the order of slots.
    pub(crate) fn residents(&self) -> impl Iterator<Item = (u32, u32)> {
        let used = &self.states[..self.n_used as usize];
        (0..)
            .zip(used)
            .filter(|(_, state)| state.id != VACANT)
            .map(|(slot, state)| (state.id, slot))
    }

    /// Returns whether no slot is free.
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.n_used as usize == self.states.len()
    }

    /// Returns the number of slots that have had a row, which are the first.
    pub(crate) fn n_used(&self) -> u32 {
        self.n_used
    }

    /// Returns whether there is a slot that never had a row.
    pub(crate) fn has_unused(&self) -> bool {
        (self.n_used as usize) < self.states.len()
    }

    /// Takes a slot without a row: the one that was freed last, then those never filled, from 0 on.
    #[inline]
    pub(crate) fn take_free(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| self.take_unused())
    }

    /// Takes a slot that never had a row.
    #[inline]
    pub(crate) fn take_unused(&mut self) -> Option<u32> {
        let slot = self.n_used;
        if slot as usize == self.states.len() {
            return None;
        }
        self.n_used += 1;
        self.states[slot as usize].id = VACANT;
        Some(slot)
    }

    /// Fills `slot` for the current batch; returns the id that was there, or [`VACANT`].
    #[inline]
    pub(crate) fn fill(&mut self, slot: u32, id: u32) -> u32 {
        self.hold(slot);
        let before = std::mem::replace(&mut self.states[slot as usize].id, id);
        self.n_resident += u32::from(before == VACANT);
        before
    }

    /// Removes the row in `slot`, which becomes free.
    pub(crate) fn vacate(&mut self, slot: u32) {
        self.states[slot as usize].id = VACANT;
        self.n_resident -= 1;
        self.free.push(slot);
    }

    /// Returns the memory of the slots, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let n_words = self.words_held.capacity() + self.free.capacity();
        self.states.bytes() + self.held.capacity() * size_of::<u64>() + n_words * size_of::<u32>()
    }
}
