//! `overlap`: CaPGNN's JACA (section 4.2, Eq. 2).
//!
//! - The priority of a row is its overlap ratio R(v): in how many partitions it is a halo node.
//! - While slots are free every row is kept. After that a new row replaces the row of the lowest R
//!   among those not held, the oldest of these first. If its own R is not higher it is not kept.

use std::hint::black_box;
use std::sync::Arc;

use super::buckets::Buckets;
use super::{Offer, Policy};
use crate::huge_vec::MemoryError;
use crate::slots::Slots;

pub(crate) struct Overlap {
    /// R of each id; ids past the end have 0.
    ratios: Arc<[u16]>,
    /// Bucket `max_ratio - R`: the highest bucket is given up first.
    buckets: Buckets,
    max_ratio: u16,
}

impl Overlap {
    pub(super) fn planned_bytes(n_slots: u32, ratios: &[u16]) -> usize {
        Buckets::planned_bytes(n_slots, u32::from(max_ratio(ratios)) + 1)
    }

    pub(super) fn new(n_slots: u32, ratios: Arc<[u16]>) -> Result<Self, MemoryError> {
        let max_ratio = max_ratio(&ratios);
        Ok(Self { buckets: Buckets::new(n_slots, u32::from(max_ratio) + 1)?, ratios, max_ratio })
    }

    fn bucket(&self, id: u32) -> u32 {
        let ratio = self.ratios.get(id as usize).copied().unwrap_or(0);
        u32::from(self.max_ratio - ratio)
    }
}

fn max_ratio(ratios: &[u16]) -> u16 {
    ratios.iter().copied().max().unwrap_or(0)
}

impl Policy for Overlap {
    fn retain(&mut self, offers: &mut Vec<(u32, u32)>, slots: &Slots) {
        // Read first, so that the cache misses overlap.
        black_box(offers.iter().fold(0, |seen, &(id, _)| seen ^ self.bucket(id)));
        // What comes while no slot is free only lowers the highest bucket.
        if slots.is_full()
            && let Some(highest) = self.buckets.highest_taken()
        {
            offers.retain(|&(id, _)| self.bucket(id) < highest);
        }
    }

    fn evict(&mut self, offer: Offer, slots: &mut Slots) -> Option<u32> {
        let (slot, bucket) = self.buckets.highest(slots)?;
        if bucket <= self.bucket(offer.id) {
            return None;
        }
        self.buckets.unlink(slot);
        Some(slot)
    }

    fn insert(&mut self, offer: Offer, slot: u32, _slots: &mut Slots) {
        self.buckets.push(slot, self.bucket(offer.id));
    }

    fn on_remove(&mut self, _id: u32, slot: u32, _slots: &mut Slots) {
        self.buckets.unlink(slot);
    }

    fn bytes(&self) -> usize {
        self.buckets.bytes()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tests::Naive;
    use std::collections::HashMap;

    pub(crate) struct NaiveOverlap {
        pub(crate) ratios: HashMap<u32, u16>,
        /// Oldest first.
        pub(crate) rows: Vec<u32>,
    }

    impl Naive for NaiveOverlap {
        fn evict(&mut self, id: u32, held: &dyn Fn(u32) -> bool) -> Option<u32> {
            let free = self.rows.iter().copied().filter(|&row| !held(row));
            let lowest = free.min_by_key(|row| self.ratios[row])?;
            (self.ratios[&lowest] < self.ratios[&id]).then(|| {
                self.remove(lowest);
                lowest
            })
        }

        fn insert(&mut self, id: u32) {
            self.rows.push(id);
        }

        fn remove(&mut self, id: u32) {
            self.rows.retain(|&row| row != id);
        }
    }
}
