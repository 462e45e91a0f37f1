//! Sparse-times-dense product of a block and the rows of its source nodes, forward and backward.
//!
//! One message-passing step is linear in the rows: destination `d` receives
//! `Σ_e w_e · x[source(e)]`, beside or on top of its own row. Models choose the weights.

use std::sync::Arc;

use lodestore_graph::batch::Block;
use rayon::prelude::*;

use crate::{
    matrix::dropout::Mask,
    matrix::sparse::{SparsePiece, SparseRows},
    matrix::workspace::Workspace,
};

/// Rows per parallel task; fewer would cost more to hand out than to compute.
pub const ROWS_PER_TASK: usize = 64;

/// One message-passing step over a block.
///
/// Every output row is summed by one thread, in the order of the block's edges. So the result does
/// not depend on the number of threads.
#[derive(Clone, Debug)]
pub struct Spmm {
    block: Arc<Block>,
    edge_weights: Arc<[f32]>,
    own_rows: OwnRows,
}

/// Treatment of a destination's own row.
#[derive(Clone, Debug)]
pub enum OwnRows {
    /// It is before the sum: rows of width 2·d (GraphSAGE, algorithm 1, line 5).
    Beside,
    /// It is added with this weight, one per destination: rows of width d (GCN's self loop).
    Added(Arc<[f32]>),
}

/// Edges of each source, in the order of the block: by rising destination.
#[derive(Clone, Debug)]
pub struct BySource {
    /// Edges of source s: from `ends[s - 1]`, or 0, to `ends[s]`.
    ends: Vec<u32>,
    /// Destination and weight.
    edges: Vec<(u32, f32)>,
}

impl OwnRows {
    /// Returns the elements of an output row when an input row has `width`.
    pub fn out_width(&self, width: usize) -> usize {
        match self {
            Self::Beside => 2 * width,
            Self::Added(_) => width,
        }
    }
}

impl Spmm {
    /// Returns a step with one weight per edge, in the order of `block.sources`.
    ///
    /// # Panics
    ///
    /// When the number of weights does not fit the block.
    #[must_use]
    pub fn new(block: Arc<Block>, edge_weights: Vec<f32>, own_rows: OwnRows) -> Self {
        assert_eq!(edge_weights.len(), block.sources.len(), "one weight per edge");
        if let OwnRows::Added(weights) = &own_rows {
            assert_eq!(weights.len(), block.n_dst as usize, "one weight per destination");
        }
        Self { block, edge_weights: edge_weights.into(), own_rows }
    }

    /// Returns the elements of an output row when an input row has `width`.
    #[must_use]
    pub fn out_width(&self, width: usize) -> usize {
        self.own_rows.out_width(width)
    }

    /// Returns the product of plain rows: `x` has shape (n_src, width), the result (n_dst,
    /// out_width).
    #[must_use]
    pub fn product(&self, x: &[f32], width: usize, workspace: &Workspace) -> Vec<f32> {
        let out_width = self.out_width(width);
        let mut out = workspace.take(self.block.n_dst as usize * out_width);
        if out_width == 0 {
            return out;
        }
        let row_of = |source: usize| &x[source * width..][..width];
        out.par_chunks_mut(ROWS_PER_TASK * out_width).enumerate().for_each(|(task, rows)| {
            for (i, row) in rows.chunks_exact_mut(out_width).enumerate() {
                let dst = task * ROWS_PER_TASK + i;
                let sum = match &self.own_rows {
                    OwnRows::Beside => {
                        let (own, sum) = row.split_at_mut(width);
                        own.copy_from_slice(row_of(dst));
                        sum.fill(0.0);
                        sum
                    }
                    OwnRows::Added(weights) => {
                        row.fill(0.0);
                        add_scaled(row, weights[dst], row_of(dst));
                        row
                    }
                };
                add_neighbours(&self.block, &self.edge_weights, dst, row_of, sum);
            }
        });
        out
    }

    /// Returns the product of sparse rows, after dropout by `mask` of the result.
    pub(crate) fn sparse_product(&self, x: &SparseRows, mask: Option<&Mask>) -> SparseRows {
        let first_of_tasks = (0..self.block.n_dst as usize).into_par_iter().step_by(ROWS_PER_TASK);
        let pieces = first_of_tasks.map(|first| {
            let mut piece = SparsePiece::default();
            let mut sums = SparseSums::new(self.out_width(x.width()));
            for dst in first..(first + ROWS_PER_TASK).min(self.block.n_dst as usize) {
                let (own, sums_from) = match &self.own_rows {
                    OwnRows::Beside => (1.0, x.width() as u32),
                    OwnRows::Added(weights) => (weights[dst], 0),
                };
                x.row(dst).for_each(|(column, value)| sums.add(column, own * value));
                let edges = self.block.offsets[dst] as usize..self.block.offsets[dst + 1] as usize;
                let sources = self.block.sources[edges.clone()].iter();
                for (&source, &weight) in sources.zip(&self.edge_weights[edges]) {
                    for (column, value) in x.row(source as usize) {
                        sums.add(sums_from + column, weight * value);
                    }
                }
                sums.end_row(dst, mask, &mut piece);
            }
            piece
        });
        SparseRows::new(self.out_width(x.width()), pieces.collect())
    }

    /// Returns the first half of each destination's own row plus `Σ_e w_e` times the second halves
    /// of its neighbours. The result has rows of `width`, the input rows of twice that.
    pub(crate) fn product_of_halves(&self, x: &[f32], width: usize) -> Vec<f32> {
        let mut out = vec![0.0; self.block.n_dst as usize * width];
        let rows = out.par_chunks_exact_mut(width.max(1)).enumerate();
        rows.with_min_len(ROWS_PER_TASK).for_each(|(dst, row)| {
            row.copy_from_slice(&x[2 * dst * width..][..width]);
            let row_of = |source: usize| &x[(2 * source + 1) * width..][..width];
            add_neighbours(&self.block, &self.edge_weights, dst, row_of, row);
        });
        out
    }

    /// Returns the transposed product: the gradient of the input rows from that of the output rows.
    ///
    /// Every row is summed by one thread. The part of its own row is added at the place of that
    /// destination among the edges. This is the order in which a walk over destinations would add
    /// to the row.
    pub(crate) fn transposed_product(
        &self,
        grad: &[f32],
        width: usize,
        workspace: &Workspace,
    ) -> Vec<f32> {
        let out_width = self.out_width(width);
        let mut sum = workspace.take(self.block.n_src as usize * width);
        if width == 0 {
            return sum;
        }
        let (own_of, sums_from) = match &self.own_rows {
            OwnRows::Beside => (None, width),
            OwnRows::Added(weights) => (Some(weights), 0),
        };
        let grad_row = |dst: usize| &grad[dst * out_width..][..out_width];
        let by_source = BySource::of(&self.block, &self.edge_weights);
        sum.par_chunks_mut(ROWS_PER_TASK * width).enumerate().for_each(|(task, rows)| {
            for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                let source = task * ROWS_PER_TASK + i;
                let [below, others] = by_source.around(source);
                row.fill(0.0);
                let add = |row: &mut [f32], edges: &[(u32, f32)]| {
                    for &(dst, weight) in edges {
                        add_scaled(row, weight, &grad_row(dst as usize)[sums_from..]);
                    }
                };
                add(row, below);
                if source < self.block.n_dst as usize {
                    let weight = own_of.map_or(1.0, |weights| weights[source]);
                    add_scaled(row, weight, &grad_row(source)[..width]);
                }
                add(row, others);
            }
        });
        sum
    }
}

/// A row that is summed from sparse ones.
struct SparseSums {
    /// Zeros but for the columns of the present row.
    sums: Vec<f32>,
    is_there: Vec<bool>,
    /// Columns of the present row, in the order in which they came.
    columns: Vec<u32>,
}

impl SparseSums {
    fn new(width: usize) -> Self {
        Self { sums: vec![0.0; width], is_there: vec![false; width], columns: Vec::new() }
    }

    fn add(&mut self, column: u32, value: f32) {
        let at = column as usize;
        self.sums[at] += value;
        if !self.is_there[at] {
            self.is_there[at] = true;
            self.columns.push(column);
        }
    }

    /// Appends the row of destination `dst` to `piece`, and begins the next.
    fn end_row(&mut self, dst: usize, mask: Option<&Mask>, piece: &mut SparsePiece) {
        let elements = self.columns.iter().map(|&column| (column, self.sums[column as usize]));
        match mask {
            Some(mask) => mask.push_row(dst, elements, piece),
            None => {
                elements.for_each(|(column, sum)| piece.push(column, sum));
                piece.end_row();
            }
        }
        for column in self.columns.drain(..) {
            self.sums[column as usize] = 0.0;
            self.is_there[column as usize] = false;
        }
    }
}

/// Adds `Σ_e w_e · x(source(e))` over the edges of destination `dst` of `block` to `sum`, in their
/// order.
pub fn add_neighbours<'x>(
    block: &Block,
    weights: &[f32],
    dst: usize,
    x: impl Fn(usize) -> &'x [f32],
    sum: &mut [f32],
) {
    let edges = block.offsets[dst] as usize..block.offsets[dst + 1] as usize;
    for (&source, &weight) in block.sources[edges.clone()].iter().zip(&weights[edges]) {
        add_scaled(sum, weight, x(source as usize));
    }
}

/// Computes `row += weight * x`.
pub fn add_scaled(row: &mut [f32], weight: f32, x: &[f32]) {
    for (sum, &value) in row.iter_mut().zip(x) {
        *sum += weight * value;
    }
}

impl BySource {
    /// Sorts by counting; memory: 8 bytes an edge and 4 bytes a source.
    pub fn of(block: &Block, weights: &[f32]) -> Self {
        let mut ends = vec![0u32; block.n_src as usize + 1];
        for &source in &block.sources {
            ends[source as usize + 1] += 1;
        }
        for source in 0..block.n_src as usize {
            ends[source + 1] += ends[source];
        }
        // The start of a source becomes its end once all its edges are in place.
        ends.pop();
        let mut edges = vec![(0, 0.0); block.sources.len()];
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
    pub fn around(&self, source: usize) -> [&[(u32, f32)]; 2] {
        let start = source.checked_sub(1).map_or(0, |before| self.ends[before]);
        let edges = &self.edges[start as usize..self.ends[source] as usize];
        let n_below = edges.partition_point(|&(dst, _)| (dst as usize) < source);
        let (below, others) = edges.split_at(n_below);
        [below, others]
    }
}

#[cfg(test)]
mod tests;
