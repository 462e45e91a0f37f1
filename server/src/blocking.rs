//! Plain threads for blocking calls of the store, so that no shard waits for a disk.
//!
//! There are two pools with a queue each, so that pins do not queue behind puts that wait for a
//! sync. Both queues are bounded; a call to a full queue fails as `overloaded`.

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

use lodestore_graph::lock::IgnorePoison;
use lodestore_schema::{Failure, FailureCode};
use tracing::warn;

use crate::error::ServerError;
use crate::error::failure;
use crate::limits::{CALLS_WAITING_MAX, LOOK_THREADS, WRITE_THREADS};

/// The pools of threads.
pub(crate) struct BlockingPools {
    pub(crate) looks: BlockingPool,
    pub(crate) writes: BlockingPool,
}

/// Threads that serve one queue of calls.
pub(crate) struct BlockingPool {
    calls: SyncSender<Task>,
    waiting: Arc<AtomicU64>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// A reserved place in a pool's queue: a call that owns values cannot fail for a full queue.
pub(crate) struct Place<'a>(&'a BlockingPool);

/// A call; `None` ends the thread that receives it.
type Task = Option<Box<dyn FnOnce() + Send>>;

/// The result of a call, awaited and dropped on the shard that made the call.
///
/// A standard channel would drop the waker on the thread that made the call. With glommio-ng 0.12
/// that may touch the memory of the woken task after it was freed. So only the shard drops the
/// waker.
pub(crate) struct Answer<T> {
    slot: Slot<T>,
    /// Makes this `!Send`.
    stays: PhantomData<Rc<()>>,
}

/// Shared slot of a result.
type Slot<T> = Arc<Mutex<ReplyState<T>>>;

struct ReplyState<T> {
    answer: Option<T>,
    /// No result will follow.
    is_over: bool,
    waker: Option<Waker>,
}

/// The calling thread's end of a slot; dropping it wakes the shard.
struct ReplySlot<T>(Slot<T>);

impl BlockingPools {
    /// Starts the threads; threads for writes only if `writable`.
    pub(crate) fn start(writable: bool) -> Result<Self, ServerError> {
        let n_writers = if writable { WRITE_THREADS } else { 0 };
        let looks = BlockingPool::start("lode-look", LOOK_THREADS)?;
        Ok(Self { looks, writes: BlockingPool::start("lode-write", n_writers)? })
    }

    /// Ends all threads once the queued calls are done.
    pub(crate) fn stop(&self) {
        self.writes.stop();
        self.looks.stop();
    }
}

impl BlockingPool {
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

    /// Returns the number of queued calls.
    pub(crate) fn n_waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Runs `call` on a thread, even if its result is no longer awaited.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Answer<T>, Failure> {
        self.place()?.call(call)
    }

    /// Reserves a place in the queue; fails if the queue is full.
    pub(crate) fn place(&self) -> Result<Place<'_>, Failure> {
        // Counted before the call is queued, so that the queue never holds more calls than places.
        if self.waiting.fetch_add(1, Ordering::Relaxed) < CALLS_WAITING_MAX as u64 {
            return Ok(Place(self));
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let message = format!("{CALLS_WAITING_MAX} calls of the store are queued, the limit");
        Err(failure(FailureCode::Overloaded, message))
    }

    fn stop(&self) {
        let threads = std::mem::take(&mut *self.threads.lock().ignore_poison());
        for _ in &threads {
            // Fails only if no thread is left.
            let _ = self.calls.send(None);
        }
        for thread in threads {
            if thread.join().is_err() {
                warn!("a store thread panicked");
            }
        }
    }
}

impl Place<'_> {
    /// Runs `call` on a thread; fails only if the server is stopping.
    pub(crate) fn call<T: Send + 'static>(
        self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Answer<T>, Failure> {
        let state = ReplyState { answer: None, is_over: false, waker: None };
        let slot = Arc::new(Mutex::new(state));
        let slot_of_thread = ReplySlot(Arc::clone(&slot));
        let task = move || slot_of_thread.fill(call());
        let sent = self.0.calls.try_send(Some(Box::new(task)));
        sent.map_err(|_| failure(FailureCode::Stopping, "the server is stopping"))?;
        // The thread that runs the call releases the place.
        std::mem::forget(self);
        Ok(Answer { slot, stays: PhantomData })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<T> Future for Answer<T> {
    type Output = Result<T, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.lock().ignore_poison();
        if state.is_over {
            let panicked = || failure(FailureCode::Internal, "a call of the store panicked");
            return Poll::Ready(state.answer.take().ok_or_else(panicked));
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        drop(self.slot.lock().ignore_poison().waker.take());
    }
}

impl<T> ReplySlot<T> {
    fn fill(self, answer: T) {
        self.0.lock().ignore_poison().answer = Some(answer);
    }
}

impl<T> Drop for ReplySlot<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock().ignore_poison();
        state.is_over = true;
        // Woken under the lock, so that the shard does not drop the waker meanwhile.
        if let Some(waker) = &state.waker {
            waker.wake_by_ref();
        }
    }
}

fn work(queue: &Mutex<Receiver<Task>>, waiting: &AtomicU64) {
    loop {
        let task = queue.lock().ignore_poison().recv();
        let Ok(Some(task)) = task else { return };
        waiting.fetch_sub(1, Ordering::Relaxed);
        if catch_unwind(AssertUnwindSafe(task)).is_err() {
            // Unwinding drops the `ReplySlot`, which reports the panic to the shard.
            warn!("a store call panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use glommio::{Latency, Shares};

    use super::*;

    const N_TURNS: u32 = 2000;

    fn answer<T: Send>(answer: Answer<T>) -> Result<T, Failure> {
        futures_lite::future::block_on(answer)
    }

    #[test]
    fn a_panic_of_a_call_is_reported_and_affects_no_other() {
        let pool = BlockingPool::start("test", 2).unwrap();
        for _ in 0..5 {
            let panicked = pool.call(|| panic!("on purpose")).unwrap();
            assert_eq!(answer::<()>(panicked).unwrap_err().code, FailureCode::Internal);
        }
        assert_eq!(answer(pool.call(|| 7).unwrap()), Ok(7));
        pool.stop();
    }

    /// Tasks end and are freed while the thread that woke them may still be in `wake`.
    #[test]
    fn answers_wake_tasks_that_end_immediately() {
        let pool = Arc::new(BlockingPool::start("test", 4).unwrap());
        let made = Arc::clone(&pool);
        let run = move || async move {
            let latency = Latency::Matters(Duration::from_micros(500));
            let queue = glommio::executor().create_task_queue(Shares::default(), latency, "test");
            for turn in 0..N_TURNS {
                let tasks = (0..8u32).map(|i| {
                    let answer = made.call(move || turn ^ i).unwrap();
                    glommio::spawn_local_into(async move { answer.await.unwrap() }, queue).unwrap()
                });
                for (i, task) in (0..).zip(tasks.collect::<Vec<_>>()) {
                    assert_eq!(task.await, turn ^ i);
                }
            }
        };
        glommio::LocalExecutorBuilder::default().spawn(run).unwrap().join().unwrap();
        pool.stop();
    }

    #[test]
    fn a_full_queue_refuses_and_queued_calls_run_before_the_end() {
        let pool = BlockingPool::start("test", 1).unwrap();
        let (go, wait) = channel::<()>();
        let (done, made) = channel();
        let first = pool.call(move || wait.recv_timeout(Duration::from_secs(10)).is_ok()).unwrap();
        // Once the thread has dequeued the first call, the queue holds its full length.
        let mut n_waiting = 0;
        let refusal = loop {
            let done = done.clone();
            match pool.call(move || done.send(()).is_ok()) {
                Ok(_) => n_waiting += 1,
                Err(refusal) if n_waiting >= CALLS_WAITING_MAX => break refusal,
                Err(_) => std::thread::yield_now(),
            }
        };
        assert_eq!(refusal.code, FailureCode::Overloaded);
        assert!(!refusal.retry_after.is_zero());
        assert!(pool.place().is_err());
        assert!(pool.n_waiting() >= CALLS_WAITING_MAX as u64);
        go.send(()).unwrap();
        assert_eq!(answer(first), Ok(true));
        pool.stop();
        assert_eq!(pool.n_waiting(), 0);
        assert_eq!(made.try_iter().count(), n_waiting);
        assert_eq!(pool.call(|| ()).err().map(|failure| failure.code), Some(FailureCode::Stopping));
    }
}
