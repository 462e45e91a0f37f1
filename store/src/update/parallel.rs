//! Runs the same work for several partitions concurrently, because each waits for its own sync.

use std::panic::resume_unwind;
use std::sync::Mutex;
use std::thread;

use lodestore_graph::lock::IgnorePoison;

use crate::file_system::FileSystem;

/// Maximum concurrent threads.
const MAX_THREADS: usize = 16;

/// Calls `each` for all items and returns the results in order. The calling thread processes a part
/// of the items, or all of them if `fs` never waits or no thread can be started.
pub(super) fn for_each<T: Sync, R: Send>(
    fs: &dyn FileSystem,
    items: &[T],
    each: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    if !fs.waits() {
        return items.iter().map(each).collect();
    }
    let per_thread = items.len().div_ceil(MAX_THREADS).max(1);
    let Some((first, others)) = items.split_at_checked(per_thread.min(items.len())) else {
        return Vec::new();
    };
    let each_of = |items: &[T]| items.iter().map(&each).collect::<Vec<R>>();
    thread::scope(|scope| {
        let each_of = &each_of;
        // A part whose thread did not start runs on this thread.
        let spawn = |items| {
            let thread = thread::Builder::new().spawn_scoped(scope, move || each_of(items));
            thread.map_err(|_| items)
        };
        let threads: Vec<_> = others.chunks(per_thread).map(spawn).collect();
        let mut results = each_of(first);
        for thread in threads {
            results.extend(match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                Err(items) => each_of(items),
            });
        }
        results
    })
}

/// Like [`for_each`], for items that `each` consumes.
pub(super) fn for_each_owned<T: Send, R: Send>(
    fs: &dyn FileSystem,
    items: Vec<T>,
    each: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let items: Vec<Mutex<Option<T>>> = items.into_iter().map(|it| Mutex::new(Some(it))).collect();
    let take = |item: &Mutex<Option<T>>| item.lock().ignore_poison().take().map(&each);
    for_each(fs, &items, take).into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_system::Disk;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        for n in [0, 1, 2, 15, 16, 17, 33, 100] {
            let items: Vec<usize> = (0..n).collect();
            let doubled: Vec<usize> = (0..n).map(|i| i * 2).collect();
            assert_eq!(for_each(&Disk, &items, |item| item * 2), doubled);
            assert_eq!(for_each_owned(&Disk, items, |item| item * 2), doubled);
        }
    }
}
