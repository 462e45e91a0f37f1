//! Executes read plans with direct I/O on a shard's executor, and verifies the pages.

mod files;

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use glommio::io::{DmaFile, OwnedDmaFile, ReadResult};
use lodestore_schema::{Failure, FailureCode};
use lodestore_store::plan::{Extent, PlannedRow, ReadPlan};
use lodestore_store::segment::Segment;
use lodestore_store::update::Layer;

pub(crate) use self::files::LayerFiles;
use crate::error::{failure, store_failure};
use crate::limits::READS_IN_FLIGHT;
use crate::reads::{Permit, ReadAdmission, ReadTurn};
use crate::stats::{Counters, count};

/// One segment, open on one executor. It keeps the layer, and so the file.
pub(crate) struct DmaReader {
    /// Borrows the descriptor of `_shared` and does not close it.
    file: DmaFile,
    _shared: Arc<OwnedDmaFile>,
    /// The layer to read from.
    pub(crate) layer: Arc<Layer>,
}

/// Reads of one gather from any number of files, and the destination of each row.
#[derive(Default)]
pub(crate) struct ReadList {
    readers: Vec<Rc<DmaReader>>,
    reads: Vec<ListedRead>,
    rows: Vec<PlannedRow>,
}

/// A read: its reader, the end of its rows in the list, and its extent.
struct ListedRead {
    reader: u32,
    rows_end: u32,
    extent: Extent,
}

/// A read in flight. The kernel owns its buffer until it ends. A dropped read continues in the
/// background and holds its permit until it ends.
struct RunningRead {
    read: Option<Pin<Box<dyn Future<Output = Finished>>>>,
    is_polled: bool,
    admission: Rc<ReadAdmission>,
}

/// A completed read. Its buffer is dropped before its permit.
struct Finished {
    position: usize,
    pages: Result<ReadResult, Failure>,
    _permit: Permit,
}

/// Maximum bytes of a list per row.
pub(crate) const LIST_BYTES_PER_ROW: usize = size_of::<ListedRead>() + size_of::<PlannedRow>();

impl ReadList {
    /// Clears the list and releases its files.
    pub(crate) fn clear(&mut self) {
        self.readers.clear();
        self.reads.clear();
        self.rows.clear();
    }

    /// Adds all reads of a plan from one file.
    pub(crate) fn push(&mut self, reader: &Rc<DmaReader>, plan: &ReadPlan) {
        let at = u32::try_from(self.readers.len()).expect("fewer files than rows");
        self.readers.push(Rc::clone(reader));
        for (&extent, rows) in plan.by_extent() {
            self.rows.extend_from_slice(rows);
            let rows_end = u32::try_from(self.rows.len()).expect("fewer rows than 2^32");
            self.reads.push(ListedRead { reader: at, rows_end, extent });
        }
    }

    /// Returns the cost of all reads for the disk.
    pub(crate) fn cost(&self, admission: &ReadAdmission) -> u64 {
        self.reads.iter().map(|read| admission.cost_of(read.extent.len_bytes())).sum()
    }

    /// Reads the extents concurrently, each as soon as `turn` grants a slot. Verifies every page
    /// that holds a planned row, and copies each row to its position in the output.
    ///
    /// On an error some rows of `out` may be written, all of them verified.
    pub(crate) async fn execute(
        &self,
        turn: &ReadTurn,
        out: &mut [u8],
        counters: &Counters,
    ) -> Result<(), Failure> {
        let reads =
            stream::iter(self.reads.iter().enumerate()).then(|(position, read)| async move {
                let permit = turn.take_read(read.extent.len_bytes()).await?;
                let reader = Rc::clone(&self.readers[read.reader as usize]);
                Ok(RunningRead::new(reader, read.extent, position, permit))
            });
        let mut reads = std::pin::pin!(reads.try_buffer_unordered(READS_IN_FLIGHT));
        while let Some(done) = reads.try_next().await? {
            let ListedRead { reader, extent, .. } = &self.reads[done.position];
            let rows = self.rows_of(done.position);
            let pages = done.pages?;
            count(&counters.read_extents, 1);
            count(&counters.read_bytes, pages.len());
            count(&counters.joined_rows, rows.len().saturating_sub(1));
            self.readers[*reader as usize]
                .segment()
                .copy_rows(extent, rows, &pages, out)
                .map_err(store_failure)?;
        }
        Ok(())
    }

    fn rows_of(&self, position: usize) -> &[PlannedRow] {
        let start = position.checked_sub(1).map_or(0, |before| self.reads[before].rows_end);
        &self.rows[start as usize..self.reads[position].rows_end as usize]
    }
}

impl RunningRead {
    fn new(reader: Rc<DmaReader>, extent: Extent, position: usize, permit: Permit) -> Self {
        let admission = Rc::clone(&permit.admission);
        let read = async move {
            let pages = reader.read(&extent).await;
            Finished { position, pages, _permit: permit }
        };
        Self { read: Some(Box::pin(read)), is_polled: false, admission }
    }
}

impl Future for RunningRead {
    type Output = Result<Finished, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.is_polled = true;
        let read = self.read.as_mut().expect("a read ends once");
        let finished = ready!(read.as_mut().poll(context));
        self.read = None;
        Poll::Ready(Ok(finished))
    }
}

impl Drop for RunningRead {
    fn drop(&mut self) {
        if let Some(read) = self.read.take().filter(|_| self.is_polled) {
            self.admission.adopt(Box::pin(async move { drop(read.await) }));
        }
    }
}

impl DmaReader {
    /// Opens the file of a layer on this executor; `files` are shared by all shards.
    pub(crate) async fn open(layer: Arc<Layer>, files: &LayerFiles) -> Result<Self, String> {
        let path = layer.segment().path();
        #[cfg(test)]
        crate::testing::before_open(path).await?;
        match files.open(&layer).await {
            Ok(shared) => {
                let file = OwnedDmaFile::clone(&shared).into();
                Ok(Self { file, _shared: shared, layer })
            }
            Err(error) => Err(format!("{}: cannot open: {error}", path.display())),
        }
    }

    fn segment(&self) -> &Segment {
        self.layer.segment()
    }

    /// Reads only whole pages: glommio's unaligned reads return too many bytes near the end of a
    /// file.
    async fn read(&self, extent: &Extent) -> Result<ReadResult, Failure> {
        let (offset, n_bytes) = (extent.offset_bytes(), extent.len_bytes());
        let path = self.segment().path().display();
        let pages = self.file.read_at_aligned(offset, n_bytes).await.map_err(|error| {
            failure(FailureCode::Internal, format!("{path}: read at byte {offset}: {error}"))
        })?;
        if pages.len() != n_bytes {
            let message = format!(
                "{path}: expected {n_bytes} bytes at byte {offset}, read {}; the file was cut \
                 after the server opened it; restore the file and restart the server",
                pages.len()
            );
            return Err(failure(FailureCode::Damaged, message));
        }
        Ok(pages)
    }
}

#[cfg(test)]
mod tests;
