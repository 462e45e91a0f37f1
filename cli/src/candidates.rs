//! MassiveGNN's rules: which rows a worker's buffer may keep, which come first, and which replace
//! others.

use std::cmp::Reverse;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use lodestore_cache::PolicySpec;
use lodestore_cache::policy::{Candidate, DecaySpec, Replacement, Scoreboard};
use lodestore_graph::sampler::is_local;
use lodestore_graph::topology::Topology;
use lodestore_graph::{NodeId, PartitionBook};
use serde::Serialize;

use crate::usage::first_given;

/// The rules as flags of `lode train --strategy massive` and of `lode cache-bench`.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct RuleArgs {
    /// Nodes whose rows MassiveGNN's buffer may keep [default: remote]. With `halo` they are one
    /// hop from the worker's own, as in the paper. With `remote` they are all that the worker does
    /// not own, which batches of several hops reach.
    #[arg(long, value_enum, value_name = "C", hide_possible_values = true)]
    candidates: Option<Candidates>,
    /// Nodes whose rows may replace others in MassiveGNN's buffer [default: missed]. With `missed`
    /// they were missed at least once since they last left. With `scored` their S_A is above 0, as
    /// in the paper; this includes nodes that left with a rest of their score. With `any` all may.
    #[arg(long, value_enum, value_name = "R", hide_possible_values = true)]
    replace: Option<Replace>,
    /// Order of the rows that MassiveGNN's buffer begins with [default: lists]. With `lists` it is
    /// by the number of neighbour lists of the worker's own nodes that the node is in. With
    /// `degree` it is by in-degree, as in the paper. Both are the same where the graph is
    /// undirected and whole.
    #[arg(long, value_enum, value_name = "R", hide_possible_values = true)]
    rank: Option<Rank>,
    /// Storage of scores in MassiveGNN's buffer: `dense` (24 bytes for each node of the graph) or
    /// `compact` (for each candidate, found by a search). Decisions are the same. Unless given, it
    /// is dense up to 64 MiB.
    #[arg(long, value_enum, value_name = "S", hide_possible_values = true)]
    scoreboard: Option<Board>,
}

/// Nodes whose rows may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Candidates {
    Halo,
    Remote,
}

/// [`Replacement`] as a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Replace {
    Missed,
    Scored,
    Any,
}

/// Rank of the rows of the first fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Rank {
    Lists,
    Degree,
}

/// [`Scoreboard`] as a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Board {
    Dense,
    Compact,
}

/// Returns the rows that a share of `n_rows` is, rounded up, counting the share in millionths of a
/// percent.
pub(crate) fn rows_of_share(share: f64, n_rows: u32) -> u32 {
    let millionths = (share * 1e8).round() as u128;
    u32::try_from(millionths.saturating_mul(n_rows.into()).div_ceil(100_000_000))
        .unwrap_or(u32::MAX)
}

/// The rules that a buffer follows, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RuleReport {
    pub(crate) candidates: &'static str,
    pub(crate) rank: &'static str,
    /// None without eviction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replace: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scoreboard: Option<&'static str>,
}

/// The nodes of a graph as one worker of a run sees them.
#[derive(Clone, Copy)]
pub(crate) struct WorkerView<'a> {
    pub(crate) topology: &'a Topology,
    pub(crate) book: &'a PartitionBook,
    pub(crate) worker: u32,
    pub(crate) n_workers: u32,
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

impl RuleArgs {
    /// Returns the first of the flags that is given.
    pub(crate) fn used(self) -> Option<&'static str> {
        let used = [("--candidates", self.candidates.is_some()), ("--rank", self.rank.is_some())];
        first_given(&used).or(self.used_by_eviction())
    }

    /// Returns the first of the flags that is given and is for eviction only.
    pub(crate) fn used_by_eviction(self) -> Option<&'static str> {
        first_given(&[
            ("--replace", self.replace.is_some()),
            ("--scoreboard", self.scoreboard.is_some()),
        ])
    }

    /// Returns whether `--candidates` is given.
    pub(crate) fn names_candidates(self) -> bool {
        self.candidates.is_some()
    }

    /// Returns whether nodes beyond the halo are no candidates.
    pub(crate) fn keeps_halo_alone(self) -> bool {
        self.candidates() == Candidates::Halo
    }

    fn candidates(self) -> Candidates {
        self.candidates.unwrap_or(Candidates::Remote)
    }

    fn rank(self) -> Rank {
        self.rank.unwrap_or(Rank::Lists)
    }

    fn replacement(self) -> Replacement {
        match self.replace.unwrap_or(Replace::Missed) {
            Replace::Missed => Replacement::Missed,
            Replace::Scored => Replacement::Scored,
            Replace::Any => Replacement::Any,
        }
    }

    fn scoreboard(self, id_space: u32, n_candidates: usize) -> Scoreboard {
        match self.scoreboard {
            Some(Board::Dense) => Scoreboard::Dense,
            Some(Board::Compact) => Scoreboard::Compact,
            None => Scoreboard::by_memory(id_space, n_candidates),
        }
    }

    /// Returns the nodes whose rows a worker's buffer may keep, ascending.
    pub(crate) fn of_worker(self, of: WorkerView<'_>) -> Vec<Candidate> {
        let own_lists = of.own_lists();
        let is_remote = self.candidates() == Candidates::Remote;
        // A node that no own list has is drawn for other nodes, if at all.
        let all_lists = if is_remote && self.rank() == Rank::Lists {
            count_lists(of.topology, 0..of.topology.n_nodes())
        } else {
            Vec::new()
        };
        let candidate = |id: u32| {
            let n_lists = own_lists[id as usize];
            let is_halo = n_lists > 0;
            let degree = match self.rank() {
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
    pub(crate) fn of_all(self, topology: &Topology) -> Vec<Candidate> {
        let n_nodes = topology.n_nodes();
        let degrees: Vec<u32> = match self.rank() {
            Rank::Lists => count_lists(topology, 0..n_nodes),
            Rank::Degree => (0..n_nodes).map(|id| topology.in_degree(NodeId(id))).collect(),
        };
        (0..).zip(degrees).map(|(id, degree)| Candidate { id, degree, is_halo: true }).collect()
    }

    /// Returns MassiveGNN's policy: with γ and Δ, or the first fill as it stays without them.
    pub(crate) fn policy(
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
        let (candidates, replacement) = (Arc::clone(candidates), self.replacement());
        let scoreboard = self.scoreboard(id_space, candidates.len());
        PolicySpec::Decay(DecaySpec { candidates, gamma, interval, replacement, scoreboard })
    }

    /// Returns the rules in words, for what [`RuleArgs::policy`] returned.
    pub(crate) fn report(self, policy: &PolicySpec) -> RuleReport {
        let (mut replace, mut scoreboard) = (None, None);
        if let PolicySpec::Decay(spec) = policy {
            replace = Some(match spec.replacement {
                Replacement::Missed => "missed",
                Replacement::Scored => "scored",
                Replacement::Any => "any",
            });
            scoreboard = Some(match spec.scoreboard {
                Scoreboard::Dense => "dense",
                Scoreboard::Compact => "compact",
            });
        }
        let candidates = match self.candidates() {
            Candidates::Halo => "halo",
            Candidates::Remote => "remote",
        };
        let rank = match self.rank() {
            Rank::Lists => "lists",
            Rank::Degree => "degree",
        };
        RuleReport { candidates, rank, replace, scoreboard }
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

    fn candidates(rules: RuleArgs, worker: u32, n_workers: u32) -> Vec<(u32, u32, bool)> {
        let (topology, book) = topology();
        let view = WorkerView { topology: &topology, book: &book, worker, n_workers };
        let found = rules.of_worker(view);
        found.into_iter().map(|of| (of.id, of.degree, of.is_halo)).collect()
    }

    #[test]
    fn candidates_are_the_halo_ranked_by_the_lists_that_they_are_in() {
        let halo = RuleArgs { candidates: Some(Candidates::Halo), ..RuleArgs::default() };
        assert_eq!(candidates(halo, 0, 3), [(2, 2, true), (3, 1, true), (4, 1, true)]);
        // In-degrees of 2, 3, 4 are 1, 2, 2: the other way round.
        let by_degree = RuleArgs { rank: Some(Rank::Degree), ..halo };
        assert_eq!(candidates(by_degree, 0, 3), [(2, 1, true), (3, 2, true), (4, 2, true)]);
        // 5 is two hops away: in the lists of 2, 3 and 4.
        let remote = RuleArgs { candidates: Some(Candidates::Remote), ..halo };
        let with_5 = [(2, 2, true), (3, 1, true), (4, 1, true), (5, 3, false)];
        assert_eq!(candidates(remote, 0, 3), with_5);
        // Worker 0 of two has partitions 0 and 2: neither 4 nor 5 is remote, and 5 has no list.
        assert_eq!(candidates(halo, 0, 2), [(2, 2, true), (3, 2, true)]);
        assert_eq!(candidates(halo, 0, 1), [], "all is its own");
        assert_eq!(candidates(remote, 0, 1), []);
    }

    #[test]
    fn shares_are_rounded_up_and_exact_where_they_are_whole() {
        assert_eq!(rows_of_share(0.1, 30), 3);
        assert_eq!(rows_of_share(0.1, 31), 4);
        assert_eq!(rows_of_share(0.0, 31), 0);
        assert_eq!(rows_of_share(1.0, u32::MAX), u32::MAX);
        assert_eq!(rows_of_share(1e30, 7), u32::MAX);
    }

    #[test]
    fn halo_nodes_stay_first_without_eviction_then_the_best_of_the_others() {
        let (topology, book) = topology();
        let view = WorkerView { topology: &topology, book: &book, worker: 0, n_workers: 3 };
        let rules = RuleArgs::default();
        let candidates: Arc<[Candidate]> = rules.of_worker(view).into();
        let kept = rules.policy(&candidates, None, 6);
        let PolicySpec::Degree(ids) = &kept else { panic!("no eviction") };
        assert_eq!(ids[..], [2, 3, 4, 5]);
        assert_eq!(rules.report(&kept).replace, None);
        let evicting = rules.policy(&candidates, Some((0.9, 4)), 6);
        let words = rules.report(&evicting);
        assert_eq!((words.candidates, words.replace), ("remote", Some("missed")));
        assert_eq!((words.rank, words.scoreboard), ("lists", Some("dense")));
    }
}
