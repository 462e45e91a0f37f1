//! SIEVE (Zhang et al., NSDI 2024, Algorithm 1), in batches.
//!
//! - A list in the order in which slots were filled. A hit marks its slot as visited and moves
//!   nothing; a new row starts unvisited at the front.
//! - The hand starts at the back. While the slot under it is visited, the mark is cleared and the
//!   hand moves towards the front; past the front it starts at the back again. The first slot
//!   that is not visited is taken, and the hand stays in front of it.
//! - The hand passes held slots and leaves their marks.

use super::Policy;
use crate::arena::ArenaError;
use crate::index::NO_SLOT;
use crate::links::Links;
use crate::pages::PageVec;
use crate::slots::Slots;

const LIST: u32 = 0;

pub(crate) struct Sieve {
    links: Links,
    visited: PageVec<u8>,
    /// `None`: at the back.
    hand: Option<u32>,
    n_rows: usize,
    /// The current batch has found all slots held.
    is_exhausted: bool,
}

impl Sieve {
    pub(super) fn planned_bytes(n_slots: u32) -> usize {
        n_slots as usize * (Links::SLOT_BYTES + size_of::<u8>()) + Links::LIST_BYTES
    }

    pub(super) fn new(n_slots: u32) -> Result<Self, ArenaError> {
        Ok(Self {
            links: Links::new(n_slots, 1)?,
            visited: PageVec::new(n_slots as usize)?,
            hand: None,
            n_rows: 0,
            is_exhausted: false,
        })
    }

    fn unlink(&mut self, slot: u32) {
        if self.hand == Some(slot) {
            self.hand = self.links.before(LIST, slot);
        }
        self.links.unlink(LIST, slot);
        self.n_rows -= 1;
    }
}

impl Policy for Sieve {
    fn begin_batch(&mut self) {
        self.is_exhausted = false;
    }

    fn on_lookup(&mut self, _first: usize, _ids: &[u32], slots: &[u32]) {
        let visited: &mut [u8] = &mut self.visited;
        for &slot in slots {
            if slot != NO_SLOT {
                visited[slot as usize] = 1;
            }
        }
    }

    fn evict(&mut self, _id: u32, _position: u32, slots: &Slots) -> Option<u32> {
        if self.is_exhausted {
            return None;
        }
        // Twice around: the first time may only clear marks.
        for _ in 0..2 * self.n_rows {
            let slot = self.hand.or_else(|| self.links.back(LIST))?;
            let is_held = slots.is_held(slot);
            if !is_held && std::mem::replace(&mut self.visited[slot as usize], 0) == 0 {
                self.hand = Some(slot);
                self.unlink(slot);
                return Some(slot);
            }
            self.hand = self.links.before(LIST, slot);
        }
        self.is_exhausted = true;
        None
    }

    fn insert(&mut self, _id: u32, _position: u32, slot: u32) {
        self.visited[slot as usize] = 0;
        self.links.push_front(LIST, slot);
        self.n_rows += 1;
    }

    fn on_remove(&mut self, _id: u32, slot: u32) {
        self.unlink(slot);
    }

    fn bytes(&self) -> usize {
        self.links.bytes() + self.visited.bytes()
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
