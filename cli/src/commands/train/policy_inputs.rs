//! Inputs of tiers' policies from a graph.

use std::cell::OnceCell;
use std::sync::Arc;

use anyhow::Result;
use lodestore_cache::policy::rank_by_degree;
use lodestore_cache::{PolicyKind, PolicySpec};
use lodestore_client::keep::scored::WorkerView;
use lodestore_graph::topology::Topology;
use lodestore_graph::{NodeId, PartId};
use lodestore_store::Graph;

/// Workers of the run in this process.
#[derive(Clone, Debug)]
pub(super) struct LocalWorkers {
    pub(super) workers: Vec<u32>,
    /// Processes of the run on this machine, which share its memory.
    pub(super) n_processes: u32,
}

/// Rows of others that a worker may request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Any: samples go further than halos.
    All,
    /// Those of halos (H_i of CaPGNN's Algorithm 1).
    Halos,
}

/// Inputs of policies from a graph, computed once for all tiers of a run.
pub(super) struct PolicyInputs<'a> {
    pub(super) graph: &'a Graph,
    /// Workers of the run.
    pub(super) n_workers: u32,
    pub(super) here: LocalWorkers,
    reach: Reach,
    topology: &'a Topology,
    overlap: OnceCell<Arc<[u16]>>,
    /// All nodes, the highest in-degree first.
    by_degree: OnceCell<Vec<u32>>,
}

impl<'a> PolicyInputs<'a> {
    /// Returns the inputs from `graph` for a run of `n_workers`, which asks for rows in `reach`.
    pub(super) fn new(
        graph: &'a Graph,
        topology: &'a Topology,
        n_workers: u32,
        here: LocalWorkers,
        reach: Reach,
    ) -> Self {
        let (overlap, by_degree) = (OnceCell::new(), OnceCell::new());
        Self { graph, n_workers, here, reach, topology, overlap, by_degree }
    }

    /// Returns the worker whose rows are never requested from a tier of this process. With several
    /// workers every row is remote to one.
    pub(super) fn lone_worker(&self) -> Option<u32> {
        let [worker] = self.here.workers[..] else { return None };
        Some(worker)
    }

    /// Returns this process's share of bytes that all on this machine have together.
    pub(super) fn share(&self, n_bytes: u64) -> u64 {
        n_bytes / u64::from(self.here.n_processes)
    }

    /// Returns a policy with its inputs from the graph; rows of `worker` are not requested, unless
    /// several workers ask.
    pub(super) fn spec(&self, kind: PolicyKind, worker: Option<u32>) -> Result<PolicySpec> {
        Ok(match kind {
            PolicyKind::Overlap => PolicySpec::Overlap(self.overlap()?),
            PolicyKind::Degree => PolicySpec::Degree(self.remote_by_degree(worker)),
            kind => PolicySpec::try_from(kind)?,
        })
    }

    /// Returns the number of nodes that `worker` does not own.
    pub(super) fn n_remote(&self, worker: Option<u32>) -> u32 {
        let book = self.graph.book();
        let remote = book.parts().filter(|&part| !self.is_own(part, worker));
        remote.map(|part| book.range(part).len() as u32).sum()
    }

    /// Returns the number of rows of others that `worker` may ask for, or without one any worker
    /// here.
    pub(super) fn n_wanted(&self, worker: Option<u32>) -> Result<u32> {
        if self.reach == Reach::All {
            return Ok(self.n_remote(worker));
        }
        let book = self.graph.book();
        let mut is_wanted = vec![false; book.n_nodes() as usize];
        for part in book.parts() {
            let of_part = u32::from(part.0) % self.n_workers;
            let asks = worker
                .map_or_else(|| self.here.workers.contains(&of_part), |worker| worker == of_part);
            if asks {
                let halo = self.graph.open_halo(part)?;
                let others = halo.ids.iter().filter(|id| !self.owns(id.0, Some(of_part)));
                others.for_each(|id| is_wanted[id.index()] = true);
            }
        }
        Ok(is_wanted.into_iter().filter(|is| *is).count() as u32)
    }

    /// Returns the graph as `worker` sees it.
    pub(super) fn view(&self, worker: u32) -> WorkerView<'_> {
        let (topology, book, n_workers) = (self.topology, self.graph.book(), self.n_workers);
        WorkerView { topology, book, worker, n_workers }
    }

    fn owns(&self, id: u32, worker: Option<u32>) -> bool {
        self.graph.book().part_of(NodeId(id)).is_some_and(|part| self.is_own(part, worker))
    }

    fn is_own(&self, part: PartId, worker: Option<u32>) -> bool {
        worker == Some(u32::from(part.0) % self.n_workers)
    }

    fn overlap(&self) -> Result<Arc<[u16]>> {
        if let Some(ratios) = self.overlap.get() {
            return Ok(Arc::clone(ratios));
        }
        let ratios: Arc<[u16]> = self.graph.overlap_ratios()?.into();
        Ok(Arc::clone(self.overlap.get_or_init(|| ratios)))
    }

    /// Returns all nodes but those that `worker` owns, the highest in-degree first.
    fn remote_by_degree(&self, worker: Option<u32>) -> Arc<[u32]> {
        let ranked = self.by_degree.get_or_init(|| {
            let ids: Vec<u32> = (0..self.graph.book().n_nodes()).collect();
            let degrees = ids.iter().map(|&id| self.topology.in_degree(NodeId(id)));
            rank_by_degree(&ids, &degrees.collect::<Vec<_>>())
        });
        ranked.iter().copied().filter(|&id| !self.owns(id, worker)).collect()
    }
}
