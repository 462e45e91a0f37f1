//! What cache policies know of a graph: its in-degrees, overlap ratios, and the rows that workers
//! request.

use std::cell::OnceCell;
use std::sync::Arc;

use lodestore_cache::policy::rank_by_degree;
use lodestore_cache::{PolicyKind, PolicySpec};
use lodestore_graph::topology::Topology;
use lodestore_graph::{NodeId, PartId};
use lodestore_store::Graph;

use super::scored::WorkerView;
use crate::error::ClientError;

/// Rows of other workers that a worker may request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Any: samples go further than halos.
    All,
    /// Those of the halos of its partitions (H_i of CaPGNN's Algorithm 1).
    Halos,
}

/// Inputs of cache policies from a graph, each computed once for all caches of a run.
///
/// A cache serves one worker or several. It never sees a row that all of its workers own: with
/// several workers every row is remote to one.
pub struct PolicyInputs<'a> {
    graph: &'a Graph,
    topology: &'a Topology,
    n_workers: u32,
    reach: Reach,
    overlap: OnceCell<Arc<[u16]>>,
    /// All nodes, the highest in-degree first.
    by_degree: OnceCell<Arc<[u32]>>,
}

impl<'a> PolicyInputs<'a> {
    /// Returns the inputs from `graph` for a run of `n_workers`; partition p belongs to worker p
    /// mod `n_workers`, which is at least 1.
    #[must_use]
    pub fn new(graph: &'a Graph, topology: &'a Topology, n_workers: u32, reach: Reach) -> Self {
        let (overlap, by_degree) = (OnceCell::new(), OnceCell::new());
        Self { graph, topology, n_workers, reach, overlap, by_degree }
    }

    /// Returns a policy with its inputs, for a cache of these workers.
    ///
    /// # Errors
    /// [`ClientError::Halo`] if a halo cannot be read; [`ClientError::Tier`] for a policy whose
    /// inputs are not in the graph.
    pub fn spec(&self, kind: PolicyKind, workers: &[u32]) -> Result<PolicySpec, ClientError> {
        match kind {
            PolicyKind::Overlap => Ok(PolicySpec::Overlap(self.overlap()?)),
            PolicyKind::Degree => Ok(PolicySpec::Degree(self.remote_by_degree(workers))),
            kind => PolicySpec::try_from(kind).map_err(|error| ClientError::Tier(error.into())),
        }
    }

    /// Returns how many rows these workers may request of others, each row once.
    ///
    /// # Errors
    /// [`ClientError::Halo`] if a halo cannot be read.
    pub fn n_wanted(&self, workers: &[u32]) -> Result<u32, ClientError> {
        let book = self.graph.book();
        if self.reach == Reach::All {
            let remote = book.parts().filter(|&part| self.is_remote(part, workers));
            return Ok(remote.map(|part| book.range(part).len() as u32).sum());
        }
        let mut is_wanted = vec![false; book.n_nodes() as usize];
        for part in book.parts() {
            let worker = self.owner_of(part);
            if !workers.contains(&worker) {
                continue;
            }
            for id in &self.graph.open_halo(part)?.ids {
                if book.part_of(*id).is_none_or(|part| self.owner_of(part) != worker) {
                    is_wanted[id.index()] = true;
                }
            }
        }
        Ok(is_wanted.into_iter().filter(|is| *is).count() as u32)
    }

    /// Returns the graph as `worker` sees it.
    #[must_use]
    pub fn view(&self, worker: u32) -> WorkerView<'_> {
        WorkerView {
            topology: self.topology,
            book: self.graph.book(),
            worker,
            n_workers: self.n_workers,
        }
    }

    fn owner_of(&self, part: PartId) -> u32 {
        u32::from(part.0) % self.n_workers
    }

    /// Returns whether one of the workers does not own the partition.
    fn is_remote(&self, part: PartId, workers: &[u32]) -> bool {
        workers.iter().any(|&worker| worker != self.owner_of(part))
    }

    fn overlap(&self) -> Result<Arc<[u16]>, ClientError> {
        if let Some(ratios) = self.overlap.get() {
            return Ok(Arc::clone(ratios));
        }
        let ratios: Arc<[u16]> = self.graph.overlap_ratios()?.into();
        Ok(Arc::clone(self.overlap.get_or_init(|| ratios)))
    }

    /// Returns the nodes that are remote to one of the workers, the highest in-degree first.
    fn remote_by_degree(&self, workers: &[u32]) -> Arc<[u32]> {
        let book = self.graph.book();
        let ranked = self.by_degree.get_or_init(|| {
            let ids: Vec<u32> = (0..book.n_nodes()).collect();
            let degrees = ids.iter().map(|&id| self.topology.in_degree(NodeId(id)));
            rank_by_degree(&ids, &degrees.collect::<Vec<_>>()).into()
        });
        let is_wanted =
            |&id: &u32| book.part_of(NodeId(id)).is_some_and(|part| self.is_remote(part, workers));
        ranked.iter().copied().filter(is_wanted).collect()
    }
}

#[cfg(test)]
mod tests {
    use lodestore_graph::halo::write_halos;

    use super::*;

    /// Three partitions, of two nodes each, and in-neighbours of each node.
    const LISTS: [&[u32]; 6] = [&[2, 3], &[4], &[4, 5], &[], &[0, 2, 3], &[4]];

    fn with_graph(check: impl FnOnce(&Graph, &Topology)) {
        let folder = tempfile::tempdir().unwrap();
        let graph = Graph::open(&testing::features::feature_graph(folder.path(), 6, 1, 3)).unwrap();
        let mut offsets = vec![0];
        offsets.extend(LISTS.iter().scan(0, |end, list| {
            *end += list.len() as u64;
            Some(*end)
        }));
        let topology = Topology::from_lists(offsets, LISTS.concat()).unwrap();
        let uuid = *graph.uuid().as_bytes();
        write_halos(&topology, graph.book(), uuid, &|part| graph.halo_path(part)).unwrap();
        check(&graph, &topology);
    }

    #[test]
    fn a_cache_never_has_rows_that_all_of_its_workers_own() {
        with_graph(|graph, topology| {
            let inputs = PolicyInputs::new(graph, topology, 2, Reach::All);
            let by_degree = |workers: &[u32]| match inputs.spec(PolicyKind::Degree, workers) {
                Ok(PolicySpec::Degree(ids)) => ids.to_vec(),
                other => panic!("{other:?}"),
            };
            // Worker 0 has partitions 0 and 2. In-degrees are 2, 1, 2, 0, 3, 1.
            assert_eq!(by_degree(&[0]), [2, 3]);
            assert_eq!(by_degree(&[1]), [4, 0, 1, 5]);
            assert_eq!(by_degree(&[0, 1]), [4, 0, 2, 1, 5, 3]);
            let n_wanted =
                [&[0][..], &[1], &[0, 1]].map(|workers| inputs.n_wanted(workers).unwrap());
            assert_eq!(n_wanted, [2, 4, 6]);
            let lone = PolicyInputs::new(graph, topology, 1, Reach::All);
            assert_eq!(lone.n_wanted(&[0]).unwrap(), 0);
        });
    }

    #[test]
    fn only_rows_of_halos_are_wanted_where_nothing_goes_further() {
        with_graph(|graph, topology| {
            let n_wanted = |n_workers, workers: &[u32]| {
                let inputs = PolicyInputs::new(graph, topology, n_workers, Reach::Halos);
                inputs.n_wanted(workers).unwrap()
            };
            // Halos of the partitions are 2, 3, 4; 4, 5; and 0, 2, 3.
            assert_eq!([0, 1, 2].map(|worker| n_wanted(3, &[worker])), [3, 2, 3]);
            assert_eq!(n_wanted(3, &[0, 1, 2]), 5, "each row once");
            assert_eq!(n_wanted(2, &[0]), 2, "4 and 0 are in the other own partition");
            assert_eq!(n_wanted(1, &[0]), 0);
        });
    }

    #[test]
    fn overlap_counts_the_halos_of_a_node_and_plans_are_not_in_a_graph() {
        with_graph(|graph, topology| {
            let inputs = PolicyInputs::new(graph, topology, 3, Reach::All);
            let Ok(PolicySpec::Overlap(ratios)) = inputs.spec(PolicyKind::Overlap, &[0]) else {
                panic!("no ratios")
            };
            assert_eq!(ratios[..], [1, 0, 2, 2, 2, 1]);
            let oracle = inputs.spec(PolicyKind::Oracle, &[0]);
            assert!(matches!(oracle, Err(ClientError::Tier(_))), "{oracle:?}");
            std::fs::remove_file(graph.halo_path(PartId(1))).unwrap();
            let inputs = PolicyInputs::new(graph, topology, 3, Reach::Halos);
            assert!(matches!(inputs.n_wanted(&[1]), Err(ClientError::Halo(_))));
        });
    }
}
