//! Bulk buffers of requests, kept from one to the next, and the room that replies leave in them.

use std::cell::RefCell;

use bytemuck::Zeroable;
use lodestore_graph::NodeId;
use lodestore_schema::limits::FLOORS_MAX;

/// Room before the rows of a chunk for prefix and head, so that one write sends all.
pub(crate) const HEAD_ROOM: usize = 128 + 16 * FLOORS_MAX;

/// Bulk buffers of one request, lent by the shard and reused.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) ids: Vec<NodeId>,
    /// A chunk of a pull's answer with its head, or the rows of a push or of a whole put.
    pub(crate) frame: Vec<u8>,
}

impl Buffers {
    /// Returns the bytes that they take.
    pub(crate) fn n_bytes(&self) -> usize {
        self.ids.capacity() * size_of::<NodeId>() + self.frame.capacity()
    }
}

/// Sets the length of a list whose content is not needed, and allocates no more than that for it.
pub(crate) fn set_len<T: Clone + Zeroable>(list: &mut Vec<T>, len: usize) {
    if list.capacity() < len {
        *list = Vec::with_capacity(len);
    }
    list.resize(len, T::zeroed());
}

/// Returns the room for the `n_bytes` of a body in a frame, behind that for its head.
pub(crate) fn body_room(frame: &mut Vec<u8>, n_bytes: usize) -> &mut [u8] {
    let body_end = HEAD_ROOM + n_bytes;
    if frame.len() < body_end {
        set_len(frame, body_end);
    }
    &mut frame[HEAD_ROOM..body_end]
}

/// Converts a count within one request, bounded by `IDS_PER_PULL_MAX`.
pub(crate) fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("a request has fewer rows than 2^32")
}

/// Idle buffers, bounded in all by the bytes that they take.
pub(crate) struct BufferPool {
    n_bytes_max: usize,
    idle: RefCell<IdleBuffers>,
}

#[derive(Default)]
struct IdleBuffers {
    buffers: Vec<Buffers>,
    n_bytes: usize,
}

impl BufferPool {
    pub(crate) fn new(n_bytes_max: usize) -> Self {
        Self { n_bytes_max, idle: RefCell::default() }
    }

    /// Lends buffers that take `n_bytes` at most, for which the request was admitted. Longer ones
    /// wait for a longer request. Those that were used last are still in the core's cache.
    pub(crate) fn lend(&self, n_bytes: usize) -> Buffers {
        let mut idle = self.idle.borrow_mut();
        let Some(at) = idle.buffers.iter().rposition(|one| one.n_bytes() <= n_bytes) else {
            return Buffers::default();
        };
        let found = idle.buffers.remove(at);
        idle.n_bytes -= found.n_bytes();
        found
    }

    /// Keeps buffers, as many as may be idle; longer ones replace those that were idle longest.
    pub(crate) fn take_back(&self, buffers: Buffers) {
        let mut idle = self.idle.borrow_mut();
        if buffers.n_bytes() > self.n_bytes_max {
            return;
        }
        while idle.n_bytes + buffers.n_bytes() > self.n_bytes_max {
            let oldest = idle.buffers.remove(0);
            idle.n_bytes -= oldest.n_bytes();
        }
        idle.n_bytes += buffers.n_bytes();
        idle.buffers.push(buffers);
    }
}

#[cfg(test)]
mod tests {
    use lodestore_graph::NodeId;
    use proptest::prelude::*;

    use super::*;

    fn buffers(n_ids: usize, n_bytes: usize) -> Buffers {
        let ids: Vec<NodeId> = Vec::with_capacity(n_ids);
        Buffers { ids, frame: Vec::with_capacity(n_bytes) }
    }

    #[test]
    fn what_is_lent_is_used_again_and_no_more_than_was_let_in() {
        let pool = BufferPool::new(1000);
        pool.take_back(buffers(0, 600));
        pool.take_back(buffers(10, 60));
        assert_eq!(pool.lend(99).n_bytes(), 0, "100 bytes are too many");
        assert_eq!(pool.lend(599).n_bytes(), 100);
        assert_eq!(pool.lend(600).n_bytes(), 600);
        assert_eq!(pool.lend(1000).n_bytes(), 0, "all are lent");
    }

    proptest! {
        #[test]
        fn idle_bytes_are_bounded_and_counted(
            steps in prop::collection::vec((any::<bool>(), 0usize..300, 0usize..300), 0..200),
        ) {
            let pool = BufferPool::new(1000);
            for (is_lent, n_ids, n_bytes) in steps {
                if is_lent {
                    prop_assert!(pool.lend(n_bytes).n_bytes() <= n_bytes);
                } else {
                    pool.take_back(buffers(n_ids, n_bytes));
                }
                let idle = pool.idle.borrow();
                let held: usize = idle.buffers.iter().map(Buffers::n_bytes).sum();
                prop_assert_eq!(held, idle.n_bytes);
                prop_assert!(held <= 1000);
            }
        }
    }
}
