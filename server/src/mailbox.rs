//! How threads without an executor send events to a shard.

use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use glommio::GlommioError;
use glommio::channels::shared_channel::ForeignSender;
use lodestore_graph::PartId;
use lodestore_graph::lock::IgnorePoison;
use lodestore_schema::Failure;
use tracing::warn;

use crate::limits::DRAIN_TIMEOUT;
use crate::listen::Arrival;

/// Events that other threads send to a shard.
pub(crate) enum Event {
    /// A new connection.
    Connection(Arrival),
    /// A compaction has folded layers of this partition.
    Folded(PartId),
    /// A version of this partition was installed; the sender receives whether the shard has
    /// switched.
    Installed(PartId, Sender<Result<(), Failure>>),
    /// The folder of this partition has arrived; the sender receives the version that is then
    /// served.
    Adopt(PartId, Sender<Result<u32, Failure>>),
    /// Finish requests in flight and end.
    Stop,
    /// Panic.
    #[cfg(test)]
    Die,
}

/// Sending end of a shard's events, for threads without an executor.
pub(crate) struct Mailbox(Mutex<ForeignSender<Event>>);

impl Mailbox {
    pub(crate) fn new(sender: ForeignSender<Event>) -> Self {
        Self(Mutex::new(sender))
    }

    /// Hands over a connection; if the mailbox is full, closes it and returns `false`.
    pub(crate) fn connect(&self, connection: Arrival) -> bool {
        self.lock().try_send(Event::Connection(connection)).is_ok()
    }

    /// Sends a control message, unless the shard has ended. Blocks while the mailbox is full.
    pub(crate) fn send(&self, event: impl Fn() -> Event) {
        let end = Instant::now() + DRAIN_TIMEOUT;
        while let Err(GlommioError::WouldBlock(_)) = self.lock().try_send(event()) {
            // A full mailbox drains, unless its shard is dead.
            if Instant::now() > end {
                warn!("shard mailbox is full; dropping a control message");
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn lock(&self) -> MutexGuard<'_, ForeignSender<Event>> {
        self.0.lock().ignore_poison()
    }
}
