//! Errors of a server's start and stop, and failures of requests.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use lodestore_cache::PolicyKind;
use lodestore_cache::volatile_store::DeclareError;
use lodestore_graph::PartId;
use lodestore_schema::{Failure, FailureCode};
use lodestore_store::StoreError;
use thiserror::Error;

use crate::limits::{RETRY_AFTER, SHARDS_MAX};

/// An error of the start or the stop of a server.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Neither a TCP address nor a Unix socket was given.
    #[error("nothing to listen on: give a TCP address, a Unix socket, or both")]
    NoListener,
    /// A number of shards out of range.
    #[error("a server has 1 to {SHARDS_MAX} shards, found {found}")]
    Shards {
        /// Shards that the configuration has.
        found: u16,
    },
    /// A policy that needs a plan.
    #[error(
        "policy `{found}` cannot run in a server; choose one of: {}",
        PolicyKind::REACTIVE.map(PolicyKind::name).join(", ")
    )]
    Policy {
        /// Policy that the configuration has.
        found: PolicyKind,
    },
    /// More files of rows than the process may open.
    #[error(
        "the server needs more than {needed} open files, but the process may have {limit}; raise \
         the limit (`ulimit -n`), or serve fewer partitions"
    )]
    FileLimit {
        /// Files that are open, plus those that the shards would open.
        needed: u64,
        /// Files that the process may open.
        limit: u64,
    },
    /// A partition that the graph does not have.
    #[error("no partition {found}: the graph has partitions 0 to {last}")]
    NoPart {
        /// The missing partition.
        found: PartId,
        /// Last partition of the graph.
        last: u16,
    },
    /// A tensor to preload that the graph does not have.
    #[error("no tensor `{found}` to preload; choose from {known}, or `auto`")]
    NoTensor {
        /// Name of the missing tensor.
        found: String,
        /// Names of the graph's tensors, comma separated.
        known: String,
    },
    /// A tensor whose rows do not fit into a frame.
    #[error(
        "tensor `{tensor}` cannot be served: its rows have {found} bytes, and a server sends at \
         most {limit}; read it from its folder, or import it as several tensors"
    )]
    RowBytes {
        /// Name of the tensor.
        tensor: String,
        /// Bytes of a row.
        found: usize,
        /// Maximum bytes of a row.
        limit: usize,
    },
    /// A non-loopback address without authentication, encryption or `insecure`.
    #[error(
        "{address} is not a loopback address and connections are neither authenticated nor \
         encrypted; listen on 127.0.0.1, use a Unix socket, a token or TLS, or allow insecure \
         connections on a trusted network"
    )]
    Exposed {
        /// The address.
        address: std::net::SocketAddr,
    },
    /// A TCP address of a server that accepts changes, without authentication.
    #[error(
        "a server that takes puts or partitions is open to every user of the machine by {address}: \
         connections are not authenticated; give a token or a client CA, listen on a Unix socket \
         alone, or allow insecure connections where all users may change rows"
    )]
    Unguarded {
        /// The address.
        address: std::net::SocketAddr,
    },
    /// Metrics on a non-loopback address without a token.
    #[error(
        "metrics on {address} can be read from outside, and the metrics port has no TLS; listen \
         on 127.0.0.1, give a token, or allow insecure metrics on a trusted network"
    )]
    MetricsExposed {
        /// The address.
        address: std::net::SocketAddr,
    },
    /// Metrics on a non-loopback address of a TLS server, whose token would be sent without TLS.
    #[error(
        "metrics on {address} need the token, and the metrics port has no TLS, so others can read \
         the token in transit; listen on 127.0.0.1, or allow insecure metrics on a trusted network"
    )]
    MetricsInClear {
        /// The address.
        address: std::net::SocketAddr,
    },
    /// An unusable certificate or key.
    #[error("{path}: {reason}")]
    Tls {
        /// The file.
        path: PathBuf,
        /// What is wrong with the file.
        reason: String,
    },
    /// A running server can replace its credentials, but not add or remove one.
    #[error(
        "{setting} {} when the server started; a reload replaces tokens and certificates but does \
         not add or remove one; restart the server",
        if *is_asked { "was set" } else { "was not set" }
    )]
    Renewal {
        /// The credential that was added or removed.
        setting: &'static str,
        /// Whether the server has required the credential since its start.
        is_asked: bool,
    },
    /// An address or socket path that cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose another address or stop its owner")]
    Listen {
        /// Address or path.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// A path that is occupied by something other than a stale socket.
    #[error("{path} exists and is not a stale socket; remove it or choose another path")]
    SocketPath {
        /// The path.
        path: PathBuf,
    },
    /// The graph cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An invalid volatile tensor.
    #[error(transparent)]
    Volatile(#[from] DeclareError),
    /// A volatile tensor with the name of a stored one.
    #[error("volatile tensor `{name}` has the name of a stored tensor; give it another name")]
    VolatileName {
        /// The name.
        name: String,
    },
    /// A follower that is also writable.
    #[error("a follower rejects puts; a server either follows or is writable")]
    WritesAndFollows,
    /// An installed version that a shard does not serve yet.
    #[error(
        "version {version} of partition {part} is installed, but a shard still serves the previous \
         version: {reason}; install it again"
    )]
    NotSwitched {
        /// The partition.
        part: PartId,
        /// The version that was installed.
        version: u32,
        /// Why the shard did not switch.
        reason: String,
    },
    /// A partition that has arrived but is not served yet.
    #[error("partition {part} has arrived but is not served: {reason}; add it again")]
    NotAdopted {
        /// The partition.
        part: PartId,
        /// Why the partition is not served.
        reason: String,
    },
    /// The system denies io_uring to this process.
    #[error("no io_uring: {call}: {source}: {remedy}. Clients and embedded stores do not need it")]
    NoRing {
        /// The system call.
        call: &'static str,
        /// The system's error.
        source: io::Error,
        /// The cause and the remedy.
        remedy: String,
    },
    /// A shard's executor did not start or died.
    #[error(
        "shard executor: {reason}; each shard needs io_uring and at least 512 KiB of locked memory \
         (`ulimit -l`)"
    )]
    Executor {
        /// The error of glommio.
        reason: String,
    },
    /// A shard or the acceptor thread ended before the server was stopped.
    #[error("thread {thread} has died; see the log, then restart the server")]
    Died {
        /// Name of the thread.
        thread: String,
    },
    /// Shard ports beyond the last port number.
    #[error("{n_shards} shard ports from {base} on end past 65535; choose a lower base")]
    Ports {
        /// First shard port.
        base: u16,
        /// Number of shards.
        n_shards: u16,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// Returns a failure. `Overloaded` and `Behind` carry the retry hint `RETRY_AFTER`.
pub(crate) fn failure(code: FailureCode, message: impl Into<String>) -> Failure {
    let retry_after = if matches!(code, FailureCode::Overloaded | FailureCode::Behind) {
        RETRY_AFTER
    } else {
        Duration::ZERO
    };
    Failure { code, message: message.into(), retry_after }
}

/// Returns the failure that a client receives for an error of the store.
#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` wants")]
pub(crate) fn store_failure(error: StoreError) -> Failure {
    let code = match &error {
        StoreError::DamagedPage { .. }
        | StoreError::DamagedGroup { .. }
        | StoreError::DamagedPending { .. } => FailureCode::Damaged,
        StoreError::Fixed { .. }
        | StoreError::TensorRefused { .. }
        | StoreError::MoveRefused { .. } => FailureCode::Invalid,
        StoreError::NoPart { .. } => FailureCode::Elsewhere,
        StoreError::Busy { .. } => FailureCode::Overloaded,
        StoreError::ReadOnly { .. }
        | StoreError::Follows { .. }
        | StoreError::WritesStopped { .. } => FailureCode::ReadOnly,
        _ => FailureCode::Internal,
    };
    failure(code, error.to_string())
}
