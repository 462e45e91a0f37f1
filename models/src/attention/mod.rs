//! Attention over a block, head by head: scores, softmax within each destination, weighted sum.
//! Forward and backward.
//!
//! A destination attends to its sampled in-neighbours and to itself (Velickovic et al. 2018,
//! section 2.1): see [`Entries`]. An edge from a destination to itself is not counted twice: it
//! weighs 0.
//!
//! Every sum is taken by one thread in the order of the entries, so results do not depend on
//! threads.

mod coefficients;
mod weighted_sum;

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
};

use lodestore_graph::batch::Block;

pub(crate) use coefficients::{head_score_gradients, head_scores};

/// Slope of LeakyReLU below 0 (section 2.1).
const NEGATIVE_SLOPE: f32 = 0.2;

/// A block with its **entries**: destination `d` has its edges in the order of the block, then
/// itself, at `offsets[d] + d..=offsets[d + 1] + d`.
#[derive(Debug)]
pub struct Entries {
    block: Arc<Block>,
    by_source: OnceLock<EntriesBySource>,
}

/// Uses of each source, in the order of the entries. A sum over them adds the same terms in the
/// same order as a walk over all entries.
#[derive(Debug)]
struct EntriesBySource {
    /// Where each source's uses begin, then where the last one's end.
    starts: Vec<u32>,
    /// Entry and destination.
    uses: Vec<[u32; 2]>,
}

impl Entries {
    /// Returns the entries of `block`.
    pub fn of(block: &Arc<Block>) -> Arc<Self> {
        Arc::new(Self { block: Arc::clone(block), by_source: OnceLock::new() })
    }

    /// Returns the number of entries.
    fn len(&self) -> usize {
        self.block.sources.len() + self.n_dst()
    }

    pub(crate) fn n_dst(&self) -> usize {
        self.block.n_dst as usize
    }

    /// Returns the entries of destination `dst`; the last is its own.
    fn of_destination(&self, dst: usize) -> Range<usize> {
        let offsets = &self.block.offsets;
        offsets[dst] as usize + dst..offsets[dst + 1] as usize + dst + 1
    }

    /// Returns the sources of the entries of destination `dst`, in order, itself last.
    fn sources_of(&self, dst: usize) -> impl Iterator<Item = usize> {
        let edges = self.block.offsets[dst] as usize..self.block.offsets[dst + 1] as usize;
        self.block.sources[edges].iter().map(|&source| source as usize).chain([dst])
    }

    /// Cuts `values`, of which each entry has `width`, into the entries of that many destinations
    /// each: the first destination of each piece, and the piece.
    fn pieces<'v>(
        &self,
        mut values: &'v mut [f32],
        width: usize,
        n_destinations: usize,
    ) -> Vec<(Range<usize>, &'v mut [f32])> {
        let mut pieces = Vec::with_capacity(self.n_dst().div_ceil(n_destinations));
        for first in (0..self.n_dst()).step_by(n_destinations) {
            let end = self.n_dst().min(first + n_destinations);
            let n_entries = self.of_destination(end - 1).end - self.of_destination(first).start;
            let (piece, rest) = values.split_at_mut(n_entries * width);
            pieces.push((first..end, piece));
            values = rest;
        }
        pieces
    }

    /// Returns the entries that use `source`, in order, each with its destination. The first call
    /// sorts all entries, in 8 bytes each.
    fn uses_of(&self, source: usize) -> impl Iterator<Item = [usize; 2]> {
        let EntriesBySource { starts, uses } = self.by_source.get_or_init(|| self.sort());
        let uses = &uses[starts[source] as usize..starts[source + 1] as usize];
        uses.iter().map(|of_use| of_use.map(|number| number as usize))
    }

    fn sort(&self) -> EntriesBySource {
        let mut starts = vec![0_u32; self.block.n_src as usize + 2];
        let destinations = 0..self.n_dst();
        for source in destinations.clone().flat_map(|dst| self.sources_of(dst)) {
            starts[source + 2] += 1;
        }
        for source in 2..starts.len() {
            starts[source] += starts[source - 1];
        }
        // The next place of each source, which ends as the first place of the next source.
        let mut uses = vec![[0; 2]; self.len()];
        for dst in destinations {
            for (entry, source) in self.of_destination(dst).zip(self.sources_of(dst)) {
                let place = &mut starts[source + 1];
                uses[*place as usize] = [entry as u32, dst as u32];
                *place += 1;
            }
        }
        starts.pop();
        EntriesBySource { starts, uses }
    }
}

#[cfg(test)]
mod tests;
