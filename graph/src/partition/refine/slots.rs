//! A sample of the edges in equal room for each node, and what is done on it node by node.
//!
//! Each node keeps a bounded number of neighbours, drawn in one pass over the edges by reservoir
//! sampling (Vitter, ACM TOMS 11, 1985, algorithm R). Both ends draw independently: a hub is in the
//! lists of its neighbours, and has only a few of them in its own.

use std::cmp::Reverse;

use super::coarsen::Clustering;
use super::level::{LevelLoads, Lists};
use crate::edges::{EdgeError, EdgeStream};
use crate::huge::HugeVec;
use crate::ids::PartId;
use crate::splitmix64::splitmix64;

/// A slot without a neighbour; the last of the ids that a node cannot have.
const EMPTY: u32 = u32::MAX;
/// Edges whose counters are loaded ahead together.
const TOUCH_EDGES: usize = 128;
/// Rounds in which each node joins the cluster that pulls it most.
const ROUNDS: u64 = 4;
/// Ends of edges that are held at least, 4 bytes each: every edge of a graph of half as many.
const MIN_ENDS: u64 = 8 << 20;
/// Ends of edges held per node where there are more.
const ENDS_PER_NODE: u64 = 5;
/// Slots of a node at most, so that clusters among them are found by comparing all.
pub(super) const MAX_SLOTS: usize = 32;

/// Returns the ends kept of each node; nothing where all edges are.
pub(super) fn n_slots(n_nodes: u64, n_edges: u64) -> Option<u64> {
    let n_ends = n_edges.saturating_mul(2);
    let slots = (MIN_ENDS / n_nodes.max(1)).clamp(ENDS_PER_NODE, MAX_SLOTS as u64);
    (n_ends > MIN_ENDS).then_some(slots)
}

/// Some neighbours of each node.
#[derive(Debug)]
pub(super) struct Slots {
    /// Slots of a node.
    stride: usize,
    /// Neighbours of the first node, then of the second; empty slots last.
    slots: HugeVec<u32>,
}

/// Slots that are being filled.
struct Reservoirs<'a> {
    stride: usize,
    slots: &'a mut [u32],
    /// Neighbours of each node so far.
    seen: &'a mut [u32],
    seed: u64,
}

impl Reservoirs<'_> {
    #[inline]
    fn see(&mut self, node: u32, neighbour: u32) {
        let seen = &mut self.seen[node as usize];
        let n_before = *seen as usize;
        *seen = seen.saturating_add(1);
        let slot = if n_before < self.stride {
            n_before
        } else {
            let word = splitmix64(self.seed ^ u64::from(node) << 32 ^ n_before as u64) >> 32;
            ((word * (n_before as u64 + 1)) >> 32) as usize
        };
        if slot < self.stride {
            self.slots[node as usize * self.stride + slot] = neighbour;
        }
    }
}

impl Slots {
    /// Draws `stride` neighbours of each node in one pass; returns also the edges between `parts`.
    pub(super) fn sample(
        edges: &dyn EdgeStream,
        parts: &[PartId],
        stride: usize,
        seed: u64,
    ) -> Result<(Self, u64), EdgeError> {
        let n_nodes = parts.len();
        let mut slots = HugeVec::from_fn(n_nodes * stride, |_| EMPTY);
        let mut seen = HugeVec::zeroed(n_nodes);
        let mut reservoirs = Reservoirs { stride, slots: &mut slots, seen: &mut seen, seed };
        let mut n_cut = 0u64;
        edges.for_each_chunk(&mut |chunk| {
            for edges in chunk.chunks(TOUCH_EDGES) {
                let ids = edges.as_flattened().iter();
                let sum = ids.fold(0, |sum, &id| sum ^ reservoirs.seen[id as usize]);
                std::hint::black_box(sum);
                for &[u, v] in edges {
                    if u != v {
                        n_cut += u64::from(parts[u as usize] != parts[v as usize]);
                        reservoirs.see(u, v);
                        reservoirs.see(v, u);
                    }
                }
            }
            Ok(())
        })?;
        Ok((Self { stride, slots }, n_cut))
    }

    /// Returns the neighbours of `node` that are kept.
    #[inline]
    fn neighbours(&self, node: u32) -> &[u32] {
        let start = node as usize * self.stride;
        let slots = &self.slots[start..start + self.stride];
        let n_filled = slots.iter().position(|&slot| slot == EMPTY);
        &slots[..n_filled.unwrap_or(self.stride)]
    }
}

impl Lists for Slots {
    fn n_nodes(&self) -> u32 {
        (self.slots.len() / self.stride) as u32
    }

    fn n_entries(&self) -> usize {
        self.slots.len()
    }

    fn size(&self, _: u32) -> u32 {
        1
    }

    fn degree(&self, node: u32) -> u32 {
        self.neighbours(node).len() as u32
    }

    fn edges(&self, node: u32) -> impl Iterator<Item = (u32, u32)> {
        self.neighbours(node).iter().map(|&neighbour| (neighbour, 1))
    }
}

/// Counts of a few numbers, found by comparing all.
struct Tally {
    counts: [(u32, u32); MAX_SLOTS],
    n: usize,
}

impl Tally {
    fn new() -> Self {
        Self { counts: [(0, 0); MAX_SLOTS], n: 0 }
    }

    /// Returns each number with how often it comes; there must be at most [`MAX_SLOTS`].
    #[inline]
    fn count(&mut self, numbers: impl Iterator<Item = u32>) -> &[(u32, u32)] {
        self.n = 0;
        for number in numbers {
            match self.counts[..self.n].iter_mut().find(|(found, _)| *found == number) {
                Some((_, count)) => *count += 1,
                None => {
                    self.counts[self.n] = (number, 1);
                    self.n += 1;
                }
            }
        }
        &self.counts[..self.n]
    }
}

/// Finds a cluster for each node by size-constrained label propagation, as [`super::coarsen`] does
/// on levels. A cluster is named by one of its nodes. Nodes are visited in the order of their ids.
pub(super) fn clusters(slots: &Slots, parts: &[PartId], clustering: Clustering) -> HugeVec<u32> {
    let Clustering { max_size, within, seed, .. } = clustering;
    // Sizes take two bytes of a node.
    let max_size = u16::try_from(max_size).unwrap_or(u16::MAX);
    let n_nodes = slots.n_nodes();
    let mut cluster_array = HugeVec::from_fn(n_nodes as usize, |node| node as u32);
    let cluster_of = &mut cluster_array[..];
    let mut sizes = vec![1u16; n_nodes as usize];
    let mut tally = Tally::new();
    for round in 0..ROUNDS {
        let mut n_moved = 0u32;
        for node in 0..n_nodes {
            let (own, own_part) = (cluster_of[node as usize], parts[node as usize]);
            let allowed = |&&v: &&u32| !within || parts[v as usize] == own_part;
            let near = slots.neighbours(node).iter().filter(allowed);
            let pulls = tally.count(near.map(|&v| cluster_of[v as usize]));
            let stay = pulls.iter().find(|&&(cluster, _)| cluster == own).map_or(0, |&(_, n)| n);
            let mut best = (stay, 0, own);
            for &(cluster, pull) in pulls {
                if cluster != own && pull >= best.0 && sizes[cluster as usize] < max_size {
                    let tie = splitmix64(seed ^ round << 32 ^ u64::from(cluster)) | 1;
                    best = best.max((pull, tie, cluster));
                }
            }
            if best.2 != own {
                cluster_of[node as usize] = best.2;
                sizes[own as usize] -= 1;
                sizes[best.2 as usize] += 1;
                n_moved += 1;
            }
        }
        if n_moved <= n_nodes / 50 {
            break;
        }
    }
    cluster_array
}

/// Moves each node, in order, to the partition of most of its neighbours if that has more than its
/// own and has room. Returns the number of nodes moved.
pub(super) fn sweep(lists: &impl Lists, parts: &mut [PartId], loads: &mut LevelLoads) -> u32 {
    let mut pulls = vec![0u32; loads.n_parts()];
    let mut met: Vec<PartId> = Vec::new();
    let mut n_moved = 0;
    for node in 0..lists.n_nodes() {
        let (own, size) = (parts[node as usize], lists.size(node));
        for (neighbour, weight) in lists.edges(node) {
            let part = parts[neighbour as usize];
            let pull = &mut pulls[part.index()];
            if *pull == 0 {
                met.push(part);
            }
            *pull = pull.saturating_add(weight);
        }
        let mut best = (pulls[own.index()], own);
        for part in met.drain(..) {
            let pull = std::mem::take(&mut pulls[part.index()]);
            if pull > best.0 && loads.has_room(part, size) {
                best = (pull, part);
            }
        }
        if best.1 != own {
            loads.shift(own, best.1, size);
            parts[node as usize] = best.1;
            n_moved += 1;
        }
    }
    n_moved
}

/// Moves nodes out of partitions that own too many, those that lose least first.
pub(super) fn relieve(slots: &Slots, parts: &mut [PartId], loads: &mut LevelLoads) {
    let mut tally = Tally::new();
    for most_lost in -(MAX_SLOTS as i64)..=MAX_SLOTS as i64 {
        if !loads.any_over() {
            return;
        }
        for node in 0..slots.n_nodes() {
            let own = parts[node as usize];
            if !loads.is_over(own) {
                continue;
            }
            let near = slots.neighbours(node).iter().map(|&v| u32::from(parts[v as usize].0));
            let pulls = tally.count(near);
            let pull = |part: PartId| {
                let found = pulls.iter().find(|&&(found, _)| found == u32::from(part.0));
                found.map_or(0, |&(_, pull)| i64::from(pull))
            };
            let others = pulls.iter().map(|&(part, _)| PartId(part as u16));
            let to = others
                .chain([loads.least()])
                .filter(|&part| part != own && loads.has_room(part, 1))
                .max_by_key(|&part| (pull(part), Reverse(part)));
            if let Some(to) = to.filter(|&to| pull(own) - pull(to) <= most_lost) {
                loads.shift(own, to, 1);
                parts[node as usize] = to;
            }
        }
    }
}
