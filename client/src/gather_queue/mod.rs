//! Asynchronous gathers: the threads of a queue pull rows, several requests under one plan.
//!
//! Each request owns the memory of its rows, which is reused for a later request once they are
//! dropped. Waiting requests for one tensor are pulled together, each distinct row once, so that
//! adjacent rows of different requests are read together. If a combined pull meets damaged rows,
//! its requests are pulled one by one, so that the damaged one fails alone. Any other error fails
//! all requests of the group.
//!
//! A request is read-ahead until a caller waits for it. Requests with a waiting caller are pulled
//! first, as [`PullKind::Sync`]; the others are bulk.
//!
//! Callbacks run on a separate thread. A callback may submit to the queue, or wait for any of its
//! requests: no pull waits for a callback.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_graph::NodeId;
use lodestore_graph::fork::Generation;
use lodestore_graph::lock::IgnorePoison;

use crate::error::ClientError;
use crate::source::{PullKind, RowSource, TensorInfo};

mod memory;

pub use memory::GatheredRows;
use memory::{CountedRows, RowMemory};

/// Limits of a [`GatherQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBounds {
    /// Most requests that wait or are being pulled; further ones wait for room.
    pub window: usize,
    /// Most requests that are pulled together.
    pub together: usize,
    /// Most bytes of memory: half is for the rows of requests that wait or are being pulled, the
    /// other half for the rows that threads pull together. A single request is accepted whatever
    /// its size.
    pub bytes: usize,
    /// Threads that pull.
    pub threads: usize,
}

impl Default for QueueBounds {
    fn default() -> Self {
        Self { window: 64, together: 8, bytes: usize::MAX, threads: 2 }
    }
}

/// A queue of gathers from one source, with its own threads.
///
/// After it is dropped, its threads pull the waiting requests, and end.
pub struct GatherQueue {
    inner: Arc<QueueInner>,
    process: Generation,
}

/// The rows of a request, or the error. Requests that were pulled together share an error.
pub type GatherResult = Result<GatheredRows, Arc<ClientError>>;

/// A handle to a queued request, whose rows are taken once.
#[derive(Clone)]
pub struct Ticket {
    slot: Arc<Slot>,
    process: Generation,
}

struct QueueInner {
    source: Arc<dyn RowSource>,
    bounds: QueueBounds,
    memory: Arc<RowMemory>,
    n_pulled_rows: AtomicU64,
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
    /// Bytes of the rows of requests that wait or are being pulled.
    n_bytes: usize,
    /// Whether the queue accepts no further requests.
    is_closed: bool,
}

struct Request {
    tensor: Arc<str>,
    row_bytes: usize,
    ids: Vec<NodeId>,
    slot: Arc<Slot>,
}

type Callback = Box<dyn FnOnce() + Send>;

/// The result of a request until it is taken.
type CountedResult = Result<CountedRows, Arc<ClientError>>;

/// The result of one request, shared by the queue and its tickets.
#[derive(Default)]
struct Slot {
    state: Mutex<SlotState>,
    done: Condvar,
    /// Whether a caller waits for the rows, or has waited.
    is_awaited: AtomicBool,
}

#[derive(Default)]
struct SlotState {
    is_done: bool,
    rows: Option<CountedResult>,
    /// Called when the request completes.
    callbacks: Vec<Callback>,
}

impl GatherQueue {
    /// Starts the threads of a queue over `source`.
    ///
    /// # Errors
    /// [`ClientError::Poll`] if the system refuses a thread.
    pub fn start(source: Arc<dyn RowSource>, bounds: QueueBounds) -> Result<Self, ClientError> {
        let bounds = QueueBounds {
            window: bounds.window.max(1),
            together: bounds.together.max(1),
            bytes: bounds.bytes,
            threads: bounds.threads.max(1),
        };
        let inner = Arc::new(QueueInner {
            source,
            bounds,
            memory: Arc::new(RowMemory::new(bounds.bytes)),
            n_pulled_rows: AtomicU64::new(0),
            state: Mutex::default(),
            has_work: Condvar::new(),
            has_room: Condvar::new(),
        });
        let queue = Self { inner, process: Generation::now() };
        let (sender, callbacks) = mpsc::channel();
        start_thread("gather-callbacks", move || run_callbacks(&callbacks))?;
        for _ in 0..bounds.threads {
            let inner = Arc::clone(&queue.inner);
            let callbacks = sender.clone();
            start_thread("gather-queue", move || inner.run(&callbacks))?;
        }
        Ok(queue)
    }

    /// Queues a gather once the window has room, and takes `ids`.
    ///
    /// Returns `None` and leaves `ids` if there is no room within `time`.
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
        let tensor = self.checked_tensor(tensor, ids)?;
        // Not a deadline: for a long time there may be no `Instant`.
        let start = Instant::now();
        let n_bytes = ids.len().saturating_mul(tensor.row_bytes());
        let mut state = self.inner.state.lock().ignore_poison();
        while !self.inner.bounds.has_room(&state, n_bytes) {
            let left = time.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            let waited = self.inner.has_room.wait_timeout(state, left);
            state = waited.ignore_poison().0;
        }
        Ok(Some(self.enqueue(state, &tensor, std::mem::take(ids))))
    }

    /// Queues a gather without waiting for room; the requests in the window are pulled before it.
    ///
    /// For callers that must not wait, such as the thread of an event loop; they bound the number
    /// of their requests.
    ///
    /// # Errors
    /// See [`GatherQueue::submit_within`].
    pub fn submit_beyond_window(
        &self,
        tensor: &str,
        ids: Vec<NodeId>,
    ) -> Result<Ticket, ClientError> {
        let tensor = self.checked_tensor(tensor, &ids)?;
        let state = self.inner.state.lock().ignore_poison();
        Ok(self.enqueue(state, &tensor, ids))
    }

    /// Returns the number of rows pulled. A row counts once for requests that were pulled together.
    #[must_use]
    pub fn n_pulled_rows(&self) -> u64 {
        self.inner.n_pulled_rows.load(Ordering::Relaxed)
    }

    /// Returns the most bytes of rows in memory at one time: rows pulled together, rows of requests
    /// until they are taken, and free buffers.
    #[must_use]
    pub fn peak_bytes(&self) -> usize {
        self.inner.memory.peak_bytes()
    }

    /// Returns the tensor of a request; fails for requests that no pull can satisfy.
    fn checked_tensor(&self, tensor: &str, ids: &[NodeId]) -> Result<TensorInfo, ClientError> {
        if !self.process.is_current() {
            return Err(ClientError::Forked { what: "queue of gathers" });
        }
        let info = self.inner.source.tensor(tensor)?;
        let n_nodes = self.inner.source.book().n_nodes();
        if let Some(&node) = ids.iter().find(|node| node.0 >= n_nodes) {
            return Err(ClientError::UnknownNode { node, n_nodes });
        }
        Ok(info)
    }

    fn enqueue(
        &self,
        mut state: MutexGuard<'_, State>,
        tensor: &TensorInfo,
        ids: Vec<NodeId>,
    ) -> Ticket {
        let slot = Arc::new(Slot::default());
        let ticket = Ticket { slot: Arc::clone(&slot), process: self.process };
        let row_bytes = tensor.row_bytes();
        let tensor = tensor.name.as_str().into();
        let request = Request { tensor, row_bytes, ids, slot };
        state.n_bytes += request.n_bytes();
        state.waiting.push_back(request);
        drop(state);
        self.inner.has_work.notify_one();
        ticket
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

impl QueueBounds {
    /// Returns whether a request of `n_bytes` fits beside those of `state`.
    fn has_room(&self, state: &State, n_bytes: usize) -> bool {
        let n_requests = state.waiting.len() + state.n_pulled;
        n_requests == 0
            || n_requests < self.window && state.n_bytes.saturating_add(n_bytes) <= self.row_bytes()
    }

    /// Returns the byte limit for rows of requests that wait or are being pulled.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.bytes / 2
    }

    /// Returns the byte limit for rows that one thread pulls together.
    fn plan_bytes(&self) -> usize {
        self.bytes / 2 / self.threads
    }
}

impl QueueInner {
    /// Pulls groups until the queue is closed and empty. Frees the room of a group before its
    /// callbacks run.
    fn run(&self, callbacks: &Sender<Vec<Callback>>) {
        let mut scratch = CountedRows::new(0, &self.memory);
        while let Some(group) = self.next_group() {
            let results = self.pull(&group, &mut scratch);
            let mut due = Vec::new();
            for (request, rows) in group.iter().zip(results) {
                due.append(&mut request.slot.finish(rows));
            }
            let mut state = self.state.lock().ignore_poison();
            state.n_pulled -= group.len();
            state.n_bytes -= group.iter().map(Request::n_bytes).sum::<usize>();
            drop(state);
            self.has_room.notify_all();
            if !due.is_empty() {
                // The receiver lives until all threads of the queue have ended.
                let _ = callbacks.send(due);
            }
        }
    }

    /// Waits for requests. Takes the first request with a waiting caller, or else the first
    /// request, and up to `together - 1` others of its tensor that fit into the memory of a plan.
    fn next_group(&self) -> Option<Vec<Request>> {
        let mut state = self.state.lock().ignore_poison();
        loop {
            let awaited = state.waiting.iter().position(|request| request.slot.is_awaited());
            if let Some(first) = state.waiting.remove(awaited.unwrap_or(0)) {
                let mut left = self.bounds.plan_bytes().saturating_sub(first.n_bytes());
                let mut group = vec![first];
                let mut at = 0;
                while at < state.waiting.len() && group.len() < self.bounds.together {
                    let other = &state.waiting[at];
                    if other.tensor == group[0].tensor && other.n_bytes() <= left {
                        left -= other.n_bytes();
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

    /// Pulls the rows of a group, within the deadline of one pull; returns the result of each
    /// request.
    fn pull(&self, group: &[Request], scratch: &mut CountedRows) -> Vec<CountedResult> {
        let begun = Instant::now();
        let together = match group {
            [one] => self.pull_one(one, begun).map(|rows| vec![rows]),
            all => self.pull_together(all, scratch, begun),
        };
        match together {
            Ok(rows) => rows.into_iter().map(Ok).collect(),
            Err(error) if group.len() > 1 && error.is_damage() => {
                group.iter().map(|one| self.pull_one(one, begun).map_err(Arc::new)).collect()
            }
            Err(error) => {
                let error = Arc::new(error);
                group.iter().map(|_| Err(Arc::clone(&error))).collect()
            }
        }
    }

    fn pull_one(&self, request: &Request, begun: Instant) -> Result<CountedRows, ClientError> {
        let mut counted = CountedRows::new(request.n_bytes(), &self.memory);
        let out = counted.rows.bytes_mut();
        self.pull_rows(&request.tensor, &request.ids, out, request.kind(), begun)?;
        Ok(counted)
    }

    /// Pulls rows from the source, and turns a panic into an error.
    fn pull_rows(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
        begun: Instant,
    ) -> Result<(), ClientError> {
        let pull = AssertUnwindSafe(|| self.source.pull_since(tensor, ids, out, kind, begun));
        let pulled = catch_unwind(pull);
        pulled.unwrap_or(Err(ClientError::Panicked { thread: "gather" }))?;
        self.n_pulled_rows.fetch_add(ids.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Pulls each distinct row once, and copies it to each request that needs it.
    fn pull_together(
        &self,
        group: &[Request],
        scratch: &mut CountedRows,
        begun: Instant,
    ) -> Result<Vec<CountedRows>, ClientError> {
        let mut distinct: Vec<NodeId> =
            group.iter().flat_map(|request| &request.ids).copied().collect();
        distinct.sort_unstable();
        distinct.dedup();
        let tensor = &group[0].tensor;
        let row_bytes = group[0].row_bytes;
        scratch.resize(distinct.len() * row_bytes);
        let is_awaited = group.iter().any(|request| request.kind() == PullKind::Sync);
        let kind = if is_awaited { PullKind::Sync } else { PullKind::Vector };
        self.pull_rows(tensor, &distinct, scratch.rows.bytes_mut(), kind, begun)?;
        let pulled = scratch.rows.bytes();
        Ok(group.iter().map(|one| one.copy_from(pulled, &distinct, &self.memory)).collect())
    }
}

impl Request {
    fn n_bytes(&self) -> usize {
        self.ids.len() * self.row_bytes
    }

    /// Returns the kind of the pull: bulk until a caller waits for the request.
    fn kind(&self) -> PullKind {
        if self.slot.is_awaited() { PullKind::Sync } else { PullKind::Vector }
    }

    /// Copies the rows of the request from those of `distinct`, an ascending superset of its ids.
    fn copy_from(
        &self,
        pulled: &[u8],
        distinct: &[NodeId],
        memory: &Arc<RowMemory>,
    ) -> CountedRows {
        let mut counted = CountedRows::new(self.n_bytes(), memory);
        if self.row_bytes > 0 {
            let rows = counted.rows.bytes_mut().chunks_exact_mut(self.row_bytes);
            for (id, row) in self.ids.iter().zip(rows) {
                let at = distinct.partition_point(|other| other < id) * self.row_bytes;
                row.copy_from_slice(&pulled[at..at + self.row_bytes]);
            }
        }
        counted
    }
}

impl Slot {
    fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }

    /// Completes the request; returns its callbacks.
    fn finish(&self, rows: CountedResult) -> Vec<Callback> {
        let mut state = self.state.lock().ignore_poison();
        state.is_done = true;
        state.rows = Some(rows);
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        self.done.notify_all();
        callbacks
    }
}

impl Ticket {
    /// Returns whether the request is complete, successfully or not.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.process.is_current() && self.slot.state.lock().ignore_poison().is_done
    }

    /// Waits up to `time` for the request; returns whether it is complete. From then on the request
    /// is pulled before those that no caller waits for.
    ///
    /// # Errors
    /// [`ClientError::Forked`] in a child of the process that submitted it.
    pub fn wait(&self, time: Duration) -> Result<bool, ClientError> {
        if !self.process.is_current() {
            return Err(ClientError::Forked { what: "gather" });
        }
        self.slot.is_awaited.store(true, Ordering::Relaxed);
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
        let rows = self.slot.state.lock().ignore_poison().rows.take()?;
        Some(rows.map(CountedRows::take))
    }

    /// Runs `callback` when the request completes, on the callback thread of the queue, one after
    /// the other; or at once if the request is complete.
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

/// Runs the callbacks of completed requests, until all threads of the queue have ended.
fn run_callbacks(callbacks: &Receiver<Vec<Callback>>) {
    for callback in callbacks.iter().flatten() {
        // The panic is in the log; the callbacks of other requests still run.
        let _ = catch_unwind(AssertUnwindSafe(callback));
    }
}

fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), ClientError> {
    let thread = thread::Builder::new().name(name.to_owned());
    thread.spawn(run).map(drop).map_err(|source| ClientError::Poll { source })
}

#[cfg(test)]
mod tests;
