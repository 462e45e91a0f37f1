//! Puts: rows into the pending version.

use lodestore_graph::NodeId;

use super::parallel::for_each;
use super::{LiveGraph, LivePart, LiveTensor};
use crate::error::StoreError;
use crate::import::EXTERNAL_ID_TENSOR;
use crate::limits::MAX_PUT_BYTES;
use crate::row::RowIdx;

/// The rows of a put for one partition.
struct PartRows<'a> {
    part: &'a LivePart,
    rows: Vec<(RowIdx, &'a [u8])>,
}

impl LiveGraph {
    /// Puts rows of a tensor for the pending version, whose number it gives; durable when it
    /// returns, and seen by every gather of the latest that starts then.
    ///
    /// `rows` has `ids.len() * row_bytes` bytes, at most [`MAX_PUT_BYTES`]. Where an id comes
    /// several times, its last row stays. Everything is checked before anything is written. The
    /// rows of one partition are put all or not at all; after an error those of some partitions may
    /// be there: put them again.
    ///
    /// Threads that put at once share syncs.
    pub fn put_rows(&self, tensor: &str, ids: &[NodeId], rows: &[u8]) -> Result<u32, StoreError> {
        let by_part = self.route_put(tensor, ids, rows)?;
        let position = self.graph.tensor_position(tensor)?;
        let _shared = self.gate.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.check_writable()?;
        let version = self.pending_version()?;
        let put = |part: &PartRows<'_>| part.part.tensors[position].put(version, &part.rows);
        let results = for_each(&**self.graph.device(), &by_part, put);
        results.into_iter().try_for_each(|result| self.written(result))?;
        Ok(version)
    }

    /// Checks a put and splits it by partition.
    fn route_put<'a>(
        &'a self,
        tensor: &str,
        ids: &[NodeId],
        rows: &'a [u8],
    ) -> Result<Vec<PartRows<'a>>, StoreError> {
        let row_bytes = self.graph.tensor(tensor)?.row_bytes();
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
            if self.parts[part.index()].is_none() {
                return Err(StoreError::NoPart { part, opened: self.opened() });
            }
            routed.push((part, (RowIdx(row_idx), row)));
        }
        // A stable sort: the last of several rows in one place must stay the last.
        routed.sort_by_key(|&(part, _)| part);
        let by_part = routed.chunk_by(|a, b| a.0 == b.0).filter_map(|rows| {
            let part = self.parts[rows[0].0.index()].as_ref()?;
            Some(PartRows { part, rows: rows.iter().map(|&(_, row)| row).collect() })
        });
        Ok(by_part.collect())
    }
}

impl LiveTensor {
    /// Puts rows for the pending `version`: on disk, and then in the index.
    fn put(&self, version: u32, rows: &[(RowIdx, &[u8])]) -> Result<(), StoreError> {
        self.catalog().put_rows(&self.spec().name, version, rows.iter().copied())?;
        self.add(rows.iter().map(|&(row, _)| row));
        Ok(())
    }
}
