//! Slots in order of a small number: a list for each number, and which lists have any.

use super::bit_tree::BitTree;
use super::links::Links;
use crate::huge_vec::{HugeVec, MemoryError};
use crate::slots::Slots;

/// Slots in buckets, given up from the highest bucket, the oldest of it first.
pub(super) struct Buckets {
    links: Links,
    /// For each slot its bucket.
    of: HugeVec<u32>,
    taken: BitTree,
    /// In this batch, buckets above this one have held slots only.
    scan: (u32, u32),
    n_buckets: u32,
}

impl Buckets {
    pub(super) fn planned_bytes(n_slots: u32, n_buckets: u32) -> usize {
        n_slots as usize * (Links::SLOT_BYTES + size_of::<u32>())
            + n_buckets as usize * Links::LIST_BYTES
            + BitTree::planned_bytes(n_buckets)
    }

    pub(super) fn new(n_slots: u32, n_buckets: u32) -> Result<Self, MemoryError> {
        Ok(Self {
            links: Links::new(n_slots, n_buckets)?,
            of: HugeVec::new(n_slots as usize)?,
            taken: BitTree::new(n_buckets),
            scan: (0, 0),
            n_buckets,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.links.bytes() + self.of.bytes() + self.taken.bytes()
    }

    #[inline]
    pub(super) fn push(&mut self, slot: u32, bucket: u32) {
        self.of[slot as usize] = bucket;
        self.links.push_front(bucket, slot);
        self.taken.set(bucket);
    }

    #[inline]
    pub(super) fn unlink(&mut self, slot: u32) {
        let bucket = self.of[slot as usize];
        self.links.unlink(bucket, slot);
        if self.links.is_empty(bucket) {
            self.taken.clear(bucket);
        }
    }

    /// Returns the highest bucket that has slots, held or not.
    pub(super) fn highest_taken(&self) -> Option<u32> {
        self.taken.last_up_to(self.n_buckets.checked_sub(1)?)
    }

    /// Returns the slot to give up first among those not held, and its bucket.
    #[inline]
    pub(super) fn highest(&mut self, slots: &Slots) -> Option<(u32, u32)> {
        let batch = slots.batch();
        let top = self.n_buckets.checked_sub(1)?;
        let mut from = if self.scan.0 == batch { self.scan.1 } else { top };
        while let Some(bucket) = self.taken.last_up_to(from) {
            self.scan = (batch, bucket);
            if let Some(slot) = self.links.oldest(bucket, slots) {
                return Some((slot, bucket));
            }
            from = bucket.checked_sub(1)?;
        }
        self.scan = (batch, 0);
        None
    }
}
