//! Import of a further tensor into an existing graph.

use std::ops::Range;
use std::sync::Arc;

use lodestore_graph::NodeId;

use super::super::{GraphHandle, View};
use crate::codec::{SampledTable, SegmentCodec};
use crate::embedded::EmbeddedStore;
use crate::error::StoreError;
use crate::graph::Graph;
use crate::import::{EXTERNAL_ID_TENSOR, ImportError, SourceRows, TensorOptions, write_segment};
use crate::plan::DiskProfile;
use crate::source::{TensorSource, check_source};

impl GraphHandle {
    /// Adds the rows of `source` as tensor `name` to the partitions that are on this machine, all
    /// of which must be open, and returns the graph with the tensor. The source has a row for each
    /// external id. If partitions are on other machines, each machine adds the tensor to its own.
    ///
    /// Memory: 4 bytes per node of the largest partition, plus the memory of an import. `progress`
    /// receives rows done and rows in all.
    pub fn import_tensor(
        self: &Arc<Self>,
        name: &str,
        source: &dyn TensorSource,
        options: TensorOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Graph, ImportError> {
        let book = self.graph.book();
        let spec = check_source(name, source, book.n_nodes())?;
        let mut tensor = self.new_tensor(spec, SegmentCodec::Raw)?;
        let n_rows = tensor.rows_left();
        let mut n_done = 0;
        let ids = EmbeddedStore::from_handle(Arc::clone(self), View::Latest)?;
        let rows_of = |nodes: &[NodeId]| -> Result<Vec<u32>, StoreError> {
            let mut external = vec![0; nodes.len() * size_of::<i64>()];
            ids.gather(EXTERNAL_ID_TENSOR, nodes, &mut external)?;
            let external = external.as_chunks::<8>().0.iter();
            Ok(external.map(|id| i64::from_le_bytes(*id) as u32).collect())
        };
        let ranges: Vec<Range<u32>> = tensor.parts.iter().map(|it| book.range(it.part)).collect();
        let (fs, dir, spec) = (&**self.graph.file_system(), self.graph.dir(), &tensor.spec);
        let table = || {
            let disk = DiskProfile::load(fs, dir);
            SampledTable::new(dir.join(name), n_rows as u32, spec.row_bytes(), disk)
        };
        let codec = options.codec.settle(spec.row_bytes(), table, |first, sample| {
            let n_rows = (sample.len() / spec.row_bytes()) as u32;
            let rows = rows_of(&nodes_from(&ranges, first, n_rows))?;
            Ok::<_, ImportError>(source.copy_rows(&rows, sample)?)
        })?;
        for part in tensor.parts.clone() {
            let range = book.range(part.part);
            let rows = rows_of(&range.clone().map(NodeId).collect::<Vec<_>>())?;
            let mut staged = tensor.stage(&part)?;
            let mut report = |done: u64| progress(n_done + done, n_rows);
            let path = self.graph.part_dir(part.part).join(staged.temporary());
            let rows = SourceRows { source, nan: options.nan, codec, rows: &rows };
            let record = write_segment(fs, &path, &staged.identity, rows, &mut report);
            let record = record.inspect_err(|_| staged.remove(&self.graph))?;
            staged.digest = record.digest;
            staged.publish(&self.graph)?;
            tensor.written.push(staged);
            n_done += u64::from(range.end - range.start);
        }
        Ok(tensor.finish()?)
    }
}

/// Returns `n` nodes of the ascending `ranges`, starting at position `first` of their
/// concatenation.
fn nodes_from(ranges: &[Range<u32>], first: u32, n: u32) -> Vec<NodeId> {
    let (mut skipped, mut nodes) = (first, Vec::with_capacity(n as usize));
    for range in ranges {
        let here = range.start.saturating_add(skipped).min(range.end)..range.end;
        skipped -= here.start - range.start;
        nodes.extend(here.take(n as usize - nodes.len()).map(NodeId));
    }
    nodes
}
