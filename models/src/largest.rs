//! The largest element of each column over a block's edges, forward and backward.

use std::sync::{Arc, OnceLock};

use lodestore_graph::batch::Block;
use rayon::prelude::*;

use crate::{
    matrix::dropout::Mask,
    matrix::sparse::{SparsePiece, SparseRows},
    matrix::spmm::{BySource, ROWS_PER_TASK},
    matrix::workspace::Workspace,
};

/// The edge of a destination that has none.
const NO_EDGE: u32 = u32::MAX;

/// One message-passing step: each destination's own row beside the largest elements of its sampled
/// neighbours' rows, or zeros without neighbours. Among equal elements that of the first edge
/// counts, so that the gradient is one edge's. NaN is larger than any number.
#[derive(Clone, Debug)]
pub struct Largest {
    block: Arc<Block>,
    /// The edges by source, once a gradient has needed them.
    by_source: OnceLock<BySource<u32>>,
}

/// The edge that each element of a destination came by.
#[derive(Debug)]
pub struct Winners(Vec<u32>);

impl Largest {
    /// Returns the step over the edges of `block`.
    pub fn new(block: Arc<Block>) -> Self {
        Self { block, by_source: OnceLock::new() }
    }

    /// Returns rows of twice the `width` of `x`, and the edges that their elements came by.
    pub fn product(&self, x: &[f32], width: usize, workspace: &Workspace) -> (Vec<f32>, Winners) {
        let n_dst = self.block.n_dst as usize;
        let mut out = workspace.take(n_dst * 2 * width);
        let mut winners = vec![NO_EDGE; n_dst * width];
        let rows = out.par_chunks_exact_mut(2 * width.max(1)).enumerate();
        let rows = rows.zip(winners.par_chunks_exact_mut(width.max(1)));
        rows.with_min_len(ROWS_PER_TASK).for_each(|((dst, row), winners)| {
            let (own, largest) = row.split_at_mut(width);
            own.copy_from_slice(&x[dst * width..][..width]);
            largest.fill(0.0);
            for edge in self.block.offsets[dst]..self.block.offsets[dst + 1] {
                let source = self.block.sources[edge as usize] as usize;
                let elements = largest.iter_mut().zip(&mut *winners);
                for (&value, (largest, winner)) in x[source * width..].iter().zip(elements) {
                    if *winner == NO_EDGE || is_larger(value, *largest) {
                        (*largest, *winner) = (value, edge);
                    }
                }
            }
        });
        (out, Winners(winners))
    }

    /// Returns the product of sparse rows, after dropout by `mask` of the result. An element that
    /// one of the neighbours lacks is a zero of that one.
    pub fn sparse_product(&self, x: &SparseRows, mask: Option<&Mask>) -> SparseRows {
        let width = x.width();
        let first_of_tasks = (0..self.block.n_dst as usize).into_par_iter().step_by(ROWS_PER_TASK);
        let pieces = first_of_tasks.map(|first| {
            let mut piece = SparsePiece::default();
            // How many neighbours have an element in each column, and the largest of these.
            let mut found = vec![(0u32, 0.0f32); width];
            for dst in first..(first + ROWS_PER_TASK).min(self.block.n_dst as usize) {
                let edges = self.block.offsets[dst] as usize..self.block.offsets[dst + 1] as usize;
                let (n_edges, mut columns) = (edges.len() as u32, Vec::new());
                for &source in &self.block.sources[edges] {
                    for (column, value) in x.row(source as usize) {
                        let (n, largest) = &mut found[column as usize];
                        if *n == 0 {
                            columns.push(column);
                        }
                        if *n == 0 || is_larger(value, *largest) {
                            *largest = value;
                        }
                        *n += 1;
                    }
                }
                let largest = columns.iter().map(|&column| {
                    let (n, largest) = std::mem::take(&mut found[column as usize]);
                    let is_below = n < n_edges && is_larger(0.0, largest);
                    (width as u32 + column, if is_below { 0.0 } else { largest })
                });
                let elements = x.row(dst).chain(largest);
                match mask {
                    Some(mask) => mask.push_row(dst, elements, &mut piece),
                    None => {
                        elements.for_each(|(column, value)| piece.push(column, value));
                        piece.end_row();
                    }
                }
            }
            piece
        });
        SparseRows::new(2 * width, pieces.collect())
    }

    /// Returns the gradient of the input rows from that of the output rows. Each row is summed by
    /// one thread, in the order in which a walk over destinations would add to it.
    pub fn transposed_product(
        &self,
        winners: &Winners,
        grad: &[f32],
        width: usize,
        workspace: &Workspace,
    ) -> Vec<f32> {
        let mut sum = workspace.take(self.block.n_src as usize * width);
        let by_source = self.by_source.get_or_init(|| {
            let edges: Vec<u32> = (0..self.block.sources.len() as u32).collect();
            BySource::of(&self.block, &edges)
        });
        let rows = sum.par_chunks_exact_mut(width.max(1)).enumerate();
        rows.with_min_len(ROWS_PER_TASK).for_each(|(source, row)| {
            let add = |row: &mut [f32], edges: &[(u32, u32)]| {
                for &(dst, edge) in edges {
                    let dst = dst as usize;
                    let winners = &winners.0[dst * width..][..width];
                    let grad = &grad[(2 * dst + 1) * width..][..width];
                    for (sum, (&winner, grad)) in row.iter_mut().zip(winners.iter().zip(grad)) {
                        if winner == edge {
                            *sum += grad;
                        }
                    }
                }
            };
            let [below, others] = by_source.around(source);
            row.fill(0.0);
            add(row, below);
            if source < self.block.n_dst as usize {
                let own = &grad[2 * source * width..][..width];
                row.iter_mut().zip(own).for_each(|(sum, grad)| *sum += grad);
            }
            add(row, others);
        });
        sum
    }
}

/// Returns whether `value` takes the place of `largest`.
fn is_larger(value: f32, largest: f32) -> bool {
    value > largest || value.is_nan() && !largest.is_nan()
}
