//! The store in the trainer's own process: rows by node id, over all partitions, without a server.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use lodestore_graph::{NodeId, PartId};

use crate::error::StoreError;
use crate::graph::Graph;
use crate::plan::{DeviceProfile, ReadPlan};
use crate::reader::{MappedReader, RowReader};
use crate::row::RowIdx;
use crate::tensor::TensorSpec;

/// Gathers rows of the partitions that it opened. Shared freely between threads.
#[derive(Debug)]
pub struct EmbeddedStore {
    graph: Graph,
    profile: DeviceProfile,
    /// Tensors as in the graph's description, each with one reader per partition; `None` for a
    /// partition that was not asked for.
    tensors: Vec<Vec<Option<MappedReader>>>,
    /// Memory of finished gathers, for the next ones: one entry per thread that gathers at once.
    scratch: Mutex<Vec<Scratch>>,
}

/// What a gather needs beside its output.
#[derive(Debug, Default)]
struct Scratch {
    /// Per partition: rows and where they go.
    routed: Vec<Vec<(RowIdx, u32)>>,
    plan: ReadPlan,
}

impl EmbeddedStore {
    /// Opens all tensors of the given partitions, or of all.
    pub fn open(dir: &Path, parts: Option<&[PartId]>) -> Result<Self, StoreError> {
        Self::of(Graph::open(dir)?, parts)
    }

    /// Opens all tensors of the given partitions of `graph`, or of all.
    pub fn of(graph: Graph, parts: Option<&[PartId]>) -> Result<Self, StoreError> {
        let all: Vec<PartId> = graph.book().parts().collect();
        let mut tensors: Vec<Vec<Option<MappedReader>>> = Vec::new();
        tensors.resize_with(graph.meta().tensors.len(), || all.iter().map(|_| None).collect());
        for &part in parts.unwrap_or(&all) {
            let catalog = graph.catalog(part)?;
            for (tensor, readers) in graph.meta().tensors.iter().zip(&mut tensors) {
                let segment = graph.segment_of(&catalog, part, tensor)?;
                readers[part.index()] = Some(MappedReader::open(segment)?);
            }
        }
        let scratch = Mutex::default();
        Ok(Self { graph, profile: DeviceProfile::default(), tensors, scratch })
    }

    /// The graph behind the store.
    #[must_use]
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Result<&TensorSpec, StoreError> {
        self.graph.tensor(name)
    }

    /// Copies the rows of `ids` to `out`, in their order; duplicates are fine.
    ///
    /// `out` has `ids.len() * row_bytes` bytes. After an error its content means nothing.
    pub fn gather(&self, tensor: &str, ids: &[NodeId], out: &mut [u8]) -> Result<(), StoreError> {
        let readers = self.readers(tensor)?;
        let expected_bytes = ids.len() as u64 * self.tensor(tensor)?.row_bytes() as u64;
        let found_bytes = out.len() as u64;
        if expected_bytes != found_bytes {
            return Err(StoreError::OutputLength { expected_bytes, found_bytes });
        }
        let mut scratch = self.pool().pop().unwrap_or_default();
        let gathered = self.gather_with(readers, ids, out, &mut scratch);
        self.pool().push(scratch);
        gathered
    }

    fn gather_with(
        &self,
        readers: &[Option<MappedReader>],
        ids: &[NodeId],
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), StoreError> {
        let out_rows = self.route(ids, &mut scratch.routed)?;
        for (part, rows) in scratch.routed.iter().enumerate().filter(|(_, rows)| !rows.is_empty()) {
            let reader = readers[part].as_ref().ok_or_else(|| self.not_opened(part))?;
            scratch.plan.build_scattered(rows, out_rows, reader.layout(), &self.profile)?;
            reader.execute(&scratch.plan, out)?;
        }
        Ok(())
    }

    /// Splits ids by partition; gives the number of output rows.
    fn route(
        &self,
        ids: &[NodeId],
        routed: &mut Vec<Vec<(RowIdx, u32)>>,
    ) -> Result<u32, StoreError> {
        let book = self.graph.book();
        routed.resize_with(usize::from(book.n_parts()), Vec::new);
        routed.iter_mut().for_each(Vec::clear);
        let found = ids.len();
        let out_rows = u32::try_from(found).map_err(|_| crate::PlanError::TooManyRows { found })?;
        for (&node, out_row) in ids.iter().zip(0u32..) {
            let Some((part, row)) = book.locate(node) else {
                let (position, n_nodes) = (out_row as usize, book.n_nodes());
                return Err(StoreError::NoNode { node, position, n_nodes });
            };
            routed[part.index()].push((RowIdx(row), out_row));
        }
        Ok(out_rows)
    }

    fn readers(&self, tensor: &str) -> Result<&[Option<MappedReader>], StoreError> {
        self.graph.tensor(tensor)?;
        let position = self.graph.meta().tensors.iter().position(|t| t.name == tensor);
        Ok(position.map_or(&[], |i| self.tensors[i].as_slice()))
    }

    fn not_opened(&self, part: usize) -> StoreError {
        let opened = self.tensors.first().into_iter().flatten().enumerate();
        let opened = opened.filter(|(_, reader)| reader.is_some()).map(|(part, _)| part.to_string());
        StoreError::NoPart {
            part: PartId(u16::try_from(part).unwrap_or(u16::MAX)),
            opened: opened.collect::<Vec<_>>().join(", "),
        }
    }

    /// The lock is held for a push or a pop, which cannot leave the list half-changed.
    fn pool(&self) -> std::sync::MutexGuard<'_, Vec<Scratch>> {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
