//! Plain threads on which calls of the store that block run, so that no shard waits for a disk.
//!
//! Two crews with a queue each: a look-up of rows over a segment does not wait behind puts that
//! wait for a sync. Both queues are bounded; a call that finds its queue full is told `overloaded`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use glommio::channels::oneshot::{SharedReceiver, shared};
use lodestore_schema::{Failure, FailureCode};
use tracing::warn;

use crate::ServerError;
use crate::error::failure;
use crate::limits::{CALLS_WAITING_MAX, OVERLAY_THREADS, WRITE_THREADS};

/// Threads that wait for the store.
pub(crate) struct StoreThreads {
    pub(crate) overlay: Crew,
    pub(crate) writes: Crew,
}

/// Threads that take calls from one queue.
pub(crate) struct Crew {
    calls: SyncSender<Task>,
    waiting: Arc<AtomicU64>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// A call to make; `None` ends the thread that takes it.
type Task = Option<Box<dyn FnOnce() + Send>>;

/// The answer to a call, to be awaited on the shard that made it.
pub(crate) struct Answer<T: Send>(SharedReceiver<T>);

impl StoreThreads {
    /// Starts the threads; those of writes only where there will be some.
    pub(crate) fn start(writable: bool) -> Result<Self, ServerError> {
        let n_writers = if writable { WRITE_THREADS } else { 0 };
        let overlay = Crew::start("lode-overlay", OVERLAY_THREADS)?;
        Ok(Self { overlay, writes: Crew::start("lode-write", n_writers)? })
    }

    /// Ends all threads once the calls that wait have been made.
    pub(crate) fn stop(&self) {
        self.writes.stop();
        self.overlay.stop();
    }
}

impl Crew {
    fn start(name: &str, n_threads: usize) -> Result<Self, ServerError> {
        let (calls, queue) = sync_channel(CALLS_WAITING_MAX);
        let queue = Arc::new(Mutex::new(queue));
        let waiting = Arc::default();
        let threads = (0..n_threads).map(|i| {
            let (queue, waiting) = (Arc::clone(&queue), Arc::clone(&waiting));
            let thread = std::thread::Builder::new().name(format!("{name}-{i}"));
            thread.spawn(move || work(&queue, &waiting)).map_err(ServerError::Thread)
        });
        // Threads that did start end with the queue.
        let threads = Mutex::new(threads.collect::<Result<_, _>>()?);
        Ok(Self { threads, calls, waiting })
    }

    /// Calls that no thread has taken.
    pub(crate) fn n_waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Has a thread make `call`; it is made whether or not somebody waits for the answer.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Answer<T>, Failure> {
        let (sender, receiver) = shared();
        let task = move || {
            // Whoever does not wait any more does not want to know.
            let _ = sender.send(call());
        };
        // Ahead of the thread that takes it.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let sent = self.calls.try_send(Some(Box::new(task)));
        if sent.is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        sent.map_err(|error| match error {
            TrySendError::Full(_) => {
                let message = format!("{CALLS_WAITING_MAX} calls of the store wait already");
                failure(FailureCode::Overloaded, message)
            }
            TrySendError::Disconnected(_) => {
                failure(FailureCode::Stopping, "the server is going down")
            }
        })?;
        Ok(Answer(receiver))
    }

    fn stop(&self) {
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for _ in &threads {
            // Refused only when no thread is left.
            let _ = self.calls.send(None);
        }
        for thread in threads {
            if thread.join().is_err() {
                warn!("a thread of the store had panicked");
            }
        }
    }
}

impl<T: Send> Answer<T> {
    /// Waits until the call has been made.
    pub(crate) async fn wait(self) -> Result<T, Failure> {
        self.0.await.map_err(|_| failure(FailureCode::Internal, "a call of the store panicked"))
    }
}

fn work(queue: &Mutex<Receiver<Task>>, waiting: &AtomicU64) {
    loop {
        let task = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Some(task)) = task else { return };
        waiting.fetch_sub(1, Ordering::Relaxed);
        if catch_unwind(AssertUnwindSafe(task)).is_err() {
            // What it held, the sender of its answer included, is gone: its shard is told.
            warn!("a call of the store panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    fn answer<T: Send>(answer: Answer<T>) -> Result<T, Failure> {
        futures_lite::future::block_on(answer.wait())
    }

    #[test]
    fn a_call_is_made_and_a_panic_is_told_and_harms_no_other() {
        let crew = Crew::start("test", 2).unwrap();
        for _ in 0..5 {
            let panicked = crew.call(|| panic!("on purpose")).unwrap();
            assert_eq!(answer::<()>(panicked).unwrap_err().code, FailureCode::Internal);
        }
        assert_eq!(answer(crew.call(|| 7).unwrap()), Ok(7));
        crew.stop();
    }

    #[test]
    fn a_full_queue_refuses_and_what_waits_is_done_before_the_end() {
        let crew = Crew::start("test", 1).unwrap();
        let (go, wait) = channel::<()>();
        let (done, made) = channel();
        let first = crew.call(move || wait.recv_timeout(Duration::from_secs(10)).is_ok()).unwrap();
        // The thread takes the first sooner or later; then as many fit as the queue is long.
        let mut n_waiting = 0;
        let refusal = loop {
            let done = done.clone();
            match crew.call(move || done.send(()).is_ok()) {
                Ok(_) => n_waiting += 1,
                Err(refusal) if n_waiting >= CALLS_WAITING_MAX => break refusal,
                Err(_) => std::thread::yield_now(),
            }
        };
        assert_eq!(refusal.code, FailureCode::Overloaded);
        assert!(crew.n_waiting() >= CALLS_WAITING_MAX as u64);
        assert!(!refusal.retry_after.is_zero());
        go.send(()).unwrap();
        assert_eq!(answer(first), Ok(true));
        crew.stop();
        assert_eq!(crew.n_waiting(), 0);
        assert_eq!(made.try_iter().count(), n_waiting);
        assert_eq!(crew.call(|| ()).err().map(|failure| failure.code), Some(FailureCode::Stopping));
    }
}
