//! Queues of slots: rings in which a slot that leaves before its turn is struck out.

use crate::huge_vec::{HugeVec, MemoryError};
use crate::slots::NO_SLOT;
use crate::slots::Slots;

/// In the place of a slot that has left.
const STRUCK: u32 = NO_SLOT;

/// Entries that reading ahead passes for each slot that it is for.
const MOST_STRUCK: usize = 8;

/// Queues, numbered from 0, each slot in at most one of them. The word of a slot in a ring is its
/// place there, so the owner of the queues owns the words of the slots.
///
/// These are rings rather than lists. The next slots to go are adjacent, so the data for giving
/// them up can be prefetched. A slot that moves leaves its neighbours alone. A full ring is
/// compacted: entries that are struck out are removed.
pub(crate) struct Queues {
    /// One region for each ring.
    entries: HugeVec<u32>,
    rings: Vec<SlotRing>,
}

/// Capacity of a ring.
#[derive(Clone, Copy)]
pub(crate) struct QueueSize {
    /// Most slots that are in it at a time.
    pub(crate) n_slots: u32,
    /// More entries than these: a ring is closed up once per this many slots that leave out of
    /// turn.
    pub(crate) n_spare: u32,
}

impl QueueSize {
    /// Returns the size for slots that leave in any order.
    pub(crate) fn any_order(n_slots: u32) -> Self {
        Self { n_slots, n_spare: n_slots }
    }

    /// Returns the size for slots that seldom leave out of turn.
    pub(crate) fn in_turn(n_slots: u32) -> Self {
        Self { n_slots, n_spare: n_slots / 4 }
    }

    /// Returns the entries of the region. One stays empty, which distinguishes a full ring from an
    /// empty one.
    fn n_entries(self) -> usize {
        self.n_slots as usize + self.n_spare as usize + 2
    }
}

/// Entries from `back` up to `front`, around the end of the region.
struct SlotRing {
    start: u32,
    end: u32,
    /// Where the slot that came first is, or one that was struck out.
    back: u32,
    /// Where the next slot goes.
    front: u32,
    n_slots: u32,
    scan: RingScan,
}

/// Position of a search from the back of a ring.
#[derive(Clone, Copy)]
struct RingScan {
    batch: u32,
    /// Behind it are held slots only.
    at: u32,
}

impl SlotRing {
    #[inline]
    fn after(&self, at: u32) -> u32 {
        if at + 1 == self.end { self.start } else { at + 1 }
    }

    #[inline]
    fn before(&self, at: u32) -> u32 {
        if at == self.start { self.end - 1 } else { at - 1 }
    }

    #[inline]
    fn scan_start(&self, slots: &Slots) -> u32 {
        if self.scan.batch == slots.batch() { self.scan.at } else { self.back }
    }
}

impl Queues {
    pub(crate) fn planned_bytes(sizes: &[QueueSize]) -> usize {
        let n_entries = sizes.iter().fold(0usize, |n, room| n.saturating_add(room.n_entries()));
        n_entries.saturating_mul(size_of::<u32>())
            + size_of_val(sizes) / size_of::<QueueSize>() * size_of::<SlotRing>()
    }

    /// Returns empty queues.
    ///
    /// Fails when they have more than 2³² entries, or there is no memory.
    pub(crate) fn new(sizes: &[QueueSize]) -> Result<Self, MemoryError> {
        let mut rings = Vec::with_capacity(sizes.len());
        let mut start = 0;
        for room in sizes {
            let too_large =
                MemoryError::TooLarge { n_slots: room.n_slots, row_bytes: size_of::<u32>() };
            let n_entries = u32::try_from(room.n_entries()).ok();
            let end = n_entries.and_then(|n| n.checked_add(start)).ok_or(too_large)?;
            let scan = RingScan { batch: 0, at: start };
            rings.push(SlotRing { start, end, back: start, front: start, n_slots: 0, scan });
            start = end;
        }
        Ok(Self { entries: HugeVec::new(start as usize)?, rings })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.bytes() + size_of_val(self.rings.as_slice())
    }

    #[inline]
    pub(crate) fn n_slots(&self, queue: u32) -> u32 {
        self.rings[queue as usize].n_slots
    }

    /// Returns the queue that a slot is in.
    #[inline]
    pub(crate) fn queue_of(&self, slot: u32, slots: &Slots) -> u32 {
        let place = slots.word(slot);
        self.rings[1..].iter().map(|ring| u32::from(place >= ring.start)).sum()
    }

    #[inline]
    pub(crate) fn push_front(&mut self, queue: u32, slot: u32, slots: &mut Slots) {
        let mut ring = &mut self.rings[queue as usize];
        if ring.after(ring.front) == ring.back {
            self.close_up(queue, slots);
            ring = &mut self.rings[queue as usize];
        }
        let place = ring.front;
        ring.front = ring.after(place);
        ring.n_slots += 1;
        self.entries[place as usize] = slot;
        slots.set_word(slot, place);
    }

    /// Takes a slot out of the queue that it is in.
    #[inline]
    pub(crate) fn unlink(&mut self, queue: u32, slot: u32, slots: &Slots) {
        self.entries[slots.word(slot) as usize] = STRUCK;
        self.rings[queue as usize].n_slots -= 1;
    }

    /// Has what moving these slots needs read.
    pub(crate) fn prefetch(&self, moving: &[u32], slots: &Slots) {
        slots.prefetch(moving.iter().copied());
        moving.iter().for_each(|&slot| self.entries.prefetch(slots.word(slot) as usize));
    }

    /// Returns the slot at the back.
    #[inline]
    pub(crate) fn back(&mut self, queue: u32) -> Option<u32> {
        let ring = &mut self.rings[queue as usize];
        let entries: &[u32] = &self.entries;
        while ring.back != ring.front {
            let slot = entries[ring.back as usize];
            if slot != STRUCK {
                return Some(slot);
            }
            let after = ring.after(ring.back);
            if ring.scan.at == ring.back {
                ring.scan.at = after;
            }
            ring.back = after;
        }
        None
    }

    /// Returns the slot in front of another one, which is in the queue.
    #[inline]
    pub(crate) fn before(&self, queue: u32, slot: u32, slots: &Slots) -> Option<u32> {
        self.from(queue, slots.word(slot)).nth(1)
    }

    /// Returns about `n` slots from the back on, held or not, for prefetching; see
    /// [`Queues::next`].
    pub(crate) fn next_of_all(&self, queue: u32, n: usize) -> impl Iterator<Item = u32> {
        self.few_from(queue, self.rings[queue as usize].back, n)
    }

    /// Returns the same from a slot of the queue on, or from the back.
    pub(crate) fn onwards(
        &self,
        queue: u32,
        slot: Option<u32>,
        n: usize,
        slots: &Slots,
    ) -> impl Iterator<Item = u32> {
        let back = self.rings[queue as usize].back;
        self.few_from(queue, slot.map_or(back, |slot| slots.word(slot)), n)
    }

    /// Returns the slots from a place on, towards the front.
    fn from(&self, queue: u32, at: u32) -> impl Iterator<Item = u32> {
        self.entries_from(queue, at).filter(|&slot| slot != STRUCK)
    }

    /// Returns the same with what was struck out.
    fn entries_from(&self, queue: u32, at: u32) -> impl Iterator<Item = u32> {
        let ring = &self.rings[queue as usize];
        let entries: &[u32] = &self.entries;
        let places = std::iter::successors(Some(at), |&at| Some(ring.after(at)));
        places.take_while(|&at| at != ring.front).map(|at| entries[at as usize])
    }

    /// Returns the slot nearest to the back that is not held. Slots once found held are passed over
    /// for the rest of the batch, so that a batch pays for each of them once.
    #[inline]
    pub(crate) fn oldest(&mut self, queue: u32, slots: &mut Slots) -> Option<u32> {
        let at = self.oldest_place(queue, slots)?;
        Some(self.entries[at as usize])
    }

    /// Takes that slot out.
    #[inline]
    pub(crate) fn pop_oldest(&mut self, queue: u32, slots: &mut Slots) -> Option<u32> {
        let at = self.oldest_place(queue, slots)?;
        self.rings[queue as usize].n_slots -= 1;
        Some(std::mem::replace(&mut self.entries[at as usize], STRUCK))
    }

    #[inline]
    fn oldest_place(&mut self, queue: u32, slots: &mut Slots) -> Option<u32> {
        let ring = &mut self.rings[queue as usize];
        let entries: &[u32] = &self.entries;
        let start = ring.scan_start(slots);
        let (mut at, mut n_passed, mut n_struck) = (start, 0, 0);
        while at != ring.front {
            match entries[at as usize] {
                STRUCK => n_struck += 1,
                slot if slots.is_held(slot) => n_passed += 1,
                _ => break,
            }
            at = ring.after(at);
        }
        ring.scan = RingScan { batch: slots.batch(), at };
        let is_found = at != ring.front;
        if start == ring.back && n_passed == 0 {
            ring.back = at;
        } else if start == ring.back && n_struck > n_passed {
            // Slots held for long must not make each batch pass what was struck out after them.
            self.move_up(queue, at, slots);
        }
        is_found.then_some(at)
    }

    /// Returns about `n` slots that are looked at next when slots are given up, for prefetching. It
    /// returns fewer where much is struck out. While slots come free otherwise no search passes
    /// that, and a walk over it each time would cost more than it saves.
    pub(crate) fn next(&self, queue: u32, n: usize, slots: &Slots) -> impl Iterator<Item = u32> {
        self.few_from(queue, self.rings[queue as usize].scan_start(slots), n)
    }

    fn few_from(&self, queue: u32, at: u32, n: usize) -> impl Iterator<Item = u32> {
        let entries = self.entries_from(queue, at).take(MOST_STRUCK * n);
        entries.filter(|&slot| slot != STRUCK).take(n)
    }

    /// Moves the slots behind a place up to it, so that nothing is struck out between them.
    fn move_up(&mut self, queue: u32, place: u32, slots: &mut Slots) {
        let ring = &mut self.rings[queue as usize];
        let entries: &mut [u32] = &mut self.entries;
        let (mut from, mut to) = (place, place);
        while from != ring.back {
            from = ring.before(from);
            let slot = entries[from as usize];
            if slot != STRUCK {
                to = ring.before(to);
                entries[to as usize] = slot;
                slots.set_word(slot, to);
            }
        }
        ring.back = to;
    }

    /// Makes room in a ring that is full.
    #[cold]
    fn close_up(&mut self, queue: u32, slots: &mut Slots) {
        self.move_up(queue, self.rings[queue as usize].front, slots);
        let ring = &mut self.rings[queue as usize];
        ring.scan.at = ring.back;
    }

    /// Returns the slots of a queue, front first.
    #[cfg(test)]
    pub(crate) fn slots(&self, queue: u32) -> Vec<u32> {
        let mut slots: Vec<u32> = self.from(queue, self.rings[queue as usize].back).collect();
        slots.reverse();
        slots
    }
}

#[cfg(test)]
mod tests;
