//! How threads without an executor reach a shard.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use glommio::GlommioError;
use glommio::channels::shared_channel::ForeignSender;

/// What other threads tell a shard.
pub(crate) enum Event {
    /// A client has come.
    Connection(OwnedFd),
    /// Finish what is in flight and end.
    Stop,
}

/// The sending end of a shard's events, for threads without an executor.
pub(crate) struct Inbox(Mutex<ForeignSender<Event>>);

impl Inbox {
    pub(super) fn new(sender: ForeignSender<Event>) -> Self {
        Self(Mutex::new(sender))
    }

    /// Hands over a connection; `false`, and the connection closed, when the mailbox is full.
    pub(crate) fn connect(&self, connection: OwnedFd) -> bool {
        self.lock().try_send(Event::Connection(connection)).is_ok()
    }

    /// Tells the shard to end, unless it has ended already.
    pub(crate) fn stop(&self) {
        while let Err(GlommioError::WouldBlock(_)) = self.lock().try_send(Event::Stop) {
            // A full mailbox empties: the shard still takes events.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn lock(&self) -> MutexGuard<'_, ForeignSender<Event>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
