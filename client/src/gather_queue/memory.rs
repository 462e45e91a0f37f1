//! Memory of the rows of a queue: counted while the queue owns it, and reused.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytemuck::Pod;
use lodestore_graph::lock::IgnorePoison;

use crate::buffer::RowBuffer;

/// Smaller buffers are left to the allocator, which keeps their pages itself.
const MIN_FREE_BYTES: usize = 1 << 20;
/// Most buffers that are kept for reuse.
const FREE_BUFFERS_MAX: usize = 4;

/// The memory of a queue's rows: rows that were not taken, rows that are pulled together, and free
/// buffers.
#[derive(Debug)]
pub(super) struct RowMemory {
    n_bytes: AtomicUsize,
    peak_bytes: AtomicUsize,
    /// Above this many bytes, no free buffers are kept.
    limit_bytes: usize,
    /// Buffers of rows that the user has dropped.
    free: Mutex<Vec<RowBuffer>>,
}

/// Rows that count as memory of the queue until they are taken or dropped.
pub(super) struct CountedRows {
    pub(super) rows: RowBuffer,
    memory: Arc<RowMemory>,
}

/// The rows of a request. Once they are dropped, their memory is reused for a later request.
#[derive(Debug, Default)]
pub struct GatheredRows {
    rows: RowBuffer,
    /// `None` without rows.
    memory: Option<Arc<RowMemory>>,
}

impl RowMemory {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self {
            n_bytes: AtomicUsize::new(0),
            peak_bytes: AtomicUsize::new(0),
            limit_bytes,
            free: Mutex::default(),
        }
    }

    /// Returns the most bytes in memory at one time.
    pub(super) fn peak_bytes(&self) -> usize {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes in memory now.
    pub(super) fn n_bytes(&self) -> usize {
        self.n_bytes.load(Ordering::Relaxed)
    }

    fn add(&self, n_bytes: usize) {
        let before = self.n_bytes.fetch_add(n_bytes, Ordering::Relaxed);
        self.peak_bytes.fetch_max(before + n_bytes, Ordering::Relaxed);
    }

    fn remove(&self, n_bytes: usize) {
        self.n_bytes.fetch_sub(n_bytes, Ordering::Relaxed);
    }

    /// Returns the smallest free buffer for `n_bytes`. Drops other free buffers if the new rows
    /// would pass the limit.
    fn reuse(&self, n_bytes: usize) -> RowBuffer {
        if n_bytes < MIN_FREE_BYTES {
            return RowBuffer::default();
        }
        let mut free = self.free.lock().ignore_poison();
        let fitting = free.iter().enumerate().filter(|(_, buffer)| buffer.capacity() >= n_bytes);
        let smallest = fitting.min_by_key(|(_, buffer)| buffer.capacity()).map(|(at, _)| at);
        let buffer = match smallest {
            Some(at) => free.swap_remove(at),
            None => RowBuffer::default(),
        };
        self.remove(buffer.capacity());
        while self.n_bytes().saturating_add(n_bytes) > self.limit_bytes {
            let Some(unused) = free.pop() else { break };
            self.remove(unused.capacity());
        }
        buffer
    }

    /// Keeps the buffer of dropped rows, if there is room for it.
    fn keep(&self, buffer: RowBuffer) {
        let n_bytes = buffer.capacity();
        // Does not wait: in a forked child, a lock that the parent held stays locked.
        let Ok(mut free) = self.free.try_lock() else { return };
        let has_room = self.n_bytes().saturating_add(n_bytes) <= self.limit_bytes;
        if n_bytes >= MIN_FREE_BYTES && free.len() < FREE_BUFFERS_MAX && has_room {
            self.add(n_bytes);
            free.push(buffer);
        }
    }
}

impl CountedRows {
    /// Allocates memory for the rows of a request.
    pub(super) fn new(n_bytes: usize, memory: &Arc<RowMemory>) -> Self {
        let rows = memory.reuse(n_bytes);
        memory.add(rows.capacity());
        let mut counted = Self { rows, memory: Arc::clone(memory) };
        counted.resize(n_bytes);
        counted
    }

    /// Resizes for other rows. Memory does not shrink.
    pub(super) fn resize(&mut self, n_bytes: usize) {
        let before = self.rows.capacity();
        self.rows.resize(n_bytes);
        self.memory.add(self.rows.capacity() - before);
    }

    pub(super) fn take(mut self) -> GatheredRows {
        let rows = std::mem::take(&mut self.rows);
        self.memory.remove(rows.capacity());
        GatheredRows { rows, memory: Some(Arc::clone(&self.memory)) }
    }
}

impl Drop for CountedRows {
    fn drop(&mut self) {
        self.memory.remove(self.rows.capacity());
    }
}

impl GatheredRows {
    /// Returns the rows.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.rows.bytes()
    }

    /// Returns the rows as elements.
    #[must_use]
    pub fn elements<T: Pod>(&self) -> &[T] {
        self.rows.elements()
    }
}

impl Drop for GatheredRows {
    fn drop(&mut self) {
        if let Some(memory) = &self.memory {
            memory.keep(std::mem::take(&mut self.rows));
        }
    }
}
