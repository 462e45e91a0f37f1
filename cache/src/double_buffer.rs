//! Two hot sets: one serves this epoch while the next one is filled.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::hot_set::HotSet;

/// The steady cache and its successor (RapidGNN, sections 3 and 4.6), shared between the thread
/// that fills and those that read.
///
/// The lock is held only to exchange pointers, never while rows are copied. A reader takes
/// [`DoubleBuffer::current`] once per batch and reads it without a lock.
pub struct DoubleBuffer {
    state: Mutex<State>,
}

struct State {
    current: Arc<HotSet>,
    next: Option<Arc<HotSet>>,
    late_swaps: u64,
}

impl DoubleBuffer {
    /// Serves from `first` until another set is published and swapped in.
    #[must_use]
    pub fn new(first: HotSet) -> Self {
        let state = State { current: Arc::new(first), next: None, late_swaps: 0 };
        Self { state: Mutex::new(state) }
    }

    /// Returns the set that serves now. Its holder may finish a batch with it after a swap.
    #[must_use]
    pub fn current(&self) -> Arc<HotSet> {
        Arc::clone(&self.lock().current)
    }

    /// Hands over the set of the next epoch, in place of one that was handed over before but has
    /// not been swapped in.
    pub fn publish(&self, next: HotSet) {
        let replaced = self.lock().next.replace(Arc::new(next));
        drop(replaced); // frees rows, so not under the lock
    }

    /// Hands over a set whose epoch has begun already: it serves from then on.
    pub fn replace(&self, current: HotSet) {
        let replaced = std::mem::replace(&mut self.lock().current, Arc::new(current));
        drop(replaced); // frees rows, so not under the lock
    }

    /// Returns the epoch boundary: the published set becomes the current one. When there is none
    /// the old one continues serving, which is counted, and `false` comes back.
    pub fn swap(&self) -> bool {
        let mut state = self.lock();
        let Some(next) = state.next.take() else {
            state.late_swaps += 1;
            return false;
        };
        let replaced = std::mem::replace(&mut state.current, next);
        drop(state);
        drop(replaced); // frees rows, so not under the lock
        true
    }

    /// Returns how many boundaries found no set ready.
    #[must_use]
    pub fn late_swaps(&self) -> u64 {
        self.lock().late_swaps
    }

    /// Returns the memory of both sets as they are now, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let state = self.lock();
        state.current.bytes() + state.next.as_ref().map_or(0, |next| next.bytes())
    }

    /// Locks the state. A thread that panicked elsewhere cannot have left it between two values.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_of(id: u32) -> HotSet {
        HotSet::build::<crate::hot_set::HotSetError>(vec![id], 4, |_, rows| {
            rows.copy_from_slice(&id.to_le_bytes());
            Ok(())
        })
        .unwrap()
    }

    #[test]
    fn a_published_set_serves_from_the_boundary_on() {
        let buffer = DoubleBuffer::new(set_of(0));
        let one_set = buffer.bytes();
        buffer.publish(set_of(1));
        assert!(buffer.bytes() > one_set);
        assert_eq!(buffer.current().ids(), [0]);
        let held = buffer.current();
        assert!(buffer.swap());
        assert_eq!(buffer.current().ids(), [1]);
        assert_eq!(held.get(0), Some(&[0; 4][..]), "a batch under way keeps its set");
        assert_eq!((buffer.late_swaps(), buffer.bytes()), (0, buffer.current().bytes()));
    }

    #[test]
    fn a_late_set_is_counted_and_serves_when_it_comes() {
        let buffer = DoubleBuffer::new(set_of(0));
        assert!(!buffer.swap());
        assert_eq!(buffer.current().ids(), [0], "the old set continues to serve");
        buffer.replace(set_of(1));
        assert_eq!(buffer.current().ids(), [1]);
        buffer.publish(set_of(2));
        assert_eq!(buffer.current().ids(), [1], "the set after that waits for its boundary");
        assert!(buffer.swap());
        assert_eq!((buffer.current().ids(), buffer.late_swaps()), (&[2][..], 1));
    }

    #[test]
    fn readers_see_whole_sets_while_sets_change() {
        let buffer = DoubleBuffer::new(set_of(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for id in 1..2000 {
                    buffer.publish(set_of(id));
                    assert!(buffer.swap());
                }
            });
            let mut newest = 0;
            while newest < 1999 {
                let set = buffer.current();
                let id = set.ids()[0];
                assert_eq!(set.get(id), Some(&id.to_le_bytes()[..]));
                assert!(id >= newest);
                newest = id;
            }
        });
    }
}
