//! A load generator, and its measurements: rows per second, and the latency of each request.
//!
//! A *connection* is one client with a socket to every shard, like [`Client`]. It has a window of
//! slots, each of which runs one request at a time. A request may name rows of any shards and ends
//! with the last row of the last shard. The generator reads rows from the sockets and discards
//! them, or compares them; it does not copy them into a batch, so a trainer takes longer by that
//! copy. One thread drives many connections with epoll, so that the generator is not the bottleneck
//! of a shard.
//!
//! A request for a partition that is moving to another server is sent again, to the server that
//! holds the partition then. Its latency still counts from its first intended start.
//!
//! In an open loop, latency counts from the intended start, not from the time the request could be
//! sent. A server that stalls is thus charged for all requests that were due meanwhile (no
//! "coordinated omission"). A request that was due but never sent counts with its waiting time up
//! to the end of the measured time. A failed request counts with the time to its failure, even if
//! the failure becomes known only after the measured time.

mod arrival_times;
mod draw;
mod socket;
mod tally;
mod worker;

use std::sync::Arc;
use std::time::{Duration, Instant};

use lodestore_schema::limits::IDS_PER_PULL_MAX;
use thiserror::Error;

use crate::error::ClientError;
use crate::remote::Client;
use crate::remote::ClusterView;
use crate::source::RowSource;
use arrival_times::Arrivals;
use draw::{Drawer, Nodes, Words};
use worker::Worker;

pub use arrival_times::{Pace, Spacing};
pub use draw::{IdBatches, IdDraw};
pub use tally::{KindTally, LoadError, Tally};

/// Most connections of one load.
pub const CONNECTIONS_MAX: usize = 4096;
/// Most requests that one connection may have in flight.
pub const WINDOW_MAX: usize = 1024;

/// Most requests of an open loop. The generator counts unsent requests one by one at the end, which
/// takes a second or two for a million.
pub const ARRIVALS_MAX: f64 = 1e8;

/// The requests of a load, their form, and its duration.
#[derive(Clone, Debug)]
pub struct LoadConfig {
    /// The tensor whose rows are requested.
    pub tensor: String,
    /// Number of connections: clients with a socket to every shard.
    pub connections: usize,
    /// Requests that one connection may have in flight.
    pub window: usize,
    /// Threads that drive the connections.
    pub threads: usize,
    /// Closed or open loop.
    pub pace: Pace,
    /// How row ids are chosen.
    pub ids: IdDraw,
    /// Rows of a request; batches of a trace have their own sizes.
    pub rows: usize,
    /// Share of requests that are VectorPulls, 0 to 1.
    pub vector_share: f64,
    /// Time before the measured time starts.
    pub warm_up: Duration,
    /// Measured time.
    pub duration: Duration,
    /// Time after which a request without a reply has failed.
    pub deadline: Duration,
    /// Seed of all random draws.
    pub seed: u64,
}

/// A setting of a load is out of range.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{name} must be {expected}, found {found}")]
pub struct BadLoad {
    name: &'static str,
    expected: String,
    found: String,
}

impl LoadConfig {
    /// Checks all settings that can be checked without a server.
    ///
    /// # Errors
    /// Names the first setting that is out of range.
    pub fn check(&self) -> Result<(), BadLoad> {
        let bad = |name, expected: &str, found: String| {
            Err(BadLoad { name, expected: expected.to_owned(), found })
        };
        let counts = [
            ("connections", self.connections, CONNECTIONS_MAX),
            ("window", self.window, WINDOW_MAX),
            ("rows", self.rows, IDS_PER_PULL_MAX),
            ("threads", self.threads, self.connections),
        ];
        for (name, found, most) in counts {
            if !(1..=most).contains(&found) {
                return bad(name, &format!("1 to {most}"), found.to_string());
            }
        }
        if !(0.0..=1.0).contains(&self.vector_share) {
            return bad("vector-share", "0 to 1", self.vector_share.to_string());
        }
        if let Pace::Open { rate, .. } = self.pace
            && !(rate > 0.0 && rate <= 1e8)
        {
            return bad("rate", "above 0 and at most 1e8 requests per second", rate.to_string());
        }
        let seconds = (self.warm_up + self.duration).as_secs_f64();
        if let Pace::Open { rate, .. } = self.pace
            && rate * seconds > ARRIVALS_MAX
        {
            let expected = format!("at most {ARRIVALS_MAX:e} requests over {seconds} s");
            return bad("rate", &expected, format!("{:e}", rate * seconds));
        }
        if let IdDraw::Zipf { exponent } = self.ids
            && !(exponent > 0.0 && exponent <= 10.0)
        {
            return bad("zipf exponent", "above 0 and at most 10", exponent.to_string());
        }
        if let IdDraw::Trace(batches) = &self.ids
            && (batches.n_batches() == 0
                || batches.bounds.windows(2).any(|ends| ends[0] >= ends[1]))
        {
            return bad("trace", "batches with ids", "one without".to_owned());
        }
        if self.duration.is_zero() || self.deadline.is_zero() {
            return bad("duration and deadline", "above 0", "0".to_owned());
        }
        Ok(())
    }
}

/// State that all threads of a load share.
struct Target<'a> {
    config: &'a LoadConfig,
    /// The client whose view of the cluster all threads share and refresh.
    client: &'a Client,
    view: Arc<ClusterView>,
    tensor: u16,
    row_bytes: usize,
    truth: Option<&'a dyn RowSource>,
}

impl Client {
    /// Puts load on the servers of this client and measures it. With `truth`, compares every
    /// received row with the row in `truth`.
    ///
    /// # Errors
    /// The tensor or a node of the trace does not exist. A server is unreachable at the start.
    /// `truth` fails, or has rows of another size. Failures during the load are counted, not
    /// returned.
    ///
    /// # Panics
    /// If `config` does not pass [`LoadConfig::check`].
    pub fn load(
        &self,
        config: &LoadConfig,
        truth: Option<&dyn RowSource>,
    ) -> Result<Tally, ClientError> {
        config.check().unwrap_or_else(|error| panic!("invalid settings of a load: {error}"));
        let (position, info) =
            (self.position(&config.tensor)?, self.tensor(&config.tensor)?.info());
        if let Some(truth) = truth {
            let (local, remote) = (truth.tensor(&config.tensor)?.row_bytes(), info.row_bytes());
            if local != remote {
                let tensor = config.tensor.clone();
                return Err(ClientError::SourcesDiffer { tensor, local, remote });
            }
        }
        let tensor = u16::try_from(position).unwrap_or(u16::MAX);
        let (view, row_bytes) = (self.view(), info.row_bytes());
        let target = Target { config, client: self, view, tensor, row_bytes, truth };
        let nodes = self.nodes_to_ask(&target)?;
        let position = Arc::default();
        let workers = (0..config.threads).map(|thread| {
            let n_connections = (config.connections + thread) / config.threads;
            let words = |stream| Words::new(config.seed, 3 * thread as u64 + stream);
            let (draw, position) = (config.ids.clone(), Arc::clone(&position));
            let drawer = Drawer::new(draw, nodes.clone(), words(0), position);
            Worker::connect(&target, n_connections, drawer, words(1))
        });
        let workers = workers.collect::<Result<Vec<_>, _>>()?;
        let start = Instant::now();
        let window = (start + config.warm_up, start + config.warm_up + config.duration);
        let arrivals = |thread| match config.pace {
            Pace::Closed => None,
            Pace::Open { rate, spacing } => {
                let words = Words::new(config.seed, 3 * thread as u64 + 2);
                let gap = config.threads as f64 / rate;
                Some(Arrivals::new(spacing, gap, thread as f64 / rate, words, start))
            }
        };
        std::thread::scope(|scope| {
            let mut threads = Vec::with_capacity(config.threads);
            for (thread, worker) in workers.into_iter().enumerate() {
                let (builder, arrivals) = (std::thread::Builder::new(), arrivals(thread));
                let builder = builder.name(format!("lode-load-{thread}"));
                let run = builder.spawn_scoped(scope, move || worker.run(window, arrivals));
                threads.push(run.map_err(|source| ClientError::Poll { source })?);
            }
            let mut tally = Tally::new(window);
            for thread in threads {
                let ended = thread.join();
                tally.add(&ended.map_err(|_| ClientError::Panicked { thread: "load" })??);
            }
            Ok(tally)
        })
    }

    /// Returns the nodes of all held partitions; fails if a trace names a node of another
    /// partition.
    fn nodes_to_ask(&self, target: &Target<'_>) -> Result<Nodes, ClientError> {
        let book = self.book();
        let routes = &target.view.routes;
        if let IdDraw::Trace(batches) = &target.config.ids {
            for &id in &batches.ids {
                let n_nodes = book.n_nodes();
                let part =
                    book.part_of(id).ok_or(ClientError::UnknownNode { node: id, n_nodes })?;
                routes.check_held(part)?;
            }
        }
        let held = book.parts().filter(|&part| !routes.servers_of(part).is_empty());
        let nodes = Nodes::new(held.map(|part| book.range(part)));
        if nodes.len() == 0 {
            return Err(ClientError::NoNodes);
        }
        Ok(nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> LoadConfig {
        LoadConfig {
            tensor: "x".into(),
            connections: 2,
            window: 1,
            threads: 1,
            pace: Pace::Closed,
            ids: IdDraw::Uniform,
            rows: 1,
            vector_share: 0.0,
            warm_up: Duration::ZERO,
            duration: Duration::from_secs(1),
            deadline: Duration::from_secs(1),
            seed: 1,
        }
    }

    #[test]
    fn invalid_settings_are_named() {
        config().check().unwrap();
        let open = |rate| Pace::Open { rate, spacing: Spacing::Fixed };
        let empty = IdBatches { ids: Vec::new(), bounds: vec![0, 0] };
        let cases = [
            ("connections", LoadConfig { connections: 0, ..config() }),
            ("window", LoadConfig { window: WINDOW_MAX + 1, ..config() }),
            ("rows", LoadConfig { rows: IDS_PER_PULL_MAX + 1, ..config() }),
            ("threads", LoadConfig { threads: 3, ..config() }),
            ("vector-share", LoadConfig { vector_share: f64::NAN, ..config() }),
            ("rate", LoadConfig { pace: open(0.0), ..config() }),
            ("rate", LoadConfig { pace: open(f64::INFINITY), ..config() }),
            ("rate", LoadConfig { pace: open(2e6), warm_up: Duration::from_secs(50), ..config() }),
            ("zipf", LoadConfig { ids: IdDraw::Zipf { exponent: 0.0 }, ..config() }),
            ("trace", LoadConfig { ids: IdDraw::Trace(Arc::new(empty)), ..config() }),
            ("duration", LoadConfig { duration: Duration::ZERO, ..config() }),
        ];
        for (name, config) in cases {
            let message = config.check().unwrap_err().to_string();
            assert!(message.contains(name) && message.contains("found"), "{message}");
        }
    }
}
