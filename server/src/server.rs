//! Start, addresses and stop of a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use glommio::ExecutorJoinHandle;
use lodestore_cache::MemoryBudget;
use lodestore_graph::PartId;
use lodestore_schema::stats::ShardStats;
use tracing::info;

use crate::acceptor;
use crate::auth::{AuthHandle, AuthPolicy, CredentialReloader};
use crate::blocking::BlockingPools;
use crate::compactor::{Compactor, Runs};
use crate::config::ServerConfig;
use crate::error::ServerError;
use crate::executors;
use crate::http::HttpServer;
use crate::listen::Listeners;
use crate::mailbox::{Event, Mailbox};
use crate::memory_budget::{shared_bytes, tier_bytes};
use crate::metrics::{Observed, Phase, Served};
use crate::partitions::Partitions;
use crate::preload::Preload;
use crate::ring_support;
use crate::shard::plan::ShardPlan;
use crate::stats::Counters;
use crate::supervisor::{PollThread, ThreadSupervisor};
use crate::volatile::Volatile;

/// A running server; dropping it stops it.
///
/// The shards run on their own threads, so any program can hold a server: the `lode` binary, a
/// test, or a trainer that serves its own partition.
pub struct Server {
    address: Option<SocketAddr>,
    unix: Option<PathBuf>,
    n_shards: u16,
    /// Closing the graph is slow, so the last handle is dropped by the thread that stops the
    /// server.
    pub(crate) plan: ShardPlan,
    acceptor: Option<PollThread>,
    pub(crate) mailboxes: Arc<[Mailbox]>,
    supervisor: ThreadSupervisor,
    executors: Vec<ExecutorJoinHandle<Result<(), String>>>,
    /// Removes files of replaced versions; `None` for a server whose versions never change.
    compactor: Option<Compactor>,
    /// Stopped last, so that metrics report the shutdown too.
    http: Option<HttpServer>,
}

impl Server {
    /// Opens the graph, binds every address, and returns when all shards serve.
    ///
    /// # Errors
    /// Invalid settings, graph or address. Every thread that was started is stopped.
    pub fn start(config: &ServerConfig) -> Result<Self, ServerError> {
        let n_shards = config.check()?;
        let auth = Arc::new(AuthHandle::new(AuthPolicy::new(config)?));
        ring_support::check()?;
        let observed = Arc::new(Observed::new(config));
        // Started first, so that metrics report the opening of the graph, which may be slow.
        let http = config.metrics.map(|at| {
            let hosts = config.metrics_hosts.clone();
            HttpServer::start(at, Arc::clone(&auth), hosts, Arc::clone(&observed))
        });
        let http = http.transpose()?;
        let partitions = Arc::new(Partitions::open(config, n_shards)?);
        let preload = Arc::new(Preload::new(config, &partitions)?);
        let listeners = Listeners::bind(config, n_shards)?;
        let address = listeners.tcp;
        let n_tensors = partitions.live.graph().meta().tensors.len();
        let counters: Arc<[Counters]> = (0..n_shards).map(|_| Counters::new(n_tensors)).collect();
        let (started, starting) = mpsc::channel();
        let shared = shared_bytes(config, n_shards);
        let memory_budget = MemoryBudget::new(config.tier_bytes - shared * u64::from(n_shards));
        let volatile = Arc::new(Volatile::new(config, &partitions, &memory_budget)?);
        let plan = ShardPlan {
            tier_bytes: tier_bytes(&partitions, config, volatile.stats().n_bytes, n_shards)?,
            memory_budget,
            volatile,
            shared_bytes: shared,
            policy: config.policy,
            auth,
            partitions,
            counters,
            shard_ports: listeners.shard_ports.as_slice().into(),
            threads: Arc::new(BlockingPools::start(config.writable)?),
            runs: Arc::new(Runs::new()),
            busy: Arc::new(AtomicUsize::new(n_shards.into())),
            observed: Arc::clone(&observed),
            preload,
        };
        observed.opened(Served {
            partitions: Arc::clone(&plan.partitions),
            counters: Arc::clone(&plan.counters),
            threads: Arc::clone(&plan.threads),
            runs: Arc::clone(&plan.runs),
            preload: Arc::clone(&plan.preload),
            volatile: Arc::clone(&plan.volatile),
        });
        let supervisor = ThreadSupervisor::default();
        let mut executors = executors::spawn(&plan, &started, n_shards, &supervisor)?;
        drop(started);
        let begun = executors::collect_inboxes(&starting, n_shards);
        let mailboxes: Arc<[Mailbox]> = match begun {
            Ok(mailboxes) => mailboxes.into(),
            Err(error) => return Err(executors::why_dead(error, &supervisor, &mut executors)),
        };
        let (runs, partitions) = (Arc::clone(&plan.runs), Arc::clone(&plan.partitions));
        let changes = config.writable || config.follow.is_some();
        let compactor = changes.then(|| Compactor::start(runs, partitions, Arc::clone(&mailboxes)));
        let compactor = compactor.transpose()?;
        let acceptor =
            acceptor::start(listeners, Arc::clone(&mailboxes), Arc::clone(&observed), &supervisor)?;
        observed.enter(Phase::Serving);
        info!(
            address = address.map(display),
            unix = config.unix.as_ref().map(|path| display(path.display())),
            metrics = http.as_ref().map(|http| display(http.address)),
            n_shards,
            version = plan.partitions.live.version(),
            "serving"
        );
        Ok(Self {
            address,
            unix: config.unix.clone(),
            n_shards,
            plan,
            acceptor: Some(acceptor),
            mailboxes,
            supervisor,
            executors,
            compactor,
            http,
        })
    }

    /// Returns the common TCP address, with the port that was bound.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns the path of the common Unix socket.
    #[must_use]
    pub fn unix(&self) -> Option<&std::path::Path> {
        self.unix.as_deref()
    }

    /// Returns the address of metrics, with the port that was bound.
    #[must_use]
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|http| http.address)
    }

    /// Returns the number of shards.
    #[must_use]
    pub fn n_shards(&self) -> u16 {
        self.n_shards
    }

    /// Returns the partitions that are served now, ascending.
    #[must_use]
    pub fn parts(&self) -> Vec<PartId> {
        self.plan.partitions.parts().to_vec()
    }

    /// Returns the identity of the graph (uuid).
    #[must_use]
    pub fn graph(&self) -> [u8; 16] {
        *self.plan.partitions.live.graph().meta().uuid.as_bytes()
    }

    /// Returns the newest committed version.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.plan.partitions.live.version()
    }

    /// Returns the busy time since the start, summed over all shards.
    #[must_use]
    pub fn busy(&self) -> Duration {
        let shards = self.plan.counters.iter();
        let busy_ns = shards.map(|shard| shard.gauges.busy_ns.load(Ordering::Relaxed));
        Duration::from_nanos(busy_ns.sum())
    }

    /// Returns the counters of every shard.
    #[must_use]
    pub fn stats(&self) -> Vec<ShardStats> {
        self.plan.counters.iter().map(Counters::snapshot).collect()
    }

    /// Returns a handle that replaces tokens and certificates, also on another thread.
    #[must_use]
    pub fn credential_reloader(&self) -> CredentialReloader {
        CredentialReloader(Arc::clone(&self.plan.auth))
    }

    /// Returns the supervisor, which reports a shard or acceptor thread that has died. Stop and
    /// restart the server then.
    #[must_use]
    pub fn supervisor(&self) -> ThreadSupervisor {
        self.supervisor.clone()
    }

    /// Stops accepting connections, finishes requests in flight, and ends all threads.
    ///
    /// # Errors
    /// `Died` when a shard or the acceptor thread had already ended, `Executor` when one fails as
    /// it ends.
    pub fn stop(mut self) -> Result<(), ServerError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), ServerError> {
        self.supervisor.expect();
        self.plan.observed.enter(Phase::Draining);
        drop(self.acceptor.take());
        for mailbox in &*self.mailboxes {
            mailbox.send(|| Event::Stop);
        }
        // Stopped before the shards, because it writes to their mailboxes.
        drop(self.compactor.take());
        let ended = executors::join(self.executors.drain(..));
        self.plan.threads.stop();
        if ended.is_ok() {
            self.plan.preload.save(&self.plan.partitions, self.n_shards);
        }
        drop(self.http.take());
        match self.supervisor.first() {
            Some(thread) => Err(ServerError::Died { thread }),
            None => ended,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A caller that needs the error uses `stop`.
        let _ = self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::testing::import;

    fn serve(dir: &Path, n_shards: u16) -> Server {
        let listen = Some(([127, 0, 0, 1], 0).into());
        let graph = import(dir, 100);
        Server::start(&ServerConfig { listen, n_shards, ..ServerConfig::new(graph) }).unwrap()
    }

    #[test]
    fn a_shard_that_dies_is_reported_and_the_server_still_stops() {
        let dir = tempfile::tempdir().unwrap();
        let server = serve(dir.path(), 2);
        let supervisor = server.supervisor();
        assert_eq!(supervisor.first(), None);
        server.mailboxes[1].send(|| Event::Die);
        assert_eq!(supervisor.wait().as_deref(), Some("lode-shard-1"));
        let error = server.stop().unwrap_err();
        assert!(
            matches!(&error, ServerError::Died { thread } if thread == "lode-shard-1"),
            "{error}"
        );
    }

    #[test]
    fn a_stop_reports_no_dead_thread() {
        let dir = tempfile::tempdir().unwrap();
        let server = serve(dir.path(), 1);
        let supervisor = server.supervisor();
        server.stop().unwrap();
        assert_eq!(supervisor.wait(), None);
    }
}
