//! How threads without an executor reach a shard.

use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use glommio::GlommioError;
use glommio::channels::shared_channel::ForeignSender;
use lodestore_graph::PartId;
use lodestore_schema::Failure;
use tracing::warn;

use crate::limits::DRAIN_TIMEOUT;
use crate::listen::Arrival;

/// Messages of other threads to a shard.
pub(crate) enum Event {
    /// A client has come.
    Connection(Arrival),
    /// A compaction has folded layers of this partition.
    Folded(PartId),
    /// A version of this partition was installed; the sender receives whether it is read.
    Installed(PartId, Sender<Result<(), Failure>>),
    /// The folder of this partition has come; the sender receives the version that is served then.
    Adopt(PartId, Sender<Result<u32, Failure>>),
    /// Finish what is in flight and end.
    Stop,
    /// Panic.
    #[cfg(test)]
    Die,
}

/// The sending end of a shard's events, for threads without an executor.
pub(crate) struct Mailbox(Mutex<ForeignSender<Event>>);

impl Mailbox {
    pub(crate) fn new(sender: ForeignSender<Event>) -> Self {
        Self(Mutex::new(sender))
    }

    /// Hands over a connection; `false`, and the connection closed, when the mailbox is full.
    pub(crate) fn connect(&self, connection: Arrival) -> bool {
        self.lock().try_send(Event::Connection(connection)).is_ok()
    }

    /// Reports layers that a compaction has folded to the shard, unless it has ended.
    pub(crate) fn folded(&self, part: PartId) {
        self.send(|| Event::Folded(part));
    }

    /// Has the shard read the version of a partition that was installed.
    pub(crate) fn installed(&self, part: PartId, done: &Sender<Result<(), Failure>>) {
        self.send(|| Event::Installed(part, done.clone()));
    }

    /// Has all shards serve a partition whose folder has come.
    pub(crate) fn adopt(&self, part: PartId, done: &Sender<Result<u32, Failure>>) {
        self.send(|| Event::Adopt(part, done.clone()));
    }

    /// Requests the shard to end, unless it has ended already.
    pub(crate) fn stop(&self) {
        self.send(|| Event::Stop);
    }

    /// Has the shard die.
    #[cfg(test)]
    pub(crate) fn die(&self) {
        self.send(|| Event::Die);
    }

    fn send(&self, event: impl Fn() -> Event) {
        let end = Instant::now() + DRAIN_TIMEOUT;
        while let Err(GlommioError::WouldBlock(_)) = self.lock().try_send(event()) {
            // A full mailbox empties, unless its shard is dead.
            if Instant::now() > end {
                warn!("the mailbox of a shard is full; a control message is dropped");
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn lock(&self) -> MutexGuard<'_, ForeignSender<Event>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
