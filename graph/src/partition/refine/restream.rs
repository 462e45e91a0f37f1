//! Restreaming: nodes near other partitions count their neighbours in each partition over all
//! edges, and go where most of them are.

use super::level::{LevelLoads, Lists};
use super::slots::{MAX_SLOTS, Slots};
use crate::edges::{EdgeError, EdgeStream, for_each_edge};
use crate::ids::PartId;
use crate::splitmix64::splitmix64;

/// Bytes of counters per node of the graph.
const COUNTER_BYTES: u64 = 16;
/// Groups that move one after the other. Neighbours that move together can swap places for ever.
const GROUPS: u64 = 2;

/// Nodes that count, as a set with ranks: a bit for each node, and the rank of each word's first.
pub(super) struct Candidates {
    bits: Vec<u64>,
    ranks: Vec<u32>,
    n: usize,
}

impl Candidates {
    /// Collects the nodes of `chosen`.
    pub(super) fn of(n_nodes: usize, mut chosen: impl FnMut(u32) -> bool) -> Self {
        let mut bits = vec![0u64; n_nodes.div_ceil(64)];
        let (mut ranks, mut n) = (Vec::with_capacity(bits.len()), 0u32);
        for (word, bits) in (0u32..).zip(&mut bits) {
            ranks.push(n);
            let first = word * 64;
            for bit in 0..64.min(n_nodes as u32 - first) {
                *bits |= u64::from(chosen(first + bit)) << bit;
            }
            n += bits.count_ones();
        }
        Self { bits, ranks, n: n as usize }
    }

    /// Returns the number of candidates.
    pub(super) fn len(&self) -> usize {
        self.n
    }

    /// Returns the place of `node` among the candidates.
    #[inline]
    pub(super) fn rank(&self, node: u32) -> Option<usize> {
        let word = self.bits[node as usize / 64];
        let bit = 1u64 << (node % 64);
        let before = || self.ranks[node as usize / 64] + (word & (bit - 1)).count_ones();
        (word & bit != 0).then(|| before() as usize)
    }
}

/// Moves nodes that gain by it, each at most once, while there is room, first those that gain most.
/// Nodes are looked at whose kept neighbours are not all at home. Returns the passes over the
/// edges.
///
/// A node does not see moves of its own group, so that the cut may rise, though it rarely does.
pub(super) fn restream(
    edges: &dyn EdgeStream,
    slots: Slots,
    parts: &mut [PartId],
    loads: &mut LevelLoads,
    seed: u64,
) -> Result<u32, EdgeError> {
    let n_parts = loads.n_parts();
    let most = COUNTER_BYTES * parts.len() as u64 / (2 * n_parts as u64);
    let near = |parts: &[PartId], node: u32| {
        let own = parts[node as usize];
        slots.edges(node).filter(|&(v, _)| parts[v as usize] != own).count()
    };
    // Few counters: those of nodes with many foreign neighbours go first.
    let mut histogram = [0u64; MAX_SLOTS + 1];
    for node in 0..parts.len() as u32 {
        histogram[near(parts, node)] += 1;
    }
    let mut n = 0;
    let least = (1..histogram.len()).rev().take_while(|&i| {
        n += histogram[i];
        n <= most * GROUPS
    });
    let least = least.min().unwrap_or(usize::MAX);
    let group_of = |node: u32| splitmix64(seed ^ u64::from(node)) % GROUPS;
    let groups: Vec<Candidates> = (0..GROUPS)
        .map(|group| {
            Candidates::of(parts.len(), |node| {
                group_of(node) == group && near(parts, node) >= least
            })
        })
        .collect();
    drop(slots);
    let mut n_passes = 0;
    for group in groups {
        if group.len() == 0 {
            continue;
        }
        let counts = count(edges, parts, &group, n_parts)?;
        n_passes += 1;
        place_all(parts, loads, &group, &counts);
    }
    Ok(n_passes)
}

/// Moves the candidates that gain by it, first those that gain most.
fn place_all(parts: &mut [PartId], loads: &mut LevelLoads, group: &Candidates, counts: &[u16]) {
    let n_parts = loads.n_parts();
    let mut gains = Vec::new();
    for node in 0..parts.len() as u32 {
        let Some(rank) = group.rank(node) else { continue };
        let counts = &counts[rank * n_parts..][..n_parts];
        let stay = counts[parts[node as usize].index()];
        let most = counts.iter().max().copied().unwrap_or(0);
        if most > stay {
            gains.push((most - stay, node, rank as u32));
        }
    }
    gains.sort_unstable_by(|a, b| b.cmp(a));
    for (_, node, rank) in gains {
        let counts = &counts[rank as usize * n_parts..][..n_parts];
        place(parts, loads, node as usize, counts);
    }
}

/// Counts the neighbours of each candidate in each partition, over all edges that are no loops.
fn count(
    edges: &dyn EdgeStream,
    parts: &[PartId],
    candidates: &Candidates,
    n_parts: usize,
) -> Result<Vec<u16>, EdgeError> {
    let mut counts = vec![0u16; candidates.len() * n_parts];
    for_each_edge(edges, |u, v| {
        for (node, other) in [(u, v), (v, u)] {
            if let Some(rank) = candidates.rank(node) {
                let count = &mut counts[rank * n_parts + parts[other as usize].index()];
                *count = count.saturating_add(1);
            }
        }
    })?;
    Ok(counts)
}

/// Moves `node` to the partition of most neighbours that has room, if they are more than at home.
fn place(parts: &mut [PartId], loads: &mut LevelLoads, node: usize, counts: &[u16]) {
    let own = parts[node];
    let mut best = (counts[own.index()], own);
    for (part, &count) in (0..).map(PartId).zip(counts) {
        if count > best.0 && loads.has_room(part, 1) {
            best = (count, part);
        }
    }
    if best.1 != own {
        loads.shift(own, best.1, 1);
        parts[node] = best.1;
    }
}
