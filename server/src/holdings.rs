//! What a server holds, opened and checked once before any shard starts, shared read-only.

use std::sync::Arc;

use lodestore_graph::{NodeId, PartId, PartitionBook};
use lodestore_schema::limits::ROW_BYTES_MAX;
use lodestore_schema::{Description, Stripes, TensorDescription};
use lodestore_store::{Graph, Segment};

use crate::{ServerConfig, ServerError};

/// The partitions and tensors of one server.
pub(crate) struct Holdings {
    pub(crate) book: PartitionBook,
    pub(crate) parts: Vec<PartId>,
    pub(crate) tensors: Vec<TensorHolding>,
    graph: [u8; 16],
    n_edges: u64,
}

/// One tensor: the same on every partition but for its segments.
pub(crate) struct TensorHolding {
    pub(crate) description: TensorDescription,
    pub(crate) stripes: Stripes,
    /// By partition; `None` where this server does not hold it.
    pub(crate) segments: Vec<Option<Arc<Segment>>>,
}

impl Holdings {
    /// Opens every segment that the configuration names. Blocks on the catalog and on files.
    pub(crate) fn open(config: &ServerConfig, n_shards: u16) -> Result<Self, ServerError> {
        let graph = Graph::open(&config.graph)?;
        let book = graph.book().clone();
        let mut parts =
            if config.parts.is_empty() { book.parts().collect() } else { config.parts.clone() };
        parts.sort_unstable();
        parts.dedup();
        let last = book.n_parts() - 1;
        if let Some(&found) = parts.iter().find(|part| part.0 > last) {
            return Err(ServerError::NoPart { found, last });
        }
        let specs = &graph.meta().tensors;
        let tensors = specs
            .iter()
            .map(|spec| TensorHolding::open(&graph, spec, &parts, n_shards))
            .collect::<Result<_, _>>()?;
        let graph_id = *graph.meta().uuid.as_bytes();
        Ok(Self { book, parts, tensors, graph: graph_id, n_edges: graph.meta().edges })
    }

    /// What clients are told.
    pub(crate) fn describe(&self, n_shards: u16, shard_ports: &[u16]) -> Description {
        Description {
            graph: self.graph,
            n_edges: self.n_edges,
            bounds: self.book.bounds().to_vec(),
            parts: self.parts.iter().map(|part| part.0).collect(),
            tensors: self.tensors.iter().map(|tensor| tensor.description.clone()).collect(),
            shard_ports: shard_ports.to_vec(),
            n_shards,
        }
    }

    /// Bytes of all rows of each tensor on this server.
    pub(crate) fn tensor_bytes(&self) -> impl Iterator<Item = u64> + '_ {
        self.tensors.iter().map(|tensor| {
            let rows: u64 = self.parts.iter().map(|&part| self.book.range(part).len() as u64).sum();
            rows * u64::from(tensor.description.row_bytes)
        })
    }

    /// The owner of `id` and its row there, if this server holds the partition.
    pub(crate) fn locate(&self, id: NodeId) -> Option<(PartId, u32)> {
        self.book.locate(id).filter(|(part, _)| self.parts.binary_search(part).is_ok())
    }
}

impl TensorHolding {
    fn open(
        graph: &Graph,
        spec: &lodestore_store::TensorSpec,
        parts: &[PartId],
        n_shards: u16,
    ) -> Result<Self, ServerError> {
        let found = spec.row_bytes();
        let row_bytes = u32::try_from(found)
            .ok()
            .filter(|&b| b > 0 && b as usize <= ROW_BYTES_MAX)
            .ok_or_else(|| ServerError::RowBytes {
                tensor: spec.name.clone(),
                found,
                limit: ROW_BYTES_MAX,
            })?;
        let stripes = Stripes::for_rows(n_shards, row_bytes);
        let mut segments = vec![None; graph.book().n_parts().into()];
        for &part in parts {
            segments[part.index()] = Some(Arc::new(graph.segment(part, &spec.name)?));
        }
        let description = TensorDescription {
            name: spec.name.clone(),
            dtype: spec.dtype.name().to_owned(),
            width: spec.width,
            row_bytes,
            stripe_rows: stripes.stripe_rows(),
        };
        Ok(Self { description, stripes, segments })
    }
}
