//! Compaction of all layers of a tensor into one segment.
//!
//! Crash argument, for each tensor of each partition:
//!
//! 1. The segment is written beside the old one under a temporary name, synced, read back and
//!    checked page by page. A crash leaves a file that the next opening for writing removes.
//! 2. It is moved to its name, and the folder is synced. A crash leaves a file that no record
//!    names, removed in the same way.
//! 3. One synced batch of the catalog puts its record in the place of those of its layers. Before
//!    it the layers count, after it the segment; both have the same rows.
//! 4. The catalog's log goes into a table, and then the old files are removed when no view needs
//!    them. A crash leaves them to the next opening for writing.
//!
//! A failure before step 3 removes what was written and changes nothing. Deltas are folded into one
//! in the same four steps, but that they are not read back.

mod rewrite;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use lodestore_graph::PartId;
use serde::Serialize;
use uuid::Uuid;

use crate::catalog::{Catalog, SegmentRecord};
use crate::error::StoreError;
use crate::file_system::FileSystem;
use crate::graph::{Graph, segment_file};
use crate::new_file::write_new_file;
use crate::segment::{Segment, SegmentDigest, SegmentIdentity};
use crate::tensor::TensorSpec;
use crate::update::TensorVersion;
use crate::verify::read_back_while;
use rewrite::rewrite;

/// Result of a compaction for one tensor of one partition; the keys of `lode compact --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compacted {
    /// Partition.
    pub part: u16,
    /// Tensor.
    pub tensor: String,
    /// Version of its segment.
    pub version: u32,
    /// Rows of deltas that were folded; 0 where there was none and nothing was done.
    pub rows: u64,
    /// Bytes of the segment that was written.
    pub bytes: u64,
    /// Seconds that it took.
    pub seconds: f64,
}

/// A tensor of a partition that is to be compacted.
#[derive(Debug)]
pub(crate) struct Compaction<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) part: PartId,
    pub(crate) catalog: &'a Catalog,
    pub(crate) spec: &'a TensorSpec,
    /// The layers.
    pub(crate) seen: &'a TensorVersion,
}

impl Compaction<'_> {
    /// Steps 1 and 2: a whole new segment under its name, open and pinned, which no record names
    /// yet; with its record. `progress` receives bytes of rows as they are written, and 0 as
    /// they are read back.
    pub(crate) fn write(
        &self,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(SegmentRecord, Segment), StoreError> {
        // That of the newest layer: versions after it changed no row. No record names a file of a
        // version that nothing has been folded into.
        let layers = self.seen.layers();
        let version = layers[layers.len() - 1].version();
        let name = segment_file(&self.spec.name, version);
        let old = self.seen.base().segment().identity();
        let identity = SegmentIdentity { segment: Uuid::new_v4(), version, ..old.clone() };
        write_new_file(self.graph, self.part, name, &identity, |path| {
            self.write_checked(&**self.graph.device(), path, &identity, progress)
        })
    }

    /// Does step 1: writes the segment, then reads it back and checks it.
    fn write_checked(
        &self,
        device: &dyn FileSystem,
        path: &Path,
        identity: &SegmentIdentity,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<SegmentDigest, StoreError> {
        let digest = rewrite(self, device, path, identity, progress)?;
        read_back_while(device, path, identity, &mut || progress(0))?;
        Ok(digest)
    }
}

/// Returns the report of one tensor.
pub(crate) fn report(
    compaction: &Compaction<'_>,
    rows: u64,
    new: Option<&Arc<Segment>>,
    start: Instant,
) -> Compacted {
    Compacted {
        part: compaction.part.0,
        tensor: compaction.spec.name.clone(),
        version: new.map_or(compaction.seen.base().version(), |new| new.identity().version),
        rows,
        bytes: new.map_or(0, |new| new.layout().file_bytes()),
        seconds: start.elapsed().as_secs_f64(),
    }
}
