//! Executes read plans with direct I/O on a shard's executor, and verifies what it returns.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use glommio::io::{DmaFile, ReadResult};
use lodestore_schema::{Failure, FailureCode};
use lodestore_store::{Base, Extent, ReadPlan, Segment};

use crate::error::{failure, store_failure};
use crate::limits::READS_IN_FLIGHT;
use crate::stats::{Counters, count};

/// One segment, open on one executor. It holds the segment's pin: the file stays while this does.
pub(crate) struct DmaReader {
    file: DmaFile,
    base: Arc<Base>,
}

impl DmaReader {
    pub(crate) async fn open(base: Arc<Base>) -> Result<Self, String> {
        let path = base.segment().path();
        match DmaFile::open(path).await {
            Ok(file) => Ok(Self { file, base }),
            Err(error) => Err(format!("{}: cannot open: {error}", path.display())),
        }
    }

    /// What it reads from.
    pub(crate) fn base(&self) -> &Arc<Base> {
        &self.base
    }

    fn segment(&self) -> &Segment {
        self.base.segment()
    }

    /// Reads the plan's extents, several at a time, checks every page that holds a planned row, and
    /// copies each row to its output row.
    ///
    /// On an error some rows of `out` may have been written; none of them was unverified.
    pub(crate) async fn execute(
        &self,
        plan: &ReadPlan,
        out: &mut [u8],
        counters: &Counters,
    ) -> Result<(), Failure> {
        let reads = plan.by_extent().map(|(extent, rows)| async move {
            let _running = counters.begin_read();
            self.read(extent).await.map(|pages| (extent, rows, pages))
        });
        let mut reads = stream::iter(reads).buffer_unordered(READS_IN_FLIGHT);
        while let Some(read) = reads.next().await {
            let (extent, rows, pages) = read?;
            count(&counters.read_extents, 1);
            count(&counters.read_bytes, pages.len());
            count(&counters.joined_rows, rows.len().saturating_sub(1));
            self.segment()
                .copy_rows(extent, rows, &pages, out)
                .map_err(|error| store_failure(&error))?;
        }
        Ok(())
    }

    /// Whole pages only: glommio's unaligned reads return too much near the end of a file.
    async fn read(&self, extent: &Extent) -> Result<ReadResult, Failure> {
        let (offset, n_bytes) = (extent.offset_bytes(), extent.len_bytes());
        let path = self.segment().path().display();
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
        Ok(pages)
    }

    pub(crate) async fn close(self) {
        // Nothing was written; an error at close has no one to hurt.
        let _ = self.file.close().await;
    }
}

#[cfg(test)]
mod tests;
