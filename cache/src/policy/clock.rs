//! CLOCK (Corbató 1968), in batches.
//!
//! - A hit sets the slot's bit.
//! - A new row takes the slot under the hand if its bit is clear; else the bit is cleared, the
//!   hand moves on, and it tries again.
//! - A new row starts with a clear bit: most rows of a batch are not seen again soon, and must
//!   not outlive those that are.
//! - The hand skips slots that the current batch has filled, so that a batch never evicts its own
//!   rows; when it has filled all slots, its other rows are not kept.

use crate::index::NO_SLOT;

/// State of one slot.
type Mark = u8;
/// Not read since the hand last passed; also a slot that was never filled.
const CLEAR: Mark = 0;
/// Read since the hand last passed.
const READ: Mark = 1;
/// Filled by the current batch.
const FRESH: Mark = 2;

pub(crate) struct Clock {
    marks: Vec<Mark>,
    hand: u32,
    /// Slots filled by the current batch, in order.
    fresh: Vec<u32>,
}

impl Clock {
    /// A mark, and an entry in `fresh` if one batch fills all slots.
    pub(super) const SLOT_BYTES: usize = size_of::<Mark>() + size_of::<u32>();

    pub(super) fn new(n_slots: u32) -> Self {
        Self { marks: vec![CLEAR; n_slots as usize], hand: 0, fresh: Vec::new() }
    }

    pub(super) fn on_lookup(&mut self, slots: &[u32]) {
        for &slot in slots {
            if slot != NO_SLOT {
                self.marks[slot as usize] = READ;
            }
        }
    }

    pub(super) fn place(&mut self) -> Option<u32> {
        if self.fresh.len() == self.marks.len() {
            return None;
        }
        loop {
            let slot = self.hand;
            self.hand = if slot as usize + 1 == self.marks.len() { 0 } else { slot + 1 };
            let mark = &mut self.marks[slot as usize];
            match *mark {
                FRESH => {}
                READ => *mark = CLEAR,
                _ => {
                    *mark = FRESH;
                    self.fresh.push(slot);
                    return Some(slot);
                }
            }
        }
    }

    /// An empty slot is the first that the hand takes when it passes.
    pub(super) fn on_remove(&mut self, slot: u32) {
        self.marks[slot as usize] = CLEAR;
    }

    pub(super) fn end_batch(&mut self) {
        for slot in self.fresh.drain(..) {
            self.marks[slot as usize] = CLEAR;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place_batch(clock: &mut Clock, n: usize) -> Vec<u32> {
        let slots = (0..n).map_while(|_| clock.place()).collect();
        clock.end_batch();
        slots
    }

    #[test]
    fn free_slots_are_filled_in_order_then_unread_ones() {
        let mut clock = Clock::new(4);
        assert_eq!(place_batch(&mut clock, 3), [0, 1, 2]);
        clock.on_lookup(&[0, NO_SLOT, 2]);
        assert_eq!(clock.marks, [READ, CLEAR, READ, CLEAR]);
        assert_eq!(place_batch(&mut clock, 1), [3]);
        assert_eq!((clock.hand, &clock.marks[..]), (0, &[READ, CLEAR, READ, CLEAR][..]));
        assert_eq!(place_batch(&mut clock, 1), [1]);
        assert_eq!((clock.hand, &clock.marks[..]), (2, &[CLEAR, CLEAR, READ, CLEAR][..]));
        assert_eq!(place_batch(&mut clock, 2), [3, 0]);
        assert_eq!((clock.hand, &clock.marks[..]), (1, &[CLEAR; 4][..]));
    }

    #[test]
    fn a_slot_whose_row_is_gone_is_taken_as_the_hand_passes() {
        let mut clock = Clock::new(3);
        place_batch(&mut clock, 3);
        clock.on_lookup(&[0, 1, 2]);
        clock.on_remove(1);
        assert_eq!(place_batch(&mut clock, 1), [1]);
        assert_eq!((clock.hand, &clock.marks[..]), (2, &[CLEAR, CLEAR, READ][..]));
    }

    #[test]
    fn a_batch_larger_than_the_tier_fills_each_slot_once() {
        let mut clock = Clock::new(3);
        assert_eq!(place_batch(&mut clock, 9), [0, 1, 2]);
        clock.on_lookup(&[0, 1]);
        let mut slots = place_batch(&mut clock, 9);
        assert_eq!(slots, [2, 0, 1]);
        slots.sort_unstable();
        assert_eq!(slots, [0, 1, 2]);
        assert!(place_batch(&mut Clock::new(0), 9).is_empty());
    }
}
