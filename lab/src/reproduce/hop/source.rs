//! An imported graph, as far as rows are counted by it.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context, Result, bail};
use lodestore_graph::edges::MemoryEdges;
use lodestore_graph::partition::{Algorithm, PartitionConfig};
use lodestore_graph::topology::Topology;
use lodestore_graph::{NodeId, PartitionBook};
use lodestore_store::import::EXTERNAL_ID_TENSOR;
use lodestore_store::{EmbeddedStore, Graph};
use lodestore_trainer::TrainConfig;

use crate::reproduce::cut::{cut_edges, edges_of, folder_name};

/// Classes of a graph without labels.
const CLASSES: usize = 16;

/// Edges and training nodes of a graph, by the ids of its input: how it was imported does not
/// matter.
pub(super) struct InputGraph {
    pub(super) name: String,
    pub(super) n_nodes: u32,
    /// Partitions that it was imported in.
    pub(super) own_parts: u16,
    /// Whether each edge stands for both directions.
    pub(super) undirected: bool,
    /// Ascending; an edge of both directions once.
    pub(super) edges: MemoryEdges,
    /// In-edges of all nodes.
    pub(super) n_edges: u64,
    /// Ascending.
    pub(super) train: Vec<u32>,
    /// Bytes of features.
    pub(super) row_bytes: u64,
    pub(super) width: usize,
    pub(super) n_classes: usize,
}

/// A graph in one partition for each server.
pub(super) struct ServerCut {
    pub(super) topology: Topology,
    pub(super) book: PartitionBook,
    /// Training nodes, ascending.
    pub(super) train: Vec<NodeId>,
    /// Share of the edges between partitions.
    pub(super) edge_cut: f64,
}

impl InputGraph {
    /// Opens a graph; where it has no features, rows have `row_bytes`.
    pub(super) fn open(dir: &Path, row_bytes: u64) -> Result<Self> {
        let graph = Graph::open(dir)?;
        let (n_nodes, undirected) = (graph.book().n_nodes(), graph.meta().undirected);
        let usual = TrainConfig::default();
        let tensor = |name: &str| graph.meta().tensors.iter().find(|spec| spec.name == name);
        let store = EmbeddedStore::open(dir, None)?;
        let ids: Vec<NodeId> = (0..n_nodes).map(NodeId).collect();
        let mut external = vec![0i64; ids.len()];
        store.gather(EXTERNAL_ID_TENSOR, &ids, bytemuck::cast_slice_mut(&mut external))?;
        let external_of = external_ids(&external)?;
        let column = |name: &str| -> Result<Option<Vec<f32>>> {
            let Some(spec) = tensor(name).filter(|spec| spec.width == 1) else { return Ok(None) };
            let mut values = vec![0.0; ids.len()];
            store.gather_f32(&spec.name, &ids, &mut values)?;
            Ok(Some(values))
        };
        let split = column(&usual.split_tensor)?;
        let trains = |node: usize| split.as_ref().is_none_or(|split| split[node] == 0.0);
        let mut train: Vec<u32> =
            (0..ids.len()).filter(|&node| trains(node)).map(|node| external_of[node]).collect();
        train.sort_unstable();
        if train.is_empty() {
            bail!(
                "{}: expected training nodes, found none: {}",
                dir.display(),
                match split {
                    Some(_) => "tensor `split` is 0 for no node; import another one",
                    None => "the graph has no nodes; import one with nodes",
                }
            );
        }
        let most = |labels: Vec<f32>| labels.into_iter().fold(0.0, f32::max) as usize;
        let labels = column(&usual.label_tensor)?;
        let feature = tensor(&usual.feature_tensor);
        let topology = graph.open_topology()?;
        let edges = edges_of(&topology, undirected, |node| external_of[node as usize]);
        Ok(Self {
            name: folder_name(dir)?,
            n_nodes,
            own_parts: graph.book().n_parts(),
            undirected,
            edges: MemoryEdges::new(edges)?,
            n_edges: topology.n_edges(),
            train,
            row_bytes: feature.map_or(row_bytes, |spec| spec.row_bytes() as u64),
            width: feature.map_or(row_bytes.div_ceil(4) as usize, |spec| spec.width as usize),
            n_classes: labels.map_or(CLASSES, |labels| most(labels) + 1),
        })
    }
}

/// Checks the ids of the input, each of which occurs once.
fn external_ids(found: &[i64]) -> Result<Vec<u32>> {
    let below = |&id: &i64| u32::try_from(id).ok().filter(|&id| (id as usize) < found.len());
    let ids: Option<Vec<u32>> = found.iter().map(below).collect();
    let distinct = ids.filter(|ids| ids.iter().collect::<HashSet<_>>().len() == found.len());
    distinct.with_context(|| {
        format!(
            "tensor `{EXTERNAL_ID_TENSOR}`: expected each id below {} once; import the graph again",
            found.len()
        )
    })
}

impl ServerCut {
    /// Returns each of `n_servers` a partition.
    pub(super) fn new(source: &InputGraph, algorithm: &Algorithm, n_servers: u16) -> Result<Self> {
        let config = PartitionConfig {
            direction: source.undirected.into(),
            refine_rounds: u32::from(matches!(algorithm, Algorithm::Spring(_))),
            ..PartitionConfig::new(algorithm.clone(), n_servers)
        };
        let (report, relabelling, topology) = cut_edges(&source.edges, source.n_nodes, &config)?;
        let internal = |&node: &u32| NodeId(relabelling.internal_of[node as usize]);
        let mut train: Vec<NodeId> = source.train.iter().map(internal).collect();
        train.sort_unstable();
        Ok(Self { topology, book: relabelling.book, train, edge_cut: report.edge_cut })
    }
}

#[cfg(test)]
mod tests {
    use lodestore_graph::relabel::Relabelling;

    use super::*;

    #[test]
    fn edges_are_those_of_the_input_whatever_the_partitions() {
        // 0 ↔ 2, 1 ↔ 1, 1 ↔ 3 by external ids, stored in two orders.
        let expected = vec![[0, 2], [1, 1], [1, 3]];
        let input = MemoryEdges::new(expected.clone()).unwrap();
        for assignment in [[0, 0, 0, 0], [1, 0, 1, 0]] {
            let assignment = assignment.map(lodestore_graph::PartId);
            let relabelling = Relabelling::new(&assignment, 2).unwrap();
            for undirected in [false, true] {
                let direction = undirected.into();
                let topology = Topology::from_edges(&input, &relabelling, direction).unwrap();
                let external = |node: u32| relabelling.external_of[node as usize];
                assert_eq!(edges_of(&topology, undirected, external), expected);
            }
        }
        assert!(external_ids(&[1, 0]).is_ok());
        for wrong in [[1, 1], [0, 2], [0, -1]] {
            assert!(external_ids(&wrong).is_err(), "{wrong:?}");
        }
    }
}
