//! The aggregation over a partition's edges, with its transpose, both made once for a run.

use std::sync::Arc;

use lodestore_graph::batch::Block;
use lodestore_graph::halo::part_graph::PartGraph;
use lodestore_models::matrix::spmm::{
    BySource, OwnRows, ROWS_PER_TASK, add_neighbours, add_scaled,
};
use rayon::prelude::*;

/// Weights of the edges of a partition, by destination and by source.
///
/// Each row of a product is summed by one thread, in the order of the edges. Its bits depend
/// neither on the number of threads nor on when it is computed.
#[derive(Clone, Debug)]
pub(crate) struct Operator {
    block: Arc<Block>,
    is_boundary: Vec<bool>,
    weights: Vec<f32>,
    by_source: BySource,
    /// A row that is beside is in the output already where rows are transformed first.
    pub(super) own: OwnRows,
}

/// Destinations that are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destinations {
    All,
    /// Those without a neighbour in the halo.
    Inner,
    /// The others.
    Boundary,
}

/// Kind of a product's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The whole aggregated row.
    Whole,
    /// Contribution of the neighbours to a row that is there.
    Onto,
}

/// Rows of own nodes, and of the halo.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sources<'a> {
    pub(crate) own: &'a [f32],
    pub(crate) halo: &'a [f32],
    pub(crate) width: usize,
}

/// Sources that a gradient is computed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Own,
    Halo,
}

impl Operator {
    /// Makes GCN's operator (Kipf and Welling 2017, equation 2), normalised by `degrees` in the
    /// whole graph, which are given by local id.
    pub(crate) fn normalised(graph: &PartGraph, degrees: &[u32]) -> Self {
        let plus_1: Vec<f32> = degrees.iter().map(|&degree| degree as f32 + 1.0).collect();
        let weight =
            |dst: usize, source: u32, _: u32| 1.0 / (plus_1[source as usize] * plus_1[dst]).sqrt();
        let own = plus_1[..graph.n_own].iter().map(|degree| 1.0 / degree).collect();
        Self::new(graph, weight, OwnRows::Added(own))
    }

    /// Makes GraphSAGE's operator: means of those neighbours that a partition has.
    pub(crate) fn mean(graph: &PartGraph) -> Self {
        Self::new(graph, |_, _, n_edges| 1.0 / n_edges as f32, OwnRows::Beside)
    }

    /// Makes an operator by the weight of each edge: its destination, its source, and the number of
    /// edges of that destination.
    fn new(graph: &PartGraph, weight: impl Fn(usize, u32, u32) -> f32, own: OwnRows) -> Self {
        let block = Arc::clone(&graph.block);
        let mut weights = Vec::with_capacity(block.sources.len());
        for (dst, bounds) in block.offsets.windows(2).enumerate() {
            let sources = &block.sources[bounds[0] as usize..bounds[1] as usize];
            weights.extend(sources.iter().map(|&of| weight(dst, of, bounds[1] - bounds[0])));
        }
        let by_source = BySource::of(&block, &weights);
        Self { block, is_boundary: graph.is_boundary.clone(), weights, by_source, own }
    }

    /// Computes the rows of some destinations in `out`.
    pub(crate) fn aggregate(
        &self,
        x: Sources<'_>,
        form: Form,
        which: Destinations,
        out: &mut [f32],
    ) {
        let (width, n_own) = (x.width, self.block.n_dst as usize);
        let out_width = if form == Form::Whole { self.own.out_width(width) } else { width };
        let is_computed = |dst: usize| match which {
            Destinations::All => true,
            Destinations::Inner => !self.is_boundary[dst],
            Destinations::Boundary => self.is_boundary[dst],
        };
        let rows = out.par_chunks_exact_mut(out_width.max(1)).enumerate();
        let rows = rows.with_min_len(ROWS_PER_TASK).filter(|(dst, _)| is_computed(*dst));
        rows.for_each(|(dst, row)| {
            let own = &x.own[dst * width..][..width];
            let sum = match (form, &self.own) {
                (Form::Whole, OwnRows::Beside) => {
                    row[..width].copy_from_slice(own);
                    let sum = &mut row[width..];
                    sum.fill(0.0);
                    sum
                }
                (Form::Whole, OwnRows::Added(weights)) => {
                    row.fill(0.0);
                    add_scaled(row, weights[dst], own);
                    row
                }
                (Form::Onto, _) => row,
            };
            let row_of = |source: usize| match source.checked_sub(n_own) {
                None => &x.own[source * width..][..width],
                Some(at) => &x.halo[at * width..][..width],
            };
            add_neighbours(&self.block, &self.weights, dst, row_of, sum);
        });
    }

    /// Computes in `out` the gradient of the rows of `width` on one side, from that of the product.
    pub(crate) fn transposed(
        &self,
        grad: &[f32],
        form: Form,
        side: Side,
        width: usize,
        out: &mut [f32],
    ) {
        let n_own = self.block.n_dst as usize;
        let (grad_width, sums_from) = match (form, &self.own) {
            (Form::Whole, OwnRows::Beside) => (2 * width, width),
            _ => (width, 0),
        };
        let first = if side == Side::Own { 0 } else { n_own };
        let rows = out.par_chunks_exact_mut(width.max(1)).enumerate();
        rows.with_min_len(ROWS_PER_TASK).for_each(|(at, row)| {
            let source = first + at;
            row.fill(0.0);
            let [below, others] = self.by_source.around(source);
            let add = |row: &mut [f32], edges: &[(u32, f32)]| {
                for &(dst, weight) in edges {
                    let grad = &grad[dst as usize * grad_width + sums_from..][..width];
                    add_scaled(row, weight, grad);
                }
            };
            add(row, below);
            if side == Side::Own && form == Form::Whole {
                let weight = match &self.own {
                    OwnRows::Added(weights) => weights[source],
                    OwnRows::Beside => 1.0,
                };
                add_scaled(row, weight, &grad[source * grad_width..][..width]);
            }
            add(row, others);
        });
    }
}
