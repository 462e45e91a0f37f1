//! CLOCK (Corbató 1968), in batches.
//!
//! - A hit sets the slot's bit.
//! - A new row takes the slot under the hand if its bit is clear. Else the bit is cleared, the hand
//!   moves on, and it tries again. The hand passes held slots and leaves their bits.
//! - A new row starts with a clear bit: most rows of a batch are not seen again soon, and must
//!   not outlive those that are.

use super::{Offer, Piece, Policy};
use crate::huge_vec::{HugeVec, MemoryError};
use crate::slots::Slots;

/// State of one slot.
type Mark = u8;
/// Not read since the hand last passed.
const CLEAR: Mark = 0;
/// Read since the hand last passed.
const READ: Mark = 1;

pub(crate) struct Clock {
    marks: HugeVec<Mark>,
    hand: u32,
    /// The current batch has found all slots held.
    is_exhausted: bool,
}

impl Clock {
    pub(super) fn planned_bytes(n_slots: u32) -> usize {
        n_slots as usize * size_of::<Mark>()
    }

    pub(super) fn new(n_slots: u32) -> Result<Self, MemoryError> {
        Ok(Self { marks: HugeVec::new(n_slots as usize)?, hand: 0, is_exhausted: false })
    }
}

impl Policy for Clock {
    fn begin_batch(&mut self) {
        self.is_exhausted = false;
    }

    fn on_lookup(&mut self, piece: &Piece<'_>, _slots: &mut Slots) {
        let marks: &mut [Mark] = &mut self.marks;
        for &slot in piece.hits {
            marks[slot as usize] = READ;
        }
    }

    fn evict(&mut self, _offer: Offer, slots: &mut Slots) -> Option<u32> {
        if self.is_exhausted {
            return None;
        }
        let marks: &mut [Mark] = &mut self.marks;
        // Two rounds: the first may only clear bits.
        for _ in 0..2 * marks.len() {
            let slot = self.hand;
            self.hand = if slot as usize + 1 == marks.len() { 0 } else { slot + 1 };
            if slots.is_held(slot) {
                continue;
            }
            if std::mem::replace(&mut marks[slot as usize], CLEAR) == CLEAR {
                return Some(slot);
            }
        }
        self.is_exhausted = true;
        None
    }

    fn insert(&mut self, _offer: Offer, slot: u32, _slots: &mut Slots) {
        self.marks[slot as usize] = CLEAR;
    }

    fn is_hot(&self, slot: u32) -> bool {
        self.marks[slot as usize] == READ
    }

    fn bytes(&self) -> usize {
        self.marks.bytes()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tests::{Naive, offer};
    use super::*;
    use crate::slots::NO_SLOT;

    /// Rows by slot, each with its bit; slots are given out as a directory does.
    #[derive(Default)]
    pub(crate) struct NaiveClock {
        rows: Vec<Option<(u32, bool)>>,
        free: Vec<usize>,
        hand: usize,
    }

    impl Naive for NaiveClock {
        fn hit(&mut self, id: u32) {
            self.rows.iter_mut().flatten().filter(|row| row.0 == id).for_each(|row| row.1 = true);
        }

        fn evict(&mut self, _id: u32, held: &dyn Fn(u32) -> bool) -> Option<u32> {
            if self.rows.iter().flatten().all(|row| held(row.0)) {
                return None;
            }
            loop {
                let at = self.hand;
                self.hand = (at + 1) % self.rows.len();
                match &mut self.rows[at] {
                    Some((id, _)) if held(*id) => {}
                    Some((_, read @ true)) => *read = false,
                    row => {
                        self.free.push(at);
                        return row.take().map(|(id, _)| id);
                    }
                }
            }
        }

        fn insert(&mut self, id: u32) {
            match self.free.pop() {
                Some(at) => self.rows[at] = Some((id, false)),
                None => self.rows.push(Some((id, false))),
            }
        }

        fn remove(&mut self, id: u32) {
            let at = self.rows.iter().position(|row| row.is_some_and(|row| row.0 == id)).unwrap();
            self.rows[at] = None;
            self.free.push(at);
        }
    }

    #[test]
    fn the_hand_clears_bits_until_it_finds_one_clear() {
        let mut slots = Slots::new(4).unwrap();
        let mut clock = Clock::new(4).unwrap();
        for id in 0..4 {
            let slot = slots.take_free().unwrap();
            slots.fill(slot, id);
            clock.insert(offer(id), slot, &mut slots);
        }
        slots.begin_batch();
        let (ids, found) = (&[0, 9, 2], &[0, NO_SLOT, 2]);
        clock.on_lookup(&Piece { ids, found, hits: &[0, 2], positions: &[0, 2] }, &mut slots);
        assert_eq!(*clock.marks, [READ, CLEAR, READ, CLEAR]);
        assert_eq!(clock.evict(offer(7), &mut slots), Some(1));
        assert_eq!((clock.hand, &*clock.marks), (2, &[CLEAR, CLEAR, READ, CLEAR][..]));
        slots.read(&[3]);
        slots.fill(1, 7);
        assert_eq!(clock.evict(offer(8), &mut slots), Some(0), "3 is held, 1 was filled");
        assert_eq!((clock.hand, &*clock.marks), (1, &[CLEAR; 4][..]));
        slots.fill(0, 8);
        slots.read(&[2]);
        assert_eq!((clock.evict(offer(9), &mut slots), clock.is_exhausted), (None, true));
    }
}
