//! The memory that rows of batches lie in, and its way back.

use std::{
    mem::take,
    ops::Range,
    sync::{Arc, mpsc::SyncSender},
};

use bytemuck::Pod;

use crate::RowBuffer;

/// The rows of one batch, in memory that batches loaded with it share.
///
/// When the last of these batches is dropped the memory serves the next ones.
#[derive(Clone, Debug, Default)]
pub struct BatchRows {
    memory: Arc<Lent>,
    bytes: Range<usize>,
}

/// Memory with the place that it goes back to.
#[derive(Debug, Default)]
pub(super) struct Lent {
    rows: RowBuffer,
    home: Option<SyncSender<Free>>,
}

/// What the owner of memory hears.
#[derive(Debug)]
pub(super) enum Free {
    /// Nobody reads this memory any more.
    Memory(RowBuffer),
    /// A batch was taken out of the window.
    Place,
    /// Nobody wants more batches.
    Stop,
}

impl BatchRows {
    /// The rows of batches that lie one after the other in `rows`, each of so many bytes.
    pub(super) fn split(
        rows: RowBuffer,
        lengths: impl Iterator<Item = usize>,
        home: SyncSender<Free>,
    ) -> impl Iterator<Item = Self> {
        let (memory, mut start) = (Arc::new(Lent { rows, home: Some(home) }), 0);
        lengths.map(move |length| {
            let bytes = start..start + length;
            start = bytes.end;
            Self { memory: Arc::clone(&memory), bytes }
        })
    }

    /// The rows.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.memory.rows.bytes()[self.bytes.clone()]
    }

    /// The rows as elements of their tensor's type; bytes past the last whole element are left out.
    ///
    /// # Panics
    ///
    /// When rows of this length cannot consist of such elements.
    #[must_use]
    pub fn elements<T: Pod>(&self) -> &[T] {
        let bytes = self.bytes();
        bytemuck::cast_slice(&bytes[..bytes.len() / size_of::<T>() * size_of::<T>()])
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            // There is room for all memory that an owner has lent, unless it is gone.
            let _ = home.try_send(Free::Memory(take(&mut self.rows)));
        }
    }
}
