//! Buffers of requests that are not running, kept for those to come.

use std::cell::RefCell;

use crate::connection::Buffers;

/// Idle buffers, bounded in all by the bytes that they take.
pub(super) struct Pool {
    n_bytes_max: usize,
    idle: RefCell<IdleClock>,
}

#[derive(Default)]
struct IdleClock {
    buffers: Vec<Buffers>,
    n_bytes: usize,
}

impl Pool {
    pub(super) fn new(n_bytes_max: usize) -> Self {
        Self { n_bytes_max, idle: RefCell::default() }
    }

    /// Buffers that take `n_bytes` at most, which is what the request has been let in for: longer
    /// ones wait for a longer request. Those that were used last are still in the core's cache.
    pub(super) fn lend(&self, n_bytes: usize) -> Buffers {
        let mut idle = self.idle.borrow_mut();
        let Some(at) = idle.buffers.iter().rposition(|one| one.n_bytes() <= n_bytes) else {
            return Buffers::default();
        };
        let found = idle.buffers.remove(at);
        idle.n_bytes -= found.n_bytes();
        found
    }

    /// Keeps buffers, as many as may lie idle; for longer ones those go that lie there longest.
    pub(super) fn take_back(&self, buffers: Buffers) {
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
        let pool = Pool::new(1000);
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
            let pool = Pool::new(1000);
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
