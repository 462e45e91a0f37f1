//! MassiveGNN's rules: which rows a worker's buffer may keep, which come first, and which replace
//! others.

use std::cmp::Reverse;
use std::sync::Arc;

use lodestore_cache::PolicySpec;
use lodestore_cache::policy::{Candidate, DecaySpec, Replacement, Scoreboard};
use lodestore_graph::sampler::is_local;
use lodestore_graph::topology::Topology;
use lodestore_graph::{NodeId, PartitionBook};

/// Nodes whose rows may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidates {
    /// Those one hop from the worker's own nodes, as in the paper.
    Halo,
    /// All that the worker does not own, which batches of several hops reach.
    Remote,
}

/// Rank of the rows of the first fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// The number of neighbour lists of the worker's own nodes that a node is in.
    Lists,
    /// The in-degree, as in the paper.
    Degree,
}

/// The rules of a buffer (MassiveGNN, Algorithm 1).
#[derive(Clone, Copy, Debug)]
pub struct ScoredRules {
    /// Nodes whose rows may be kept.
    pub candidates: Candidates,
    /// Order of the rows of the first fill.
    pub rank: Rank,
    /// Nodes whose rows may replace others.
    pub replacement: Replacement,
    /// Storage of scores; by the memory that it takes unless given.
    pub scoreboard: Option<Scoreboard>,
}

impl Default for ScoredRules {
    fn default() -> Self {
        Self {
            candidates: Candidates::Remote,
            rank: Rank::Lists,
            replacement: Replacement::Missed,
            scoreboard: None,
        }
    }
}

/// The nodes of a graph as one worker of a run sees them.
#[derive(Clone, Copy, Debug)]
pub struct WorkerView<'a> {
    /// In-neighbours of all nodes.
    pub topology: &'a Topology,
    /// Which partition owns which node.
    pub book: &'a PartitionBook,
    /// The worker.
    pub worker: u32,
    /// Workers of the run; partition p belongs to worker p mod n_workers.
    pub n_workers: u32,
}

impl WorkerView<'_> {
    fn owns(&self, id: u32) -> bool {
        is_local(self.book, self.worker, self.n_workers, NodeId(id))
    }

    /// Returns how many neighbour lists of the worker's own nodes each node is in. Nodes in any of
    /// these that it does not own are its halo.
    fn own_lists(&self) -> Vec<u32> {
        let own = self.book.parts().flat_map(|part| self.book.range(part));
        count_lists(self.topology, own.filter(|&id| self.owns(id)))
    }
}

/// Returns how many neighbour lists of `nodes` each node is in: how often it can be drawn for them.
fn count_lists(topology: &Topology, nodes: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut lists = vec![0u32; topology.n_nodes() as usize];
    for node in nodes {
        for &neighbour in topology.in_neighbours(NodeId(node)) {
            lists[neighbour as usize] += 1;
        }
    }
    lists
}

impl ScoredRules {
    /// Returns the nodes whose rows a worker's buffer may keep, ascending.
    #[must_use]
    pub fn of_worker(self, of: WorkerView<'_>) -> Vec<Candidate> {
        let own_lists = of.own_lists();
        let is_remote = self.candidates == Candidates::Remote;
        // A node that no own list has is drawn for other nodes, if at all.
        let all_lists = if is_remote && self.rank == Rank::Lists {
            count_lists(of.topology, 0..of.topology.n_nodes())
        } else {
            Vec::new()
        };
        let candidate = |id: u32| {
            let n_lists = own_lists[id as usize];
            let is_halo = n_lists > 0;
            let degree = match self.rank {
                Rank::Degree => of.topology.in_degree(NodeId(id)),
                Rank::Lists if is_halo => n_lists,
                Rank::Lists => all_lists.get(id as usize).copied().unwrap_or(0),
            };
            Candidate { id, degree, is_halo }
        };
        let remote = (0..of.book.n_nodes()).filter(|&id| !of.owns(id)).map(candidate);
        remote.filter(|candidate| candidate.is_halo || is_remote).collect()
    }

    /// Returns all nodes, for a cache that is not one worker's.
    #[must_use]
    pub fn of_all(self, topology: &Topology) -> Vec<Candidate> {
        let n_nodes = topology.n_nodes();
        let degrees: Vec<u32> = match self.rank {
            Rank::Lists => count_lists(topology, 0..n_nodes),
            Rank::Degree => (0..n_nodes).map(|id| topology.in_degree(NodeId(id))).collect(),
        };
        (0..).zip(degrees).map(|(id, degree)| Candidate { id, degree, is_halo: true }).collect()
    }

    /// Returns MassiveGNN's policy: with γ and Δ, or the first fill as it stays without them.
    #[must_use]
    pub fn policy(
        self,
        candidates: &Arc<[Candidate]>,
        eviction: Option<(f64, u32)>,
        id_space: u32,
    ) -> PolicySpec {
        let Some((gamma, interval)) = eviction else {
            let mut first = candidates.to_vec();
            first.sort_unstable_by_key(|of| (Reverse(of.is_halo), Reverse(of.degree), of.id));
            return PolicySpec::Degree(first.iter().map(|candidate| candidate.id).collect());
        };
        let by_memory = Scoreboard::by_memory(id_space, candidates.len());
        PolicySpec::Decay(DecaySpec {
            candidates: Arc::clone(candidates),
            gamma,
            interval,
            replacement: self.replacement,
            scoreboard: self.scoreboard.unwrap_or(by_memory),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the own nodes 0 and 1, of worker 0; 2 to 5 are remote. Edges as (neighbour, owner of
    /// the list).
    fn topology() -> (Topology, PartitionBook) {
        // 0 has 2, 3; 1 has 2, 4; 2 has 5; 3 has 4, 5; 4 has 5, 3; 5 has none.
        let offsets = vec![0, 2, 4, 5, 7, 9, 9];
        let lists = vec![2, 3, 2, 4, 5, 4, 5, 3, 5];
        let topology = Topology::from_lists(offsets, lists).unwrap();
        (topology, PartitionBook::from_counts(&[2, 2, 2]).unwrap())
    }

    fn candidates(rules: ScoredRules, worker: u32, n_workers: u32) -> Vec<(u32, u32, bool)> {
        let (topology, book) = topology();
        let view = WorkerView { topology: &topology, book: &book, worker, n_workers };
        let found = rules.of_worker(view);
        found.into_iter().map(|of| (of.id, of.degree, of.is_halo)).collect()
    }

    #[test]
    fn candidates_are_the_halo_ranked_by_the_lists_that_they_are_in() {
        let halo = ScoredRules { candidates: Candidates::Halo, ..ScoredRules::default() };
        assert_eq!(candidates(halo, 0, 3), [(2, 2, true), (3, 1, true), (4, 1, true)]);
        // In-degrees of 2, 3, 4 are 1, 2, 2: the other way round.
        let by_degree = ScoredRules { rank: Rank::Degree, ..halo };
        assert_eq!(candidates(by_degree, 0, 3), [(2, 1, true), (3, 2, true), (4, 2, true)]);
        // 5 is two hops away: in the lists of 2, 3 and 4.
        let remote = ScoredRules { candidates: Candidates::Remote, ..halo };
        let with_5 = [(2, 2, true), (3, 1, true), (4, 1, true), (5, 3, false)];
        assert_eq!(candidates(remote, 0, 3), with_5);
        // Worker 0 of two has partitions 0 and 2: neither 4 nor 5 is remote, and 5 has no list.
        assert_eq!(candidates(halo, 0, 2), [(2, 2, true), (3, 2, true)]);
        assert_eq!(candidates(halo, 0, 1), [], "all is its own");
        assert_eq!(candidates(remote, 0, 1), []);
    }

    #[test]
    fn halo_nodes_stay_first_without_eviction_then_the_best_of_the_others() {
        let (topology, book) = topology();
        let view = WorkerView { topology: &topology, book: &book, worker: 0, n_workers: 3 };
        let rules = ScoredRules::default();
        let candidates: Arc<[Candidate]> = rules.of_worker(view).into();
        let kept = rules.policy(&candidates, None, 6);
        let PolicySpec::Degree(ids) = &kept else { panic!("no eviction") };
        assert_eq!(ids[..], [2, 3, 4, 5]);
        let evicting = rules.policy(&candidates, Some((0.9, 4)), 6);
        let PolicySpec::Decay(evicting) = evicting else { panic!("eviction") };
        assert_eq!(evicting.replacement, Replacement::Missed);
        assert!(matches!(evicting.scoreboard, Scoreboard::Dense));
    }
}
