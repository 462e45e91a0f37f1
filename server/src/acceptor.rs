//! The one thread that accepts connections and hands each to a shard.
//!
//! It is a plain thread, so that a stop closes the listening sockets first. A flood of connections
//! or a lack of file descriptors never takes a shard's time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use tracing::warn;

use crate::error::ServerError;
use crate::listen::Listeners;
use crate::log_limit::LogLimiter;
use crate::mailbox::Mailbox;
use crate::metrics::Observed;
use crate::supervisor::ThreadSupervisor;

/// Pause after an accept or a poll that failed for want of descriptors or memory.
const BACKOFF: Duration = Duration::from_millis(50);

/// Handle to the accepting thread.
pub(crate) struct Acceptor {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Starts to accept. Connections of a listening socket without a shard go to `mailboxes` in
    /// turn.
    pub(crate) fn start(
        listeners: Listeners,
        mailboxes: Arc<[Mailbox]>,
        observed: Arc<Observed>,
        supervisor: &ThreadSupervisor,
    ) -> Result<Self, ServerError> {
        let thread_error = |e: rustix::io::Errno| ServerError::Thread(e.into());
        let stop = Arc::new(
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(thread_error)?,
        );
        let stopped = Arc::clone(&stop);
        let guard = supervisor.thread_guard("lode-accept");
        let accept = move || {
            guard.hold();
            run(&listeners, &mailboxes, &observed, &stopped);
        };
        let thread = std::thread::Builder::new()
            .name("lode-accept".into())
            .spawn(accept)
            .map_err(ServerError::Thread)?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Closes all listening sockets; when it returns, no connection is taken any more.
    pub(crate) fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).is_err() {
            warn!("the accepting thread cannot be stopped");
            return;
        }
        if thread.join().is_err() {
            warn!("the accepting thread had panicked");
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(listeners: &Listeners, mailboxes: &[Mailbox], observed: &Observed, stop: &OwnedFd) {
    let mut turn = 0;
    let (log_limit, drops) = (LogLimiter::default(), LogLimiter::default());
    let tell = |error: &io::Error, what: &str| {
        if let Some(untold) = log_limit.allow(Instant::now()) {
            warn!(%error, untold, "{what} failed");
        }
        std::thread::sleep(BACKOFF);
    };
    loop {
        let mut fds: Vec<PollFd<'_>> = std::iter::once(PollFd::new(stop, PollFlags::IN))
            .chain(
                listeners
                    .sockets()
                    .iter()
                    .map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)),
            )
            .collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tell(&error.into(), "poll");
                if rustix::io::read(stop, &mut [0; 8]).is_ok() {
                    return;
                }
                continue;
            }
        }
        if !fds[0].revents().is_empty() {
            return;
        }
        let ready: Vec<bool> = fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
        for (listener, _) in listeners.sockets().iter().zip(ready).filter(|(_, ready)| *ready) {
            match listener.accept() {
                Ok(connection) => {
                    let shard = listener.shard.unwrap_or_else(|| {
                        turn = (turn + 1) % mailboxes.len();
                        turn
                    });
                    // A full mailbox drops the connection: the client sees it closed.
                    if !mailboxes[shard].connect(connection) {
                        observed.dropped();
                        if let Some(untold) = drops.allow(Instant::now()) {
                            warn!(shard, untold, "connection dropped: too many wait for the shard");
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => tell(&error, "accept"),
            }
        }
    }
}
