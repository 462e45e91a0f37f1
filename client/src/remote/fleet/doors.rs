//! By which port a shard is reached: by its own, or by the server's common one, where a firewall, a
//! forwarded port or a container lets through no other. Behind that any shard forwards.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tracing::warn;

use super::super::describe::describe;
use super::Fleet;
use crate::ClientError;
use crate::connection::Connection;
use crate::route::same_graph;

/// Longest time for a first connection to a port of a shard to be taken: a packet that was lost on its
/// way is sent again after a second.
const OWN_PORT_TIMEOUT: Duration = Duration::from_millis(1500);
/// A port that has had less time than this may be reached another time.
const OWN_PORT_TIMEOUT_MIN: Duration = Duration::from_millis(200);

/// What has been found of the ports of one server, for as long as they stay.
#[derive(Debug, Default)]
pub(super) struct Doors {
    /// By shard: its own port has been reached, so that whatever keeps it silent is not on the way.
    are_reached: Vec<AtomicBool>,
    /// A port of a shard cannot be reached though the common one can: the others are not tried.
    by_common: AtomicBool,
}

impl Doors {
    pub(super) fn new(n_shards: u16) -> Arc<Self> {
        let are_reached = (0..n_shards).map(|_| AtomicBool::default()).collect();
        Arc::new(Self { are_reached, by_common: false.into() })
    }
}

impl Fleet {
    /// A new connection to an endpoint, or to another shard of its server, which forwards. Where the
    /// shard's own port is not reached although the server describes itself as it was known, all
    /// further connections to that server go to its common port.
    pub(crate) fn open(
        &self,
        endpoint: usize,
        deadline: Instant,
    ) -> Result<Connection, ClientError> {
        let (server, shard) = self.routes.shard_of(endpoint);
        let (own, common) = (&self.routes.endpoints[endpoint].address, self.address(server));
        let (doors, open) = (&self.doors[server], Connection::open_by);
        if own == common || doors.by_common.load(Ordering::Relaxed) {
            return open(common, &self.security, (deadline, deadline));
        }
        let is_reached = &doors.are_reached[shard];
        if is_reached.load(Ordering::Relaxed) {
            return open(own, &self.security, (deadline, deadline));
        }
        // Half of the time is left for the common port.
        let begun = Instant::now();
        let most = OWN_PORT_TIMEOUT.min(deadline.saturating_duration_since(begun) / 2);
        let error = match open(own, &self.security, (begun + most, deadline)) {
            Err(error) if is_unreachable(&error, most) => error,
            opened => {
                is_reached.fetch_or(opened.is_ok(), Ordering::Relaxed);
                return opened;
            }
        };
        if !self.listens_as_known(server, deadline) {
            return Err(error);
        }
        if !doors.by_common.swap(true, Ordering::Relaxed) {
            warn!(
                address = %common, %error,
                "ports of its shards cannot be reached; it is asked by its common port, where shards \
                 forward to each other, which takes it longer"
            );
        }
        open(common, &self.security, (deadline, deadline))
    }

    /// Whether a server tells by its common port that its shards listen where they were known to.
    fn listens_as_known(&self, server: usize, deadline: Instant) -> bool {
        let (address, known) = &self.servers[server];
        describe(address, &self.security, deadline).is_ok_and(|found| {
            same_graph(&found, known)
                && (found.n_shards, found.shard_ports)
                    == (known.n_shards, known.shard_ports.clone())
        })
    }

    /// What is known of the ports of a server by those who knew it before with the same.
    pub(super) fn inherit_doors(&mut self, before: &Self) {
        for (now, (address, found)) in self.servers.iter().enumerate() {
            let Some(then) = before.position(address) else { continue };
            let known = &before.servers[then].1;
            if (found.n_shards, &found.shard_ports) == (known.n_shards, &known.shard_ports) {
                self.doors[now] = Arc::clone(&before.doors[then]);
            }
        }
    }
}

/// Whether a port has not been reached in so much time for another reason than that a server has no
/// room for the moment.
fn is_unreachable(error: &ClientError, after: Duration) -> bool {
    let ClientError::Connect { source, .. } = error else { return false };
    match source.kind() {
        io::ErrorKind::WouldBlock => false,
        io::ErrorKind::TimedOut => after >= OWN_PORT_TIMEOUT_MIN,
        _ => true,
    }
}
