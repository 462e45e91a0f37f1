//! Everything that can go wrong between a node id and its row.

use lodestore_cache::device::DeviceError;
use lodestore_cache::directory::DirectoryError;
use lodestore_cache::hot_set::HotSetError;
use lodestore_cache::volatile::VolatileError;
use lodestore_cache::volatile_store::DeclareError;
use lodestore_graph::sampler::TooManyEdges;
use lodestore_graph::schedule::ScheduleError;
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
    /// Volatile rows of this process were not claimed, published or pulled.
    #[error(transparent)]
    Volatile(#[from] VolatileError),
    /// A volatile tensor of this process is not there.
    #[error(transparent)]
    Declare(#[from] DeclareError),
    /// A volatile tensor that cannot be.
    #[error("no volatile tensor: {reason}")]
    BadVolatile {
        /// The fault of it.
        reason: String,
    },
    /// Servers have a volatile tensor in different ways.
    #[error(
        "{address} has other rows of volatile tensor `{tensor}` than another server; start all servers \
         with the same volatile tensors, or declare it under another name"
    )]
    VolatileDiffers {
        /// The server.
        address: Address,
        /// The tensor.
        tensor: String,
    },
    /// A volatile tensor was declared with another shape than this client knew.
    #[error(
        "volatile tensor `{tensor}` was declared again since it was asked for, with other rows: {found}; \
         ask for its shape again"
    )]
    VolatileChanged {
        /// The tensor.
        tensor: String,
        /// Its shape now.
        found: String,
    },
    /// A row that a publisher has not claimed.
    #[error(
        "node {node} of volatile tensor `{tensor}` is not claimed by this publisher; claim its range \
         before publishing"
    )]
    NotClaimed {
        /// The tensor.
        tensor: String,
        /// The first such node.
        node: NodeId,
    },
    /// The connection that had claims is gone, and the claims with it.
    #[error("{address} broke the connection that had the claims; claim the rows again")]
    ClaimsLost {
        /// The server.
        address: Address,
    },
    /// The graph has no such tensor.
    #[error("the graph has no tensor `{name}`; it has: {known}")]
    UnknownTensor {
        /// Name asked for.
        name: String,
        /// Names that the graph has, separated by commas.
        known: String,
    },
    /// The graph has no such node.
    #[error("node {node} is not below the graph's {n_nodes} nodes")]
    UnknownNode {
        /// Id asked for.
        node: NodeId,
        /// Nodes of the graph.
        n_nodes: u32,
    },
    /// The buffer for rows does not fit the ids.
    #[error("tensor `{tensor}`: {n_ids} rows need a buffer of {expected} bytes, found {found}")]
    BufferSize {
        /// Tensor asked for.
        tensor: String,
        /// Ids asked for.
        n_ids: usize,
        /// Bytes that these rows need.
        expected: usize,
        /// Bytes of the buffer.
        found: usize,
    },
    /// More rows than positions can name.
    #[error("{n_rows} rows are requested together, the limit is {}; ask for fewer", u32::MAX)]
    TooManyRows {
        /// Rows asked for.
        n_rows: usize,
    },
    /// Two sources of one loader disagree about a tensor.
    #[error(
        "tensor `{tensor}` has rows of {local} bytes locally but {remote} bytes remotely; \
         check that both sides serve the same graph"
    )]
    SourcesDiffer {
        /// Tensor asked for.
        tensor: String,
        /// Bytes of a row in the local source.
        local: usize,
        /// Bytes of a row in the remote source.
        remote: usize,
    },
    /// A tier for other rows than those of its tensor.
    #[error("tensor `{tensor}` has rows of {expected} bytes, but its tier is for rows of {found}")]
    TierWidth {
        /// The tensor.
        tensor: String,
        /// Bytes of its rows.
        expected: usize,
        /// Bytes of the tier's.
        found: usize,
    },
    /// An address that cannot be read.
    #[error(transparent)]
    BadAddress(#[from] AddressError),
    /// No address was given, or a map names none.
    #[error("no server was named; give at least one address")]
    NoServers,
    /// A map of servers cannot be read.
    #[error("{map}: no map of servers: {reason}")]
    Map {
        /// File or etcd.
        map: String,
        /// The fault.
        reason: String,
    },
    /// A named server that has never answered, and may hold the requested rows.
    #[error(
        "{addresses}: not heard of yet, and may hold what is written; start it, or do not name it"
    )]
    Unreachable {
        /// Those servers.
        addresses: String,
    },
    /// A server does not answer a connection.
    #[error("cannot connect to {address}: {source}; is the server running?")]
    Connect {
        /// The server or one of its shards.
        address: Address,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A server that no connection has reached until the end of the time for it.
    #[error(
        "cannot connect to {server}{}: {source}; tried {tries} times in {:.1} s; is the server running?",
        shard.map(|shard| format!(", shard {shard}")).unwrap_or_default(),
        waited.as_secs_f64()
    )]
    Away {
        /// The server, as it was named.
        server: Address,
        /// The shard that was asked.
        shard: Option<usize>,
        /// How often it was tried.
        tries: u32,
        /// Time from the first try to the last.
        waited: std::time::Duration,
        /// The error of the last try.
        source: std::io::Error,
    },
    /// A certificate or a key that cannot be used.
    #[error("{path}: {reason}")]
    Tls {
        /// The file.
        path: std::path::PathBuf,
        /// The fault of it.
        reason: String,
    },
    /// Client and server do not agree on TLS.
    #[error("{address}: no TLS: {reason}")]
    Handshake {
        /// The server or one of its shards.
        address: Address,
        /// The fault.
        reason: String,
    },
    /// No server has the version of a partition that is to be kept to.
    #[error(
        "no server that is connected has version {version} of partition {part}; pin another version, or \
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
        /// The server whose rows were not taken.
        address: Address,
        /// The server that the expected commit is known from, or what else expects it.
        other: String,
        /// The partition and the versions.
        reason: String,
    },
    /// A connection broke before the answer was complete.
    #[error("{address} broke the connection: {source}; the pull may be repeated")]
    Unavailable {
        /// The server or one of its shards.
        address: Address,
        /// The error of the system.
        source: std::io::Error,
    },
    /// No answer in time.
    #[error("{address} gave no answer before the deadline")]
    Deadline {
        /// The server or one of its shards.
        address: Address,
    },
    /// A peer does not speak the wire, or breaks its rules.
    #[error("{address}: {source}")]
    Wire {
        /// The peer.
        address: Address,
        /// The action that failed.
        source: WireError,
    },
    /// The server answered that it will not or cannot.
    #[error("{address}: {failure}")]
    Refused {
        /// The server or one of its shards.
        address: Address,
        /// Its reason.
        failure: Failure,
    },
    /// The server answered another question.
    #[error("{address} answered another question than was asked; it may be of another version")]
    Confused {
        /// The server.
        address: Address,
    },
    /// Two servers hold different graphs.
    #[error("{address} and {other} serve different graphs; name servers of one graph")]
    GraphsDiffer {
        /// One server.
        address: Address,
        /// The first that was named.
        other: Address,
    },
    /// Two servers have different tensors of one name.
    #[error(
        "{address} and {other} have different tensors `{tensor}`: one of them was dropped and made again, \
         or has another type; make both servers have the same"
    )]
    TensorsDiffer {
        /// The name.
        tensor: String,
        /// One server.
        address: Address,
        /// The other.
        other: Address,
    },
    /// The servers do not have a tensor any more that they had when the client connected.
    #[error(
        "tensor `{tensor}` was {} since this client connected; connect again",
        if *is_replaced { "dropped and made again" } else { "dropped" }
    )]
    TensorGone {
        /// Its name.
        tensor: String,
        /// Whether another one has the name.
        is_replaced: bool,
    },
    /// A server describes a partition book or a tensor that cannot be.
    #[error("{address} describes {reason}")]
    BadDescription {
        /// The server.
        address: Address,
        /// The description, and the fault of it.
        reason: String,
    },
    /// None of the servers holds a partition.
    #[error("no server that is connected holds partition {part}; connect to one that does")]
    NoReplica {
        /// The partition.
        part: PartId,
    },
    /// No server takes puts of a partition.
    #[error(
        "no server takes puts of partition {part}; {readers} only read it: start a writable server of \
         it, or connect to its writer as well"
    )]
    NoWriter {
        /// The partition.
        part: PartId,
        /// Addresses of those that have it, separated by commas.
        readers: String,
    },
    /// No server that a follower asks writes partitions that it is to follow.
    #[error("no server that was asked writes {parts}: {servers}; name the server that writes it")]
    NotWritten {
        /// The partitions.
        parts: String,
        /// Each server with what it has.
        servers: String,
    },
    /// A server that a follower asks for partitions does not say which it writes.
    #[error("it is unknown which partitions can be followed: {reason}")]
    NoSource {
        /// The failure, with the server.
        reason: String,
    },
    /// A server that follows does not serve a version that it has fetched.
    #[error("{reason}")]
    NotInstalled {
        /// The failure of the server.
        reason: String,
    },
    /// Two servers take puts of a partition, of which one alone may.
    #[error(
        "{address} and {other} both take puts of partition {part}, which has one writer; nothing was \
         put: stop the wrong one, and start it again as a follower of the other, in a folder without the \
         partition"
    )]
    TwoWriters {
        /// The partition.
        part: PartId,
        /// One of them.
        address: Address,
        /// Another.
        other: Address,
    },
    /// A put has more rows of one partition than are put by one write.
    #[error(
        "a put of {n_bytes} bytes for partition {part}; one may have {}: split it",
        lodestore_schema::limits::PUT_BYTES_MAX
    )]
    PutTooLarge {
        /// The partition.
        part: PartId,
        /// Bytes of its rows.
        n_bytes: u64,
    },
    /// Fewer followers than wanted have a version.
    #[error(
        "version {version} of partition {part} is committed, and {found} of {wanted} followers have it \
         ({lacking}); see that the others run and reach the writer, or ask for fewer"
    )]
    FollowersBehind {
        /// The partition.
        part: PartId,
        /// The version.
        version: u32,
        /// Followers that are to have it.
        wanted: usize,
        /// Followers that have it.
        found: usize,
        /// Those that lack it with the version that each has, or that there are none.
        lacking: String,
    },
    /// A compaction has failed on its server.
    #[error("{address}: the compaction has failed: {reason}")]
    Compaction {
        /// The server.
        address: Address,
        /// Its reason.
        reason: String,
    },
    /// A server did not answer a step of a move in the time for one.
    #[error(
        "{address} has not answered a step of the move for {} s, the time for one: what it was asked \
         for may be done or not; see that it continues, then run the same command again, which finds out",
        time.as_secs_f64()
    )]
    MoveStalled {
        /// The source or the target.
        address: Address,
        /// Time for one step.
        time: std::time::Duration,
    },
    /// A partition cannot be moved to or from a server.
    #[error("{address}: the partition is not moved: {reason}")]
    Move {
        /// The server.
        address: Address,
        /// The obstacle.
        reason: String,
    },
    /// Rows are to be kept over commits, and the source of them keeps to no version.
    #[error(
        "{what} keeps rows, and its source reads the newest version of each moment: rows of several \
         versions would meet; pin the source to one version"
    )]
    Unpinned {
        /// What keeps rows.
        what: &'static str,
    },
    /// Batches take turns, and one of them gave up its own.
    #[error("batch {batch} cannot be loaded, since one before it failed")]
    Abandoned {
        /// Number of the batch in the run.
        batch: u32,
    },
    /// None of the servers holds a node.
    #[error("the servers that are connected hold no node; connect to one that does")]
    NoNodes,
    /// The system refuses to watch sockets or to start a thread.
    #[error("cannot drive connections: {source}")]
    Poll {
        /// The error of the system.
        source: std::io::Error,
    },
    /// Something in memory whose locks, threads or sockets are those of the parent of this process.
    #[error(
        "the {what} is of the process that this one was forked from, and cannot be used here; make \
         another after the fork"
    )]
    Forked {
        /// The kind of it.
        what: &'static str,
    },
    /// A thread has panicked; its message is in the log.
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

    /// Returns whether some of the rows are damaged: a pull of others may succeed.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Store(error) => error.origin() != ErrorOrigin::System,
            Self::Refused { failure, .. } => failure.code == FailureCode::Damaged,
            _ => false,
        }
    }

    /// Returns whether the connection that it came over is in step, and serves the next request as
    /// well. A server may close it all the same.
    pub(crate) fn leaves_connection(&self) -> bool {
        let failure = match self {
            Self::Refused { failure, .. } => failure,
            // The answer has come as a whole.
            Self::OtherHistory { .. } => return true,
            _ => return false,
        };
        !matches!(failure.code, FailureCode::Unauthenticated | FailureCode::Stopping)
    }

    /// Returns the error for no tensor `name` among those that are `known`.
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
