//! Rows from servers.

use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lodestore_graph::{NodeId, PartitionBook};
use lodestore_schema::limits::IDS_PER_PULL_MAX;
use lodestore_schema::{
    Description, FailureCode, PullKind as WireKind, Reply, Request, RequestBody, ShardStats,
};
use lodestore_store::Dtype;
use tracing::debug;

use crate::connection::{Connection, time_left};
use crate::route::{Bucket, Routes};
use crate::{Address, ClientError, PullKind, PullStats, RowSource, TensorInfo};

/// First pause before a retry; it doubles.
const BACKOFF: Duration = Duration::from_millis(10);
/// Idle connections kept per shard.
const IDLE_MAX: usize = 16;

/// Settings of a [`Client`].
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// Longest time for one pull, retries included, and for connecting to all servers.
    pub deadline: Duration,
    /// How often a pull is tried when a server cannot be reached or has no room.
    pub attempts: u32,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(30), attempts: 4 }
    }
}

/// Rows of a graph from its servers: blocking, usable from any thread at once.
///
/// Each pull goes straight to the shards that own its rows, one request per shard, all sent
/// before the first answer is read. A shard that cannot be reached is tried again, at another
/// server if one holds the partition, until the attempts or the deadline are used up.
pub struct Client {
    config: ClientConfig,
    routes: Routes,
    tensors: Vec<TensorInfo>,
    graph: [u8; 16],
    n_edges: u64,
    addresses: Vec<Address>,
    /// By endpoint: connections that nobody uses.
    idle: Vec<Mutex<Vec<Connection>>>,
    /// Buckets of pulls that are not running.
    scratch: Mutex<Vec<Vec<Bucket>>>,
}

impl Client {
    /// Connects to every server and asks what it holds.
    ///
    /// # Errors
    /// An address that cannot be read or reached, or servers of different graphs.
    pub fn connect<A: AsRef<str>>(
        addresses: &[A],
        config: ClientConfig,
    ) -> Result<Self, ClientError> {
        let deadline = Instant::now() + config.deadline;
        let mut servers = Vec::with_capacity(addresses.len());
        for text in addresses {
            let address: Address = text.as_ref().parse()?;
            let description = describe(&address, deadline)?;
            servers.push((address, description));
        }
        let routes = Routes::new(&servers)?;
        let (address, first) = servers.first().ok_or(ClientError::NoServers)?;
        Ok(Self {
            config,
            tensors: tensors(address, first)?,
            graph: first.graph,
            n_edges: first.n_edges,
            idle: routes.endpoints.iter().map(|_| Mutex::default()).collect(),
            routes,
            addresses: servers.into_iter().map(|(address, _)| address).collect(),
            scratch: Mutex::default(),
        })
    }

    /// Identity of the graph (uuid).
    #[must_use]
    pub fn graph(&self) -> [u8; 16] {
        self.graph
    }

    /// Edges of the whole graph.
    #[must_use]
    pub fn n_edges(&self) -> u64 {
        self.n_edges
    }

    /// Every tensor of the graph.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Counters of every shard, server by server in the order of connecting.
    ///
    /// # Errors
    /// When a server cannot be reached within the deadline.
    pub fn stats(&self) -> Result<Vec<(Address, Vec<ShardStats>)>, ClientError> {
        let deadline = Instant::now() + self.config.deadline;
        self.addresses
            .iter()
            .map(|address| Ok((address.clone(), stats(address, deadline)?)))
            .collect()
    }

    /// Rows for one batch, soon.
    ///
    /// # Errors
    /// See [`RowSource::pull`].
    pub fn sync_pull(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
    ) -> Result<PullStats, ClientError> {
        self.pull(tensor, ids, out, PullKind::Sync)
    }

    /// Rows in bulk, behind everybody's batches.
    ///
    /// # Errors
    /// See [`RowSource::pull`].
    pub fn vector_pull(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
    ) -> Result<PullStats, ClientError> {
        self.pull(tensor, ids, out, PullKind::Vector)
    }

    fn position(&self, name: &str) -> Result<usize, ClientError> {
        self.tensors.iter().position(|tensor| tensor.name == name).ok_or_else(|| {
            let known: Vec<_> = self.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
            ClientError::UnknownTensor { name: name.to_owned(), known: known.join(", ") }
        })
    }

    /// Tries all buckets until none is left; returns the number of requests.
    fn pull_all(
        &self,
        pull: &Pull,
        ids: &[NodeId],
        out: &mut [u8],
        buckets: &mut Vec<Bucket>,
    ) -> Result<u64, ClientError> {
        self.routes.split(pull.tensor.into(), ids, 0..row_count(ids), buckets)?;
        let (mut requests, mut attempt) = (0, 0);
        loop {
            let Some((endpoint, error)) = self.try_all(pull, out, buckets, &mut requests) else {
                return Ok(requests);
            };
            attempt += 1;
            let pause = self.pause_before_retry(&error, attempt).ok_or(error)?;
            let endpoint = &self.routes.endpoints[endpoint];
            time_left(&endpoint.address, pull.deadline)?;
            debug!(address = %endpoint.address, attempt, "pull failed; trying again");
            std::thread::sleep(pause);
            self.routes.avoid(endpoint.server);
            let left: Vec<u32> = buckets.iter().flat_map(|b| b.positions.iter().copied()).collect();
            self.routes.split(pull.tensor.into(), ids, left.into_iter(), buckets)?;
        }
    }

    /// One attempt at every bucket. Those that succeed are emptied; of the others one error comes
    /// back, with its endpoint.
    fn try_all(
        &self,
        pull: &Pull,
        out: &mut [u8],
        buckets: &mut [Bucket],
        requests: &mut u64,
    ) -> Option<(usize, ClientError)> {
        let mut failed = None;
        let mut asked = Vec::new();
        for (endpoint, bucket) in buckets.iter().enumerate().filter(|(_, b)| !b.ids.is_empty()) {
            match self.ask(endpoint, pull, bucket) {
                Ok(connection) => asked.push((endpoint, connection)),
                Err(error) => failed = Some((endpoint, error)),
            }
        }
        for (endpoint, mut connection) in asked {
            let bucket = &mut buckets[endpoint];
            match receive(&mut connection, pull, bucket, out) {
                Ok(n) => {
                    *requests += n;
                    bucket.ids.clear();
                    bucket.positions.clear();
                    let mut idle = lock(&self.idle[endpoint]);
                    if idle.len() < IDLE_MAX {
                        idle.push(connection);
                    }
                }
                Err(error) => {
                    // Its neighbours in the pool are of the same age.
                    lock(&self.idle[endpoint]).clear();
                    failed = Some((endpoint, error));
                }
            }
        }
        failed
    }

    /// Sends the first request of a bucket.
    fn ask(
        &self,
        endpoint: usize,
        pull: &Pull,
        bucket: &Bucket,
    ) -> Result<Connection, ClientError> {
        let pooled = lock(&self.idle[endpoint]).pop();
        let mut connection = match pooled {
            Some(connection) => connection,
            None => Connection::open(&self.routes.endpoints[endpoint].address, pull.deadline)?,
        };
        let n_ids = bucket.ids.len().min(IDS_PER_PULL_MAX);
        let sent = connection.send(&pull.request(), &bucket.ids[..n_ids], pull.deadline);
        if sent.is_err() {
            lock(&self.idle[endpoint]).clear();
        }
        sent.map(|()| connection)
    }

    fn pause_before_retry(&self, error: &ClientError, attempt: u32) -> Option<Duration> {
        if attempt >= self.config.attempts {
            return None;
        }
        let least = match error {
            ClientError::Connect { .. } | ClientError::Unavailable { .. } => Duration::ZERO,
            ClientError::Refused { failure, .. } => match failure.code {
                FailureCode::Overloaded | FailureCode::Stopping => failure.retry_after,
                _ => return None,
            },
            _ => return None,
        };
        Some(least.max(BACKOFF * (1 << (attempt - 1).min(6))))
    }
}

impl RowSource for Client {
    fn book(&self) -> &PartitionBook {
        &self.routes.book
    }

    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
        Ok(self.tensors[self.position(name)?].clone())
    }

    fn pull(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
    ) -> Result<PullStats, ClientError> {
        let position = self.position(tensor)?;
        let row_bytes = self.tensors[position].row_bytes();
        ClientError::check_buffer(tensor, ids.len(), row_bytes, out.len())?;
        let pull = Pull {
            tensor: u16::try_from(position).unwrap_or(u16::MAX),
            row_bytes,
            kind: match kind {
                PullKind::Sync => WireKind::Sync,
                PullKind::Vector => WireKind::Vector,
            },
            deadline: Instant::now() + self.config.deadline,
        };
        let mut buckets = lock(&self.scratch).pop().unwrap_or_default();
        let result = self.pull_all(&pull, ids, out, &mut buckets);
        lock(&self.scratch).push(buckets);
        Ok(PullStats { rows: ids.len() as u64, bytes: out.len() as u64, requests: result? })
    }
}

/// What all requests of one pull share.
struct Pull {
    tensor: u16,
    row_bytes: usize,
    kind: WireKind,
    deadline: Instant,
}

impl Pull {
    fn request(&self) -> Request {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let body = RequestBody::Pull { tensor: self.tensor, kind: self.kind };
        Request { deadline: Some(left), body }
    }
}

/// Receives a bucket's rows; ids past the first request are asked for as they are reached.
fn receive(
    connection: &mut Connection,
    pull: &Pull,
    bucket: &Bucket,
    out: &mut [u8],
) -> Result<u64, ClientError> {
    let mut requests = 0;
    let ids = bucket.ids.chunks(IDS_PER_PULL_MAX);
    for (ids, positions) in ids.zip(bucket.positions.chunks(IDS_PER_PULL_MAX)) {
        if requests > 0 {
            connection.send(&pull.request(), ids, pull.deadline)?;
        }
        connection.receive_rows(positions, pull.row_bytes, out, pull.deadline)?;
        requests += 1;
    }
    Ok(requests)
}

fn describe(address: &Address, deadline: Instant) -> Result<Description, ClientError> {
    match ask_server(address, RequestBody::Describe, deadline)? {
        Reply::Description(description) => Ok(description),
        _ => Err(ClientError::Confused { address: address.clone() }),
    }
}

fn stats(address: &Address, deadline: Instant) -> Result<Vec<ShardStats>, ClientError> {
    match ask_server(address, RequestBody::Stat, deadline)? {
        Reply::Stats(stats) => Ok(stats),
        _ => Err(ClientError::Confused { address: address.clone() }),
    }
}

/// One request over a connection of its own to the common address.
fn ask_server(
    address: &Address,
    body: RequestBody,
    deadline: Instant,
) -> Result<Reply, ClientError> {
    let mut connection = Connection::open(address, deadline)?;
    let left = time_left(address, deadline)?;
    connection.send(&Request { deadline: Some(left), body }, &[], deadline)?;
    connection.receive(deadline)
}

fn tensors(address: &Address, from: &Description) -> Result<Vec<TensorInfo>, ClientError> {
    from.tensors
        .iter()
        .map(|tensor| {
            let dtype = Dtype::from_str(&tensor.dtype).ok();
            let info = dtype.map(|dtype| TensorInfo {
                name: tensor.name.clone(),
                dtype,
                width: tensor.width,
            });
            info.filter(|info| info.row_bytes() == tensor.row_bytes as usize).ok_or_else(|| {
                ClientError::BadTensor {
                    address: address.clone(),
                    tensor: tensor.name.clone(),
                    reason: format!(
                        "{} x {} in {} bytes",
                        tensor.width, tensor.dtype, tensor.row_bytes
                    ),
                }
            })
        })
        .collect()
}

/// Positions of a batch travel as 32 bits.
fn row_count(ids: &[NodeId]) -> u32 {
    u32::try_from(ids.len()).expect("a batch has fewer rows than 2^32")
}

/// A pool outlives a panic of one of its users.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
