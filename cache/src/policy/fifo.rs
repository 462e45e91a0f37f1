//! FIFO, in batches.
//!
//! - A list of all slots in the order in which they were filled. Hits change nothing.
//! - A new row takes the slot at the back, or the nearest to it that is not held.

use std::hint::black_box;

use super::Policy;
use crate::arena::ArenaError;
use crate::links::Links;
use crate::slots::Slots;

const LIST: u32 = 0;

pub(crate) struct Fifo {
    links: Links,
}

impl Fifo {
    pub(super) fn planned_bytes(n_slots: u32) -> usize {
        n_slots as usize * Links::SLOT_BYTES + Links::LIST_BYTES
    }

    pub(super) fn new(n_slots: u32) -> Result<Self, ArenaError> {
        Ok(Self { links: Links::new(n_slots, 1)? })
    }
}

impl Policy for Fifo {
    fn prepare(&self, ids: &[u32], slots: &Slots) {
        black_box(self.links.next_ids(LIST, slots).take(ids.len()).fold(0, |seen, id| seen ^ id));
    }

    fn evict(&mut self, _id: u32, _position: u32, slots: &Slots) -> Option<u32> {
        let slot = self.links.oldest(LIST, slots)?;
        self.links.unlink(LIST, slot);
        Some(slot)
    }

    fn insert(&mut self, _id: u32, _position: u32, slot: u32) {
        self.links.push_front(LIST, slot);
    }

    fn on_remove(&mut self, _id: u32, slot: u32) {
        self.links.unlink(LIST, slot);
    }

    fn bytes(&self) -> usize {
        self.links.bytes()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tests::{Naive, Order};

    #[derive(Default)]
    pub(crate) struct NaiveFifo {
        order: Order,
    }

    impl Naive for NaiveFifo {
        fn evict(&mut self, _id: u32, held: &dyn Fn(u32) -> bool) -> Option<u32> {
            self.order.take_oldest(held)
        }

        fn insert(&mut self, id: u32) {
            self.order.push_front(id);
        }

        fn remove(&mut self, id: u32) {
            self.order.take(id);
        }
    }
}
