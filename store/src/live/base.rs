//! A segment that is being read, with the reader of its rows.

use std::sync::Arc;

use crate::error::StoreError;
use crate::reader::{self, ReaderKind, RowReader};
use crate::segment::Segment;

/// A segment and the reader of its rows.
///
/// Holding it is the pin: neither the segment's file nor the overlay rows over it are removed while
/// anybody does.
#[derive(Debug)]
pub struct Base {
    segment: Arc<Segment>,
    reader: Box<dyn RowReader>,
}

impl Base {
    pub(super) fn open(segment: Segment, kind: ReaderKind) -> Result<Arc<Self>, StoreError> {
        let segment = Arc::new(segment);
        let reader = reader::open(Arc::clone(&segment), kind)?;
        Ok(Arc::new(Self { segment, reader }))
    }

    /// The segment.
    #[must_use]
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// The segment's version.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.segment.identity().version
    }

    /// The reader of its rows.
    #[must_use]
    pub fn reader(&self) -> &dyn RowReader {
        &*self.reader
    }
}
