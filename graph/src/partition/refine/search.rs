//! Local search on one level: moves of single nodes between any two partitions, with hill climbing
//! (Fiduccia and Mattheyses, DAC 1982).

use std::cmp::Reverse;

use super::level::{Level, LevelLoads, Lists};
use super::queue::Queue;
use crate::ids::PartId;

/// Passes over one level, if each finds something.
const MAX_PASSES: u32 = 8;

/// Improves `parts` until a pass finds nothing; before that empties what is over capacity, as far
/// as nodes of this level are small enough.
pub(super) fn improve(level: &Level, parts: &mut [PartId], loads: &mut LevelLoads) {
    let mut search = Search {
        queue: Queue::new(level.n_nodes()),
        moved: vec![false; parts.len()],
        pulls: vec![0; loads.n_parts()],
        met: Vec::new(),
        level,
        parts,
        loads,
    };
    search.relieve();
    for _ in 0..MAX_PASSES {
        if search.pass() == 0 {
            break;
        }
    }
}

/// State of the search.
struct Search<'a> {
    level: &'a Level,
    parts: &'a mut [PartId],
    loads: &'a mut LevelLoads,
    /// Nodes that may move, by a bound of what that gains.
    queue: Queue,
    /// Nodes that have moved in this pass.
    moved: Vec<bool>,
    /// Weight between one node and each partition; 0 between uses.
    pulls: Vec<i64>,
    /// Partitions whose weight is not 0.
    met: Vec<PartId>,
}

impl Search<'_> {
    /// Makes one pass; each node moves once at most. Returns the weight that is no longer cut.
    fn pass(&mut self) -> i64 {
        self.moved.fill(false);
        self.queue.clear();
        for node in 0..self.level.n_nodes() {
            let own = self.parts[node as usize];
            if self.level.edges(node).any(|(other, _)| self.parts[other as usize] != own) {
                self.enqueue(node);
            }
        }
        // Moves beyond the best state seen, before the search gives up.
        let patience = (self.level.n_nodes() as usize / 50).clamp(200, 10_000);
        let (mut gained, mut most_gained, mut n_kept) = (0, 0, 0);
        let mut moves: Vec<(u32, PartId)> = Vec::new();
        while let Some((bound, node)) = self.queue.pop() {
            let Some((gain, to)) = self.best_move(node) else { continue };
            if gain < bound {
                self.queue.set(node, gain);
                continue;
            }
            moves.push((node, self.parts[node as usize]));
            self.apply(node, to);
            gained += gain;
            if gained > most_gained {
                (most_gained, n_kept) = (gained, moves.len());
            } else if moves.len() - n_kept > patience {
                break;
            }
        }
        for &(node, from) in moves[n_kept..].iter().rev() {
            let to = std::mem::replace(&mut self.parts[node as usize], from);
            self.loads.shift(to, from, self.level.size(node));
        }
        most_gained
    }

    /// Returns the best partition with room for `node` among its neighbours', and what moving there
    /// gains.
    fn best_move(&mut self, node: u32) -> Option<(i64, PartId)> {
        let (own, size) = (self.parts[node as usize], self.level.size(node));
        for (neighbour, weight) in self.level.edges(node) {
            let part = self.parts[neighbour as usize];
            let pull = &mut self.pulls[part.index()];
            if *pull == 0 {
                self.met.push(part);
            }
            *pull += i64::from(weight);
        }
        let stay = self.pulls[own.index()];
        let mut best = None;
        for part in self.met.drain(..) {
            let pull = std::mem::take(&mut self.pulls[part.index()]);
            if part != own && self.loads.has_room(part, size) {
                best = best.max(Some((pull - stay, Reverse(self.loads.load(part)), part)));
            }
        }
        best.map(|(gain, _, part)| (gain, part))
    }

    fn enqueue(&mut self, node: u32) {
        if let Some((gain, _)) = self.best_move(node) {
            self.queue.set(node, gain);
        }
    }

    /// Moves `node`, and raises the bounds of neighbours that may gain more by it.
    fn apply(&mut self, node: u32, to: PartId) {
        let from = std::mem::replace(&mut self.parts[node as usize], to);
        self.loads.shift(from, to, self.level.size(node));
        self.moved[node as usize] = true;
        let level = self.level;
        for (neighbour, weight) in level.edges(node) {
            let part = self.parts[neighbour as usize];
            if self.moved[neighbour as usize] || part == to {
                continue;
            }
            // The exact gain is found when the node comes up.
            let raise = if part == from { 2 * i64::from(weight) } else { i64::from(weight) };
            match self.queue.key(neighbour) {
                Some(bound) => self.queue.set(neighbour, bound + raise),
                None => self.enqueue(neighbour),
            }
        }
    }

    /// Moves nodes out of partitions that own too many, those that lose least first.
    fn relieve(&mut self) {
        if !self.loads.any_over() {
            return;
        }
        self.queue.clear();
        for node in 0..self.level.n_nodes() {
            if self.loads.is_over(self.parts[node as usize])
                && let Some((gain, _)) = self.relieving_move(node)
            {
                self.queue.set(node, gain);
            }
        }
        while let Some((bound, node)) = self.queue.pop() {
            if !self.loads.is_over(self.parts[node as usize]) {
                continue;
            }
            match self.relieving_move(node) {
                Some((gain, to)) if gain >= bound => {
                    let from = std::mem::replace(&mut self.parts[node as usize], to);
                    self.loads.shift(from, to, self.level.size(node));
                }
                Some((gain, _)) => self.queue.set(node, gain),
                None => {}
            }
        }
    }

    /// Returns the best move to a neighbour's partition with room, else to the least occupied one.
    fn relieving_move(&mut self, node: u32) -> Option<(i64, PartId)> {
        if let Some(found) = self.best_move(node) {
            return Some(found);
        }
        let (own, least) = (self.parts[node as usize], self.loads.least());
        let room = least != own && self.loads.has_room(least, self.level.size(node));
        let inside = self.level.edges(node).filter(|&(v, _)| self.parts[v as usize] == own);
        room.then(|| (-inside.map(|(_, weight)| i64::from(weight)).sum::<i64>(), least))
    }
}
