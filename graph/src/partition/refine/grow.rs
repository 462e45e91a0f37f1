//! Partitions of a small graph from nothing, by recursive bisection. One side grows from a node by
//! its best neighbour (greedy graph growing; Karypis and Kumar, SIAM J. Sci. Comput. 20, 1998).

use std::ops::Range;

use super::level::{Level, Lists};
use super::queue::Queue;
use crate::ids::PartId;
use crate::splitmix64::splitmix64;

/// Nodes that a side grows from, one after the other; the side of the least cut is kept.
const TRIES: u64 = 4;

/// Returns partitions of about equal size, by the nodes of the graph in them.
pub(super) fn grow(level: &Level, n_parts: u16, seed: u64) -> Vec<PartId> {
    let n_nodes = level.n_nodes();
    let mut growth = Growth {
        level,
        parts: vec![PartId(0); n_nodes as usize],
        grown: vec![false; n_nodes as usize],
        queue: Queue::new(n_nodes),
    };
    let mut order: Vec<u32> = (0..n_nodes).collect();
    order.sort_unstable_by_key(|&node| splitmix64(seed ^ u64::from(node)));
    let mut open = vec![(order, 0..n_parts)];
    while let Some((nodes, range)) = open.pop() {
        if range.len() > 1 && !nodes.is_empty() {
            open.extend(growth.bisect(nodes, range));
        }
    }
    growth.parts
}

/// State of the growth.
struct Growth<'a> {
    level: &'a Level,
    /// The first partition of the range that each node will be in.
    parts: Vec<PartId>,
    /// Nodes on the side that grows.
    grown: Vec<bool>,
    /// Neighbours of that side, by the weight that is no longer cut with them on it.
    queue: Queue,
}

impl Growth<'_> {
    /// Divides `nodes`, which are all of `range`, into two halves of the range.
    fn bisect(&mut self, nodes: Vec<u32>, range: Range<u16>) -> [(Vec<u32>, Range<u16>); 2] {
        let middle = range.start + (range.end - range.start) / 2;
        let n_left = u64::from(middle - range.start);
        let size: u64 = nodes.iter().map(|&node| u64::from(self.level.size(node))).sum();
        let right_size = size - size * n_left / range.len() as u64;
        let stride = nodes.len() / TRIES as usize;
        let sides = (0..TRIES as usize).map(|i| self.side(&nodes, i * stride, right_size));
        let (_, right) = sides.min_by_key(|&(cut, _)| cut).unwrap_or_default();
        for &node in &right {
            self.parts[node as usize] = PartId(middle);
        }
        let stays = |&node: &u32| self.parts[node as usize] == PartId(range.start);
        let left = nodes.into_iter().filter(stays).collect();
        [(left, range.start..middle), (right, middle..range.end)]
    }

    /// Grows a side of about `size` nodes of the graph from `nodes[first]`; returns the weight that
    /// it cuts from the other `nodes`, and the side.
    fn side(&mut self, nodes: &[u32], first: usize, size: u64) -> (i64, Vec<u32>) {
        self.queue.clear();
        let (mut side, mut cut, mut left) = (Vec::new(), 0, size);
        let mut seeds = nodes[first..].iter().chain(&nodes[..first]);
        while left > 0 {
            let next = self.queue.pop();
            let next = next.or_else(|| {
                let seed = seeds.find(|&&node| !self.grown[node as usize])?;
                Some((-self.weight_within(*seed), *seed))
            });
            let Some((gain, node)) = next else { break };
            let of_node = u64::from(self.level.size(node));
            if of_node / 2 > left {
                continue;
            }
            cut -= gain;
            left = left.saturating_sub(of_node);
            side.push(node);
            self.grown[node as usize] = true;
            for (neighbour, weight) in self.level.edges(node) {
                let is_near = self.parts[neighbour as usize] == self.parts[node as usize];
                if is_near && !self.grown[neighbour as usize] {
                    let key = self.queue.key(neighbour);
                    let key = key.unwrap_or_else(|| -self.weight_within(neighbour));
                    self.queue.set(neighbour, key + 2 * i64::from(weight));
                }
            }
        }
        for &node in &side {
            self.grown[node as usize] = false;
        }
        (cut, side)
    }

    /// Returns the weight between `node` and the others of its range.
    fn weight_within(&self, node: u32) -> i64 {
        let own = self.parts[node as usize];
        let within = self.level.edges(node).filter(|&(v, _)| self.parts[v as usize] == own);
        within.map(|(_, weight)| i64::from(weight)).sum()
    }
}
