//! The edges of a block by their sources, so that every row of a gradient is one thread's.

use lodestore_graph::batch::Block;

/// Edges of each source, in the order of the block: by rising destination.
#[derive(Clone, Debug)]
pub(crate) struct BySource<T> {
    /// Edges of source s: from `ends[s - 1]`, or 0, to `ends[s]`.
    ends: Vec<u32>,
    /// Destination and weight.
    edges: Vec<(u32, T)>,
}

impl<T: Copy + Default> BySource<T> {
    /// Sorts by counting; memory: 8 bytes an edge and 4 bytes a source.
    pub(crate) fn of(block: &Block, weights: &[T]) -> Self {
        let mut ends = vec![0u32; block.n_src as usize + 1];
        for &source in &block.sources {
            ends[source as usize + 1] += 1;
        }
        for source in 0..block.n_src as usize {
            ends[source + 1] += ends[source];
        }
        // The start of a source becomes its end once all its edges are in place.
        ends.pop();
        let mut edges = vec![(0, T::default()); block.sources.len()];
        for (dst, bounds) in (0u32..).zip(block.offsets.windows(2)) {
            let of_dst = bounds[0] as usize..bounds[1] as usize;
            for (&source, &weight) in block.sources[of_dst.clone()].iter().zip(&weights[of_dst]) {
                let place = &mut ends[source as usize];
                edges[*place as usize] = (dst, weight);
                *place += 1;
            }
        }
        Self { ends, edges }
    }

    /// Returns the edges from `source` to destinations below it, and to the others.
    pub(crate) fn around(&self, source: usize) -> [&[(u32, T)]; 2] {
        let start = source.checked_sub(1).map_or(0, |before| self.ends[before]);
        let edges = &self.edges[start as usize..self.ends[source] as usize];
        let n_below = edges.partition_point(|&(dst, _)| (dst as usize) < source);
        let (below, others) = edges.split_at(n_below);
        [below, others]
    }
}
