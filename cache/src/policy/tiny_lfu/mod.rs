//! W-TinyLFU (Einziger, Friedman, Manes, ACM TOS 2017), in batches.
//!
//! - Three LRU queues: a window (1 % of the slots), and in the main space probation and protected
//!   (80 % of it). A sketch counts uses of all ids, resident or not.
//! - A new row enters the window. While slots are free, the back of a window that is too long
//!   moves to probation.
//! - A slot is needed: the back of the full window contends with the victim, the back of probation
//!   (of protected, when probation has none). If the sketch has seen it more often, it moves to
//!   probation and the victim goes; else it goes itself.
//! - A hit in probation moves to protected; the back of a protected list that is too long moves
//!   back to probation.
//! - libCacheSim counts other things: hits in main, rows that come and, once more, those that
//!   contend. It has no doorkeeper, and halves after 32 uses per slot where the paper has a sample
//!   of 10. Its misses differ from these by -2.8 to 1.7 % on our traces, more in loops.
//! - Held slots are passed over. A new row that finds only its own batch in the window passes
//!   through it: it contends itself, and enters probation or is not kept.

mod sketch;

use super::{Offer, Piece, Policy};
use crate::huge_vec::MemoryError;
use crate::queues::{QueueSize, Queues};
use crate::slots::Slots;

use sketch::Sketch;

const WINDOW: u32 = 0;
const PROBATION: u32 = 1;
const PROTECTED: u32 = 2;

pub(crate) struct TinyLfu {
    queues: Queues,
    sketch: Sketch,
    window_cap: u32,
    protected_cap: u32,
    /// The queue that the next new row enters.
    entry: u32,
    /// The last victim of this batch, which has not gone, and the estimate of its id.
    victim: Option<(u32, u8)>,
    /// Victims that have gone since slots were last read ahead.
    n_gone: usize,
}

/// Returns the slots of the window and of protected.
fn caps(n_slots: u32) -> (u32, u32) {
    let window = (n_slots / 100).max(1).min(n_slots);
    (window, (u64::from(n_slots - window) * 8 / 10) as u32)
}

/// Returns the sizes of the queues. Each has one more than its limit before it is shortened.
fn sizes(n_slots: u32) -> [QueueSize; 3] {
    let (window, protected) = caps(n_slots);
    [window.saturating_add(1), n_slots, protected.saturating_add(1)].map(QueueSize::any_order)
}

impl TinyLfu {
    pub(super) fn planned_bytes(n_slots: u32) -> usize {
        Queues::planned_bytes(&sizes(n_slots)) + Sketch::planned_bytes(n_slots)
    }

    pub(super) fn new(n_slots: u32) -> Result<Self, MemoryError> {
        let (window_cap, protected_cap) = caps(n_slots);
        Ok(Self {
            queues: Queues::new(&sizes(n_slots))?,
            sketch: Sketch::new(n_slots)?,
            window_cap,
            protected_cap,
            entry: WINDOW,
            victim: None,
            n_gone: 0,
        })
    }

    /// Moves the back of a queue that is too long to probation.
    fn shorten(&mut self, queue: u32, cap: u32, slots: &mut Slots) {
        if self.queues.n_slots(queue) > cap
            && let Some(back) = self.queues.back(queue)
        {
            self.queues.unlink(queue, back, slots);
            self.queues.push_front(PROBATION, back, slots);
        }
    }

    fn hit(&mut self, slot: u32, slots: &mut Slots) {
        let queue = self.queues.queue_of(slot, slots);
        self.queues.unlink(queue, slot, slots);
        let queue = if queue == PROBATION { PROTECTED } else { queue };
        self.queues.push_front(queue, slot, slots);
        self.shorten(PROTECTED, self.protected_cap, slots);
    }

    fn unlink(&mut self, slot: u32, slots: &Slots) {
        let queue = self.queues.queue_of(slot, slots);
        self.queues.unlink(queue, slot, slots);
    }

    /// Returns the estimate of the victim's id. It is the same for all contenders that lose.
    #[inline]
    fn count_of_victim(&mut self, victim: u32, slots: &Slots) -> u8 {
        match self.victim {
            Some((slot, count)) if slot == victim => count,
            _ => {
                let count = self.sketch.count(slots.id(victim));
                self.victim = Some((victim, count));
                count
            }
        }
    }

    /// Prefetches the sketch's blocks of the next `n` slots of a queue, and the ids of the `n`
    /// after them. The ids of the first `n` were read the last time.
    fn read_ahead(&self, queue: u32, n: usize, slots: &Slots) {
        for (at, slot) in self.queues.next(queue, 2 * n, slots).enumerate() {
            if at < n {
                self.sketch.prefetch(slots.id(slot));
            } else {
                slots.prefetch(std::iter::once(slot));
            }
        }
    }

    fn victim(&mut self, slots: &mut Slots) -> Option<u32> {
        let probation = self.queues.oldest(PROBATION, slots);
        probation.or_else(|| self.queues.oldest(PROTECTED, slots))
    }
}

impl Policy for TinyLfu {
    fn begin_batch(&mut self) {
        self.victim = None;
    }

    fn on_lookup(&mut self, piece: &Piece<'_>, slots: &mut Slots) {
        self.sketch.add_all(piece.ids);
        self.queues.prefetch(piece.hits, slots);
        if self.queues.n_slots(PROTECTED) == self.protected_cap {
            slots.prefetch(self.queues.next_of_all(PROTECTED, piece.hits.len()));
        }
        for &slot in piece.hits {
            self.hit(slot, slots);
        }
    }

    fn prepare(&mut self, ids: &[u32], slots: &Slots) {
        self.read_ahead(WINDOW, ids.len(), slots);
        // A victim stays for all contenders that lose, which are most.
        let n_gone = std::mem::take(&mut self.n_gone);
        self.read_ahead(PROBATION, (2 * n_gone + 8).min(ids.len()), slots);
    }

    fn evict(&mut self, offer: Offer, slots: &mut Slots) -> Option<u32> {
        let victim = self.victim(slots);
        let candidate = self.queues.oldest(WINDOW, slots);
        let is_window_full = self.queues.n_slots(WINDOW) >= self.window_cap;
        let slot = match (candidate, victim) {
            (_, Some(victim)) if !is_window_full => victim,
            (Some(candidate), Some(victim)) => {
                if self.sketch.count(slots.id(candidate)) > self.count_of_victim(victim, slots) {
                    self.queues.unlink(WINDOW, candidate, slots);
                    self.queues.push_front(PROBATION, candidate, slots);
                    victim
                } else {
                    candidate
                }
            }
            (Some(candidate), None) => candidate,
            (None, Some(victim)) => {
                if self.sketch.count(offer.id) <= self.count_of_victim(victim, slots) {
                    return None;
                }
                self.entry = PROBATION;
                victim
            }
            (None, None) => return None,
        };
        self.n_gone += usize::from(Some(slot) == victim);
        self.unlink(slot, slots);
        Some(slot)
    }

    fn insert(&mut self, _offer: Offer, slot: u32, slots: &mut Slots) {
        let queue = std::mem::replace(&mut self.entry, WINDOW);
        self.queues.push_front(queue, slot, slots);
        self.shorten(WINDOW, self.window_cap, slots);
    }

    fn on_remove(&mut self, _id: u32, slot: u32, slots: &mut Slots) {
        self.unlink(slot, slots);
    }

    fn bytes(&self) -> usize {
        self.queues.bytes() + self.sketch.bytes()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tests::{Naive, Order};
    use super::Sketch;

    /// Plain lists; the sketch, which has tests of its own, is shared.
    pub(crate) struct NaiveTinyLfu {
        window: Order,
        probation: Order,
        protected: Order,
        sketch: Sketch,
        caps: (u32, u32),
        passes_through: bool,
    }

    impl NaiveTinyLfu {
        pub(crate) fn new(n_slots: u32) -> Self {
            Self {
                window: Order::default(),
                probation: Order::default(),
                protected: Order::default(),
                sketch: Sketch::new(n_slots).unwrap(),
                caps: super::caps(n_slots),
                passes_through: false,
            }
        }

        fn lists(&mut self) -> [&mut Order; 3] {
            [&mut self.window, &mut self.probation, &mut self.protected]
        }
    }

    impl Naive for NaiveTinyLfu {
        fn used(&mut self, ids: &[u32]) {
            self.sketch.add_all(ids);
        }

        fn hit(&mut self, id: u32) {
            if self.window.take(id) {
                self.window.push_front(id);
                return;
            }
            if !self.probation.take(id) {
                self.protected.take(id);
            }
            self.protected.push_front(id);
            if self.protected.len() > self.caps.1 as usize {
                let back = self.protected.take_oldest(&|_| false).unwrap();
                self.probation.push_front(back);
            }
        }

        fn evict(&mut self, id: u32, held: &dyn Fn(u32) -> bool) -> Option<u32> {
            let oldest = |order: &Order| order.oldest(held);
            let victim = oldest(&self.probation).or_else(|| oldest(&self.protected));
            let candidate = oldest(&self.window);
            let is_full = self.window.len() >= self.caps.0 as usize;
            let gone = match (candidate, victim) {
                (_, Some(victim)) if !is_full => victim,
                (candidate, None) => candidate?,
                (None, Some(victim)) => {
                    if self.sketch.count(id) <= self.sketch.count(victim) {
                        return None;
                    }
                    self.passes_through = true;
                    victim
                }
                (Some(candidate), Some(victim)) => {
                    if self.sketch.count(candidate) <= self.sketch.count(victim) {
                        candidate
                    } else {
                        self.window.take(candidate);
                        self.probation.push_front(candidate);
                        victim
                    }
                }
            };
            self.remove(gone);
            Some(gone)
        }

        fn insert(&mut self, id: u32) {
            if std::mem::take(&mut self.passes_through) {
                self.probation.push_front(id);
                return;
            }
            self.window.push_front(id);
            if self.window.len() > self.caps.0 as usize {
                let back = self.window.take_oldest(&|_| false).unwrap();
                self.probation.push_front(back);
            }
        }

        fn remove(&mut self, id: u32) {
            for list in self.lists() {
                list.take(id);
            }
        }
    }
}
