//! Asynchronous gathers: threads of the queue pull rows, several requests under one plan.
//!
//! Each request owns the memory of its rows. Waiting requests for one tensor are pulled together,
//! each distinct row once, so that adjacent rows of different requests are read together. When a
//! combined pull fails, its requests are pulled one by one, so that a bad one fails alone.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_graph::NodeId;
use lodestore_graph::fork::Generation;
use lodestore_graph::lock::IgnorePoison;

use crate::buffer::RowBuffer;
use crate::error::ClientError;
use crate::source::{PullKind, RowSource};

/// The bounds of a [`GatherQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBounds {
    /// Most requests that wait or are being pulled; further ones wait for room.
    pub window: usize,
    /// Most requests that are pulled together.
    pub together: usize,
    /// Threads that pull.
    pub threads: usize,
}

impl Default for QueueBounds {
    fn default() -> Self {
        Self { window: 64, together: 8, threads: 2 }
    }
}

/// A queue of gathers over one source, with threads of its own.
///
/// After a drop its threads pull the waiting requests, and end.
pub struct GatherQueue {
    inner: Arc<QueueInner>,
    process: Generation,
}

/// The rows of a request, or why there are none.
pub type GatherResult = Result<RowBuffer, ClientError>;

/// A handle of a queued request; its rows are taken once.
#[derive(Clone)]
pub struct Ticket {
    slot: Arc<Slot>,
    process: Generation,
}

struct QueueInner {
    source: Arc<dyn RowSource>,
    bounds: QueueBounds,
    state: Mutex<State>,
    /// Signalled for new requests and for the end of the queue.
    has_work: Condvar,
    /// Signalled when the window has room.
    has_room: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Request>,
    /// Requests that are being pulled.
    n_pulled: usize,
    /// No further requests come.
    is_closed: bool,
}

struct Request {
    tensor: Arc<str>,
    row_bytes: usize,
    ids: Vec<NodeId>,
    slot: Arc<Slot>,
}

/// The result of one request, shared by the queue and its tickets.
#[derive(Default)]
struct Slot {
    state: Mutex<SlotState>,
    done: Condvar,
}

#[derive(Default)]
struct SlotState {
    is_done: bool,
    rows: Option<GatherResult>,
    /// Called when the rows arrive.
    callbacks: Vec<Box<dyn FnOnce() + Send>>,
}

impl GatherQueue {
    /// Starts the threads of a queue over `source`.
    ///
    /// # Errors
    /// [`ClientError::Poll`] where the system refuses a thread.
    pub fn start(source: Arc<dyn RowSource>, bounds: QueueBounds) -> Result<Self, ClientError> {
        let bounds = QueueBounds {
            window: bounds.window.max(1),
            together: bounds.together.max(1),
            threads: bounds.threads.max(1),
        };
        let inner = Arc::new(QueueInner {
            source,
            bounds,
            state: Mutex::default(),
            has_work: Condvar::new(),
            has_room: Condvar::new(),
        });
        let queue = Self { inner, process: Generation::now() };
        for _ in 0..bounds.threads {
            let inner = Arc::clone(&queue.inner);
            let thread = thread::Builder::new().name("gather-queue".to_owned());
            thread.spawn(move || inner.run()).map_err(|source| ClientError::Poll { source })?;
        }
        Ok(queue)
    }

    /// Queues a gather as soon as the window has room, and takes `ids`.
    ///
    /// Returns `None` and leaves `ids` when there is no room within `time`.
    ///
    /// # Errors
    /// [`ClientError::UnknownTensor`], [`ClientError::UnknownNode`]; in a forked child
    /// [`ClientError::Forked`].
    pub fn submit_within(
        &self,
        tensor: &str,
        ids: &mut Vec<NodeId>,
        time: Duration,
    ) -> Result<Option<Ticket>, ClientError> {
        if !self.process.is_current() {
            return Err(ClientError::Forked { what: "queue of gathers" });
        }
        let info = self.inner.source.tensor(tensor)?;
        let n_nodes = self.inner.source.book().n_nodes();
        if let Some(&node) = ids.iter().find(|node| node.0 >= n_nodes) {
            return Err(ClientError::UnknownNode { node, n_nodes });
        }
        // Not an end, which a long time would have no instant for.
        let start = Instant::now();
        let mut state = self.inner.state.lock().ignore_poison();
        while state.waiting.len() + state.n_pulled >= self.inner.bounds.window {
            let left = time.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            let waited = self.inner.has_room.wait_timeout(state, left);
            state = waited.ignore_poison().0;
        }
        let slot = Arc::new(Slot::default());
        let ticket = Ticket { slot: Arc::clone(&slot), process: self.process };
        let tensor = info.name.as_str().into();
        let row_bytes = info.row_bytes();
        let ids = std::mem::take(ids);
        state.waiting.push_back(Request { tensor, row_bytes, ids, slot });
        drop(state);
        self.inner.has_work.notify_one();
        Ok(Some(ticket))
    }
}

impl Drop for GatherQueue {
    fn drop(&mut self) {
        // A forked child has no such threads, and its copy of the lock may stay locked.
        if self.process.is_current() {
            self.inner.state.lock().ignore_poison().is_closed = true;
            self.inner.has_work.notify_all();
        }
    }
}

impl QueueInner {
    /// Pulls groups until the queue is closed and empty.
    fn run(&self) {
        let mut scratch = RowBuffer::default();
        while let Some(group) = self.next_group() {
            let n = group.len();
            self.pull(group, &mut scratch);
            self.state.lock().ignore_poison().n_pulled -= n;
            self.has_room.notify_all();
        }
    }

    /// Waits for requests; takes the first one and up to `together - 1` others of its tensor.
    fn next_group(&self) -> Option<Vec<Request>> {
        let mut state = self.state.lock().ignore_poison();
        loop {
            if let Some(first) = state.waiting.pop_front() {
                let mut group = vec![first];
                let mut at = 0;
                while at < state.waiting.len() && group.len() < self.bounds.together {
                    if state.waiting[at].tensor == group[0].tensor {
                        group.extend(state.waiting.remove(at));
                    } else {
                        at += 1;
                    }
                }
                state.n_pulled += group.len();
                return Some(group);
            }
            if state.is_closed {
                return None;
            }
            state = self.has_work.wait(state).ignore_poison();
        }
    }

    /// Pulls the rows of a group, and completes its requests.
    fn pull(&self, group: Vec<Request>, scratch: &mut RowBuffer) {
        if group.len() > 1
            && let Ok(Ok(rows)) = catch_panic(|| self.pull_together(&group, scratch))
        {
            for (request, rows) in group.iter().zip(rows) {
                request.slot.finish(Ok(rows));
            }
            return;
        }
        for request in group {
            let rows = catch_panic(|| self.pull_one(&request));
            request.slot.finish(rows.unwrap_or_else(Err));
        }
    }

    fn pull_one(&self, request: &Request) -> GatherResult {
        let mut rows = RowBuffer::default();
        rows.resize(request.n_bytes());
        let kind = PullKind::Sync;
        self.source.pull(&request.tensor, &request.ids, rows.bytes_mut(), kind)?;
        Ok(rows)
    }

    /// Pulls each distinct row once, and copies it to each request for it.
    fn pull_together(
        &self,
        group: &[Request],
        scratch: &mut RowBuffer,
    ) -> Result<Vec<RowBuffer>, ClientError> {
        let mut distinct: Vec<NodeId> =
            group.iter().flat_map(|request| &request.ids).copied().collect();
        distinct.sort_unstable();
        distinct.dedup();
        let tensor = &group[0].tensor;
        let row_bytes = group[0].row_bytes;
        scratch.resize(distinct.len() * row_bytes);
        self.source.pull(tensor, &distinct, scratch.bytes_mut(), PullKind::Sync)?;
        let pulled = scratch.bytes();
        Ok(group.iter().map(|request| request.copy_from(pulled, &distinct)).collect())
    }
}

impl Request {
    fn n_bytes(&self) -> usize {
        self.ids.len() * self.row_bytes
    }

    /// Copies the rows of the request from those of `distinct`, its ascending superset.
    fn copy_from(&self, pulled: &[u8], distinct: &[NodeId]) -> RowBuffer {
        let mut rows = RowBuffer::default();
        rows.resize(self.n_bytes());
        if self.row_bytes > 0 {
            for (id, row) in self.ids.iter().zip(rows.bytes_mut().chunks_exact_mut(self.row_bytes))
            {
                let at = distinct.partition_point(|other| other < id) * self.row_bytes;
                row.copy_from_slice(&pulled[at..at + self.row_bytes]);
            }
        }
        rows
    }
}

impl Slot {
    fn finish(&self, rows: GatherResult) {
        let mut state = self.state.lock().ignore_poison();
        state.is_done = true;
        state.rows = Some(rows);
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        self.done.notify_all();
        callbacks.into_iter().for_each(|callback| callback());
    }
}

impl Ticket {
    /// Returns whether the request is complete, successfully or not.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.process.is_current() && self.slot.state.lock().ignore_poison().is_done
    }

    /// Waits up to `time` for the request; returns whether it is complete.
    ///
    /// # Errors
    /// [`ClientError::Forked`] in a child of the process that submitted it.
    pub fn wait(&self, time: Duration) -> Result<bool, ClientError> {
        if !self.process.is_current() {
            return Err(ClientError::Forked { what: "gather" });
        }
        let state = self.slot.state.lock().ignore_poison();
        let waited = self.slot.done.wait_timeout_while(state, time, |state| !state.is_done);
        Ok(waited.ignore_poison().0.is_done)
    }

    /// Takes the rows; returns `None` before the request is complete and after the first take.
    #[must_use]
    pub fn take(&self) -> Option<GatherResult> {
        if !self.process.is_current() {
            return None;
        }
        self.slot.state.lock().ignore_poison().rows.take()
    }

    /// Calls `callback` on a thread of the queue when the request completes, or now if it has.
    pub fn when_done(&self, callback: Box<dyn FnOnce() + Send>) {
        if !self.process.is_current() {
            return;
        }
        let mut state = self.slot.state.lock().ignore_poison();
        if !state.is_done {
            state.callbacks.push(callback);
            return;
        }
        drop(state);
        callback();
    }
}

/// Runs `pull`, and turns a panic into an error.
fn catch_panic<T>(pull: impl FnOnce() -> T) -> Result<T, ClientError> {
    let panicked = |_| ClientError::Panicked { thread: "gather" };
    catch_unwind(AssertUnwindSafe(pull)).map_err(panicked)
}

#[cfg(test)]
mod tests;
