//! LRU, in batches.
//!
//! - A list of all slots. A hit moves its slot to the front; a new row starts there.
//! - A new row takes the slot at the back, or the nearest to it that is not held.

use std::hint::black_box;

use super::Policy;
use crate::arena::ArenaError;
use crate::index::NO_SLOT;
use crate::links::Links;
use crate::slots::Slots;

const LIST: u32 = 0;

pub(crate) struct Lru {
    links: Links,
}

impl Lru {
    pub(super) fn planned_bytes(n_slots: u32) -> usize {
        n_slots as usize * Links::SLOT_BYTES + Links::LIST_BYTES
    }

    pub(super) fn new(n_slots: u32) -> Result<Self, ArenaError> {
        Ok(Self { links: Links::new(n_slots, 1)? })
    }
}

impl Policy for Lru {
    fn on_lookup(&mut self, _first: usize, _ids: &[u32], slots: &[u32]) {
        self.links.touch(slots);
        for &slot in slots {
            if slot != NO_SLOT {
                self.links.unlink(LIST, slot);
                self.links.push_front(LIST, slot);
            }
        }
    }

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
    use super::*;

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
            lru.insert(id, 0, slot);
        }
        assert_eq!(lru.evict(9, 0, &slots), None, "the batch's own rows stay");
        slots.begin_batch();
        slots.read(&[0]);
        lru.on_lookup(0, &[0, 9], &[0, NO_SLOT]);
        assert_eq!(lru.links.slots(LIST), [0, 2, 1]);
        assert_eq!(lru.evict(9, 0, &slots), Some(1));
        lru.on_remove(2, 2);
        assert_eq!(lru.links.slots(LIST), [0]);
        assert_eq!(lru.evict(9, 0, &slots), None);
    }
}
