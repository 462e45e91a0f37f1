//! Requests to several servers concurrently.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, ScopedJoinHandle, scope};

/// Threads that ask concurrently. Each mostly waits.
const THREADS_MAX: usize = 32;

/// Applies `ask` to the items concurrently; returns the results in the order of the items. Panics
/// if `ask` does.
pub(super) fn parallel_map<T: Sync, R: Send>(items: &[T], ask: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if items.len() < 2 {
        return items.iter().map(ask).collect();
    }
    let next = AtomicUsize::new(0);
    let ask_some = || {
        let mut answers = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return answers };
            answers.push((at, ask(item)));
        }
    };
    let mut answers: Vec<(usize, R)> = scope(|scope| {
        // This thread asks too, alone if no other can be started.
        let n_others = items.len().min(THREADS_MAX) - 1;
        let spawn = |_| Builder::new().name("lode-ask".to_owned()).spawn_scoped(scope, ask_some);
        let threads: Vec<_> = (0..n_others).map_while(|at| spawn(at).ok()).collect();
        let mut answers = ask_some();
        let join = |thread: ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        answers.extend(threads.into_iter().flat_map(join));
        answers
    });
    answers.sort_unstable_by_key(|&(at, _)| at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn results_keep_the_order_of_items_that_are_asked_concurrently() {
        let items: Vec<usize> = (0..1000).collect();
        assert_eq!(
            parallel_map(&items, |item| item * 2),
            items.iter().map(|i| i * 2).collect::<Vec<_>>()
        );
        assert!(parallel_map(&items[..0], |_| 0).is_empty());
        // Each waits for all others.
        let barrier = Barrier::new(THREADS_MAX);
        assert_eq!(parallel_map(&items[..THREADS_MAX], |_| barrier.wait()).len(), THREADS_MAX);
        let start = Instant::now();
        let is_slow = |_: &usize| std::thread::sleep(Duration::from_millis(20));
        parallel_map(&items[..2 * THREADS_MAX], is_slow);
        assert!(
            start.elapsed() >= Duration::from_millis(40),
            "no more than that many concurrently"
        );
    }
}
