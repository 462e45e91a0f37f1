//! One client's connection: admission, then one request after the other until it disconnects.

mod copy;
mod entry;
mod lease;
mod permissions;
mod pull;
mod shared;
mod stream;
mod volatile;

use std::io;
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use futures_lite::future::poll_once;
use futures_lite::{AsyncReadExt, FutureExt};
use lodestore_graph::PartId;
use lodestore_schema::limits::{PREFIX_BYTES, WIRE_VERSION_PLAIN_MAX};
use lodestore_schema::request::{PullKind, Push};
use lodestore_schema::{
    Failure, FailureCode, Prefix, Reply, Request, RequestBody, Versions, WireError,
};
use lodestore_store::update::PartFiles;
use thiserror::Error;

use self::volatile::Claims;
use crate::buffers::set_len;
use crate::deadline::{QueueDelay, SlowReaderLimit, io_timeout, with_deadline};
use crate::error::failure;
use crate::followers::FollowerPlace;
use crate::limits::{FRAME_TIMEOUT, REQUEST_TIMEOUT, WRITE_TIMEOUT};
use crate::shard::{IdleClock, Shard};
use crate::stats::{BreakReason, RequestKind};
use copy::Copying;
use lease::SlotLease;
use permissions::Permissions;
use shared::Shared;
use stream::Stream;

pub(crate) use shared::REGION_BYTES;

/// One connection. It keeps little state between requests: large buffers are borrowed.
pub(crate) struct Connection {
    stream: Stream,
    /// The same socket, polled to detect that the client has disconnected.
    socket: Rc<OwnedFd>,
    /// Negotiated version of the wire.
    version: u16,
    /// Whether the socket is a Unix socket.
    is_local: bool,
    permissions: Permissions,
    /// Shared memory for rows, if the client has requested it.
    shared: Option<Shared>,
    /// Lease of rows that the client may be copying.
    lease: Option<SlotLease>,
    /// Copy of a partition that runs over this connection.
    copying: Option<Copying>,
    /// Files of a partition that a follower fetches over this connection.
    following: Option<Arc<PartFiles>>,
    /// State that the client has reported as a follower.
    follower: Option<FollowerPlace>,
    /// Claims on volatile rows that the client publishes.
    claims: Vec<Claims>,
    lag: QueueDelay,
    /// Allowance for the reply that is being sent.
    pace: SlowReaderLimit,
    head: Vec<u8>,
}

/// A pull whose ids are not read yet.
struct PendingPull {
    tensor: u16,
    kind: PullKind,
    /// Bytes of the ids.
    n_bytes: usize,
    /// The only acceptable version; 0 for the newest.
    version: u32,
    /// The lowest acceptable versions, or with `exactly` the versions to read.
    floors: Versions,
    exactly: bool,
    /// When the client sent the request, as far as known.
    sent: Instant,
    deadline: Instant,
}

/// Why a connection ended.
#[derive(Debug, Error)]
pub(crate) enum ConnectionError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("TLS handshake failed: {0}")]
    Tls(io::Error),
    #[error("client did not authenticate")]
    Unauthenticated,
    #[error("client disconnected before its reply")]
    Left,
    #[error("a request panicked")]
    Panic,
}

/// Error of a request.
#[derive(Debug, Error)]
pub(crate) enum RequestError {
    /// The client receives the failure, and the connection continues.
    #[error("refused: {0:?}")]
    Refused(Failure),
    /// The connection ends.
    #[error(transparent)]
    Ended(#[from] ConnectionError),
}

impl From<Failure> for RequestError {
    fn from(refusal: Failure) -> Self {
        Self::Refused(refusal)
    }
}

impl From<io::Error> for RequestError {
    fn from(error: io::Error) -> Self {
        Self::Ended(error.into())
    }
}

impl ConnectionError {
    pub(crate) fn reason(&self) -> BreakReason {
        match self {
            Self::Wire(_) => BreakReason::Wire,
            Self::Io(error) if error.kind() == io::ErrorKind::TimedOut => BreakReason::Timeout,
            Self::Io(_) => BreakReason::Io,
            Self::Tls(_) => BreakReason::Tls,
            Self::Unauthenticated => BreakReason::Unauthenticated,
            Self::Left => BreakReason::Left,
            Self::Panic => BreakReason::Panic,
        }
    }
}

impl Connection {
    /// Serves requests until the client disconnects, violates the protocol, or the shard stops.
    pub(crate) async fn serve(
        mut self,
        shard: &Rc<Shard>,
        idle: &IdleClock,
    ) -> Result<(), ConnectionError> {
        let mut is_first = true;
        while let Some(prefix) = self.next_prefix(idle).await? {
            let request = self.read_head(prefix).await?;
            let was_first = std::mem::take(&mut is_first);
            if let RequestBody::Authenticate { token } = request.body {
                if !was_first {
                    return Err(bad_request("a token is only valid in the first request"));
                }
                // The client is already admitted. A token that is not required has no reply.
                self.permissions.hear(&shard.plan.auth.policy(), &token);
                self.drain(prefix.body_bytes).await?;
                continue;
            }
            if request.body == RequestBody::Taken && prefix.body_bytes == 0 {
                self.taken()?;
                continue;
            }
            let now = Instant::now();
            let waited = self.lag.waited(request.sent, now).min(REQUEST_TIMEOUT);
            let kind = RequestKind::of(&request.body);
            let sent = now.checked_sub(waited).unwrap_or(now);
            let running = shard.counters().begin(kind, sent);
            let timeout = request.deadline.map_or(REQUEST_TIMEOUT, |d| d.min(REQUEST_TIMEOUT));
            let deadline = now + timeout.saturating_sub(waited);
            let answer = self.answer(shard, request, prefix, sent, deadline);
            let done = AssertUnwindSafe(answer).catch_unwind().await;
            self = match done {
                Ok(result) => result?,
                // A panic that escapes a task would stop the whole executor.
                Err(_) => return Err(ConnectionError::Panic),
            };
            running.answered();
        }
        Ok(())
    }

    /// Waits for a frame without a timeout, unless the client has leased rows. Returns `None` if
    /// the client disconnects between frames.
    async fn next_prefix(&mut self, idle: &IdleClock) -> Result<Option<Prefix>, ConnectionError> {
        let mut bytes = [0; PREFIX_BYTES];
        // Between two steps of a copy the connection is not idle, nor while its client copies
        // leased rows or has claims.
        if self.copying.is_none() && self.lease.is_none() && self.claims.is_empty() {
            idle.begin();
        }
        let mut read = self.stream.read(&mut bytes);
        let read = match poll_once(&mut read).await {
            // A socket that always has bytes never suspends, which would starve other tasks.
            Some(read) => {
                glommio::executor().yield_now().await;
                read
            }
            // A lease must end, so its client has a timeout.
            None if self.lease.is_some() => io_timeout(WRITE_TIMEOUT, read).await,
            None => read.await,
        };
        idle.end();
        let n_bytes = match read {
            Ok(0) => return Ok(None),
            // TLS reports an end without a close notification as this error. Between frames nothing
            // is lost.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        };
        self.read_in_time(&mut bytes[n_bytes..]).await?;
        Ok(Some(Prefix::of_request(bytes)?))
    }

    async fn read_head(&mut self, prefix: Prefix) -> Result<Request, ConnectionError> {
        self.head.resize(prefix.head_bytes, 0);
        io_timeout(FRAME_TIMEOUT, self.stream.read_exact(&mut self.head)).await?;
        Ok(Request::decode(&self.head)?)
    }

    /// Handles one request. The connection is passed by value because bulk runs in its own task.
    async fn answer(
        mut self,
        shard: &Rc<Shard>,
        request: Request,
        prefix: Prefix,
        sent: Instant,
        deadline: Instant,
    ) -> Result<Self, ConnectionError> {
        (self.pace, self.lease) = (SlowReaderLimit::default(), None);
        if let Err(refusal) = check(shard, &request, self.version, deadline <= Instant::now()) {
            self.drain(prefix.body_bytes).await?;
            return self.reply_or_refuse(shard, Err(refusal.into())).await;
        }
        match request.body {
            RequestBody::Pull { tensor, kind } => {
                let asked = PendingPull {
                    tensor,
                    kind,
                    n_bytes: prefix.body_bytes,
                    version: request.version,
                    floors: request.floors,
                    exactly: request.exactly,
                    sent,
                    deadline,
                };
                if kind == PullKind::Sync {
                    return self.pull(shard, asked).await;
                }
                let task_shard = Rc::clone(shard);
                in_bulk(shard, async move { self.pull(&task_shard, asked).await }).await
            }
            RequestBody::Push(push) => {
                let pushed = self.push(shard, push, prefix.body_bytes, deadline).await;
                self.reply_or_refuse(shard, pushed).await
            }
            RequestBody::Claim { tensor } => {
                let claimed = self.claim(shard, tensor.as_str(), prefix.body_bytes).await;
                self.reply_or_refuse(shard, claimed).await
            }
            RequestBody::Publish(publish) => {
                let published = self.publish(shard, publish, prefix.body_bytes).await;
                self.reply_or_refuse(shard, published).await
            }
            RequestBody::PullVolatile(pull) => {
                let sent = self.pull_volatile(shard, pull, prefix.body_bytes, deadline).await;
                self.end_answer(shard, sent).await
            }
            body => {
                self.drain(prefix.body_bytes).await?;
                self.answer_short(shard, body, deadline).await
            }
        }
    }

    /// Handles a request without rows; its body is ignored.
    async fn answer_short(
        mut self,
        shard: &Rc<Shard>,
        body: RequestBody,
        deadline: Instant,
    ) -> Result<Self, ConnectionError> {
        let reply = match body {
            RequestBody::Share => {
                let sent = self.share(shard);
                return self.end_answer(shard, sent).await;
            }
            RequestBody::Lend { tensor } => {
                let sent = self.lease_memory(shard, tensor).await;
                return self.end_answer(shard, sent).await;
            }
            RequestBody::Copy { part, step } => return self.copy(shard, PartId(part), step).await,
            RequestBody::Follow { part, step } => {
                let task_shard = Rc::clone(shard);
                let task = async move { self.follow(&task_shard, PartId(part), step).await };
                return in_bulk(shard, task).await;
            }
            RequestBody::Describe => {
                self.write(&shard.description()).await?;
                return Ok(self);
            }
            RequestBody::Stat => Ok(Reply::Stats(shard.stats())),
            RequestBody::Declare(declare) => {
                let declared = shard.plan.volatile.declare(&shard.plan.partitions, &declare);
                declared.map(Reply::Declared)
            }
            RequestBody::Volatile { tensor } => {
                shard.plan.volatile.describe(tensor.as_str()).map(Reply::Declared)
            }
            RequestBody::Compact => shard.compact().map(|run| Reply::Compacting { run }),
            RequestBody::Commit { version, step, label } => {
                let committed = with_deadline(deadline, shard.commit(version, step, label)).await;
                committed.map(|(version, label)| Reply::Committed { version, label })
            }
            _ => {
                Err(failure(FailureCode::Internal, "a request with rows was handled without rows"))
            }
        };
        self.reply_or_refuse(shard, reply.map_err(RequestError::from)).await
    }

    /// Reads the body of a push within its reserved memory, and stages or writes its rows.
    async fn push(
        &mut self,
        shard: &Rc<Shard>,
        push: Push,
        body_bytes: usize,
        deadline: Instant,
    ) -> Result<Reply, RequestError> {
        let admitted = shard.admit_push(&push, body_bytes);
        let (room, mut buffers) = self.drain_refused(admitted, body_bytes).await?;
        set_len(&mut buffers.ids, push.n_rows as usize);
        let ids = bytemuck::cast_slice_mut(&mut buffers.ids);
        set_len(&mut buffers.frame, body_bytes - ids.len());
        let stream = &mut self.stream;
        let read = async {
            stream.read_exact(ids).await?;
            stream.read_exact(&mut buffers.frame).await
        };
        io_timeout(FRAME_TIMEOUT, read).await?;
        let version = with_deadline(deadline, shard.push(push, buffers, room)).await?;
        Ok(Reply::Pushed { version })
    }

    /// Ends a request whose reply was sent, or sends its failure.
    async fn end_answer(
        self,
        shard: &Shard,
        sent: Result<(), RequestError>,
    ) -> Result<Self, ConnectionError> {
        match sent {
            Ok(()) => Ok(self),
            Err(error) => self.reply_or_refuse(shard, Err(error)).await,
        }
    }

    /// Sends a reply without rows, or the failure.
    async fn reply_or_refuse(
        mut self,
        shard: &Shard,
        reply: Result<Reply, RequestError>,
    ) -> Result<Self, ConnectionError> {
        let reply = match reply {
            Ok(reply) => reply,
            Err(RequestError::Refused(refusal)) => {
                shard.refused(&refusal);
                Reply::Failure(refusal)
            }
            Err(RequestError::Ended(error)) => return Err(error),
        };
        self.reply(&reply).await?;
        Ok(self)
    }
}

/// Runs work of a connection at low priority.
async fn in_bulk(
    shard: &Shard,
    work: impl Future<Output = Result<Connection, ConnectionError>> + 'static,
) -> Result<Connection, ConnectionError> {
    // A panic that escapes a task would stop the whole executor.
    let work = AssertUnwindSafe(work).catch_unwind();
    shard.spawn_bulk(async { work.await.unwrap_or(Err(ConnectionError::Panic)) }).await
}

/// Returns the error for a request that breaks the protocol.
fn bad_request(reason: &str) -> ConnectionError {
    WireError::Malformed { message: "request", reason: reason.to_owned() }.into()
}

/// Checks a request before its body is read. Fails if the negotiated version lacks the request, the
/// deadline has passed, or the request names another graph.
fn check(shard: &Shard, request: &Request, version: u16, is_late: bool) -> Result<(), Failure> {
    request.body.check_version(version).map_err(|error| {
        // A peer of these versions does not know `unsupported`.
        let code = match version <= WIRE_VERSION_PLAIN_MAX {
            true => FailureCode::Invalid,
            false => FailureCode::Unsupported,
        };
        failure(code, error.to_string())
    })?;
    if is_late {
        let message = "the deadline passed before the request was read";
        return Err(failure(FailureCode::Deadline, message));
    }
    shard.check_meant(request)
}
