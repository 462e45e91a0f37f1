//! Registration of a server: a key under a lease that a thread renews.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::gateway::{Gateway, GatewayResult};
use super::{EtcdAccess, EtcdLocation, LEASE, ServerEntry};
use crate::error::ClientError;

/// How often the lease is renewed and the entry is compared.
const BEAT: Duration = Duration::from_secs(1);
/// Interval of registrations without a change: an operator may have removed or changed the key.
const TELL: Duration = Duration::from_secs(20);

/// Interval of warnings while a server is not registered.
const WARN: Duration = Duration::from_secs(60);

/// A server that stays registered until this is dropped.
pub struct Registration {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// State of the thread.
struct Registered {
    gateway: Gateway,
    lease: Option<String>,
    /// The entry registered last.
    told: ServerEntry,
    told_at: Instant,
}

impl Registration {
    /// Registers a server at `etcd:HOST:PORT,.../PREFIX`, reached with `access`, and keeps its
    /// entry up to date. An unreachable etcd is retried; the server continues without it.
    ///
    /// # Errors
    /// The location is invalid, or no thread can be started.
    pub fn start(
        at: &str,
        access: EtcdAccess,
        mut entry: impl FnMut() -> ServerEntry + Send + 'static,
    ) -> Result<Self, ClientError> {
        let place = EtcdLocation::of(at.strip_prefix("etcd:").unwrap_or(at), &access)?;
        let (end, ended) = channel::<()>();
        let work = move || {
            let (gateway, told) = (Gateway::new(place, access), ServerEntry::default());
            let mut this = Registered { gateway, lease: None, told, told_at: Instant::now() };
            let mut told_at: Option<Instant> = None;
            loop {
                let kept = this.keep(entry());
                if let Err(failure) = &kept
                    && told_at.is_none_or(|at| at.elapsed() >= WARN)
                {
                    warn!(%failure, "server not registered in etcd; clients that know it continue");
                    told_at = Some(Instant::now());
                }
                if kept.is_ok() {
                    told_at = None;
                }
                if ended.recv_timeout(BEAT) != Err(RecvTimeoutError::Timeout) {
                    return this.end();
                }
            }
        };
        let thread = std::thread::Builder::new().name("lode-register".to_owned()).spawn(work);
        let thread = thread.map_err(|source| ClientError::Poll { source })?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

/// Returns the graph of a server in `values` that is not `ours`.
fn graph_of_others(values: &[Vec<u8>], ours: &str) -> Option<String> {
    let graph = |value: &Vec<u8>| Some(serde_json::from_slice::<ServerEntry>(value).ok()?.graph);
    values.iter().filter_map(graph).find(|graph| !graph.is_empty() && graph != ours)
}

impl Registered {
    /// Renews the lease, or obtains a new one, and registers changes.
    fn keep(&mut self, entry: ServerEntry) -> GatewayResult<()> {
        // A server that was stopped for too long has lost its lease, and its key.
        if let Some(lease) = &self.lease
            && !self.gateway.keep_alive(lease)?
        {
            self.lease = None;
        }
        let is_new = self.lease.is_none();
        if is_new {
            let (ours, place) = (&entry.graph, self.gateway.place());
            // Registered servers restore the key that names the graph of the prefix, after an
            // operator has removed it.
            let claimed = match self.gateway.range()? {
                (values, None, _) => graph_of_others(&values, ours),
                _ => None,
            };
            let claimed = claimed.map_or_else(|| self.gateway.claim(ours), Ok)?;
            if claimed != *ours {
                return Err(format!(
                    "prefix {} belongs to graph {claimed}, and this server has graph {ours}; \
                     register it under another prefix, or remove the key {}",
                    place.prefix,
                    String::from_utf8_lossy(&place.graph())
                ));
            }
            self.lease = Some(self.gateway.grant(LEASE.as_secs())?);
        }
        let lease = self.lease.as_deref().unwrap_or_default();
        if is_new || is_news(&self.told, &entry) || self.told_at.elapsed() >= TELL {
            let value = serde_json::to_vec(&entry).map_err(|error| error.to_string())?;
            if let Err(failure) = self.gateway.put(&entry.address, &value, lease) {
                // The next beat registers it again.
                self.told = ServerEntry::default();
                return Err(failure);
            }
            if is_new {
                info!(map = self.gateway.place().prefix, "registered in etcd");
            }
            (self.told, self.told_at) = (entry, Instant::now());
        }
        Ok(())
    }

    fn end(self) {
        if let Some(lease) = &self.lease
            && let Err(failure) = self.gateway.revoke(lease)
        {
            warn!(%failure, "server still registered in etcd, until the lease expires");
        }
    }
}

/// Returns whether an entry is worth a write: after any change but a small one of the load.
fn is_news(told: &ServerEntry, now: &ServerEntry) -> bool {
    let quiet = ServerEntry { busy: told.busy, ..now.clone() };
    quiet != *told || (now.busy - told.busy).abs() >= 0.1
}

impl Drop for Registration {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // The thread has reported a failure.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_another_graph_keep_an_unclaimed_prefix() {
        let entry = |graph: &str| {
            let graph = graph.to_owned();
            serde_json::to_vec(&ServerEntry { graph, ..ServerEntry::default() }).unwrap()
        };
        let of = |graphs: &[&str]| {
            let values: Vec<Vec<u8>> = graphs.iter().map(|graph| entry(graph)).collect();
            graph_of_others(&values, "aa")
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&["aa", ""]), None, "an entry may name no graph");
        assert_eq!(of(&["aa", "bb"]).as_deref(), Some("bb"));
        assert_eq!(graph_of_others(&[b"nonsense".to_vec()], "aa"), None);
    }
}
