//! Memory of the rows of batches, and its return for reuse.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::SyncSender,
    },
};

use bytemuck::Pod;
use lodestore_graph::fork::Generation;

use crate::buffer::RowBuffer;

/// The rows of one batch, in memory shared by the batches that were loaded with it.
///
/// When the last of these batches is dropped, the memory is reused.
#[derive(Clone, Debug, Default)]
pub struct BatchRows {
    memory: Arc<Lent>,
    bytes: Range<usize>,
}

/// Lent memory, the channel by which it returns, and the process that owns it.
#[derive(Debug, Default)]
pub(super) struct Lent(Option<(Memory, SyncSender<Free>, Generation)>);

/// Memory for rows, counted while it exists, even while it is unused.
#[derive(Debug)]
pub(super) struct Memory {
    rows: RowBuffer,
    /// Most bytes of rows that it has held; it does not shrink.
    n_bytes: usize,
    held: Arc<Held>,
}

/// Bytes that the memories of a prefetcher hold together.
#[derive(Debug, Default)]
pub(super) struct Held {
    bytes: AtomicU64,
    peak_bytes: AtomicU64,
}

impl Held {
    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }
}

impl Memory {
    pub(super) fn new(held: &Arc<Held>) -> Self {
        Self { rows: RowBuffer::default(), n_bytes: 0, held: Arc::clone(held) }
    }

    /// Resizes to exactly `n_bytes`; returns them for writing.
    pub(super) fn resize(&mut self, n_bytes: usize) -> &mut [u8] {
        if let Some(more) = n_bytes.checked_sub(self.n_bytes) {
            let held = self.held.bytes.fetch_add(more as u64, Ordering::Relaxed) + more as u64;
            self.held.peak_bytes.fetch_max(held, Ordering::Relaxed);
            self.n_bytes = n_bytes;
        }
        self.rows.resize(n_bytes);
        self.rows.bytes_mut()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.held.bytes.fetch_sub(self.n_bytes as u64, Ordering::Relaxed);
    }
}

/// A message to the owner of memory.
#[derive(Debug)]
pub(super) enum Free {
    /// Memory that has no reader left.
    Memory(Memory),
    /// A batch was taken out of the window.
    Place,
    /// No more batches are wanted.
    Stop,
}

impl BatchRows {
    /// Splits `rows` into those of consecutive batches, with these lengths in bytes.
    pub(super) fn split(
        rows: Memory,
        lengths: impl Iterator<Item = usize>,
        home: SyncSender<Free>,
    ) -> impl Iterator<Item = Self> {
        let (memory, mut start) = (Arc::new(Lent(Some((rows, home, Generation::now())))), 0);
        lengths.map(move |length| {
            let bytes = start..start + length;
            start = bytes.end;
            Self { memory: Arc::clone(&memory), bytes }
        })
    }

    /// Returns the rows.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let rows = self.memory.0.as_ref().map(|(memory, ..)| memory.rows.bytes());
        &rows.unwrap_or_default()[self.bytes.clone()]
    }

    /// Returns the rows as elements of their tensor's type, without bytes past the last whole
    /// element.
    ///
    /// # Panics
    ///
    /// If rows of this length cannot consist of such elements.
    #[must_use]
    pub fn elements<T: Pod>(&self) -> &[T] {
        let bytes = self.bytes();
        bytemuck::cast_slice(&bytes[..bytes.len() / size_of::<T>() * size_of::<T>()])
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some((memory, home, process)) = self.0.take() {
            if !process.is_current() {
                // A thread that a forked child lacks may have locked the channel.
                std::mem::forget((memory, home));
                return;
            }
            // The channel has room for all memory that the owner has lent, unless the owner is
            // gone.
            let _ = home.try_send(Free::Memory(memory));
        }
    }
}
