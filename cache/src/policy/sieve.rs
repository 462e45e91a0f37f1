//! SIEVE (Zhang et al., NSDI 2024, Algorithm 1), in batches.
//!
//! - A queue in the order in which slots were filled. A hit marks its slot as visited and moves
//!   nothing; a new row starts unvisited at the front.
//! - The hand starts at the back. While the slot under it is visited, the mark is cleared and the
//!   hand moves towards the front. Past the front it starts at the back again. The first slot that
//!   is not visited is taken, and the hand stays in front of it.
//! - The hand passes held slots and leaves their marks.

use super::{Offer, Piece, Policy};
use crate::huge_vec::{HugeVec, MemoryError};
use crate::queues::{QueueSize, Queues};
use crate::slots::Slots;

const QUEUE: u32 = 0;

/// Slots that the hand passes for each that it takes, about: those to read ahead.
const N_PASSED: usize = 4;

pub(crate) struct Sieve {
    queues: Queues,
    visited: HugeVec<u8>,
    /// `None`: at the back.
    hand: Option<u32>,
    /// The current batch has found all slots held.
    is_exhausted: bool,
}

impl Sieve {
    pub(super) fn planned_bytes(n_slots: u32) -> usize {
        Queues::planned_bytes(&[QueueSize::any_order(n_slots)]) + n_slots as usize * size_of::<u8>()
    }

    pub(super) fn new(n_slots: u32) -> Result<Self, MemoryError> {
        Ok(Self {
            queues: Queues::new(&[QueueSize::any_order(n_slots)])?,
            visited: HugeVec::new(n_slots as usize)?,
            hand: None,
            is_exhausted: false,
        })
    }

    fn unlink(&mut self, slot: u32, slots: &Slots) {
        if self.hand == Some(slot) {
            self.hand = self.queues.before(QUEUE, slot, slots);
        }
        self.queues.unlink(QUEUE, slot, slots);
    }
}

impl Policy for Sieve {
    fn begin_batch(&mut self) {
        self.is_exhausted = false;
    }

    fn on_lookup(&mut self, piece: &Piece<'_>, _slots: &mut Slots) {
        let visited: &mut [u8] = &mut self.visited;
        for &slot in piece.hits {
            visited[slot as usize] = 1;
        }
    }

    fn prepare(&mut self, ids: &[u32], slots: &Slots) {
        let under_hand = self.queues.onwards(QUEUE, self.hand, N_PASSED * ids.len(), slots);
        let going = under_hand.filter(|&slot| self.visited[slot as usize] == 0);
        slots.prefetch(going.take(ids.len()));
    }

    fn evict(&mut self, _offer: Offer, slots: &mut Slots) -> Option<u32> {
        if self.is_exhausted {
            return None;
        }
        // Twice around: the first time may only clear marks.
        for _ in 0..2 * u64::from(self.queues.n_slots(QUEUE)) {
            let slot = self.hand.or_else(|| self.queues.back(QUEUE))?;
            let is_held = slots.is_held(slot);
            if !is_held && std::mem::replace(&mut self.visited[slot as usize], 0) == 0 {
                self.hand = Some(slot);
                self.unlink(slot, slots);
                return Some(slot);
            }
            self.hand = self.queues.before(QUEUE, slot, slots);
        }
        self.is_exhausted = true;
        None
    }

    fn insert(&mut self, _offer: Offer, slot: u32, slots: &mut Slots) {
        self.visited[slot as usize] = 0;
        self.queues.push_front(QUEUE, slot, slots);
    }

    fn on_remove(&mut self, _id: u32, slot: u32, slots: &mut Slots) {
        self.unlink(slot, slots);
    }

    fn is_hot(&self, slot: u32) -> bool {
        self.visited[slot as usize] != 0
    }

    fn bytes(&self) -> usize {
        self.queues.bytes() + self.visited.bytes()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tests::Naive;

    /// Front first.
    #[derive(Default)]
    pub(crate) struct NaiveSieve {
        rows: Vec<(u32, bool)>,
        hand: Option<u32>,
    }

    impl NaiveSieve {
        fn take(&mut self, at: usize) -> u32 {
            let (id, _) = self.rows.remove(at);
            if self.hand == Some(id) {
                self.hand = at.checked_sub(1).map(|at| self.rows[at].0);
            }
            id
        }
    }

    impl Naive for NaiveSieve {
        fn hit(&mut self, id: u32) {
            self.rows.iter_mut().filter(|row| row.0 == id).for_each(|row| row.1 = true);
        }

        fn evict(&mut self, _id: u32, held: &dyn Fn(u32) -> bool) -> Option<u32> {
            if self.rows.iter().all(|row| held(row.0)) {
                return None;
            }
            loop {
                let under_hand = self.rows.iter().position(|row| Some(row.0) == self.hand);
                let at = under_hand.unwrap_or(self.rows.len() - 1);
                let (id, visited) = self.rows[at];
                if !held(id) && !visited {
                    self.hand = Some(id);
                    return Some(self.take(at));
                }
                if !held(id) {
                    self.rows[at].1 = false;
                }
                self.hand = at.checked_sub(1).map(|at| self.rows[at].0);
            }
        }

        fn insert(&mut self, id: u32) {
            self.rows.insert(0, (id, false));
        }

        fn remove(&mut self, id: u32) {
            let at = self.rows.iter().position(|row| row.0 == id).unwrap();
            self.take(at);
        }
    }
}
