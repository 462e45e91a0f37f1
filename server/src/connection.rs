//! One client's connection: hello, then requests one after the other until it leaves.

use std::io;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_lite::{AsyncReadExt, AsyncWriteExt, FutureExt};
use glommio::net::TcpStream;
use lodestore_graph::NodeId;
use lodestore_schema::limits::{CHUNK_BYTES, HELLO_BYTES, PREFIX_BYTES};
use lodestore_schema::{
    Failure, FailureCode, Prefix, PullKind, Reply, Request, RequestBody, WireError, check_hello,
    hello,
};
use thiserror::Error;

use crate::error::failure;
use crate::limits::{FRAME_TIMEOUT, HELLO_TIMEOUT, REQUEST_TIMEOUT, WRITE_TIMEOUT};
use crate::shard::Shard;
use crate::stats::{BreakReason, RequestKind, count};

/// Room before the rows of a chunk for prefix and head, so that one write sends all.
const HEAD_ROOM: usize = 128;
/// Bytes drained at a time from a request that is refused.
const DRAIN_BYTES: usize = 64 << 10;

/// One connection. What it keeps between requests is small: bulk buffers are borrowed.
pub(crate) struct Connection {
    stream: TcpStream,
    head: Vec<u8>,
}

/// Bulk buffers of one request, lent by the shard and reused.
#[derive(Default)]
pub(crate) struct Buffers {
    pub(crate) ids: Vec<NodeId>,
    /// A chunk of a pull's answer with its head, or the rows of a push.
    pub(crate) frame: Vec<u8>,
}

/// Why a connection ended.
#[derive(Debug, Error)]
pub(crate) enum Ended {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("a request panicked")]
    Panic,
}

impl Ended {
    pub(crate) fn reason(&self) -> BreakReason {
        match self {
            Self::Wire(_) => BreakReason::Wire,
            Self::Io(error) if error.kind() == io::ErrorKind::TimedOut => BreakReason::Timeout,
            Self::Io(_) => BreakReason::Io,
            Self::Panic => BreakReason::Panic,
        }
    }
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, head: Vec::new() }
    }

    /// Serves until the client leaves, breaks the wire's rules, or the shard stops.
    pub(crate) async fn serve(mut self, shard: &Rc<Shard>) -> Result<(), Ended> {
        self.write(&hello()).await?;
        let mut theirs = [0; HELLO_BYTES];
        in_time(HELLO_TIMEOUT, self.stream.read_exact(&mut theirs)).await?;
        check_hello(&theirs)?;
        while let Some(prefix) = self.next_prefix().await? {
            let request = self.read_head(prefix).await?;
            let running = shard.counters().begin(RequestKind::of(&request.body));
            let done = AssertUnwindSafe(self.answer(shard, request, prefix)).catch_unwind().await;
            self = match done {
                Ok(result) => result?,
                // One panicking task would stop the whole executor.
                Err(_) => return Err(Ended::Panic),
            };
            running.answered();
        }
        Ok(())
    }

    /// Waits for a frame as long as the client likes; `None` when it has left between frames.
    async fn next_prefix(&mut self) -> Result<Option<Prefix>, Ended> {
        let mut bytes = [0; PREFIX_BYTES];
        let n_bytes = self.stream.read(&mut bytes).await?;
        if n_bytes == 0 {
            return Ok(None);
        }
        in_time(FRAME_TIMEOUT, self.stream.read_exact(&mut bytes[n_bytes..])).await?;
        Ok(Some(Prefix::of_request(bytes)?))
    }

    async fn read_head(&mut self, prefix: Prefix) -> Result<Request, Ended> {
        self.head.resize(prefix.head_bytes, 0);
        in_time(FRAME_TIMEOUT, self.stream.read_exact(&mut self.head)).await?;
        Ok(Request::decode(&self.head)?)
    }

    /// Answers one request. The connection moves through, since bulk runs as a task of its own.
    async fn answer(
        mut self,
        shard: &Rc<Shard>,
        request: Request,
        prefix: Prefix,
    ) -> Result<Self, Ended> {
        let timeout = request.deadline.map_or(REQUEST_TIMEOUT, |d| d.min(REQUEST_TIMEOUT));
        let deadline = Instant::now() + timeout;
        match request.body {
            RequestBody::Pull { tensor, kind: PullKind::Sync } => {
                self.pull(shard, tensor, prefix.body_bytes, deadline).await
            }
            RequestBody::Pull { tensor, kind: PullKind::Vector } => {
                let task_shard = Rc::clone(shard);
                let task = async move {
                    let pull = self.pull(&task_shard, tensor, prefix.body_bytes, deadline);
                    AssertUnwindSafe(pull).catch_unwind().await.unwrap_or(Err(Ended::Panic))
                };
                shard.spawn_bulk(task).await
            }
            RequestBody::Push { tensor, n_rows } => {
                let pushed = self.push(shard, tensor, n_rows, prefix.body_bytes, deadline).await?;
                let pushed = pushed.map(|version| Reply::Pushed { version });
                self.reply_or_refuse(shard, pushed).await
            }
            body => {
                self.drain(prefix.body_bytes).await?;
                if body == RequestBody::Describe {
                    self.write(&shard.description()).await?;
                    return Ok(self);
                }
                let reply = short_answer(shard, body, deadline).await;
                self.reply_or_refuse(shard, reply).await
            }
        }
    }

    async fn pull(
        mut self,
        shard: &Shard,
        tensor: u16,
        body_bytes: usize,
        deadline: Instant,
    ) -> Result<Self, Ended> {
        let result = match shard.admit_pull(tensor, body_bytes) {
            Err(refusal) => {
                self.drain(body_bytes).await?;
                Err(refusal)
            }
            Ok(_room) => {
                let mut buffers = shard.lend_buffers();
                buffers.ids.resize(body_bytes / size_of::<NodeId>(), NodeId(0));
                let ids = bytemuck::cast_slice_mut(&mut buffers.ids);
                in_time(FRAME_TIMEOUT, self.stream.read_exact(ids)).await?;
                let sent = self.send_rows(shard, tensor, deadline, &mut buffers).await?;
                shard.take_back(buffers);
                sent
            }
        };
        match result {
            Ok(()) => Ok(self),
            Err(refusal) => self.reply_or_refuse(shard, Err(refusal)).await,
        }
    }

    /// Reads the body of a push and has it put. The inner result is what the client is told.
    async fn push(
        &mut self,
        shard: &Rc<Shard>,
        tensor: u16,
        n_rows: u32,
        body_bytes: usize,
        deadline: Instant,
    ) -> Result<Result<u32, Failure>, Ended> {
        let room = match shard.admit_push(tensor, n_rows, body_bytes) {
            Ok(room) => room,
            Err(refusal) => {
                self.drain(body_bytes).await?;
                return Ok(Err(refusal));
            }
        };
        let mut buffers = shard.lend_buffers();
        buffers.ids.resize(n_rows as usize, NodeId(0));
        let ids = bytemuck::cast_slice_mut(&mut buffers.ids);
        buffers.frame.resize(body_bytes - ids.len(), 0);
        let stream = &mut self.stream;
        let read = async {
            stream.read_exact(ids).await?;
            stream.read_exact(&mut buffers.frame).await
        };
        in_time(FRAME_TIMEOUT, read).await?;
        Ok(within(deadline, shard.push(tensor, buffers, room)).await)
    }

    /// Sends a reply that has no rows, or why there is none.
    async fn reply_or_refuse(
        mut self,
        shard: &Shard,
        reply: Result<Reply, Failure>,
    ) -> Result<Self, Ended> {
        let reply = reply.unwrap_or_else(|refusal| {
            shard.refused(&refusal);
            Reply::Failure(refusal)
        });
        self.reply(&reply).await?;
        Ok(self)
    }

    /// Sends a reply that has no rows.
    async fn reply(&mut self, reply: &Reply) -> Result<(), Ended> {
        self.head.clear();
        reply.append_to(0, &mut self.head);
        in_time(WRITE_TIMEOUT, self.stream.write_all(&self.head)).await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        in_time(WRITE_TIMEOUT, self.stream.write_all(bytes)).await
    }

    /// Gathers and sends chunk after chunk. The inner result is what the client is told.
    async fn send_rows(
        &mut self,
        shard: &Shard,
        tensor: u16,
        deadline: Instant,
        Buffers { ids, frame }: &mut Buffers,
    ) -> Result<Result<(), Failure>, Ended> {
        let row_bytes = shard.row_bytes(tensor);
        let chunk_rows = (CHUNK_BYTES / row_bytes).max(1);
        frame.resize(HEAD_ROOM + chunk_rows.min(ids.len()) * row_bytes, 0);
        let mut first_row = 0;
        // An empty list is answered by one empty chunk.
        loop {
            let n_rows = (ids.len() - first_row).min(chunk_rows);
            let body_end = HEAD_ROOM + n_rows * row_bytes;
            let gather = shard.gather(
                tensor,
                &ids[first_row..first_row + n_rows],
                &mut frame[HEAD_ROOM..body_end],
            );
            if let Err(refusal) = within(deadline, gather).await {
                return Ok(Err(refusal));
            }
            self.head.clear();
            let rows = Reply::Rows { first_row: to_u32(first_row), n_rows: to_u32(n_rows) };
            rows.append_to(n_rows * row_bytes, &mut self.head);
            let start = HEAD_ROOM - self.head.len();
            frame[start..HEAD_ROOM].copy_from_slice(&self.head);
            self.write(&frame[start..body_end]).await?;
            count(&shard.counters().rows, n_rows);
            count(&shard.counters().bytes, n_rows * row_bytes);
            first_row += n_rows;
            if first_row == ids.len() {
                return Ok(Ok(()));
            }
            glommio::yield_if_needed().await;
        }
    }

    /// Reads and forgets the body of a request that is not served, to stay in step.
    async fn drain(&mut self, mut n_bytes: usize) -> Result<(), Ended> {
        self.head.resize(DRAIN_BYTES.min(n_bytes), 0);
        let drain = async {
            while n_bytes > 0 {
                let n = n_bytes.min(DRAIN_BYTES);
                self.stream.read_exact(&mut self.head[..n]).await?;
                n_bytes -= n;
            }
            Ok(())
        };
        in_time(FRAME_TIMEOUT, drain).await
    }
}

/// Answers a request without rows.
async fn short_answer(
    shard: &Shard,
    body: RequestBody,
    deadline: Instant,
) -> Result<Reply, Failure> {
    match body {
        RequestBody::Stat => Ok(Reply::Stats(shard.stats())),
        RequestBody::Compact => shard.compact().map(|run| Reply::Compacting { run }),
        RequestBody::Commit { version } => {
            let version = within(deadline, shard.commit(version)).await?;
            Ok(Reply::Committed { version })
        }
        _ => Err(failure(FailureCode::Internal, "a request with rows was taken for one without")),
    }
}

/// Counts within one request, bounded by `IDS_PER_PULL_MAX`.
fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("a request has fewer rows than 2^32")
}

/// One exchange with the client, ended when it takes longer than `limit` in all: a client that
/// trickles holds a shard's room no longer than that.
async fn in_time<T>(
    limit: Duration,
    exchange: impl Future<Output = io::Result<T>>,
) -> Result<T, Ended> {
    Ok(before(limit, exchange, || io::ErrorKind::TimedOut.into()).await?)
}

/// Runs `work` unless and until `deadline` has passed.
async fn within<T>(
    deadline: Instant,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let expired =
        || failure(FailureCode::Deadline, "the deadline passed before the answer was ready");
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(expired());
    }
    before(left, work, expired).await
}

/// Runs `work` for at most `limit`. Work that is done at once needs no timer.
async fn before<T, E>(
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
    late: impl FnOnce() -> E,
) -> Result<T, E> {
    let mut work = std::pin::pin!(work);
    if let Some(done) = futures_lite::future::poll_once(work.as_mut()).await {
        return done;
    }
    let timer = async {
        glommio::timer::sleep(limit).await;
        Err(late())
    };
    work.or(timer).await
}
