//! The thread that accepts connections and hands each to a shard.
//!
//! It is a plain thread, so that a stop closes the listening sockets first, and so that neither a
//! flood of connections nor a lack of file descriptors costs a shard time.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use tracing::warn;

use crate::error::ServerError;
use crate::listen::Listeners;
use crate::log_limit::LogLimiter;
use crate::mailbox::Mailbox;
use crate::metrics::Observed;
use crate::supervisor::{PollThread, ThreadSupervisor, back_off};

/// Starts to accept; the end of the thread closes the listening sockets. Connections of a socket
/// without a shard are spread over `mailboxes` in turn.
pub(crate) fn start(
    listeners: Listeners,
    mailboxes: Arc<[Mailbox]>,
    observed: Arc<Observed>,
    supervisor: &ThreadSupervisor,
) -> Result<PollThread, ServerError> {
    let guard = supervisor.thread_guard("lode-accept");
    PollThread::start("lode-accept", move |stop| {
        guard.hold();
        run(&listeners, &mailboxes, &observed, stop);
    })
}

fn run(listeners: &Listeners, mailboxes: &[Mailbox], observed: &Observed, stop: &OwnedFd) {
    let mut turn = 0;
    let (log_limit, drops) = (LogLimiter::default(), LogLimiter::default());
    loop {
        let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
        fds.extend(listeners.sockets.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                if back_off(stop, &log_limit, "poll failed", &error.into()) {
                    return;
                }
                continue;
            }
        }
        if !fds[0].revents().is_empty() {
            return;
        }
        let ready: Vec<bool> = fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
        for (listener, _) in listeners.sockets.iter().zip(ready).filter(|(_, ready)| *ready) {
            match listener.accept() {
                Ok(connection) => {
                    let shard = listener.shard.unwrap_or_else(|| {
                        turn = (turn + 1) % mailboxes.len();
                        turn
                    });
                    // A full mailbox drops the connection, which closes it.
                    if !mailboxes[shard].connect(connection) {
                        observed.dropped();
                        if let Some(untold) = drops.allow(Instant::now()) {
                            warn!(shard, untold, "dropped a connection: shard mailbox is full");
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    if back_off(stop, &log_limit, "accept failed", &error) {
                        return;
                    }
                }
            }
        }
    }
}
