//! Errors of pulls, puts and everything else that this crate does.

use lodestore_cache::device::DeviceError;
use lodestore_cache::directory::DirectoryError;
use lodestore_cache::hot_set::HotSetError;
use lodestore_cache::volatile::VolatileError;
use lodestore_cache::volatile_store::DeclareError;
use lodestore_graph::halo::HaloError;
use lodestore_graph::sampler::TooManyEdges;
use lodestore_graph::schedule::ScheduleError;
use lodestore_graph::topology::TopologyError;
use lodestore_graph::{NodeId, PartId};
pub use lodestore_schema::FailureCode;
use lodestore_schema::versions::VersionTag;
use lodestore_schema::{Failure, WireError};
use lodestore_store::StoreError;
use lodestore_store::error_origin::ErrorOrigin;
use thiserror::Error;

use crate::address::{Address, AddressError};
use crate::source::RowSource;

/// Reason why rows are not available.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The store under an embedded source failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The schedule that names the batches could not be read.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The halo of a partition could not be read.
    #[error(transparent)]
    Halo(#[from] HaloError),
    /// The lists of a partition could not be made.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A batch is too large.
    #[error(transparent)]
    TooManyEdges(#[from] TooManyEdges),
    /// A hot set could not be made.
    #[error(transparent)]
    HotSet(#[from] HotSetError),
    /// A tier could not be built.
    #[error(transparent)]
    Tier(#[from] DirectoryError),
    /// The device of a tier failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Volatile rows of this process could not be claimed, published or pulled.
    #[error(transparent)]
    Volatile(#[from] VolatileError),
    /// This process has no such volatile tensor.
    #[error(transparent)]
    Declare(#[from] DeclareError),
    /// The description of a volatile tensor is invalid.
    #[error("invalid volatile tensor: {reason}")]
    BadVolatile {
        /// The fault.
        reason: String,
    },
    /// Servers have one volatile tensor in different shapes.
    #[error(
        "{address} has another shape of volatile tensor `{tensor}` than another server; start all \
         servers with the same volatile tensors, or declare it under another name"
    )]
    VolatileDiffers {
        /// The server.
        address: Address,
        /// The tensor.
        tensor: String,
    },
    /// A volatile tensor was declared again with another shape than this client knows.
    #[error(
        "volatile tensor `{tensor}` was declared again with another shape: found {found}; \
         look up its shape again"
    )]
    VolatileChanged {
        /// The tensor.
        tensor: String,
        /// Its shape now.
        found: String,
    },
    /// A publisher has not claimed a row.
    #[error(
        "node {node} of volatile tensor `{tensor}` is not claimed by this publisher; claim its range \
         before publishing"
    )]
    NotClaimed {
        /// The tensor.
        tensor: String,
        /// The first node without a claim.
        node: NodeId,
    },
    /// The connection that owned the claims has failed, which ended the claims.
    #[error("the connection to {address} failed and ended its claims; claim the rows again")]
    ClaimsLost {
        /// The server.
        address: Address,
    },
    /// The graph has no tensor of this name.
    #[error("the graph has no tensor `{name}`; it has: {known}")]
    UnknownTensor {
        /// The requested name.
        name: String,
        /// Names of the graph's tensors, separated by commas.
        known: String,
    },
    /// The graph has no node with this id.
    #[error("node {node} is not below the graph's {n_nodes} nodes")]
    UnknownNode {
        /// The requested id.
        node: NodeId,
        /// Nodes of the graph.
        n_nodes: u32,
    },
    /// The buffer for rows does not fit the ids.
    #[error("tensor `{tensor}`: {n_ids} rows need a buffer of {expected} bytes, found {found}")]
    BufferSize {
        /// The requested tensor.
        tensor: String,
        /// Number of requested ids.
        n_ids: usize,
        /// Bytes that these rows need.
        expected: usize,
        /// Bytes of the buffer.
        found: usize,
    },
    /// A batch has more rows than a position can name.
    #[error("{n_rows} rows in one batch, the limit is {}; request fewer", u32::MAX)]
    TooManyRows {
        /// Number of requested rows.
        n_rows: usize,
    },
    /// Two sources of one loader disagree about a tensor.
    #[error(
        "tensor `{tensor}` has rows of {local} bytes locally but {remote} bytes remotely; \
         check that both sides serve the same graph"
    )]
    SourcesDiffer {
        /// The requested tensor.
        tensor: String,
        /// Bytes of a row in the local source.
        local: usize,
        /// Bytes of a row in the remote source.
        remote: usize,
    },
    /// A tier was built for rows of another length than those of its tensor.
    #[error("tensor `{tensor}` has rows of {expected} bytes, but its tier is for rows of {found}")]
    TierWidth {
        /// The tensor.
        tensor: String,
        /// Bytes of a row of the tensor.
        expected: usize,
        /// Bytes of a row of the tier.
        found: usize,
    },
    /// An address is invalid.
    #[error(transparent)]
    BadAddress(#[from] AddressError),
    /// No address was given, or a map names no server.
    #[error("no server was named; give at least one address")]
    NoServers,
    /// A map of servers cannot be read.
    #[error("{map}: cannot read the map of servers: {reason}")]
    Map {
        /// File or etcd.
        map: String,
        /// The fault.
        reason: String,
    },
    /// A named server has never responded, and may own the requested rows.
    #[error("{addresses}: has not responded and may own these rows; start it, or do not name it")]
    Unreachable {
        /// Addresses of these servers, separated by commas.
        addresses: String,
    },
    /// A server cannot be reached.
    #[error("cannot connect to {address}: {source}; is the server running?")]
    Connect {
        /// The server or one of its shards.
        address: Address,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A server could not be reached until the deadline.
    #[error(
        "cannot connect to {server}{}: {source}; tried {tries} times in {:.1} s; is the server running?",
        shard.map(|shard| format!(", shard {shard}")).unwrap_or_default(),
        waited.as_secs_f64()
    )]
    Away {
        /// The server, as the caller named it.
        server: Address,
        /// The shard that was asked.
        shard: Option<usize>,
        /// Number of attempts.
        tries: u32,
        /// Time from the first attempt to the last.
        waited: std::time::Duration,
        /// The error of the last attempt.
        source: std::io::Error,
    },
    /// A certificate or a key cannot be used.
    #[error("{path}: {reason}")]
    Tls {
        /// The file.
        path: std::path::PathBuf,
        /// The fault.
        reason: String,
    },
    /// The TLS handshake failed.
    #[error("{address}: TLS handshake failed: {reason}")]
    Handshake {
        /// The server or one of its shards.
        address: Address,
        /// The fault.
        reason: String,
    },
    /// No server has the pinned version of a partition.
    #[error(
        "no connected server has version {version} of partition {part}; pin another version, or \
         connect to a server that has it"
    )]
    NoVersion {
        /// The partition.
        part: PartId,
        /// The version.
        version: VersionTag,
    },
    /// Two servers made one version by different commits.
    #[error(
        "{address} and {other} have different histories: {reason}; stop the one that was restored from a \
         copy or replaced by another writer, and connect again"
    )]
    OtherHistory {
        /// The server whose rows were rejected.
        address: Address,
        /// The server that reported the expected commit, or the requested version.
        other: String,
        /// The partition and the versions.
        reason: String,
    },
    /// A connection failed before the reply was complete.
    #[error("the connection to {address} failed: {source}; retry the request")]
    Unavailable {
        /// The server or one of its shards.
        address: Address,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A server did not respond before the deadline.
    #[error("{address} did not respond before the deadline")]
    Deadline {
        /// The server or one of its shards.
        address: Address,
    },
    /// A peer does not speak the wire protocol, or violates it.
    #[error("{address}: {source}")]
    Wire {
        /// The peer.
        address: Address,
        /// The violation.
        source: WireError,
    },
    /// The server refused or failed the request.
    #[error("{address}: {failure}")]
    Refused {
        /// The server or one of its shards.
        address: Address,
        /// Its reason.
        failure: Failure,
    },
    /// The server sent a reply of the wrong type.
    #[error("{address} sent a reply of the wrong type; it may run another version")]
    Confused {
        /// The server.
        address: Address,
    },
    /// Two servers hold different graphs.
    #[error("{address} and {other} serve different graphs; name servers of one graph")]
    GraphsDiffer {
        /// One server.
        address: Address,
        /// The first server that was named.
        other: Address,
    },
    /// Two servers have different tensors with the same name.
    #[error(
        "{address} and {other} have different tensors `{tensor}`: one was dropped and created \
         again, or has another type; give both servers the same tensor"
    )]
    TensorsDiffer {
        /// The name.
        tensor: String,
        /// One server.
        address: Address,
        /// The other.
        other: Address,
    },
    /// The servers no longer have a tensor that they had when the client connected.
    #[error(
        "tensor `{tensor}` was {} since this client connected; connect again",
        if *is_replaced { "dropped and created again" } else { "dropped" }
    )]
    TensorGone {
        /// The name.
        tensor: String,
        /// Whether another tensor has the name now.
        is_replaced: bool,
    },
    /// A server describes an invalid partition book or tensor.
    #[error("{address} describes {reason}")]
    BadDescription {
        /// The server.
        address: Address,
        /// What it describes, and the fault.
        reason: String,
    },
    /// No server holds a partition.
    #[error("no connected server holds partition {part}; connect to one that does")]
    NoReplica {
        /// The partition.
        part: PartId,
    },
    /// No server accepts puts for a partition.
    #[error(
        "no server accepts puts for partition {part}; {readers} only read it: start a writable \
         server for it, or connect to its writer as well"
    )]
    NoWriter {
        /// The partition.
        part: PartId,
        /// Addresses of the servers that hold it, separated by commas.
        readers: String,
    },
    /// None of the servers that a follower asked writes these partitions.
    #[error("none of the servers asked writes {parts}: {servers}; name the server that writes it")]
    NotWritten {
        /// The partitions.
        parts: String,
        /// The servers, each with the partitions that it writes or reads.
        servers: String,
    },
    /// A server does not respond, so that a follower cannot tell which partitions it writes.
    #[error("cannot find out which partitions can be followed: {reason}")]
    NoSource {
        /// The failure, with the server.
        reason: String,
    },
    /// The server of a follower does not serve a version that was fetched.
    #[error("{reason}")]
    NotInstalled {
        /// The failure of the server.
        reason: String,
    },
    /// Two servers accept puts for a partition, which must have one writer.
    #[error(
        "{address} and {other} both accept puts for partition {part}, which must have one writer; \
         nothing was put: stop the wrong one, and restart it as a follower of the other, in a \
         folder without the partition"
    )]
    TwoWriters {
        /// The partition.
        part: PartId,
        /// The first of them.
        address: Address,
        /// The second.
        other: Address,
    },
    /// A put has more bytes for one partition than one write may have.
    #[error(
        "a put of {n_bytes} bytes for partition {part}, the limit is {}; split it",
        lodestore_schema::limits::PUT_BYTES_MAX
    )]
    PutTooLarge {
        /// The partition.
        part: PartId,
        /// Bytes of its rows.
        n_bytes: u64,
    },
    /// Fewer followers than requested have installed a version.
    #[error(
        "version {version} of partition {part} is committed, but only {found} of {wanted} \
         followers have it ({lacking}); check that the others run and reach the \
         writer, or wait for fewer"
    )]
    FollowersBehind {
        /// The partition.
        part: PartId,
        /// The version.
        version: u32,
        /// Followers that were requested.
        wanted: usize,
        /// Followers that have it.
        found: usize,
        /// The followers that lack the version, each with its own version, or that there are none.
        lacking: String,
    },
    /// A compaction failed on its server.
    #[error("{address}: compaction failed: {reason}")]
    Compaction {
        /// The server.
        address: Address,
        /// Its reason.
        reason: String,
    },
    /// A server did not respond to a step of a move within the time limit of a step.
    #[error(
        "{address} did not respond to a step of the move within {} s: the step may be done or not; \
         check that the server runs, then repeat the same move, which finds out",
        time.as_secs_f64()
    )]
    MoveStalled {
        /// The source or the target.
        address: Address,
        /// Time limit of one step.
        time: std::time::Duration,
    },
    /// A partition cannot be moved to or from a server.
    #[error("{address}: cannot move the partition: {reason}")]
    Move {
        /// The server.
        address: Address,
        /// The obstacle.
        reason: String,
    },
    /// Rows are to be kept over commits, but their source is not pinned.
    #[error(
        "{what} keeps rows over commits, but its source is not pinned: rows of several \
         versions would mix; pin the source to one version"
    )]
    Unpinned {
        /// What keeps rows.
        what: &'static str,
    },
    /// An earlier batch failed, on which this one depends.
    #[error("cannot load batch {batch}: an earlier batch failed")]
    Abandoned {
        /// Number of the batch in the run.
        batch: u32,
    },
    /// The connected servers hold no node.
    #[error("the connected servers hold no nodes; connect to one that does")]
    NoNodes,
    /// The system cannot poll sockets or start a thread.
    #[error("cannot poll connections or start a thread: {source}")]
    Poll {
        /// The error of the system.
        source: std::io::Error,
    },
    /// A value whose locks, threads or sockets belong to the parent of this process.
    #[error(
        "the {what} belongs to the parent of this forked process, and cannot be used here; create \
         another after the fork"
    )]
    Forked {
        /// The kind of it.
        what: &'static str,
    },
    /// A thread panicked; its message is in the log.
    #[error("the {thread} thread panicked; the cause is in the log above")]
    Panicked {
        /// The purpose of the thread.
        thread: &'static str,
    },
}

impl ClientError {
    /// Returns the version of `source`, whose rows `what` keeps over commits.
    pub(crate) fn check_pinned(
        source: &dyn RowSource,
        what: &'static str,
    ) -> Result<VersionTag, Self> {
        source.pinned_version().ok_or(Self::Unpinned { what })
    }

    /// Returns whether some of the rows are damaged: a pull of other rows may succeed.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Store(error) => error.origin() != ErrorOrigin::System,
            Self::Refused { failure, .. } => failure.code == FailureCode::Damaged,
            _ => false,
        }
    }

    /// Returns whether the connection is in step after this error, and can send the next request.
    /// The server may close it nevertheless.
    pub(crate) fn leaves_connection(&self) -> bool {
        let failure = match self {
            Self::Refused { failure, .. } => failure,
            // The reply was read to its end.
            Self::OtherHistory { .. } => return true,
            _ => return false,
        };
        !matches!(failure.code, FailureCode::Unauthenticated | FailureCode::Stopping)
    }

    /// Returns the error for an unknown tensor `name`.
    pub(crate) fn unknown_tensor<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Self {
        let known: Vec<_> = known.collect();
        Self::UnknownTensor { name: name.to_owned(), known: known.join(", ") }
    }

    /// Checks that a tier is for rows of `expected` bytes, as `tensor` has them.
    pub(crate) fn check_tier(tensor: &str, expected: usize, found: usize) -> Result<(), Self> {
        if expected == found {
            return Ok(());
        }
        Err(Self::TierWidth { tensor: tensor.to_owned(), expected, found })
    }

    /// Checks that a buffer of `found` bytes holds exactly `n_ids` rows.
    pub(crate) fn check_buffer(
        tensor: &str,
        n_ids: usize,
        row_bytes: usize,
        found: usize,
    ) -> Result<(), Self> {
        let expected = n_ids.saturating_mul(row_bytes);
        if expected == found {
            return Ok(());
        }
        Err(Self::BufferSize { tensor: tensor.to_owned(), n_ids, expected, found })
    }
}
