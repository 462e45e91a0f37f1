//! LRU, in batches.
//!
//! - A queue of all slots. A hit moves its slot to the front; a new row starts there.
//! - A new row takes the slot at the back, or the nearest to it that is not held.

use super::{Offer, Piece, Policy};
use crate::huge_vec::MemoryError;
use crate::queues::{QueueSize, Queues};
use crate::slots::Slots;

const QUEUE: u32 = 0;

pub(crate) struct Lru {
    queues: Queues,
}

impl Lru {
    pub(super) fn planned_bytes(n_slots: u32) -> usize {
        Queues::planned_bytes(&[QueueSize::any_order(n_slots)])
    }

    pub(super) fn new(n_slots: u32) -> Result<Self, MemoryError> {
        Ok(Self { queues: Queues::new(&[QueueSize::any_order(n_slots)])? })
    }
}

impl Policy for Lru {
    fn on_lookup(&mut self, piece: &Piece<'_>, slots: &mut Slots) {
        self.queues.prefetch(piece.hits, slots);
        for &slot in piece.hits {
            self.queues.unlink(QUEUE, slot, slots);
            self.queues.push_front(QUEUE, slot, slots);
        }
    }

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
    use super::super::tests::{Naive, Order, offer};
    use super::*;
    use crate::slots::NO_SLOT;

    #[derive(Default)]
    pub(crate) struct NaiveLru {
        /// Used last first.
        pub(crate) order: Order,
    }

    impl Naive for NaiveLru {
        fn hit(&mut self, id: u32) {
            self.order.take(id);
            self.order.push_front(id);
        }

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

    #[test]
    fn the_list_is_in_the_order_of_use() {
        let mut slots = Slots::new(3).unwrap();
        let mut lru = Lru::new(3).unwrap();
        slots.begin_batch();
        for id in 0..3 {
            let slot = slots.take_free().unwrap();
            slots.fill(slot, id);
            lru.insert(offer(id), slot, &mut slots);
        }
        assert_eq!(lru.evict(offer(9), &mut slots), None, "the batch's own rows stay");
        slots.begin_batch();
        slots.read(&[0]);
        let piece = Piece { ids: &[0, 9], found: &[0, NO_SLOT], hits: &[0], positions: &[0] };
        lru.on_lookup(&piece, &mut slots);
        assert_eq!(lru.queues.slots(QUEUE), [0, 2, 1]);
        assert_eq!(lru.evict(offer(9), &mut slots), Some(1));
        lru.on_remove(2, 2, &mut slots);
        assert_eq!(lru.queues.slots(QUEUE), [0]);
        assert_eq!(lru.evict(offer(9), &mut slots), None);
    }
}
