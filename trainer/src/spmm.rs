//! Sparse-times-dense product of a block and the rows of its source nodes, forward and backward.
//!
//! One message-passing step is linear in the rows: destination `d` receives
//! `Σ_e w_e · x[source(e)]`, beside or on top of its own row. Models choose the weights.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use lodestore_graph::batch::Block;
use rayon::prelude::*;

/// Rows per parallel task; fewer would cost more to hand out than to compute.
const ROWS_PER_TASK: usize = 64;

/// One message-passing step over a block.
///
/// Every output row is summed by one thread in the order of the block's edges, so the result
/// does not depend on the number of threads.
#[derive(Clone, Debug)]
pub(crate) struct Spmm {
    block: Arc<Block>,
    edge_weights: Arc<[f32]>,
    own_rows: OwnRows,
}

/// What becomes of a destination's own row.
#[derive(Clone, Debug)]
pub(crate) enum OwnRows {
    /// It stands before the sum: rows of width 2·d (GraphSAGE, algorithm 1, line 5).
    Beside,
    /// It is added with this weight, one per destination: rows of width d (GCN's self loop).
    Added(Arc<[f32]>),
}

impl Spmm {
    /// A step with one weight per edge, in the order of `block.sources`.
    ///
    /// # Panics
    ///
    /// When the number of weights does not fit the block.
    #[must_use]
    pub(crate) fn new(block: Arc<Block>, edge_weights: Vec<f32>, own_rows: OwnRows) -> Self {
        assert_eq!(edge_weights.len(), block.sources.len(), "one weight per edge");
        if let OwnRows::Added(weights) = &own_rows {
            assert_eq!(weights.len(), block.n_dst as usize, "one weight per destination");
        }
        Self { block, edge_weights: edge_weights.into(), own_rows }
    }

    /// The block.
    #[must_use]
    pub(crate) fn block(&self) -> &Block {
        &self.block
    }

    /// What becomes of own rows.
    #[must_use]
    pub(crate) fn own_rows(&self) -> &OwnRows {
        &self.own_rows
    }

    /// Elements of an output row when an input row has `width`.
    #[must_use]
    pub(crate) fn out_width(&self, width: usize) -> usize {
        match self.own_rows {
            OwnRows::Beside => 2 * width,
            OwnRows::Added(_) => width,
        }
    }

    /// The product of plain rows: `x` has shape (n_src, width), the result (n_dst, out_width).
    #[must_use]
    pub(crate) fn product(&self, x: &[f32], width: usize) -> Vec<f32> {
        let out_width = self.out_width(width);
        let mut out = vec![0.0; self.block.n_dst as usize * out_width];
        if out_width == 0 {
            return out;
        }
        out.par_chunks_mut(ROWS_PER_TASK * out_width).enumerate().for_each(|(task, rows)| {
            for (i, row) in rows.chunks_exact_mut(out_width).enumerate() {
                let dst = task * ROWS_PER_TASK + i;
                let own = &x[dst * width..][..width];
                match &self.own_rows {
                    OwnRows::Beside => {
                        row[..width].copy_from_slice(own);
                        self.add_neighbours(dst, x, &mut row[width..]);
                    }
                    OwnRows::Added(weights) => {
                        add_scaled(row, weights[dst], own);
                        self.add_neighbours(dst, x, row);
                    }
                }
            }
        });
        out
    }

    /// Adds `Σ_e w_e · x[source(e)]` over the edges of destination `dst` to `row`.
    pub(crate) fn add_neighbours(&self, dst: usize, x: &[f32], row: &mut [f32]) {
        let width = row.len();
        let edges = self.block.offsets[dst] as usize..self.block.offsets[dst + 1] as usize;
        for (&source, &weight) in
            self.block.sources[edges.clone()].iter().zip(&self.edge_weights[edges])
        {
            add_scaled(row, weight, &x[source as usize * width..][..width]);
        }
    }

    /// The transposed product: the gradient of the input rows from that of the output rows.
    ///
    /// Sequential, because different destinations add to the same source row; hidden rows are
    /// narrow, and the gradient of the wide input rows is never needed.
    fn transposed_product(&self, grad: &[f32], width: usize) -> Vec<f32> {
        let out_width = self.out_width(width);
        let mut sum = vec![0.0; self.block.n_src as usize * width];
        if width == 0 {
            return sum;
        }
        for (dst, grad_row) in grad.chunks_exact(out_width).enumerate() {
            let own = &mut sum[dst * width..][..width];
            let grad_sum = match &self.own_rows {
                OwnRows::Beside => {
                    add_scaled(own, 1.0, &grad_row[..width]);
                    &grad_row[width..]
                }
                OwnRows::Added(weights) => {
                    add_scaled(own, weights[dst], grad_row);
                    grad_row
                }
            };
            let edges = self.block.offsets[dst] as usize..self.block.offsets[dst + 1] as usize;
            for (&source, &weight) in
                self.block.sources[edges.clone()].iter().zip(&self.edge_weights[edges])
            {
                add_scaled(&mut sum[source as usize * width..][..width], weight, grad_sum);
            }
        }
        sum
    }

    /// The product as a tensor operation that gradients pass through.
    pub(crate) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        x.contiguous()?.apply_op1(self.clone())
    }
}

impl CustomOp1 for Spmm {
    fn name(&self) -> &'static str {
        "spmm"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (n_src, width) = layout.shape().dims2()?;
        if n_src != self.block.n_src as usize {
            candle_core::bail!("spmm: the block has {} sources, x {n_src} rows", self.block.n_src);
        }
        let out = self.product(contiguous(storage, layout)?, width);
        let shape = (self.block.n_dst as usize, self.out_width(width)).into();
        Ok((CpuStorage::F32(out), shape))
    }

    fn bwd(&self, arg: &Tensor, _res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let (_, width) = arg.dims2()?;
        let grad = grad.contiguous()?;
        let (storage, layout) = grad.storage_and_layout();
        let candle_core::Storage::Cpu(storage) = &*storage else {
            candle_core::bail!("spmm runs on the CPU only")
        };
        let sum = self.transposed_product(contiguous(storage, layout)?, width);
        Tensor::from_vec(sum, arg.shape(), arg.device()).map(Some)
    }
}

/// The f32 elements of a contiguous tensor.
pub(crate) fn contiguous<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        candle_core::bail!("expected a contiguous tensor, found strides {:?}", layout.stride())
    };
    Ok(&storage.as_slice::<f32>()?[start..end])
}

/// `row += weight * x`.
fn add_scaled(row: &mut [f32], weight: f32, x: &[f32]) {
    for (sum, &value) in row.iter_mut().zip(x) {
        *sum += weight * value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::CounterRandom;
    use candle_core::{Device, Var};

    /// 5 sources, 3 destinations: one without edges, one with a repeated source.
    fn block() -> Arc<Block> {
        Arc::new(Block {
            n_src: 5,
            n_dst: 3,
            offsets: vec![0, 3, 3, 5],
            sources: vec![1, 4, 4, 0, 3],
        })
    }

    fn ops() -> [Spmm; 2] {
        let weights = vec![0.5, -1.0, 2.0, 0.25, 1.0];
        let own: Arc<[f32]> = vec![0.5, 1.0, -0.5].into();
        [
            Spmm::new(block(), weights.clone(), OwnRows::Beside),
            Spmm::new(block(), weights, OwnRows::Added(own)),
        ]
    }

    fn values(n: usize, stream: u64) -> Vec<f32> {
        let random = CounterRandom::new(3, stream);
        (0..n as u64).map(|i| random.unit(i) * 2.0 - 1.0).collect()
    }

    /// The product with a dense matrix, entry by entry, in f64.
    fn naive(op: &Spmm, x: &[f32], width: usize) -> Vec<f64> {
        let (n_src, n_dst) = (op.block.n_src as usize, op.block.n_dst as usize);
        let mut dense = vec![0.0; n_dst * n_src];
        for dst in 0..n_dst {
            for edge in op.block.offsets[dst]..op.block.offsets[dst + 1] {
                let source = op.block.sources[edge as usize] as usize;
                dense[dst * n_src + source] += f64::from(op.edge_weights[edge as usize]);
            }
            if let OwnRows::Added(weights) = &op.own_rows {
                dense[dst * n_src + dst] += f64::from(weights[dst]);
            }
        }
        let mut out = Vec::new();
        for dst in 0..n_dst {
            if matches!(op.own_rows, OwnRows::Beside) {
                out.extend(x[dst * width..][..width].iter().map(|&v| f64::from(v)));
            }
            out.extend((0..width).map(|column| {
                (0..n_src)
                    .map(|src| dense[dst * n_src + src] * f64::from(x[src * width + column]))
                    .sum::<f64>()
            }));
        }
        out
    }

    #[test]
    fn product_agrees_with_a_dense_matrix() {
        for op in ops() {
            for width in [0, 1, 7] {
                let x = values(5 * width, 0);
                let (found, expected) = (op.product(&x, width), naive(&op, &x, width));
                assert_eq!(found.len(), expected.len());
                for (found, expected) in found.iter().zip(expected) {
                    assert!((f64::from(*found) - expected).abs() < 1e-5, "{found} {expected}");
                }
            }
        }
    }

    #[test]
    fn gradient_agrees_with_finite_differences() {
        let width = 3;
        for op in ops() {
            let x = values(5 * width, 1);
            let n_out = 3 * op.out_width(width);
            let weights = values(n_out, 2);
            // The loss Σ weights · spmm(x)², so that its gradient depends on x.
            let loss = |x: &[f32]| -> f64 {
                naive(&op, x, width)
                    .iter()
                    .zip(&weights)
                    .map(|(out, w)| out * out * f64::from(*w))
                    .sum()
            };
            let var = Var::from_vec(x.clone(), (5, width), &Device::Cpu).unwrap();
            let w = Tensor::from_vec(weights.clone(), (3, op.out_width(width)), &Device::Cpu);
            let out = op.apply(&var).unwrap();
            let total = (out.sqr().unwrap() * w.unwrap()).unwrap().sum_all().unwrap();
            let grads = total.backward().unwrap();
            let grad = grads.get(&var).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            for i in 0..x.len() {
                let step = 1e-3;
                let (mut up, mut down) = (x.clone(), x.clone());
                up[i] += step;
                down[i] -= step;
                let expected = (loss(&up) - loss(&down)) / f64::from(up[i] - down[i]);
                assert!((f64::from(grad[i]) - expected).abs() < 2e-3, "{} {expected}", grad[i]);
            }
        }
    }

    #[test]
    fn product_is_the_same_for_any_number_of_threads() {
        let n = 1000;
        let random = CounterRandom::new(5, 0);
        let sources: Vec<u32> = (0..10 * n).map(|i| (random.bits(i) % n) as u32).collect();
        let offsets = (0..=n as u32).map(|i| 10 * i).collect();
        let block = Arc::new(Block { n_src: n as u32, n_dst: n as u32, offsets, sources });
        let op = Spmm::new(block, values(10 * n as usize, 1), OwnRows::Beside);
        let x = values(n as usize * 16, 2);
        let product = |n_threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
            pool.install(|| op.product(&x, 16))
        };
        assert_eq!(product(1), product(3));
    }

    #[test]
    fn refuses_rows_that_are_not_the_blocks() {
        let x = Tensor::zeros((4, 2), candle_core::DType::F32, &Device::Cpu).unwrap();
        assert!(ops()[0].apply(&x).unwrap_err().to_string().contains("5 sources"));
    }
}
