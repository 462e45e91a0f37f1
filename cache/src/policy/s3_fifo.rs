//! S3-FIFO (Yang et al., SOSP 2023, Algorithm 1), in batches.
//!
//! - Three queues: small (a tenth of the slots), main (the others), and ghost. Ghost has only ids:
//!   those of the last rows that went from small for good, as many as main has slots.
//! - A hit raises the row's count, up to 3. A new row whose id is in ghost enters main, any other
//!   enters small, with count 0.
//! - A slot is needed and small has its tenth: the back of small leaves it. If its count is above
//!   1, it moves to main with count 0, and main gives up a slot if it is then too long. Else it
//!   goes to ghost and its slot is free. This repeats until a slot is free.
//! - Main gives up a slot: its back, if its count is above 0, goes to the front with one less.
//!   Until one has none.
//! - As published: Algorithm 1 inserts into small whatever ghost does not know, from the first row
//!   on. So small grows over its tenth until no slot is free. The authors' simulator, libCacheSim
//!   (`S3FIFO.c`; the paper's is its `S3FIFOv0.c`), differs. Until the first eviction, rows that
//!   find small with its tenth go to main. On sampled epochs that changes little. Its hit rate is
//!   0.3 points lower with slots for 1 % of the rows, and 0.1 to 0.3 higher for 10 to 50 % of them.
//!   It wins in loops longer than the cache, of which it keeps the part that came first. Other
//!   policies are for these (`degree`, `overlap`), so it is not ours.
//! - Held slots are passed over. A new row that finds only its own batch in small would be the next
//!   to leave it. So it is not kept, and goes straight to ghost.

use super::{Offer, Piece, Policy};
use crate::huge_vec::{HugeVec, MemoryError};
use crate::queues::{QueueSize, Queues};
use crate::slots::Slots;

const SMALL: u32 = 0;
const MAIN: u32 = 1;

/// Rows of main that go to its front for each that it gives up, about: those to read ahead.
const N_PASSED: usize = 2;

/// Most that a row's count says.
const MAX_COUNT: u8 = 3;

pub(crate) struct S3Fifo {
    queues: Queues,
    /// For each slot its count.
    counts: HugeVec<u8>,
    caps: [u32; 2],
    /// The row that has just gone went from small, or would have.
    remembers: bool,
}

/// Returns the slots of small and main.
fn caps(n_slots: u32) -> [u32; 2] {
    let small = (n_slots / 10).max(1).min(n_slots);
    [small, n_slots - small]
}

/// Returns the number of ids in ghost.
pub(super) fn n_ghosts(n_slots: u32) -> u32 {
    caps(n_slots)[1]
}

impl S3Fifo {
    pub(super) fn planned_bytes(n_slots: u32) -> usize {
        Queues::planned_bytes(&[QueueSize::in_turn(n_slots); 2]) + n_slots as usize
    }

    pub(super) fn new(n_slots: u32) -> Result<Self, MemoryError> {
        Ok(Self {
            queues: Queues::new(&[QueueSize::in_turn(n_slots); 2])?,
            counts: HugeVec::new(n_slots as usize)?,
            caps: caps(n_slots),
            remembers: false,
        })
    }

    fn push_front(&mut self, queue: u32, slot: u32, count: u8, slots: &mut Slots) {
        self.counts[slot as usize] = count;
        self.queues.push_front(queue, slot, slots);
    }

    fn evict_small(&mut self, slots: &mut Slots) -> Option<u32> {
        while let Some(slot) = self.queues.pop_oldest(SMALL, slots) {
            if self.counts[slot as usize] <= 1 {
                self.remembers = true;
                return Some(slot);
            }
            self.push_front(MAIN, slot, 0, slots);
            if self.queues.n_slots(MAIN) > self.caps[MAIN as usize] {
                return self.evict_main(slots);
            }
        }
        None
    }

    fn evict_main(&mut self, slots: &mut Slots) -> Option<u32> {
        while let Some(slot) = self.queues.pop_oldest(MAIN, slots) {
            match self.counts[slot as usize] {
                0 => return Some(slot),
                count => self.push_front(MAIN, slot, count - 1, slots),
            }
        }
        None
    }
}

impl Policy for S3Fifo {
    fn on_lookup(&mut self, piece: &Piece<'_>, _slots: &mut Slots) {
        let counts: &mut [u8] = &mut self.counts;
        for &slot in piece.hits {
            let count = &mut counts[slot as usize];
            *count = (*count + 1).min(MAX_COUNT);
        }
    }

    fn prepare(&mut self, ids: &[u32], slots: &Slots) {
        slots.prefetch(self.queues.next(SMALL, ids.len(), slots));
        slots.prefetch(self.queues.next(MAIN, N_PASSED * ids.len(), slots));
    }

    fn evict(&mut self, offer: Offer, slots: &mut Slots) -> Option<u32> {
        self.remembers = false;
        if self.queues.n_slots(SMALL) < self.caps[SMALL as usize] {
            return self.evict_main(slots).or_else(|| self.evict_small(slots));
        }
        let slot = self.evict_small(slots);
        if slot.is_some() || offer.is_remembered {
            return slot.or_else(|| self.evict_main(slots));
        }
        self.remembers = true;
        None
    }

    fn remembers(&mut self) -> bool {
        self.remembers
    }

    fn insert(&mut self, offer: Offer, slot: u32, slots: &mut Slots) {
        let queue = if offer.is_remembered { MAIN } else { SMALL };
        self.push_front(queue, slot, 0, slots);
    }

    fn on_remove(&mut self, _id: u32, slot: u32, slots: &mut Slots) {
        let queue = self.queues.queue_of(slot, slots);
        self.queues.unlink(queue, slot, slots);
    }

    fn bytes(&self) -> usize {
        self.queues.bytes() + self.counts.bytes()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tests::{Naive, Order};
    use std::collections::{HashMap, VecDeque};

    pub(crate) struct NaiveS3Fifo {
        caps: [u32; 2],
        small: Order,
        main: Order,
        counts: HashMap<u32, u8>,
        /// `None`: came back.
        ghosts: VecDeque<Option<u32>>,
    }

    impl NaiveS3Fifo {
        pub(crate) fn new(n_slots: u32) -> Self {
            Self {
                caps: super::caps(n_slots),
                small: Order::default(),
                main: Order::default(),
                counts: HashMap::new(),
                ghosts: VecDeque::new(),
            }
        }

        fn remember(&mut self, id: u32) {
            self.ghosts.push_back(Some(id));
            while self.ghosts.len() > self.caps[1] as usize {
                self.ghosts.pop_front();
            }
        }

        fn evict_main(&mut self, held: &dyn Fn(u32) -> bool) -> Option<u32> {
            loop {
                let id = self.main.take_oldest(held)?;
                if self.counts[&id] == 0 {
                    return Some(id);
                }
                *self.counts.get_mut(&id).unwrap() -= 1;
                self.main.push_front(id);
            }
        }

        fn evict_small(&mut self, held: &dyn Fn(u32) -> bool) -> Option<u32> {
            loop {
                let id = self.small.take_oldest(held)?;
                if self.counts[&id] <= 1 {
                    self.remember(id);
                    return Some(id);
                }
                self.counts.insert(id, 0);
                self.main.push_front(id);
                if self.main.len() > self.caps[1] as usize {
                    return self.evict_main(held);
                }
            }
        }
    }

    impl Naive for NaiveS3Fifo {
        fn hit(&mut self, id: u32) {
            let count = self.counts.get_mut(&id).unwrap();
            *count = (*count + 1).min(3);
        }

        fn evict(&mut self, id: u32, held: &dyn Fn(u32) -> bool) -> Option<u32> {
            if self.small.len() < self.caps[0] as usize {
                return self.evict_main(held).or_else(|| self.evict_small(held));
            }
            if let Some(victim) = self.evict_small(held) {
                return Some(victim);
            }
            if self.ghosts.contains(&Some(id)) {
                return self.evict_main(held);
            }
            self.remember(id);
            None
        }

        fn insert(&mut self, id: u32) {
            self.counts.insert(id, 0);
            match self.ghosts.iter_mut().find(|ghost| **ghost == Some(id)) {
                Some(ghost) => {
                    *ghost = None;
                    self.main.push_front(id);
                }
                None => self.small.push_front(id),
            }
        }

        fn remove(&mut self, id: u32) {
            self.small.take(id);
            self.main.take(id);
        }
    }
}
