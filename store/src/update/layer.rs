//! A layer that is being read: a segment or a delta, with the reader of its rows.

use std::sync::Arc;

use crate::error::StoreError;
use crate::reader::{self, ReaderKind, RowReader};
use crate::segment::Segment;

/// A file of a tensor and the reader of its rows.
///
/// Holding it is the pin: the file stays while any thread or process holds it.
#[derive(Debug)]
pub struct Layer {
    first: u32,
    segment: Arc<Segment>,
    reader: Box<dyn RowReader>,
}

impl Layer {
    /// Opens the reader of a segment that has rows of the versions from `first` to its own.
    pub(super) fn open(
        segment: Segment,
        first: u32,
        kind: ReaderKind,
    ) -> Result<Arc<Self>, StoreError> {
        let segment = Arc::new(segment);
        let reader = reader::open(Arc::clone(&segment), kind)?;
        Ok(Arc::new(Self { first, segment, reader }))
    }

    /// Returns the segment.
    #[must_use]
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Returns the oldest version that it has rows of; for a segment with every row, its own.
    #[must_use]
    pub fn first_version(&self) -> u32 {
        self.first
    }

    /// Returns the newest version that it has rows of.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.segment.identity().version
    }

    /// Returns the reader of its rows.
    #[must_use]
    pub fn reader(&self) -> &dyn RowReader {
        &*self.reader
    }
}
