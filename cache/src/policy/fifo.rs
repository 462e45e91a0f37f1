//! FIFO, in batches.
//!
//! - A queue of all slots in the order in which they were filled. Hits change nothing.
//! - A new row takes the slot at the back, or the nearest to it that is not held.

use super::{Offer, Policy};
use crate::huge_vec::MemoryError;
use crate::queues::{QueueSize, Queues};
use crate::slots::Slots;

const QUEUE: u32 = 0;

pub(crate) struct Fifo {
    queues: Queues,
}

impl Fifo {
    pub(super) fn planned_bytes(n_slots: u32) -> usize {
        Queues::planned_bytes(&[QueueSize::in_turn(n_slots)])
    }

    pub(super) fn new(n_slots: u32) -> Result<Self, MemoryError> {
        Ok(Self { queues: Queues::new(&[QueueSize::in_turn(n_slots)])? })
    }
}

impl Policy for Fifo {
    fn prepare(&mut self, ids: &[u32], slots: &Slots) {
        slots.prefetch(self.queues.next(QUEUE, ids.len(), slots));
    }

    fn evict(&mut self, _offer: Offer, slots: &mut Slots) -> Option<u32> {
        self.queues.pop_oldest(QUEUE, slots)
    }

    fn insert(&mut self, _offer: Offer, slot: u32, slots: &mut Slots) {
        self.queues.push_front(QUEUE, slot, slots);
    }

    fn on_remove(&mut self, _id: u32, slot: u32, slots: &mut Slots) {
        self.queues.unlink(QUEUE, slot, slots);
    }

    fn bytes(&self) -> usize {
        self.queues.bytes()
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
