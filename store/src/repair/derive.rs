//! Derives a graph's description from the headers of its files: for graphs whose catalogs keep no
//! copy of `graph.toml`.

use std::collections::BTreeMap;

use lodestore_graph::file_check::{Facts, FileKind, facts};
use lodestore_graph::topology::Topology;
use lodestore_graph::{NodeId, PartId, PartitionBook};
use uuid::Uuid;

use super::actions::RepairActions;
use super::lists::{self, open_topology};
use super::partitions::Partition;
use super::segment::identity_of;
use crate::graph::{halo_path, topology_path};
use crate::import::EXTERNAL_ID_TENSOR;
use crate::meta::{GRAPH_FORMAT_VERSION, GraphMeta};
use crate::segment::SegmentIdentity;
use crate::tensor::TensorSpec;
use crate::verify::read_head;

/// Facts in the files of a partition.
#[derive(Debug, Default)]
struct PartFacts {
    first_node: Option<u32>,
    n_nodes: Option<u32>,
    n_edges: Option<u64>,
}

/// Facts on which all files agree.
#[derive(Debug, Default)]
struct GraphFacts {
    uuid: Option<Uuid>,
    graph_nodes: Option<u32>,
    parts: BTreeMap<u16, PartFacts>,
    tensors: Vec<TensorSpec>,
}

/// Derives the description; returns its parts that are a guess in words, or why there is none.
pub(super) fn derive(
    actions: &RepairActions,
    partitions: &BTreeMap<PartId, Partition>,
) -> Result<(GraphMeta, PartitionBook, String), String> {
    let mut found = GraphFacts::default();
    for (part, partition) in partitions {
        found.parts.entry(part.0).or_default();
        found.add_lists(actions, partition)?;
        found.add_segments(actions, partition)?;
    }
    let uuid = found.uuid.ok_or("no file has the identity of the graph")?;
    let book = PartitionBook::new(found.bounds()?).map_err(|error| error.to_string())?;
    let edges = found.parts.values().map(|part| part.n_edges).sum::<Option<u64>>();
    let edges = edges.ok_or("not all topology files tell how many edges they hold")?;
    let mut meta = GraphMeta {
        format_version: GRAPH_FORMAT_VERSION,
        uuid,
        nodes: book.n_nodes(),
        edges,
        undirected: false,
        bounds: book.bounds().to_vec(),
        tensors: found.tensors_in_order(),
    };
    let topology = open_topology(&*actions.device, &lists::paths(partitions), &book, uuid);
    meta.undirected = topology.as_ref().is_ok_and(is_symmetric);
    let undirected = match topology {
        Ok(_) => format!("undirected = {}, as the topology is", meta.undirected),
        Err(_) => "undirected = false, unknown without the topology".to_owned(),
    };
    let text = meta.to_text();
    let (meta, book) = GraphMeta::parse(&text).map_err(|error| error.to_string())?;
    Ok((meta, book, format!("tensors in the order of their names, {undirected}")))
}

impl GraphFacts {
    fn add_lists(&mut self, actions: &RepairActions, partition: &Partition) -> Result<(), String> {
        let topology = (topology_path(&partition.dir), FileKind::Topology);
        let halo = (halo_path(&partition.dir), FileKind::Halo);
        for (path, kind) in [topology, halo] {
            let Ok((_, head)) = read_head(&*actions.device, &path) else { continue };
            let Some(Facts { uuid, part, first_node, graph_nodes, n_nodes, n_edges }) =
                facts(kind, &head)
            else {
                continue;
            };
            let name = path.display();
            if part != u32::from(partition.part.0) {
                return Err(format!("{name} belongs to partition {part}"));
            }
            agree(&mut self.uuid, Uuid::from_bytes(uuid), "graph", &name)?;
            agree(&mut self.graph_nodes, graph_nodes, "number of nodes", &name)?;
            let facts = self.parts.entry(partition.part.0).or_default();
            agree(&mut facts.first_node, first_node, "first node", &name)?;
            if kind == FileKind::Topology {
                let n_nodes =
                    u32::try_from(n_nodes).map_err(|_| format!("{name}: too many nodes"))?;
                agree(&mut facts.n_nodes, n_nodes, "number of nodes of the partition", &name)?;
                agree(&mut facts.n_edges, n_edges, "number of edges", &name)?;
            }
        }
        Ok(())
    }

    fn add_segments(
        &mut self,
        actions: &RepairActions,
        partition: &Partition,
    ) -> Result<(), String> {
        let entries = actions.device.list(&partition.dir).map_err(|error| error.to_string())?;
        for entry in entries.iter().filter(|entry| entry.name.ends_with(".seg")) {
            let path = partition.dir.join(&entry.name);
            let Ok(file) = actions.device.open(&path) else { continue };
            let Some(SegmentIdentity { graph, part, tensor, n_rows, .. }) = identity_of(&*file)
            else {
                continue;
            };
            let name = path.display();
            if part != partition.part {
                return Err(format!("{name} belongs to partition {part}"));
            }
            agree(&mut self.uuid, graph, "graph", &name)?;
            let facts = self.parts.entry(part.0).or_default();
            agree(&mut facts.n_nodes, n_rows, "number of nodes of the partition", &name)?;
            match self.tensors.iter().find(|known| known.name == tensor.name) {
                Some(known) if *known != tensor => {
                    return Err(format!("{name} has another type than its tensor elsewhere"));
                }
                Some(_) => {}
                None => self.tensors.push(tensor),
            }
        }
        Ok(())
    }

    /// Returns the first node of each partition, and the number of nodes: each from the partition
    /// before or from its own files.
    fn bounds(&self) -> Result<Vec<u32>, String> {
        let n_parts = self.parts.keys().next_back().map_or(0, |last| u32::from(*last) + 1);
        // Their edges would be missing.
        let is_absent = |part: &u32| !self.parts.contains_key(&(*part as u16));
        if let Some(part) = (0..n_parts).find(is_absent) {
            return Err(format!("partition {part} is not here"));
        }
        let mut bounds = vec![0u32];
        for part in 0..n_parts {
            let facts = |part| self.parts.get(&(part as u16));
            let start = bounds[part as usize];
            let counted = facts(part).and_then(|facts| facts.n_nodes);
            let counted = counted.and_then(|n_nodes| start.checked_add(n_nodes));
            let next = if part + 1 == n_parts {
                self.graph_nodes
            } else {
                facts(part + 1).and_then(|facts| facts.first_node)
            };
            match (counted, next) {
                (Some(counted), Some(next)) if counted != next => {
                    return Err(format!("the files of partitions {part} and after disagree"));
                }
                (Some(end), _) | (None, Some(end)) => bounds.push(end),
                (None, None) => return Err(format!("no file has the end of partition {part}")),
            }
        }
        Ok(bounds)
    }

    /// Imports add the ids of the input last.
    fn tensors_in_order(&self) -> Vec<TensorSpec> {
        let mut tensors = self.tensors.clone();
        tensors.sort_by_key(|tensor| (tensor.name == EXTERNAL_ID_TENSOR, tensor.name.clone()));
        tensors
    }
}

/// Returns whether each edge is there in both directions.
fn is_symmetric(topology: &Topology) -> bool {
    (0..topology.n_nodes()).map(NodeId).all(|node| {
        let sources = topology.in_neighbours(node).iter();
        sources
            .map(|&source| topology.in_neighbours(NodeId(source)))
            .all(|back| back.binary_search(&node.0).is_ok())
    })
}

/// Adds a fact, or fails if another file contradicts it.
fn agree<T: Copy + PartialEq + std::fmt::Display>(
    known: &mut Option<T>,
    told: T,
    what: &str,
    file: &dyn std::fmt::Display,
) -> Result<(), String> {
    match known {
        Some(known) if *known != told => {
            Err(format!("{file} has another {what} ({told}) than other files ({known})"))
        }
        _ => {
            *known = Some(told);
            Ok(())
        }
    }
}
