//! Choice of the port of a shard: its own, or the common port of its server. The common port is
//! used where a firewall, a forwarded port or a container lets through no other. The shard behind
//! it forwards the request.

use std::io;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use lodestore_graph::fork::PerProcess;
use lodestore_graph::lock::IgnorePoison;
use tracing::warn;

use super::super::describe::describe;
use super::ClusterView;
use crate::address::Address;
use crate::connection::Connection;
use crate::error::ClientError;
use crate::route::same_graph;

/// Time limit of a first connection to a shard's port. A lost packet is resent after a second.
const OWN_PORT_TIMEOUT: Duration = Duration::from_millis(1500);
/// Time limit of the second connection attempt, after the server has confirmed the port.
const OWN_PORT_AGAIN_TIMEOUT: Duration = Duration::from_millis(300);
/// A port that times out sooner than this may still be reachable.
const OWN_PORT_TIMEOUT_MIN: Duration = Duration::from_millis(200);

/// Probe results for the ports of one server, valid while the ports stay the same.
#[derive(Debug, Default)]
pub(super) struct PortProbe {
    /// By shard: whether its own port has been reached, so that no firewall explains later silence.
    are_reached: Vec<AtomicBool>,
    /// Whether a shard's port was unreachable while the common port was not: no other shard's port
    /// is tried.
    uses_common_port: AtomicBool,
    /// The probe that decides `uses_common_port`.
    search: PerProcess<SearchState>,
}

/// Whether a thread of this process probes, and the condition that wakes the threads that wait for
/// it.
#[derive(Debug, Default)]
struct SearchState {
    is_sought: Mutex<bool>,
    is_found: Condvar,
}

/// The right to probe; all requests to the server share one probe.
struct Search<'a>(&'a SearchState);

impl PortProbe {
    pub(super) fn new(n_shards: u16) -> Arc<Self> {
        let are_reached = (0..n_shards).map(|_| AtomicBool::default()).collect();
        Arc::new(Self { are_reached, ..Self::default() })
    }

    /// Starts the probe. If another thread runs it, waits until it ends or until the deadline, and
    /// returns `None`.
    fn search(&self, deadline: Instant) -> Option<Search<'_>> {
        let search = self.search.get_or(|_| SearchState::default());
        let mut is_sought = search.is_sought.lock().ignore_poison();
        if !*is_sought {
            *is_sought = true;
            return Some(Search(search));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = search.is_found.wait_timeout_while(is_sought, left, |it| *it);
        drop(waited.ignore_poison());
        None
    }

    fn uses_common_port(&self) -> bool {
        self.uses_common_port.load(Ordering::Relaxed)
    }
}

impl Drop for Search<'_> {
    fn drop(&mut self) {
        *self.0.is_sought.lock().ignore_poison() = false;
        self.0.is_found.notify_all();
    }
}

impl ClusterView {
    /// Opens a connection to an endpoint, or to another shard of its server, which forwards. If the
    /// shard's own port fails twice while the server describes itself unchanged, all later
    /// connections to that server use its common port.
    pub(crate) fn open(
        &self,
        endpoint: usize,
        deadline: Instant,
    ) -> Result<Connection, ClientError> {
        let (server, shard) = self.routes.shard_of(endpoint);
        let (own, common) = (&self.routes.endpoints[endpoint].address, self.address(server));
        let probe = &self.port_probes[server];
        let open = |address| Connection::open(address, &self.security, deadline);
        if own == common || probe.uses_common_port() {
            return open(common);
        }
        let is_reached = &probe.are_reached[shard];
        if is_reached.load(Ordering::Relaxed) {
            return open(own);
        }
        let try_own = |most| {
            let tried = self.try_port(own, most, deadline);
            is_reached.fetch_or(matches!(tried, Break(Ok(_))), Ordering::Relaxed);
            tried
        };
        let error = match try_own(OWN_PORT_TIMEOUT) {
            Break(opened) => return opened,
            Continue(error) => error,
        };
        let search = probe.search(deadline);
        if probe.uses_common_port() {
            drop(search);
            return open(common);
        }
        if search.is_some() && !self.listens_as_known(server, deadline) {
            return Err(error);
        }
        let error = match try_own(OWN_PORT_AGAIN_TIMEOUT) {
            Break(opened) => return opened,
            Continue(error) => error,
        };
        // The probe of another thread has not shown that the ports are unreachable.
        if search.is_none() {
            return Err(error);
        }
        warn!(
            address = %common, %error,
            "shard ports unreachable, falling back to the common port (slower)"
        );
        probe.uses_common_port.store(true, Ordering::Relaxed);
        drop(search);
        open(common)
    }

    /// Connects to a port. Continues with the error if the port was not reached within `most`, or
    /// within half of the remaining time; the other half is for the common port.
    fn try_port(
        &self,
        address: &Address,
        most: Duration,
        deadline: Instant,
    ) -> ControlFlow<Result<Connection, ClientError>, ClientError> {
        let begun = Instant::now();
        let most = most.min(deadline.saturating_duration_since(begun) / 2);
        match Connection::open_by(address, &self.security, begun + most, deadline) {
            Err(error) if is_unreachable(&error, most) => Continue(error),
            opened => Break(opened),
        }
    }

    /// Returns whether a server confirms over its common port that it has not restarted and that
    /// its shards listen where they did.
    fn listens_as_known(&self, server: usize, deadline: Instant) -> bool {
        let (address, known) = &self.servers[server];
        describe(address, &self.security, deadline).is_ok_and(|found| {
            same_graph(&found, known)
                && found.is_same_server(known)
                && (found.n_shards, &found.shard_ports) == (known.n_shards, &known.shard_ports)
        })
    }

    /// Keeps the probes of servers whose ports are as in `before`. Returns the index of each of
    /// these servers, now and before.
    pub(super) fn inherit_probes(&mut self, before: &Self) -> Vec<(usize, usize)> {
        let mut inherited = Vec::new();
        for (now, (address, found)) in self.servers.iter().enumerate() {
            let Some(then) = before.position(address) else { continue };
            let known = &before.servers[then].1;
            if (found.n_shards, &found.shard_ports) == (known.n_shards, &known.shard_ports) {
                self.port_probes[now] = Arc::clone(&before.port_probes[then]);
                inherited.push((now, then));
            }
        }
        inherited
    }
}

/// Returns whether an error says that a port cannot be reached, or that a connection timed out
/// after `after`. A lack of room in this process or a server does not say so.
fn is_unreachable(error: &ClientError, after: Duration) -> bool {
    let ClientError::Connect { address, source } = error else { return false };
    match source.kind() {
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::PermissionDenied => true,
        // For a host name, it would say that the name has no address.
        io::ErrorKind::NotFound => matches!(address, Address::Unix(_)),
        io::ErrorKind::TimedOut => after >= OWN_PORT_TIMEOUT_MIN,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_may_pass_do_not_make_a_port_unreachable() {
        let of = |address: &str, source: io::Error, after: Duration| {
            let address = address.parse().unwrap();
            is_unreachable(&ClientError::Connect { address, source }, after)
        };
        let (tcp, unix, after) = ("10.0.0.1:7", "unix:/run/rows.sock.1", OWN_PORT_TIMEOUT);
        let errno = |errno: rustix::io::Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        for found in [rustix::io::Errno::CONNREFUSED, rustix::io::Errno::ACCESS] {
            assert!(of(tcp, errno(found), after) && of(unix, errno(found), after), "{found}");
        }
        for found in [rustix::io::Errno::MFILE, rustix::io::Errno::AGAIN] {
            assert!(!of(tcp, errno(found), after) && !of(unix, errno(found), after), "{found}");
        }
        assert!(of(unix, errno(rustix::io::Errno::NOENT), after));
        assert!(!of("rows1:7", io::ErrorKind::NotFound.into(), after));
        assert!(of(tcp, errno(rustix::io::Errno::HOSTUNREACH), after));
        assert!(!of("rows1:7", io::Error::other("failed to lookup address"), after));
        assert!(of(tcp, io::ErrorKind::TimedOut.into(), OWN_PORT_TIMEOUT_MIN));
        assert!(!of(tcp, io::ErrorKind::TimedOut.into(), OWN_PORT_TIMEOUT_MIN / 2));
    }

    #[test]
    fn one_thread_probes_and_the_others_wait_for_it_or_their_deadline() {
        let probe = PortProbe::new(1);
        let soon = || Instant::now() + Duration::from_millis(20);
        let search = probe.search(soon()).unwrap();
        assert!(probe.search(soon()).is_none(), "the probe is running");
        let waits = std::thread::spawn({
            let probe = Arc::clone(&probe);
            move || probe.search(Instant::now() + Duration::from_secs(60)).is_none()
        });
        drop(search);
        // The thread has waited, or it started after the probe had ended.
        let _ = waits.join().unwrap();
        assert!(probe.search(soon()).is_some());
    }
}
