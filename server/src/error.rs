//! Why a server did not start, and how a request fails.

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

/// Why a server did not start or did not end well.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Neither a TCP address nor a Unix socket was given.
    #[error("nothing to listen on: give a TCP address, a Unix socket, or both")]
    NoListener,
    /// A number of shards that cannot be.
    #[error("a server has 1 to {SHARDS_MAX} shards, found {found}")]
    Shards {
        /// Shards asked for.
        found: u16,
    },
    /// A policy that servers cannot follow.
    #[error(
        "a server's tiers cannot follow the policy `{found}`; one of: {}",
        PolicyKind::REACTIVE.map(PolicyKind::name).join(", ")
    )]
    Policy {
        /// Policy asked for.
        found: PolicyKind,
    },
    /// More files of rows than the process may have open.
    #[error(
        "the server needs more than {needed} open files, and the process may have {limit}; raise its \
         limit (`ulimit -n`), or serve fewer partitions"
    )]
    FileLimit {
        /// Files that it has open, and those that its shards would open.
        needed: u64,
        /// Files that the process may have open.
        limit: u64,
    },
    /// A partition that the graph does not have.
    #[error("the graph has partitions 0 to {last}, there is no partition {found}")]
    NoPart {
        /// Partition asked for.
        found: PartId,
        /// Last one there is.
        last: u16,
    },
    /// A tensor to be loaded that the graph does not have.
    #[error("there is no tensor `{found}` to preload; the graph has {known}, or say `auto`")]
    NoTensor {
        /// Name asked for.
        found: String,
        /// Names that exist, comma separated.
        known: String,
    },
    /// A row that no frame can carry.
    #[error(
        "tensor `{tensor}` cannot be served: it has rows of {found} bytes, and a server sends at most \
         {limit}; read it from its folder, or serve an import that has it as several tensors"
    )]
    RowBytes {
        /// Name of the tensor.
        tensor: String,
        /// Bytes of a row.
        found: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// Another address than loopback without anything that says who may ask, or that all may.
    #[error(
        "{address} is not a loopback address and connections are neither authenticated nor \
         encrypted; listen on 127.0.0.1, use a Unix socket, a token or TLS, or allow insecure \
         connections on a trusted network"
    )]
    Exposed {
        /// Address asked for.
        address: std::net::SocketAddr,
    },
    /// A TCP address of a server that takes changes, without anything that says who may make them.
    #[error(
        "a server that takes puts or partitions is open to every user of the machine by {address}: \
         connections are not authenticated; give a token or the authority of client certificates, use \
         a Unix socket alone, or allow insecure connections where all users may change rows"
    )]
    Unguarded {
        /// Address asked for.
        address: std::net::SocketAddr,
    },
    /// Metrics on another address than loopback, where they are asked for in the clear.
    #[error(
        "metrics on {address} can be read from outside, and the metrics port speaks no TLS; listen \
         on 127.0.0.1, give a token, or allow insecure metrics on a trusted network"
    )]
    MetricsExposed {
        /// Address asked for.
        address: std::net::SocketAddr,
    },
    /// The token of a server that speaks TLS, asked for in the clear.
    #[error(
        "metrics on {address} want the token, and the metrics port speaks no TLS, so that others can \
         read it on its way; listen on 127.0.0.1, or allow insecure metrics on a trusted network"
    )]
    MetricsInClear {
        /// Address asked for.
        address: std::net::SocketAddr,
    },
    /// A certificate or a key that cannot be used.
    #[error("{path}: {reason}")]
    Tls {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// While a server runs, proofs that it wants of clients can be replaced, and neither added nor
    /// removed.
    #[error(
        "{setting} {} when the server started; replace tokens and certificates one for one, or \
         restart it",
        if *is_asked { "was asked for" } else { "was not asked for" }
    )]
    Renewal {
        /// The proof that is added or removed.
        setting: &'static str,
        /// Whether the server has required it since its start.
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
    /// A path where something other than a stale socket is.
    #[error("{path} exists and is not a stale socket; remove it or choose another path")]
    SocketPath {
        /// The path.
        path: PathBuf,
    },
    /// The graph cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A volatile tensor that there cannot be.
    #[error(transparent)]
    Volatile(#[from] DeclareError),
    /// A volatile tensor with the name of a stored one.
    #[error("volatile tensor `{name}` has the name of a stored tensor; give it another name")]
    VolatileName {
        /// The name.
        name: String,
    },
    /// A follower would take puts.
    #[error("a server that follows another takes no puts; it either follows or is writable")]
    WritesAndFollows,
    /// A version that was installed, and that a shard does not read yet.
    #[error(
        "version {version} of partition {part} is here, and a shard reads the one before: {reason}; \
         install it again"
    )]
    NotSwitched {
        /// The partition.
        part: PartId,
        /// The version that was installed.
        version: u32,
        /// The obstacle.
        reason: String,
    },
    /// A partition that has come, and that is not served yet.
    #[error("partition {part} has come and is not served: {reason}; add it again")]
    NotAdopted {
        /// The partition.
        part: PartId,
        /// The obstacle.
        reason: String,
    },
    /// The system refuses io_uring to this process.
    #[error("no io_uring: {call}: {source}: {remedy}. Clients and embedded stores do without")]
    NoRing {
        /// The system call.
        call: &'static str,
        /// The system's error.
        source: io::Error,
        /// The cause, and what to do.
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
    /// A shard, or the thread that accepts, had ended before the server was stopped.
    #[error("{thread} had ended; the log says why. Restart the server")]
    Died {
        /// Its name.
        thread: String,
    },
    /// Ports that there are not.
    #[error("{n_shards} shards have no ports from {base} on; ports end at 65535")]
    Ports {
        /// The first that was asked for.
        base: u16,
        /// Shards.
        n_shards: u16,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// Returns a failure; `Overloaded` and `Behind` ask the client to retry after `RETRY_AFTER`.
pub(crate) fn failure(code: FailureCode, message: impl Into<String>) -> Failure {
    let retry_after = if matches!(code, FailureCode::Overloaded | FailureCode::Behind) {
        RETRY_AFTER
    } else {
        Duration::ZERO
    };
    Failure { code, message: message.into(), retry_after }
}

/// Returns the failure for a fault of the store during a request.
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
