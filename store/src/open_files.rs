//! Files that an opening has open and pinned already.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use crate::catalog::SegmentRecord;
use crate::error::StoreError;
use crate::segment::Segment;

/// Segments that one look at a catalog has opened, for the next look.
///
/// Beside a compaction a look may name a file that is gone, and the catalog is read again. What was
/// opened until then stays pinned. So each look opens only what is new since the one before, and an
/// opening ends, however many files it has and however often files are folded meanwhile.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    by_name: RefCell<HashMap<String, Arc<Segment>>>,
}

impl OpenFiles {
    /// Returns the file of a record, or opens it by `open`.
    pub(crate) fn get_or_open(
        &self,
        record: &SegmentRecord,
        open: impl FnOnce() -> Result<Segment, StoreError>,
    ) -> Result<Arc<Segment>, StoreError> {
        let is_it = |known: &&Arc<Segment>| {
            known.identity().segment == record.segment && *known.digest() == record.digest
        };
        if let Some(known) = self.by_name.borrow().get(&record.file).filter(is_it) {
            return Ok(Arc::clone(known));
        }
        let opened = Arc::new(open()?);
        self.by_name.borrow_mut().insert(record.file.clone(), Arc::clone(&opened));
        Ok(opened)
    }
}
