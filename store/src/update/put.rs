//! Puts: rows that are written for the pending version.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::{NodeId, PartId};

use super::parallel::for_each;
use super::{GraphHandle, PartHandle, TensorHandle};
use crate::error::StoreError;
use crate::import::EXTERNAL_ID_TENSOR;
use crate::limits::MAX_PUT_BYTES;
use crate::row::RowIdx;

/// A row of a put: its partition, its row number there, and its bytes.
type Routed<'a> = (PartId, (RowIdx, &'a [u8]));

/// Rows of a put for one partition.
struct PartRows<'a> {
    part: Arc<PartHandle>,
    rows: Vec<(RowIdx, &'a [u8])>,
}

impl GraphHandle {
    /// Writes rows of a tensor as pending rows, and returns the pending version. The rows are
    /// durable then, and not visible to readers until that version is committed.
    ///
    /// `rows` has `ids.len() * row_bytes` bytes, at most [`MAX_PUT_BYTES`]. If an id repeats, its
    /// last row wins. All arguments are checked before anything is written. The put is atomic
    /// within each partition. After an error the rows of some partitions may be written: repeat the
    /// put.
    ///
    /// Concurrent puts share syncs.
    pub fn put_rows(&self, tensor: &str, ids: &[NodeId], rows: &[u8]) -> Result<u32, StoreError> {
        self.put(tensor, ids, rows, None)
    }

    /// Like [`GraphHandle::put_rows`], but at most once: if the put with number `put_id` was done
    /// before, even by an earlier process, this writes nothing and returns the version of the first
    /// time.
    ///
    /// Each partition with rows of a put remembers its number for two versions. Two puts with the
    /// same number must not run concurrently.
    pub fn put_rows_once(
        &self,
        put_id: u128,
        tensor: &str,
        ids: &[NodeId],
        rows: &[u8],
    ) -> Result<u32, StoreError> {
        self.put(tensor, ids, rows, Some(put_id))
    }

    fn put(
        &self,
        tensor: &str,
        ids: &[NodeId],
        rows: &[u8],
        put_id: Option<u128>,
    ) -> Result<u32, StoreError> {
        self.check_process()?;
        let routed = self.route_put(tensor, ids, rows)?;
        let _shared = self.gate.read().ignore_poison();
        self.check_writable()?;
        // Under the gate, so that no partition is released and no tensor dropped before the rows
        // are written.
        let position = self.tensor_position(tensor)?;
        let by_part = self.by_part(&routed)?;
        for PartRows { part, .. } in &by_part {
            part.check_is_not_sealed()?;
            part.catalog.check_takes_writes()?;
        }
        let put_part = |put: &PartRows<'_>| {
            let version = put.part.puts_for.load(Ordering::Acquire);
            if let Some(id) = put_id
                && let Some(before) = put.part.version_of_put(id, version)?
            {
                return Ok(before);
            }
            put.part.tensors[position].put(version, &put.rows, put_id).map(|()| version)
        };
        let results = for_each(&**self.graph.file_system(), &by_part, put_part);
        if results.is_empty() {
            return Ok(self.version().saturating_add(1));
        }
        // Once the highest version is committed, the rows of all partitions are visible.
        results.into_iter().try_fold(0, |highest, version| Ok(version?.max(highest)))
    }

    /// Checks a put and locates each row, sorted by partition.
    fn route_put<'a>(
        &self,
        tensor: &str,
        ids: &[NodeId],
        rows: &'a [u8],
    ) -> Result<Vec<Routed<'a>>, StoreError> {
        let row_bytes = self.spec(tensor)?.row_bytes();
        if tensor == EXTERNAL_ID_TENSOR {
            return Err(StoreError::Fixed { tensor: tensor.to_owned() });
        }
        let (expected_bytes, found_bytes) =
            (ids.len() as u64 * row_bytes as u64, rows.len() as u64);
        if expected_bytes != found_bytes {
            return Err(StoreError::PutLength { expected_bytes, found_bytes });
        }
        if found_bytes > MAX_PUT_BYTES {
            return Err(StoreError::PutTooLarge { found_bytes });
        }
        let book = self.graph.book();
        let mut routed = Vec::with_capacity(ids.len());
        for (position, (&node, row)) in ids.iter().zip(rows.chunks_exact(row_bytes)).enumerate() {
            let Some((part, row_idx)) = book.locate(node) else {
                return Err(StoreError::NoNode { node, position, n_nodes: book.n_nodes() });
            };
            routed.push((part, (RowIdx(row_idx), row)));
        }
        // A stable sort, so that the last of several rows for one node stays the last.
        routed.sort_by_key(|&(part, _)| part);
        Ok(routed)
    }

    /// Returns the rows of each partition; fails unless all partitions are open here.
    fn by_part<'a>(&self, routed: &[Routed<'a>]) -> Result<Vec<PartRows<'a>>, StoreError> {
        let parts = self.now();
        let rows_of = |rows: &[Routed<'a>]| {
            let part = rows[0].0;
            let rows = rows.iter().map(|&(_, row)| row).collect();
            let opened = || self.opened();
            let open = parts[part.index()].as_ref();
            let open = open.ok_or_else(|| StoreError::NoPart { part, opened: opened() })?;
            Ok(PartRows { part: Arc::clone(open), rows })
        };
        routed.chunk_by(|a, b| a.0 == b.0).map(rows_of).collect()
    }
}

impl PartHandle {
    /// Returns the version of an earlier put with this number; `None` if there was none. The caller
    /// is about to put for `version`.
    fn version_of_put(&self, id: u128, version: u32) -> Result<Option<u32>, StoreError> {
        let oldest = self.version().min(version);
        self.catalog.version_of_put(id, oldest..=version)
    }
}

impl TensorHandle {
    /// Writes rows for `version`: to disk, then to the list of pending rows.
    fn put(
        &self,
        version: u32,
        rows: &[(RowIdx, &[u8])],
        id: Option<u128>,
    ) -> Result<(), StoreError> {
        self.catalog().put_rows(&self.spec().name, version, rows.iter().copied(), id)?;
        self.add(version, rows.iter().map(|&(row, _)| row));
        Ok(())
    }
}
