//! Choice of the port by which a shard is reached: its own, or the server's common one. The common
//! port is used where a firewall, a forwarded port or a container lets through no other. Any shard
//! behind it forwards.

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

/// Longest time for a first connection to a port of a shard. A packet that was lost on its way is
/// sent again after a second.
const OWN_PORT_TIMEOUT: Duration = Duration::from_millis(1500);
/// The same once the server has said that it listens there: the obstacle may be gone.
const OWN_PORT_AGAIN_TIMEOUT: Duration = Duration::from_millis(300);
/// A port that has had less time than this may be reached another time.
const OWN_PORT_TIMEOUT_MIN: Duration = Duration::from_millis(200);

/// Findings about the ports of one server, for as long as they stay.
#[derive(Debug, Default)]
pub(super) struct PortProbe {
    /// By shard: its own port has been reached, so that whatever keeps it silent is not on the way.
    are_reached: Vec<AtomicBool>,
    /// A port of a shard cannot be reached though the common one can: the others are not tried.
    uses_common_port: AtomicBool,
    /// The thread that finds out whether that is so.
    search: PerProcess<SearchState>,
}

/// Whether a thread of this process finds out, and what wakes those that wait for it.
#[derive(Debug, Default)]
struct SearchState {
    is_sought: Mutex<bool>,
    is_found: Condvar,
}

/// The probe that all requests to the server share.
struct Search<'a>(&'a SearchState);

impl PortProbe {
    pub(super) fn new(n_shards: u16) -> Arc<Self> {
        let are_reached = (0..n_shards).map(|_| AtomicBool::default()).collect();
        Arc::new(Self { are_reached, ..Self::default() })
    }

    /// Returns the search, unless another has it: then `None` once that is over, or the deadline.
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
    /// Opens a connection to an endpoint, or to another shard of its server, which forwards. The
    /// shard's own port may fail twice while the server describes itself as it was known. Then all
    /// further connections to that server go to its common port.
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
        // The search has not shown that it is so, at another port.
        if search.is_none() {
            return Err(error);
        }
        warn!(
            address = %common, %error,
            "ports of its shards cannot be reached; it is asked by its common port, where shards \
             forward to each other, which takes it longer"
        );
        probe.uses_common_port.store(true, Ordering::Relaxed);
        drop(search);
        open(common)
    }

    /// Continues with the error of a port that was not reached within this time, or half of the
    /// rest. The other half is for the common port.
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

    /// Returns whether a server confirms by its common port that it has not restarted and its
    /// shards listen where they did.
    fn listens_as_known(&self, server: usize, deadline: Instant) -> bool {
        let (address, known) = &self.servers[server];
        describe(address, &self.security, deadline).is_ok_and(|found| {
            same_graph(&found, known)
                && found.is_same_server(known)
                && (found.n_shards, &found.shard_ports) == (known.n_shards, &known.shard_ports)
        })
    }

    /// Returns the knowledge of a server's ports from an earlier description with the same ports.
    /// Returns the place of each of these servers, now and before.
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

/// Returns whether an error says that nothing leads to a port, or that no answer has come in that
/// time. A lack of room in this process or a server is no such error.
fn is_unreachable(error: &ClientError, after: Duration) -> bool {
    let ClientError::Connect { address, source } = error else { return false };
    match source.kind() {
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::PermissionDenied => true,
        // Of a name it would be that it has no address.
        io::ErrorKind::NotFound => matches!(address, Address::Unix(_)),
        io::ErrorKind::TimedOut => after >= OWN_PORT_TIMEOUT_MIN,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_over_soon_is_no_wall() {
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
    fn one_searches_and_the_others_wait_until_it_is_over_or_their_time_is() {
        let probe = PortProbe::new(1);
        let soon = || Instant::now() + Duration::from_millis(20);
        let search = probe.search(soon()).unwrap();
        assert!(probe.search(soon()).is_none(), "another process has it");
        let waits = std::thread::spawn({
            let probe = Arc::clone(&probe);
            move || probe.search(Instant::now() + Duration::from_secs(60)).is_none()
        });
        drop(search);
        // Either it has waited, or it came when it was over.
        let _ = waits.join().unwrap();
        assert!(probe.search(soon()).is_some());
    }
}
