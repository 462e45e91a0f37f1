//! Wakes every shard a few hundred times a second, so that none oversleeps.
//!
//! The executor of glommio-ng 0.12 may park although tasks are runnable: when an event arrives
//! between its last look at the rings and its first task queue (fixed upstream later, in
//! glommio/glommio#53). Such a shard sleeps until the next event, which can be seconds away. A
//! timer on the shard itself is no cure, because the timer's own task may be one of the runnable.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use glommio::channels::shared_channel::{self, ForeignSender};

use crate::ServerError;
use crate::limits::PULSE;

/// Pulses that a shard may leave unread; one more is dropped.
const UNREAD_MAX: usize = 64;

/// The pulsing thread; it ends when this is dropped, which must be after the last shard.
pub(crate) struct Pulse {
    shards: Shards,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Shards that are pulsed.
#[derive(Clone, Default)]
pub(crate) struct Shards(Arc<Mutex<Vec<ForeignSender<()>>>>);

impl Pulse {
    /// Starts the thread.
    pub(crate) fn start() -> Result<Self, ServerError> {
        let shards = Shards::default();
        let pulsed = shards.clone();
        let (stop, stopped) = channel();
        let run = move || {
            while stopped.recv_timeout(PULSE) == Err(RecvTimeoutError::Timeout) {
                for shard in &*pulsed.lock() {
                    // Full: it has been woken and has not yet come to read.
                    let _ = shard.try_send(());
                }
            }
        };
        let thread = std::thread::Builder::new().name("lode-pulse".into()).spawn(run);
        let thread = Some(thread.map_err(ServerError::Thread)?);
        Ok(Self { shards, stop: Some(stop), thread })
    }

    /// Where shards join.
    pub(crate) fn shards(&self) -> Shards {
        self.shards.clone()
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It cannot panic, and nothing is lost if it has.
            let _ = thread.join();
        }
    }
}

impl Shards {
    /// Has the executor that this runs on pulsed from now on.
    pub(crate) async fn join(&self) {
        let (sender, receiver) = shared_channel::new_bounded(UNREAD_MAX);
        let (sender, receiver) =
            futures_lite::future::zip(sender.connect(), receiver.connect()).await;
        self.lock().push(sender.into_foreign());
        glommio::spawn_local(async move { while receiver.recv().await.is_some() {} }).detach();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ForeignSender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
