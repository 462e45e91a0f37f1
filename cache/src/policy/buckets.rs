//! Slots in order of a small number: a list for each number, and which lists have any.

use bytemuck::{Pod, Zeroable};

use super::bit_tree::BitTree;
use crate::huge_vec::{HugeVec, MemoryError};
use crate::slots::{NO_SLOT, Slots};

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

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Link {
    /// Towards the front.
    prev: u32,
    /// Towards the back.
    next: u32,
}

/// Position of a search from the back of a list.
#[derive(Clone, Copy)]
struct Scan {
    batch: u32,
    /// Behind it are held slots only.
    at: u32,
}

/// Lists, numbered from 0, each slot in at most one of them.
///
/// Each list is a ring through a link of its own, so that nothing branches on its ends.
struct Links {
    links: HugeVec<Link>,
    n_slots: u32,
    scans: Vec<Scan>,
}

impl Links {
    /// Bytes that a slot takes here, and those of a list.
    const SLOT_BYTES: usize = size_of::<Link>();
    const LIST_BYTES: usize = size_of::<Link>() + size_of::<Scan>();

    /// Returns empty lists.
    fn new(n_slots: u32, n_lists: u32) -> Result<Self, MemoryError> {
        let mut links: HugeVec<Link> = HugeVec::new(n_slots as usize + n_lists as usize)?;
        for (end, link) in (n_slots..).zip(&mut links[n_slots as usize..]) {
            *link = Link { prev: end, next: end };
        }
        let scans = vec![Scan { batch: 0, at: NO_SLOT }; n_lists as usize];
        Ok(Self { links, n_slots, scans })
    }

    fn bytes(&self) -> usize {
        self.links.bytes() + size_of_val(self.scans.as_slice())
    }

    #[inline]
    fn end(&self, list: u32) -> u32 {
        self.n_slots + list
    }

    #[inline]
    fn push_front(&mut self, list: u32, slot: u32) {
        let end = self.end(list);
        let links = &mut *self.links;
        let first = links[end as usize].next;
        links[slot as usize] = Link { prev: end, next: first };
        links[first as usize].prev = slot;
        links[end as usize].next = slot;
        let scan = &mut self.scans[list as usize];
        if scan.at == end {
            scan.at = slot;
        }
    }

    /// Takes a slot out of the list that it is in.
    #[inline]
    fn unlink(&mut self, list: u32, slot: u32) {
        let links = &mut *self.links;
        let Link { prev, next } = links[slot as usize];
        links[prev as usize].next = next;
        links[next as usize].prev = prev;
        let scan = &mut self.scans[list as usize];
        if scan.at == slot {
            scan.at = prev;
        }
    }

    #[inline]
    fn is_empty(&self, list: u32) -> bool {
        let end = self.end(list);
        self.prev_of(end) == end
    }

    /// Returns the slot nearest to the back that is not held. Slots once found held are passed over
    /// for the rest of the batch, so that a batch pays for each of them once.
    #[inline]
    fn oldest(&mut self, list: u32, slots: &Slots) -> Option<u32> {
        let (end, batch) = (self.end(list), slots.batch());
        let scan = self.scans[list as usize];
        let mut at =
            if scan.batch == batch && scan.at != NO_SLOT { scan.at } else { self.prev_of(end) };
        while at != end && slots.is_held(at) {
            at = self.prev_of(at);
        }
        self.scans[list as usize] = Scan { batch, at };
        (at != end).then_some(at)
    }

    #[inline]
    fn prev_of(&self, at: u32) -> u32 {
        self.links[at as usize].prev
    }
}
