//! Buffers of requests, pooled between requests, with head room for replies.

use std::cell::RefCell;
use std::collections::VecDeque;

use bytemuck::Zeroable;
use lodestore_graph::NodeId;
use lodestore_schema::limits::FLOORS_MAX;

use crate::limits::POOLED_BUFFERS_MAX;

/// Space before the rows of a chunk for prefix and head, so that one write sends all.
pub(crate) const HEAD_ROOM: usize = 128 + 16 * FLOORS_MAX;

/// Buffers of one request, lent by the shard and reused.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) ids: Vec<NodeId>,
    /// A chunk of a pull's reply with its head, or the rows of a push or of a whole put.
    pub(crate) frame: Vec<u8>,
}

impl Buffers {
    /// Returns the allocated bytes.
    pub(crate) fn n_bytes(&self) -> usize {
        self.ids.capacity() * size_of::<NodeId>() + self.frame.capacity()
    }
}

/// Sets the length of a list whose content is not needed, without allocating more than that.
pub(crate) fn set_len<T: Clone + Zeroable>(list: &mut Vec<T>, len: usize) {
    if list.capacity() < len {
        *list = Vec::with_capacity(len);
    }
    list.resize(len, T::zeroed());
}

/// Returns the `n_bytes` of a body in a frame, after the head room.
pub(crate) fn body_room(frame: &mut Vec<u8>, n_bytes: usize) -> &mut [u8] {
    let body_end = HEAD_ROOM + n_bytes;
    if frame.len() < body_end {
        set_len(frame, body_end);
    }
    &mut frame[HEAD_ROOM..body_end]
}

/// Converts a count of one request, which `IDS_PER_PULL_MAX` bounds.
pub(crate) fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("a request has fewer rows than 2^32")
}

/// Idle buffers, bounded in number and bytes.
pub(crate) struct BufferPool {
    n_bytes_max: usize,
    idle: RefCell<IdleBuffers>,
}

#[derive(Default)]
struct IdleBuffers {
    /// Longest-idle buffers first.
    buffers: VecDeque<Buffers>,
    n_bytes: usize,
}

impl BufferPool {
    pub(crate) fn new(n_bytes_max: usize) -> Self {
        Self { n_bytes_max, idle: RefCell::default() }
    }

    /// Lends buffers of at most `n_bytes`, for which the request was admitted. Larger buffers are
    /// left for larger requests. The most recently used ones are preferred, because they are still
    /// in the core's cache.
    pub(crate) fn lend(&self, n_bytes: usize) -> Buffers {
        let mut idle = self.idle.borrow_mut();
        let at = idle.buffers.iter().rposition(|one| one.n_bytes() <= n_bytes);
        let Some(found) = at.and_then(|at| idle.buffers.remove(at)) else {
            return Buffers::default();
        };
        idle.n_bytes -= found.n_bytes();
        found
    }

    /// Returns buffers to the pool, evicting the longest-idle ones if necessary. Buffers without
    /// memory are dropped: a put moves its rows out of its buffers.
    pub(crate) fn take_back(&self, buffers: Buffers) {
        let n_bytes = buffers.n_bytes();
        if n_bytes == 0 || n_bytes > self.n_bytes_max {
            return;
        }
        let mut idle = self.idle.borrow_mut();
        while idle.n_bytes + n_bytes > self.n_bytes_max || idle.buffers.len() >= POOLED_BUFFERS_MAX
        {
            let oldest = idle.buffers.pop_front().expect("idle bytes belong to idle buffers");
            idle.n_bytes -= oldest.n_bytes();
        }
        idle.n_bytes += n_bytes;
        idle.buffers.push_back(buffers);
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
    fn lent_buffers_are_reused_within_the_admitted_bytes() {
        let pool = BufferPool::new(1000);
        pool.take_back(buffers(0, 600));
        pool.take_back(buffers(10, 60));
        assert_eq!(pool.lend(99).n_bytes(), 0, "100 bytes are too many");
        assert_eq!(pool.lend(599).n_bytes(), 100);
        assert_eq!(pool.lend(600).n_bytes(), 600);
        assert_eq!(pool.lend(1000).n_bytes(), 0, "all buffers are lent");
    }

    /// A single-piece put moves its rows out of the buffers that it was lent. The shard returns the
    /// empty buffers, and later the rows.
    #[test]
    fn ten_thousand_puts_of_one_row_leave_one_idle_buffer() {
        let pool = BufferPool::new(1 << 20);
        for _ in 0..10_000 {
            let mut lent = pool.lend(4096);
            set_len(&mut lent.ids, 1);
            set_len(&mut lent.frame, 64);
            let rows = std::mem::take(&mut lent);
            pool.take_back(lent);
            pool.take_back(rows);
        }
        assert_eq!(pool.idle.borrow().buffers.len(), 1);
    }

    #[test]
    fn idle_buffers_are_bounded_in_number() {
        let pool = BufferPool::new(1 << 20);
        (1..=2 * POOLED_BUFFERS_MAX).for_each(|n_bytes| pool.take_back(buffers(0, n_bytes)));
        assert_eq!(pool.idle.borrow().buffers.len(), POOLED_BUFFERS_MAX);
        let newest = pool.lend(usize::MAX);
        assert_eq!(newest.n_bytes(), 2 * POOLED_BUFFERS_MAX, "the oldest are replaced");
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
                prop_assert!(idle.buffers.iter().all(|one| one.n_bytes() > 0));
            }
        }
    }
}
