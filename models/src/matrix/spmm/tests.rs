use super::*;
use crate::random::CounterRandom;

/// Returns 5 sources, 3 destinations: one without edges, one with a repeated source.
fn block() -> Arc<Block> {
    Arc::new(Block { n_src: 5, n_dst: 3, offsets: vec![0, 3, 3, 5], sources: vec![1, 4, 4, 0, 3] })
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

/// Returns the product with a dense matrix, entry by entry, in f64.
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
            let (found, expected) =
                (op.product(&x, width, &Workspace::default()), naive(&op, &x, width));
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
        let of_out = op
            .product(&x, width, &Workspace::default())
            .into_iter()
            .zip(&weights)
            .map(|(out, w)| 2.0 * out * w);
        let grad = op.transposed_product(&of_out.collect::<Vec<_>>(), width, &Workspace::default());
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

/// Returns the transposed product as a walk over the destinations, in their order.
fn walked(op: &Spmm, grad: &[f32], width: usize) -> Vec<f32> {
    let mut sum = vec![0.0; op.block.n_src as usize * width];
    for (dst, grad) in grad.chunks_exact(op.out_width(width)).enumerate() {
        let (own, of_sum) = match &op.own_rows {
            OwnRows::Beside => (1.0, &grad[width..]),
            OwnRows::Added(weights) => (weights[dst], grad),
        };
        add_scaled(&mut sum[dst * width..][..width], own, &grad[..width]);
        let edges = op.block.offsets[dst] as usize..op.block.offsets[dst + 1] as usize;
        for edge in edges {
            let row = &mut sum[op.block.sources[edge] as usize * width..][..width];
            add_scaled(row, op.edge_weights[edge], of_sum);
        }
    }
    sum
}

/// Returns ten edges to each of `n_dst` destinations from random ones of `n_src` sources.
fn random_ops(n_src: u32, n_dst: u32) -> [Spmm; 2] {
    let random = CounterRandom::new(5, 0);
    let n_edges = u64::from(10 * n_dst);
    let source = |i| (random.bits(i) % u64::from(n_src)) as u32;
    let offsets = (0..=n_dst).map(|i| 10 * i).collect();
    let block = Block { n_src, n_dst, offsets, sources: (0..n_edges).map(source).collect() };
    let (block, weights) = (Arc::new(block), values(n_edges as usize, 1));
    let own = OwnRows::Added(values(n_dst as usize, 3).into());
    [
        Spmm::new(Arc::clone(&block), weights.clone(), OwnRows::Beside),
        Spmm::new(block, weights, own),
    ]
}

#[test]
fn both_products_are_the_same_for_any_number_of_threads() {
    for op in random_ops(1000, 700) {
        let (x, grad) = (values(1000 * 16, 2), values(700 * op.out_width(16), 4));
        let products = |n_threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
            pool.install(|| {
                (
                    op.product(&x, 16, &Workspace::default()),
                    op.transposed_product(&grad, 16, &Workspace::default()),
                )
            })
        };
        let (product, transposed) = products(1);
        assert!(products(3) == (product, transposed.clone()));
        // Equal bits: results of training must not depend on which code sums the gradients.
        assert!(walked(&op, &grad, 16) == transposed);
    }
}

#[test]
fn product_of_halves_is_that_of_the_halves() {
    let (op, width) = (&ops()[0], 4);
    let x = values(5 * 2 * width, 6);
    let half = |at: usize| -> Vec<f32> {
        x.chunks_exact(2 * width).flat_map(|row| row[at * width..][..width].to_vec()).collect()
    };
    let sums = op.product(&half(1), width, &Workspace::default());
    let sums = sums.chunks_exact(2 * width).flat_map(|row| row[width..].to_vec());
    let expected: Vec<f32> =
        half(0)[..3 * width].iter().zip(sums).map(|(own, sum)| own + sum).collect();
    let found = op.product_of_halves(&x, width);
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
}

#[test]
fn sparse_product_is_that_of_the_dense_rows_to_the_bit() {
    let sparse = crate::matrix::sparse::tests::sparse(1000, 40);
    for op in random_ops(1000, 700) {
        let width = op.out_width(40);
        let dense = op.product(sparse.to_dense().values(), 40, &Workspace::default());
        assert!(op.sparse_product(&sparse, None).to_dense().values() == dense);
        let mask = crate::matrix::dropout::Dropout::new(0.4, 2, 1).unwrap().mask(50..750);
        let mut dropped = dense;
        mask.apply(&mut dropped);
        let found = op.sparse_product(&sparse, Some(&mask));
        assert_eq!(found.width(), width);
        assert!(found.to_dense().values() == dropped);
    }
}
