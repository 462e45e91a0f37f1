//! Two things at once, without a thread for each time.

use std::sync::{Arc, OnceLock};

use rayon::{ThreadPool, ThreadPoolBuilder};

/// A thread that does one thing while its owner does another; it is there from the first use on, for
/// all clones of this. Where the system refuses it, things are done one after the other.
#[derive(Clone, Default)]
pub(crate) struct Beside(Arc<OnceLock<Option<ThreadPool>>>);

impl Beside {
    /// Does `here` in this thread and `there` in the other, and waits for both.
    pub(crate) fn both<A, B: Send>(
        &self,
        here: impl FnOnce() -> A,
        there: impl FnOnce() -> B + Send,
    ) -> (A, B) {
        let name = |_| "gather".to_owned();
        let start = || ThreadPoolBuilder::new().num_threads(1).thread_name(name).build().ok();
        let Some(thread) = self.0.get_or_init(start) else { return (here(), there()) };
        let mut of_there = None;
        let of_here = thread.in_place_scope(|scope| {
            scope.spawn(|_| of_there = Some(there()));
            here()
        });
        let Some(of_there) = of_there else { unreachable!("the scope has waited for it") };
        (of_here, of_there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread::{Thread, current};
    use std::time::Duration;

    #[test]
    fn both_run_at_once_and_the_other_thread_is_always_the_same() {
        let beside = Beside::default();
        let mut others: Vec<Thread> = Vec::new();
        for _ in 0..3 {
            let ((to_there, from_here), (to_here, from_there)) = (channel(), channel());
            let wait = Duration::from_secs(20);
            let (here, there) = beside.clone().both(
                || (to_there.send(()), from_there.recv_timeout(wait)).1,
                move || ((to_here.send(()), from_here.recv_timeout(wait)).1, current()),
            );
            assert_eq!((here, there.0), (Ok(()), Ok(())), "each waits for the other");
            others.push(there.1);
        }
        assert!(others.iter().all(|of| of.id() == others[0].id() && of.id() != current().id()));
    }
}
