//! Lists of slots, linked through one array: order without memory of its own for each row.

use bytemuck::{Pod, Zeroable};

use crate::huge_vec::{HugeVec, MemoryError};
use crate::slots::NO_SLOT;
use crate::slots::Slots;

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
pub(crate) struct Links {
    links: HugeVec<Link>,
    n_slots: u32,
    scans: Vec<Scan>,
}

impl Links {
    /// Bytes that a slot takes here, and those of a list.
    pub(crate) const SLOT_BYTES: usize = size_of::<Link>();
    pub(crate) const LIST_BYTES: usize = size_of::<Link>() + size_of::<Scan>();

    /// Returns empty lists.
    pub(crate) fn new(n_slots: u32, n_lists: u32) -> Result<Self, MemoryError> {
        let mut links: HugeVec<Link> = HugeVec::new(n_slots as usize + n_lists as usize)?;
        for (end, link) in (n_slots..).zip(&mut links[n_slots as usize..]) {
            *link = Link { prev: end, next: end };
        }
        let scans = vec![Scan { batch: 0, at: NO_SLOT }; n_lists as usize];
        Ok(Self { links, n_slots, scans })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.links.bytes() + size_of_val(self.scans.as_slice())
    }

    #[inline]
    fn end(&self, list: u32) -> u32 {
        self.n_slots + list
    }

    #[inline]
    pub(crate) fn push_front(&mut self, list: u32, slot: u32) {
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
    pub(crate) fn unlink(&mut self, list: u32, slot: u32) {
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
    pub(crate) fn is_empty(&self, list: u32) -> bool {
        let end = self.end(list);
        self.prev_of(end) == end
    }

    /// Returns the slot nearest to the back that is not held. Slots once found held are passed over
    /// for the rest of the batch, so that a batch pays for each of them once.
    #[inline]
    pub(crate) fn oldest(&mut self, list: u32, slots: &Slots) -> Option<u32> {
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
