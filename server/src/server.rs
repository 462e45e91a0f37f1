//! Start, addresses and stop of a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use glommio::channels::channel_mesh::MeshBuilder;
use glommio::{ExecutorJoinHandle, LocalExecutorBuilder, Placement};
use lodestore_cache::Governor;
use lodestore_graph::PartId;
use lodestore_schema::ShardStats;
use rustix::process::{Resource, getrlimit};
use tracing::{info, warn};

use crate::acceptor::Acceptor;
use crate::compactor::{Compactor, Runs};
use crate::guard::{Gate, Guard};
use crate::holdings::Holdings;
use crate::http::HttpServer;
use crate::limits::{BULK_TURN, IO_BYTES_PER_SHARD, LOCKED_BYTES_PER_SHARD, MAILBOX_LEN};
use crate::listen::Listeners;
use crate::metrics::{Observed, Phase, Served};
use crate::pulse::Pulse;
use crate::shard::{self, Inbox, ShardPlan, Started};
use crate::stats::Counters;
use crate::store_threads::StoreThreads;
use crate::tier_bytes::{shared_bytes, tier_bytes};
use crate::watch::Deaths;
use crate::{ServerConfig, ServerError};

/// A running server; dropping it stops it.
///
/// Its shards run on threads of their own, so this may be held by any program: the `lode` binary,
/// a test, or a trainer that serves its own partition.
pub struct Server {
    address: Option<SocketAddr>,
    unix: Option<PathBuf>,
    n_shards: u16,
    gate: Arc<Gate>,
    observed: Arc<Observed>,
    counters: Arc<[Counters]>,
    acceptor: Acceptor,
    inboxes: Arc<[Inbox]>,
    deaths: Deaths,
    executors: Vec<ExecutorJoinHandle<Result<(), String>>>,
    /// Where updates are taken.
    compactor: Option<Compactor>,
    threads: Arc<StoreThreads>,
    /// Answers until all else has ended.
    http: Option<HttpServer>,
    /// Outlives the shards.
    _pulse: Pulse,
    /// Closing the graph takes a while, and is for whoever stops the server.
    holdings: Arc<Holdings>,
}

impl Server {
    /// Opens the graph, binds every address, and returns when all shards serve.
    ///
    /// # Errors
    /// Anything wrong with the settings, the graph, or an address: nothing is left running.
    pub fn start(config: &ServerConfig) -> Result<Self, ServerError> {
        let n_shards = config.check()?;
        let gate = Arc::new(Gate::new(Guard::new(config)?));
        let observed = Arc::new(Observed::new());
        // First: to open a graph may take long, and whoever asks meanwhile is told so.
        let http = config.metrics.map(|at| {
            let hosts = config.metrics_hosts.clone();
            HttpServer::start(at, Arc::clone(&gate), hosts, Arc::clone(&observed))
        });
        let http = http.transpose()?;
        let holdings = Arc::new(Holdings::open(config, n_shards)?);
        let listeners = Listeners::bind(config, n_shards)?;
        let io_bytes = io_bytes(n_shards);
        let address = listeners.tcp();
        let counters: Arc<[Counters]> = (0..n_shards).map(|_| Counters::default()).collect();
        let (started, starting) = mpsc::channel();
        let pulse = Pulse::start()?;
        let threads = Arc::new(StoreThreads::start(config.writable)?);
        let runs = Arc::new(Runs::new());
        observed.opened(Served {
            holdings: Arc::clone(&holdings),
            counters: Arc::clone(&counters),
            threads: Arc::clone(&threads),
            runs: Arc::clone(&runs),
        });
        let plan = ShardPlan {
            tier_bytes: tier_bytes(&holdings, config, n_shards)?,
            governor: Governor::new(
                config.tier_bytes - shared_bytes(config, n_shards) * u64::from(n_shards),
            ),
            shared_bytes: shared_bytes(config, n_shards),
            policy: config.policy,
            gate: Arc::clone(&gate),
            holdings: Arc::clone(&holdings),
            counters: Arc::clone(&counters),
            shard_ports: listeners.shard_ports().into(),
            threads: Arc::clone(&threads),
            runs: Arc::clone(&runs),
            busy: Arc::new(AtomicUsize::new(n_shards.into())),
            pulsed: pulse.shards(),
            observed: Arc::clone(&observed),
        };
        let deaths = Deaths::default();
        let executors = spawn(&plan, &started, n_shards, io_bytes, &deaths)?;
        drop(started);
        let inboxes: Arc<[Inbox]> = collect_inboxes(&starting, n_shards)?.into();
        let of_shards = Arc::clone(&inboxes);
        let of_runs = Arc::clone(&holdings);
        let compactor = config.writable.then(|| Compactor::start(runs, of_runs, of_shards));
        let compactor = compactor.transpose()?;
        let acceptor =
            Acceptor::start(listeners, Arc::clone(&inboxes), Arc::clone(&observed), &deaths)?;
        observed.enter(Phase::Serving);
        info!(
            address = address.map(display),
            unix = config.unix.as_ref().map(|path| display(path.display())),
            metrics = http.as_ref().map(|http| display(http.address())),
            n_shards,
            version = holdings.live.version(),
            "serving"
        );
        Ok(Self {
            address,
            unix: config.unix.clone(),
            n_shards,
            gate,
            observed,
            counters,
            acceptor,
            inboxes,
            deaths,
            executors,
            compactor,
            threads,
            http,
            _pulse: pulse,
            holdings,
        })
    }

    /// The common TCP address, with the port that was bound.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The common Unix socket.
    #[must_use]
    pub fn unix(&self) -> Option<&std::path::Path> {
        self.unix.as_deref()
    }

    /// The address of metrics, with the port that was bound.
    #[must_use]
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(HttpServer::address)
    }

    /// Shards that run.
    #[must_use]
    pub fn n_shards(&self) -> u16 {
        self.n_shards
    }

    /// Partitions that are served now, ascending.
    #[must_use]
    pub fn parts(&self) -> Vec<PartId> {
        self.holdings.parts().to_vec()
    }

    /// Identity of the graph (uuid).
    #[must_use]
    pub fn graph(&self) -> [u8; 16] {
        *self.holdings.live.graph().meta().uuid.as_bytes()
    }

    /// The newest committed version.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.holdings.live.version()
    }

    /// Time in which its shards were not idle, all of them together, since it started.
    #[must_use]
    pub fn busy(&self) -> Duration {
        let busy_ns = self.counters.iter().map(|shard| shard.beat.busy_ns.load(Ordering::Relaxed));
        Duration::from_nanos(busy_ns.sum())
    }

    /// Counters of every shard.
    #[must_use]
    pub fn stats(&self) -> Vec<ShardStats> {
        self.counters.iter().map(Counters::snapshot).collect()
    }

    /// From now on asks of those who connect what `config` says: tokens, certificates and keys, read
    /// anew. All else in it counts for nothing, and who is let in already stays.
    ///
    /// # Errors
    /// `Tls` when a file cannot be used; then all stays as it was.
    pub fn renew(&self, config: &ServerConfig) -> Result<(), ServerError> {
        self.gate.renew(Guard::new(config)?);
        Ok(())
    }

    /// Where to learn of a shard, or of the thread that accepts, that has ended: the server should be
    /// stopped then, and started anew.
    #[must_use]
    pub fn deaths(&self) -> Deaths {
        self.deaths.clone()
    }

    /// Stops accepting, finishes what is in flight, and ends all threads.
    ///
    /// # Errors
    /// `Died` when a shard or the thread that accepts had ended before, `Executor` when one ends badly.
    pub fn stop(mut self) -> Result<(), ServerError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), ServerError> {
        self.deaths.expect();
        self.observed.enter(Phase::Draining);
        self.acceptor.stop();
        for inbox in &*self.inboxes {
            inbox.stop();
        }
        // Before the shards, whose mailboxes it writes to.
        drop(self.compactor.take());
        let ended = join(self.executors.drain(..));
        self.threads.stop();
        drop(self.http.take());
        match self.deaths.first() {
            Some(thread) => Err(ServerError::Died { thread }),
            None => ended,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Whoever wants to know how it ended calls `stop`.
        let _ = self.end();
    }
}

/// Starts one executor per shard. Where one cannot start, the others give up after
/// `START_TIMEOUT`, since the mesh is never complete.
fn spawn(
    plan: &ShardPlan,
    started: &Started,
    n_shards: u16,
    io_bytes: usize,
    deaths: &Deaths,
) -> Result<Vec<ExecutorJoinHandle<Result<(), String>>>, ServerError> {
    let mesh = MeshBuilder::full(n_shards.into(), MAILBOX_LEN);
    let executor_error =
        |error: glommio::GlommioError<()>| ServerError::Executor { reason: error.to_string() };
    (0..n_shards)
        .map(|i| {
            let (plan, mesh, started) = (plan.clone(), mesh.clone(), started.clone());
            let name = format!("lode-shard-{i}");
            let lifeline = deaths.lifeline(&name);
            let run = move || {
                lifeline.hold();
                shard::run(plan, mesh, started)
            };
            LocalExecutorBuilder::new(Placement::Unbound)
                .name(&name)
                .preempt_timer(BULK_TURN)
                .io_memory(io_bytes)
                .spawn(run)
                .map_err(executor_error)
        })
        .collect()
}

/// Bytes of each shard's buffers for reads, which the kernel locks once for each of three rings. With less
/// than that allowed each executor says so in many lines, and goes on without; this says it in one.
fn io_bytes(n_shards: u16) -> usize {
    let allowed = getrlimit(Resource::Memlock).current;
    let wanted = u64::from(n_shards) * LOCKED_BYTES_PER_SHARD as u64;
    let is_bound = !rustix::process::geteuid().is_root();
    if is_bound && allowed.is_some_and(|allowed| allowed < wanted) {
        warn!(
            allowed_bytes = allowed,
            wanted_bytes = wanted,
            "little locked memory is allowed, and reads from disk take longer; raise `ulimit -l`, or \
             LimitMEMLOCK in the unit"
        );
    }
    IO_BYTES_PER_SHARD
}

/// Waits until every shard is up, and puts their inboxes in the order of shards.
fn collect_inboxes(
    starting: &mpsc::Receiver<(usize, Result<Inbox, String>)>,
    n_shards: u16,
) -> Result<Vec<Inbox>, ServerError> {
    let mut inboxes: Vec<Option<Inbox>> = (0..n_shards).map(|_| None).collect();
    let mut failed = None;
    // The channel ends when every shard has reported or died.
    for (shard, inbox) in starting {
        match inbox {
            Ok(inbox) => inboxes[shard] = Some(inbox),
            Err(reason) => failed = Some(reason),
        }
    }
    let complete: Option<Vec<Inbox>> = if failed.is_some() {
        for inbox in inboxes.iter().flatten() {
            inbox.stop();
        }
        None
    } else {
        inboxes.into_iter().collect()
    };
    complete.ok_or_else(|| ServerError::Executor {
        reason: failed.unwrap_or_else(|| "a shard died as it started".into()),
    })
}

fn join(
    executors: impl Iterator<Item = ExecutorJoinHandle<Result<(), String>>>,
) -> Result<(), ServerError> {
    let mut result = Ok(());
    for executor in executors {
        let ended = executor.join().map_err(|error| error.to_string());
        if let Err(reason) = ended.and_then(|inner| inner) {
            result = Err(ServerError::Executor { reason });
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use lodestore_graph::PartitionBook;
    use lodestore_store::{Dtype, Importer, SourceError, TensorOptions, TensorSource};

    use super::*;

    /// One column of zeros.
    struct Zeros;

    impl TensorSource for Zeros {
        fn dtype(&self) -> Dtype {
            Dtype::F32
        }
        fn width(&self) -> u64 {
            1
        }
        fn n_rows(&self) -> u64 {
            2
        }
        fn path(&self) -> &Path {
            Path::new("zeros")
        }
        fn copy_rows(&self, _: &[u32], out: &mut [u8]) -> Result<(), SourceError> {
            out.fill(0);
            Ok(())
        }
    }

    fn serve(dir: &Path, n_shards: u16) -> Server {
        let (graph, order) = (dir.join("graph"), [0, 1]);
        let book = PartitionBook::new(vec![0, 2]).unwrap();
        let mut importer = Importer::begin(&graph).unwrap();
        let options = TensorOptions::default();
        importer.add_tensor("x", &Zeros, options, &order, &book, &mut |_, _| {}).unwrap();
        importer.commit(&order, &book, 0, false).unwrap();
        let listen = Some(([127, 0, 0, 1], 0).into());
        Server::start(&ServerConfig { listen, n_shards, ..ServerConfig::new(graph) }).unwrap()
    }

    #[test]
    fn a_shard_that_dies_is_told_and_the_server_still_stops() {
        let dir = tempfile::tempdir().unwrap();
        let server = serve(dir.path(), 2);
        let deaths = server.deaths();
        assert_eq!(deaths.first(), None);
        server.inboxes[1].die();
        assert_eq!(deaths.wait().as_deref(), Some("lode-shard-1"));
        let error = server.stop().unwrap_err();
        assert!(
            matches!(&error, ServerError::Died { thread } if thread == "lode-shard-1"),
            "{error}"
        );
    }

    #[test]
    fn a_server_that_is_stopped_has_no_dead() {
        let dir = tempfile::tempdir().unwrap();
        let server = serve(dir.path(), 1);
        let deaths = server.deaths();
        server.stop().unwrap();
        assert_eq!(deaths.wait(), None);
    }
}
