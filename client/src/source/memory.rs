//! Rows in memory, for small graphs, examples and tests.

use std::collections::BTreeMap;

use lodestore_graph::{NodeId, PartitionBook};
use lodestore_store::Dtype;

use crate::error::ClientError;
use crate::source::{PullKind, PullStats, RowSource, TensorInfo, VersionTag, check_positions};

/// A graph's rows in memory, every tensor whole.
#[derive(Debug)]
pub struct MemorySource {
    book: PartitionBook,
    tensors: BTreeMap<String, (TensorInfo, Vec<u8>)>,
}

impl MemorySource {
    /// Returns a source without tensors.
    #[must_use]
    pub fn new(book: PartitionBook) -> Self {
        Self { book, tensors: BTreeMap::new() }
    }

    /// Adds a tensor, or replaces the one of the same name. `rows` holds one row of `width`
    /// elements for each node, in order of node ids; another length is an error.
    pub fn add(
        &mut self,
        name: &str,
        dtype: Dtype,
        width: u32,
        rows: Vec<u8>,
    ) -> Result<(), ClientError> {
        let info = TensorInfo { name: name.to_owned(), dtype, width };
        let n_nodes = self.book.n_nodes() as usize;
        ClientError::check_buffer(name, n_nodes, info.row_bytes(), rows.len())?;
        self.tensors.insert(name.to_owned(), (info, rows));
        Ok(())
    }

    /// Returns the bytes of a row of `tensor`; fails for an id past the last node.
    fn row_bytes_of(&self, tensor: &str, ids: &[NodeId]) -> Result<usize, ClientError> {
        let (info, _) = self.find(tensor)?;
        let n_nodes = self.book.n_nodes();
        match ids.iter().find(|id| id.0 >= n_nodes) {
            Some(&node) => Err(ClientError::UnknownNode { node, n_nodes }),
            None => Ok(info.row_bytes()),
        }
    }

    fn find(&self, name: &str) -> Result<&(TensorInfo, Vec<u8>), ClientError> {
        self.tensors.get(name).ok_or_else(|| {
            ClientError::unknown_tensor(name, self.tensors.keys().map(String::as_str))
        })
    }
}

/// Returns the stats of a pull of these rows.
fn stats_of(ids: &[NodeId], row_bytes: usize) -> PullStats {
    let rows = ids.len() as u64;
    let requests = u64::from(!ids.is_empty());
    PullStats { rows, bytes: rows * row_bytes as u64, requests, ..PullStats::default() }
}

impl RowSource for MemorySource {
    fn book(&self) -> &PartitionBook {
        &self.book
    }

    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
        self.find(name).map(|(info, _)| info.clone())
    }

    /// Returns version 0: nothing changes these rows.
    fn pinned_version(&self) -> Option<VersionTag> {
        Some(VersionTag::any(0))
    }

    fn pull_in_memory(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
    ) -> Result<bool, ClientError> {
        self.pull(tensor, ids, out, PullKind::Sync).map(|_| true)
    }

    fn pull_overlapped(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        _kind: PullKind,
        _work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        let row_bytes = self.row_bytes_of(tensor, ids)?;
        ClientError::check_buffer(tensor, ids.len(), row_bytes, out.len())?;
        let (_, rows) = self.find(tensor)?;
        if row_bytes > 0 {
            for (row, id) in out.chunks_exact_mut(row_bytes).zip(ids) {
                row.copy_from_slice(&rows[id.index() * row_bytes..][..row_bytes]);
            }
        }
        Ok(stats_of(ids, row_bytes))
    }

    fn pull_at(
        &self,
        tensor: &str,
        ids: &[NodeId],
        at: &[u32],
        out: &mut [u8],
        _kind: PullKind,
        _work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        let row_bytes = self.row_bytes_of(tensor, ids)?;
        check_positions(ids, at, out.len(), row_bytes);
        let (_, rows) = self.find(tensor)?;
        for (id, &at) in ids.iter().zip(at) {
            out[at as usize * row_bytes..][..row_bytes]
                .copy_from_slice(&rows[id.index() * row_bytes..][..row_bytes]);
        }
        Ok(stats_of(ids, row_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::pull_and_scatter;

    fn source() -> MemorySource {
        let mut source = MemorySource::new(PartitionBook::from_counts(&[2, 1]).unwrap());
        source.add("x", Dtype::U8, 2, vec![0, 1, 10, 11, 20, 21]).unwrap();
        source
    }

    #[test]
    fn pulls_in_any_order_with_duplicates() {
        let mut out = [0; 6];
        let ids = [NodeId(2), NodeId(0), NodeId(2)];
        let stats = source().pull("x", &ids, &mut out, PullKind::Sync).unwrap();
        assert_eq!(out, [20, 21, 0, 1, 20, 21]);
        assert_eq!(stats, PullStats { rows: 3, bytes: 6, requests: 1, ..PullStats::default() });
    }

    #[test]
    fn puts_rows_in_place_as_a_source_does_that_pulls_them_first() {
        let (source, ids) = (source(), [NodeId(2), NodeId(0)]);
        let mut out = [7; 10];
        let work = &mut || ();
        let stats = source.pull_at("x", &ids, &[1, 3], &mut out, PullKind::Sync, work).unwrap();
        assert_eq!(out, [7, 7, 20, 21, 7, 7, 0, 1, 7, 7]);
        let mut other = [7; 10];
        let kind = PullKind::Sync;
        let pulled = pull_and_scatter(&source, "x", &ids, &[1, 3], &mut other, kind, work).unwrap();
        assert_eq!((PullStats { copy: stats.copy, ..pulled }, other), (stats, out));
        let past = source.pull_at("x", &[NodeId(3)], &[0], &mut out, PullKind::Sync, work);
        assert!(matches!(past, Err(ClientError::UnknownNode { node: NodeId(3), n_nodes: 3 })));
    }

    #[test]
    fn refuses_unknown_tensors_and_nodes() {
        let source = source();
        let pull = |name, id, out: &mut [u8]| source.pull(name, &[id], out, PullKind::Sync);
        let unknown = pull("y", NodeId(0), &mut [0; 2]).unwrap_err();
        assert_eq!(unknown.to_string(), "the graph has no tensor `y`; it has: x");
        assert!(matches!(
            pull("x", NodeId(3), &mut [0; 2]),
            Err(ClientError::UnknownNode { node: NodeId(3), n_nodes: 3 })
        ));
        assert!(matches!(
            pull("x", NodeId(0), &mut [0; 3]),
            Err(ClientError::BufferSize { expected: 2, found: 3, .. })
        ));
        assert_eq!(source.pull("x", &[], &mut [], PullKind::Vector).unwrap().requests, 0);
    }

    #[test]
    fn refuses_a_tensor_with_too_few_rows() {
        let mut source = source();
        assert!(source.add("z", Dtype::F32, 1, vec![0; 8]).is_err());
    }
}
