use std::sync::Arc;

use super::*;
use crate::random::CounterRandom;
use lodestore_graph::batch::Block;

const HEADS: usize = 2;
const PART: usize = 3;

/// Returns 5 sources, 3 destinations: one without edges, one with a repeated source, one with an
/// edge to itself.
fn block() -> Arc<Block> {
    let (offsets, sources) = (vec![0, 3, 3, 6], vec![1, 4, 4, 0, 2, 3]);
    Arc::new(Block { n_src: 5, n_dst: 3, offsets, sources })
}

fn values(n: usize, stream: u64) -> Vec<f32> {
    let random = CounterRandom::new(3, stream);
    (0..n as u64).map(|i| random.unit(i) * 4.0 - 2.0).collect()
}

/// Returns the layer as its paper writes it, node by node in f64: rows of shape (n_dst, HEADS ·
/// PART).
fn naive(block: &Block, z: &[f64], of_source: &[f64], of_destination: &[f64]) -> Vec<f64> {
    let row = |node: usize, head: usize| &z[(node * HEADS + head) * PART..][..PART];
    let dot = |node, a: &[f64], head: usize| -> f64 {
        row(node, head).iter().zip(&a[head * PART..]).map(|(z, a)| z * a).sum()
    };
    let mut out = Vec::new();
    for dst in 0..block.n_dst as usize {
        let edges = block.offsets[dst] as usize..block.offsets[dst + 1] as usize;
        let mut neighbours: Vec<usize> = block.sources[edges].iter().map(|&s| s as usize).collect();
        neighbours.retain(|&source| source != dst);
        neighbours.push(dst);
        for head in 0..HEADS {
            let score = |&source: &usize| {
                let e = dot(source, of_source, head) + dot(dst, of_destination, head);
                if e < 0.0 { 0.2 * e } else { e }
            };
            let weights: Vec<f64> = neighbours.iter().map(|n| score(n).exp()).collect();
            let sum: f64 = weights.iter().sum();
            out.extend((0..PART).map(|column| {
                let terms = neighbours.iter().zip(&weights);
                terms.map(|(&n, weight)| weight / sum * row(n, head)[column]).sum::<f64>()
            }));
        }
    }
    out
}

/// The layer's sums, and the gradients of all three inputs given that of the sums.
struct Attention {
    heads: usize,
    entries: Arc<Entries>,
    n_dst: usize,
}

impl Attention {
    fn new(block: &Arc<Block>, heads: usize) -> Self {
        Self { heads, entries: Entries::of(block), n_dst: block.n_dst as usize }
    }

    /// Returns the shares of sources and destinations, the coefficients and the sums.
    fn forward(&self, [z, of_source, of_destination]: [&[f32]; 3]) -> [Vec<f32>; 4] {
        let (heads, width) = (self.heads, of_source.len());
        let of_src = head_scores(z, of_source, heads);
        let of_dst = head_scores(&z[..self.n_dst * width], of_destination, heads);
        let coefficients = self.entries.coefficients(&of_src, &of_dst, heads);
        let sums = self.entries.weighted_sums(&coefficients, z, [heads, width]);
        [of_src, of_dst, coefficients, sums]
    }

    fn backward(&self, inputs: [&[f32]; 3], grad: &[f32]) -> [Vec<f32>; 3] {
        let [z, of_source, of_destination] = inputs;
        let (heads, width) = (self.heads, of_source.len());
        let [of_src, of_dst, coefficients, _] = self.forward(inputs);
        let entries = &self.entries;
        let (weight_grad, mut z_grad) =
            entries.weighted_sum_gradients(&coefficients, z, grad, [heads, width]);
        let shares = [&of_src[..], &of_dst[..]];
        let (src_grad, dst_grad) =
            entries.coefficient_gradients(shares, &coefficients, &weight_grad, heads);
        let (of_src, source_grad) = head_score_gradients(z, of_source, &src_grad, heads);
        let of_dst = &z[..self.n_dst * width];
        let (of_dst, destination_grad) =
            head_score_gradients(of_dst, of_destination, &dst_grad, heads);
        z_grad.iter_mut().zip(of_src).for_each(|(sum, part)| *sum += part);
        z_grad.iter_mut().zip(of_dst).for_each(|(sum, part)| *sum += part);
        [z_grad, source_grad, destination_grad]
    }
}

fn variables() -> [Vec<f32>; 3] {
    let all = HEADS * PART;
    [values(5 * all, 0), values(all, 1), values(all, 2)]
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

#[test]
fn attention_agrees_with_the_formulas_node_by_node() {
    let variables = variables();
    let inputs = [&variables[0][..], &variables[1], &variables[2]];
    let [.., found] = Attention::new(&block(), HEADS).forward(inputs);
    let [z, of_source, of_destination] = inputs.map(wide);
    let expected = naive(&block(), &z, &of_source, &of_destination);
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((f64::from(*found) - expected).abs() < 1e-5, "{found} {expected}");
    }
}

#[test]
fn coefficients_sum_to_1_and_an_edge_to_itself_weighs_nothing() {
    // Scores far apart: exponentials of them as they are would be infinite or all 0.
    for scale in [1.0, 200.0, -200.0] {
        let scores = |n, stream| -> Vec<f32> {
            values(n * HEADS, stream).into_iter().map(|s| scale * s).collect()
        };
        let entries = Entries::of(&block());
        let coefficients = wide(&entries.coefficients(&scores(5, 3), &scores(3, 4), HEADS));
        for dst in 0..3 {
            for head in 0..HEADS {
                let entries = Entries::of(&block()).of_destination(dst);
                let sum: f64 = entries.map(|entry| coefficients[entry * HEADS + head]).sum();
                assert!((sum - 1.0).abs() < 1e-5, "{sum} at {scale}");
            }
        }
        // Edge 4 goes from node 2 to itself, and two own entries stand before it.
        assert_eq!(coefficients[6 * HEADS..7 * HEADS], [0.0; HEADS]);
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    let variables = variables();
    let inputs = [&variables[0][..], &variables[1], &variables[2]];
    let attention = Attention::new(&block(), HEADS);
    let weights = values(3 * HEADS * PART, 5);
    // The loss Σ weights · out², so that the gradient of the output depends on it.
    let [.., out] = attention.forward(inputs);
    let grad: Vec<f32> = out.iter().zip(&weights).map(|(out, w)| 2.0 * out * w).collect();
    let grads = attention.backward(inputs, &grad);
    let plain = inputs.map(wide);
    let loss = |plain: &[Vec<f64>; 3]| -> f64 {
        let out = naive(&block(), &plain[0], &plain[1], &plain[2]);
        out.iter().zip(&weights).map(|(out, w)| out * out * f64::from(*w)).sum()
    };
    for (i, grad) in grads.iter().enumerate() {
        for at in 0..grad.len() {
            let mut moved = [plain.clone(), plain.clone()];
            moved[0][i][at] += 1e-6;
            moved[1][i][at] -= 1e-6;
            let expected = (loss(&moved[0]) - loss(&moved[1])) / 2e-6;
            let found = f64::from(grad[at]);
            assert!((found - expected).abs() < 1e-3, "{i} {at}: {found} {expected}");
        }
    }
}

#[test]
fn results_are_the_same_for_any_number_of_threads() {
    let n = 1000;
    let random = CounterRandom::new(5, 0);
    let sources = (0..10 * n).map(|i| (random.bits(i) % n) as u32).collect();
    let offsets = (0..=n as u32).map(|i| 10 * i).collect();
    let block = Arc::new(Block { n_src: n as u32, n_dst: n as u32, offsets, sources });
    let (n, width) = (n as usize, 16);
    let (z, a) = (values(n * width, 1), values(width, 2));
    // The output and all gradients.
    let out = |n_threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
        pool.install(|| {
            let attention = Attention::new(&block, 4);
            let [.., out] = attention.forward([&z, &a, &a]);
            let grads = attention.backward([&z, &a, &a], &out);
            (out, grads)
        })
    };
    assert_eq!(out(1), out(3));
}
