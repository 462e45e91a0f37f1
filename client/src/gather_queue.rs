//! Gathers that are asked for ahead: own threads pull them, several under one plan.
//!
//! A request has its ids and gets memory of its own. Requests that wait concurrently for one tensor
//! are pulled together, each distinct row once, so that neighbours in different requests are read
//! together. Where such a pull fails, each of its requests is pulled alone, so that one fails
//! alone.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_graph::NodeId;
use lodestore_graph::fork::Generation;

use crate::{ClientError, PullKind, RowBuffer, RowSource};

/// The bounds of a [`GatherQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBounds {
    /// Requests that wait or are pulled; another has to wait for room.
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
/// When it is dropped its threads pull what waits, and end.
pub struct GatherQueue {
    shared: Arc<Shared>,
    process: Generation,
}

/// Rows that have come.
pub type Gathered = Result<GatheredRows, ClientError>;

/// The rows of one request, aligned for every dtype.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct GatheredRows {
    words: Vec<u64>,
    n_bytes: usize,
}

/// A request that was taken; its rows are taken from it once.
#[derive(Clone)]
pub struct Ticket {
    slot: Arc<Slot>,
    process: Generation,
}

struct Shared {
    source: Arc<dyn RowSource>,
    bounds: QueueBounds,
    state: Mutex<State>,
    /// There are requests, or there will be no more.
    has_work: Condvar,
    /// There is room in the window.
    has_room: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Request>,
    /// Requests that are being pulled.
    n_pulled: usize,
    is_over: bool,
}

struct Request {
    tensor: Arc<str>,
    row_bytes: usize,
    ids: Vec<NodeId>,
    slot: Arc<Slot>,
}

/// Where one request's rows are awaited.
#[derive(Default)]
struct Slot {
    state: Mutex<SlotState>,
    done: Condvar,
}

#[derive(Default)]
struct SlotState {
    is_done: bool,
    rows: Option<Gathered>,
    /// Called once the rows are there.
    calls: Vec<Box<dyn FnOnce() + Send>>,
}

impl GatheredRows {
    fn new(n_bytes: usize) -> Self {
        Self { words: vec![0; n_bytes.div_ceil(size_of::<u64>())], n_bytes }
    }

    /// Returns the rows.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.n_bytes]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.n_bytes]
    }

    /// Returns the memory, and how many bytes of it are rows.
    #[must_use]
    pub fn into_words(self) -> (Vec<u64>, usize) {
        (self.words, self.n_bytes)
    }
}

impl GatherQueue {
    /// Starts the threads.
    ///
    /// # Errors
    /// [`ClientError::Poll`] where the system refuses a thread.
    pub fn start(source: Arc<dyn RowSource>, bounds: QueueBounds) -> Result<Self, ClientError> {
        let at_least_one = |n: usize| n.max(1);
        let bounds = QueueBounds {
            window: at_least_one(bounds.window),
            together: at_least_one(bounds.together),
            threads: at_least_one(bounds.threads),
        };
        let (state, has_work, has_room) = (Mutex::default(), Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { source, bounds, state, has_work, has_room });
        let queue = Self { shared, process: Generation::now() };
        for _ in 0..bounds.threads {
            let shared = Arc::clone(&queue.shared);
            let thread = thread::Builder::new().name("gather-queue".to_owned());
            thread.spawn(move || shared.run()).map_err(|source| ClientError::Poll { source })?;
        }
        Ok(queue)
    }

    /// Asks for rows, once there is room in the window; waits for that at most for `time`, and
    /// returns nothing and leaves `ids` where there is none by then.
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
        let info = self.shared.source.tensor(tensor)?;
        let n_nodes = self.shared.source.book().n_nodes();
        if let Some(&node) = ids.iter().find(|node| node.0 >= n_nodes) {
            return Err(ClientError::UnknownNode { node, n_nodes });
        }
        let end = Instant::now() + time;
        let mut state = lock(&self.shared.state);
        while state.waiting.len() + state.n_pulled >= self.shared.bounds.window {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let waited = self.shared.has_room.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let slot = Arc::new(Slot::default());
        let ticket = Ticket { slot: Arc::clone(&slot), process: self.process };
        let (tensor, row_bytes) = (info.name.as_str().into(), info.row_bytes());
        let ids = std::mem::take(ids);
        state.waiting.push_back(Request { tensor, row_bytes, ids, slot });
        drop(state);
        self.shared.has_work.notify_one();
        Ok(Some(ticket))
    }
}

impl Drop for GatherQueue {
    fn drop(&mut self) {
        // In a forked child there are no threads, and the lock may be held for ever.
        if self.process.is_current() {
            lock(&self.shared.state).is_over = true;
            self.shared.has_work.notify_all();
        }
    }
}

impl Shared {
    /// Pulls groups until the queue is over and empty.
    fn run(&self) {
        let mut scratch = RowBuffer::default();
        while let Some(group) = self.next_group() {
            let n = group.len();
            self.pull(group, &mut scratch);
            lock(&self.state).n_pulled -= n;
            self.has_room.notify_all();
        }
    }

    /// Waits for requests; takes the first and those of its tensor, as many as go together.
    fn next_group(&self) -> Option<Vec<Request>> {
        let mut state = lock(&self.state);
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
            if state.is_over {
                return None;
            }
            state = self.has_work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Pulls the rows of a group, and hands them out.
    fn pull(&self, group: Vec<Request>, scratch: &mut RowBuffer) {
        if group.len() > 1
            && let Ok(Ok(rows)) = caught(|| self.pull_together(&group, scratch))
        {
            for (request, rows) in group.iter().zip(rows) {
                request.slot.finish(Ok(rows));
            }
            return;
        }
        for request in group {
            let rows = caught(|| self.pull_one(&request));
            request.slot.finish(rows.unwrap_or_else(Err));
        }
    }

    fn pull_one(&self, request: &Request) -> Gathered {
        let mut rows = GatheredRows::new(request.n_bytes());
        let kind = PullKind::Sync;
        self.source.pull(&request.tensor, &request.ids, rows.bytes_mut(), kind)?;
        Ok(rows)
    }

    /// Pulls each distinct row once, and copies it to all that want it.
    fn pull_together(
        &self,
        group: &[Request],
        scratch: &mut RowBuffer,
    ) -> Result<Vec<GatheredRows>, ClientError> {
        let mut distinct: Vec<NodeId> =
            group.iter().flat_map(|request| &request.ids).copied().collect();
        distinct.sort_unstable();
        distinct.dedup();
        let (tensor, row_bytes) = (&group[0].tensor, group[0].row_bytes);
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

    /// Copies the rows of the request out of those of `distinct`, which ascend and have all of
    /// them.
    fn copy_from(&self, pulled: &[u8], distinct: &[NodeId]) -> GatheredRows {
        let mut rows = GatheredRows::new(self.n_bytes());
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
    fn finish(&self, rows: Gathered) {
        let mut state = lock(&self.state);
        (state.is_done, state.rows) = (true, Some(rows));
        let calls = std::mem::take(&mut state.calls);
        drop(state);
        self.done.notify_all();
        calls.into_iter().for_each(|call| call());
    }
}

impl Ticket {
    /// Returns whether the rows have come, or why not.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.process.is_current() && lock(&self.slot.state).is_done
    }

    /// Waits for the rows at most for `time`; returns whether they have come, or why not.
    ///
    /// # Errors
    /// [`ClientError::Forked`] in a child of the process that asked for them.
    pub fn wait(&self, time: Duration) -> Result<bool, ClientError> {
        if !self.process.is_current() {
            return Err(ClientError::Forked { what: "gather" });
        }
        let state = lock(&self.slot.state);
        let waited = self.slot.done.wait_timeout_while(state, time, |state| !state.is_done);
        Ok(waited.unwrap_or_else(PoisonError::into_inner).0.is_done)
    }

    /// Takes the rows; returns nothing before they have come, and after they were taken.
    #[must_use]
    pub fn take(&self) -> Option<Gathered> {
        if !self.process.is_current() {
            return None;
        }
        lock(&self.slot.state).rows.take()
    }

    /// Calls `call` once the rows have come, on the thread that pulled them, or now if they are
    /// there.
    pub fn when_done(&self, call: Box<dyn FnOnce() + Send>) {
        if !self.process.is_current() {
            return;
        }
        let mut state = lock(&self.slot.state);
        if !state.is_done {
            state.calls.push(call);
            return;
        }
        drop(state);
        call();
    }
}

/// Runs `pull`, whose panic becomes an error.
fn caught<T>(pull: impl FnOnce() -> T) -> Result<T, ClientError> {
    let panicked = |_| ClientError::Panicked { thread: "gather" };
    catch_unwind(AssertUnwindSafe(pull)).map_err(panicked)
}

/// No holder of these locks leaves anything half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
