//! Executes read plans with direct I/O on a shard's executor, and verifies every page it reads.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use glommio::io::{DmaFile, ReadResult};
use lodestore_schema::{Failure, FailureCode};
use lodestore_store::{Extent, PAGE_BYTES, ReadPlan, Segment};

use crate::error::{failure, store_failure};
use crate::limits::READS_IN_FLIGHT;
use crate::stats::{Counters, count};

/// One segment, open on one executor.
pub(crate) struct DmaReader {
    segment: Arc<Segment>,
    file: DmaFile,
}

impl DmaReader {
    pub(crate) async fn open(segment: Arc<Segment>) -> Result<Self, String> {
        let path = segment.path();
        match DmaFile::open(path).await {
            Ok(file) => Ok(Self { file, segment }),
            Err(error) => Err(format!("{}: cannot open: {error}", path.display())),
        }
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Reads the plan's extents, several at a time, and copies each planned row to its output row.
    ///
    /// On an error some rows of `out` may have been written; none of them was unverified.
    pub(crate) async fn execute(
        &self,
        plan: &ReadPlan,
        out: &mut [u8],
        counters: &Counters,
    ) -> Result<(), Failure> {
        let row_bytes = self.segment.layout().row_bytes();
        let reads = plan
            .extents
            .iter()
            .enumerate()
            .map(|(i, extent)| async move { self.read(extent).await.map(|pages| (i, pages)) });
        let mut reads = stream::iter(reads).buffer_unordered(READS_IN_FLIGHT);
        while let Some(read) = reads.next().await {
            let (extent, pages) = read?;
            count(&counters.read_extents, 1);
            count(&counters.read_bytes, pages.len());
            let first = plan.rows.partition_point(|row| (row.extent as usize) < extent);
            let rows = plan.rows[first..].iter().take_while(|row| row.extent as usize == extent);
            for row in rows {
                let from = row.offset_bytes as usize;
                let to = row.out_row as usize * row_bytes;
                out[to..to + row_bytes].copy_from_slice(&pages[from..from + row_bytes]);
            }
        }
        Ok(())
    }

    /// Whole pages only: glommio's unaligned reads return too much near the end of a file.
    async fn read(&self, extent: &Extent) -> Result<ReadResult, Failure> {
        let (offset, n_bytes) = (extent.offset_bytes(), extent.len_bytes());
        let path = self.segment.path().display();
        let pages = self.file.read_at_aligned(offset, n_bytes).await.map_err(|error| {
            failure(FailureCode::Internal, format!("{path}: read at byte {offset}: {error}"))
        })?;
        if pages.len() != n_bytes {
            let message = format!(
                "{path}: expected {n_bytes} bytes at byte {offset}, read {}; the file was cut \
                 after the server opened it: restore it and restart",
                pages.len()
            );
            return Err(failure(FailureCode::Damaged, message));
        }
        for (page_no, page) in (extent.first_page..).zip(pages.chunks_exact(PAGE_BYTES as usize)) {
            self.segment.check_page(page_no, page).map_err(|error| store_failure(&error))?;
        }
        Ok(pages)
    }

    pub(crate) async fn close(self) {
        // Nothing was written; an error at close has no one to hurt.
        let _ = self.file.close().await;
    }
}
