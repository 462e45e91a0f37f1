//! Choice between the replicas of a partition.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use lodestore_graph::NodeId;

use super::{PartSet, Routes};

/// Another replica is chosen only if its cost is below this share of the cost of the current one.
const CLEARLY_BETTER: f64 = 0.7;

/// The servers that hold a partition.
#[derive(Default)]
pub(super) struct ReplicaSet {
    pub(super) servers: Vec<usize>,
    /// Servers that accept puts for it, each once, however many addresses it has.
    pub(super) writers: Vec<usize>,
    pub(super) asked: AtomicUsize,
}

impl Routes {
    /// Chooses a server for each partition that several servers hold: the one with the lowest
    /// expected latency. A clearly better one is needed to change the choice.
    pub(crate) fn choose(&self, now: Instant) {
        for replicas in self.replicas.iter().filter(|replicas| replicas.servers.len() > 1) {
            let cost = |at: usize| self.health(replicas.servers[at]).cost(now);
            let asked = replicas.asked.load(Ordering::Relaxed);
            let others = (0..replicas.servers.len()).filter(|&at| at != asked);
            let best = others.min_by(|&a, &b| cost(a).total_cmp(&cost(b)));
            let is_resting = self.health(replicas.servers[asked]).is_resting(now);
            let most = if is_resting { 1.0 } else { CLEARLY_BETTER };
            if let Some(best) = best.filter(|&best| cost(best) < most * cost(asked)) {
                replicas.asked.store(best, Ordering::Relaxed);
            }
        }
    }

    /// Returns whether another server holds every partition of `server`.
    pub(crate) fn can_do_without(&self, server: usize) -> bool {
        let mut theirs = self.replicas.iter().filter(|replicas| replicas.servers.contains(&server));
        theirs.all(|replicas| replicas.has_other(server, |_| true))
    }

    /// Returns whether each of these partitions is on another server than `server`.
    pub(crate) fn are_elsewhere(&self, parts: &PartSet, server: usize) -> bool {
        self.replicas_of(parts).all(|replicas| replicas.has_other(server, |_| true))
    }

    /// Like [`Self::are_elsewhere`], but counts only servers that do not rest.
    pub(crate) fn are_well_elsewhere(&self, parts: &PartSet, server: usize, now: Instant) -> bool {
        let is_well = |other: usize| !self.health(other).is_resting(now);
        self.replicas_of(parts).all(|replicas| replicas.has_other(server, is_well))
    }

    /// Returns a shard of another server that holds all of these partitions and does not rest: the
    /// shard that owns the first row.
    pub(crate) fn hedge(
        &self,
        tensor: usize,
        ids: &[NodeId],
        parts: &PartSet,
        server: usize,
    ) -> Option<usize> {
        let now = Instant::now();
        let (part, row) = self.book.locate(*ids.first()?)?;
        let has_all = |other: usize| {
            self.replicas_of(parts).all(|replicas| replicas.servers.contains(&other))
        };
        let others = self.replicas[part.index()].servers.iter().copied().filter(|&other| {
            let has_tensor = self.endpoint_at(other, tensor, part, row).is_some();
            other != server && has_tensor && has_all(other) && !self.health(other).is_resting(now)
        });
        let cost = |other: usize| self.health(other).cost(now);
        let hedge = others.min_by(|&a, &b| cost(a).total_cmp(&cost(b)))?;
        self.endpoint_at(hedge, tensor, part, row)
    }

    fn replicas_of(&self, parts: &PartSet) -> impl Iterator<Item = &ReplicaSet> {
        parts.indexes().filter_map(|at| self.replicas.get(at))
    }
}

impl ReplicaSet {
    fn has_other(&self, server: usize, will_do: impl Fn(usize) -> bool) -> bool {
        self.servers.iter().any(|&it| it != server && will_do(it))
    }
}
