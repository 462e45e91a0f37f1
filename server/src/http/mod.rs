//! The metrics port: one thread that answers HTTP requests about this server and never involves a
//! shard.
//!
//! Each connection has one request, GET or HEAD, without a body. Connections, bytes of a request,
//! and the time for request and response are bounded. A connection beyond the limit evicts the
//! oldest one, so that slow peers cannot lock others out.

mod answer;
mod exchange;
mod request;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use lodestore_schema::Tokens;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::auth::AuthHandle;
use crate::error::ServerError;
use crate::limits::HTTP_CONNECTIONS_MAX;
use crate::log_limit::LogLimiter;
use crate::metrics::Observed;
use crate::supervisor::{PollThread, back_off};
use exchange::Exchange;

/// Handle of the thread, which ends when this is dropped.
pub(crate) struct HttpServer {
    /// Bound address.
    pub(crate) address: SocketAddr,
    _thread: PollThread,
}

impl HttpServer {
    /// Listens, and answers with the figures of `observed`.
    ///
    /// On a non-loopback address figures need the token of `auth`, if it has one. Health checks are
    /// public. `hosts` are the accepted host names, see [`request::Request::parse`].
    pub(crate) fn start(
        address: SocketAddr,
        auth: Arc<AuthHandle>,
        hosts: Vec<String>,
        observed: Arc<Observed>,
    ) -> Result<Self, ServerError> {
        let error = |source| ServerError::Listen { address: address.to_string(), source };
        let listener = TcpListener::bind(address).map_err(error)?;
        listener.set_nonblocking(true).map_err(error)?;
        let address = listener.local_addr().map_err(error)?;
        let auth = Some(auth).filter(|_| !address.ip().is_loopback());
        let rules = AccessRules { auth, hosts };
        let run = move |stop: &OwnedFd| run(&listener, &rules, &observed, stop);
        Ok(Self { address, _thread: PollThread::start("lode-http", run)? })
    }
}

/// Which clients the port answers.
struct AccessRules {
    /// Credentials required for figures; `None` on loopback.
    auth: Option<Arc<AuthHandle>>,
    /// Accepted host names.
    hosts: Vec<String>,
}

impl AccessRules {
    /// Returns the tokens required for figures.
    fn tokens(&self) -> Option<Tokens> {
        self.auth.as_ref()?.policy().token
    }
}

fn run(listener: &TcpListener, rules: &AccessRules, observed: &Observed, stop: &OwnedFd) {
    // Oldest connection first.
    let mut open: Vec<Exchange> = Vec::new();
    let log_limit = LogLimiter::default();
    loop {
        let ready = match wait(listener, stop, &open) {
            Ok(ready) => ready,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => {
                if back_off(stop, &log_limit, "poll failed on the metrics port", &error.into()) {
                    return;
                }
                let now = Instant::now();
                open.retain(|exchange| now < exchange.deadline);
                continue;
            }
        };
        if ready[0] {
            return;
        }
        let now = Instant::now();
        let mut flags = ready[2..].iter();
        open.retain_mut(|exchange| {
            let is_ready = flags.next().is_some_and(|ready| *ready);
            now < exchange.deadline && (!is_ready || exchange.go_on(rules, observed))
        });
        if ready[1]
            && let Err(error) = accept(listener, &mut open)
            && back_off(stop, &log_limit, "accept failed on the metrics port", &error)
        {
            return;
        }
    }
}

/// Returns which are ready: the stop, the listener, and each connection.
fn wait(
    listener: &TcpListener,
    stop: &OwnedFd,
    open: &[Exchange],
) -> Result<Vec<bool>, rustix::io::Errno> {
    let mut fds = vec![PollFd::new(stop, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
    fds.extend(open.iter().map(|exchange| PollFd::new(exchange, exchange.awaits())));
    let until = open.iter().map(|exchange| exchange.deadline).min();
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    poll(&mut fds, left.as_ref())?;
    Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect())
}

fn accept(listener: &TcpListener, open: &mut Vec<Exchange>) -> io::Result<()> {
    match listener.accept().and_then(|(stream, _)| Exchange::new(stream)) {
        Ok(exchange) => {
            if open.len() >= HTTP_CONNECTIONS_MAX {
                open.remove(0);
            }
            open.push(exchange);
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}
