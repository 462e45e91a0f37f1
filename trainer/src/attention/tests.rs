use std::sync::Arc;

use super::*;
use crate::random::CounterRandom;
use candle_core::{Device, Var};
use lodestore_graph::batch::Block;

const HEADS: usize = 2;
const PART: usize = 3;

/// 5 sources, 3 destinations: one without edges, one with a repeated source, one with an edge to
/// itself.
fn block() -> Arc<Block> {
    let (offsets, sources) = (vec![0, 3, 3, 6], vec![1, 4, 4, 0, 2, 3]);
    Arc::new(Block { n_src: 5, n_dst: 3, offsets, sources })
}

fn values(n: usize, stream: u64) -> Vec<f32> {
    let random = CounterRandom::new(3, stream);
    (0..n as u64).map(|i| random.unit(i) * 4.0 - 2.0).collect()
}

/// The layer as its paper writes it, node by node in f64: rows of shape (n_dst, HEADS · PART).
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

fn attend(z: &Tensor, of_source: &Tensor, of_destination: &Tensor) -> Tensor {
    let scores = HeadScores { heads: HEADS };
    let of_src = scores.apply(z, of_source).unwrap();
    let of_dst = scores.apply(&z.narrow(0, 0, 3).unwrap(), of_destination).unwrap();
    let coefficients = AttentionSoftmax(Entries::of(&block())).apply(&of_src, &of_dst).unwrap();
    WeightedSum(Entries::of(&block())).apply(&coefficients, z).unwrap()
}

fn variables() -> [Var; 3] {
    let var = |n, shape: &[usize], stream| Var::from_vec(values(n, stream), shape, &Device::Cpu);
    let all = HEADS * PART;
    [var(5 * all, &[5, all], 0), var(all, &[all], 1), var(all, &[all], 2)].map(Result::unwrap)
}

fn wide(tensor: &Tensor) -> Vec<f64> {
    tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f64::from).collect()
}

#[test]
fn attention_agrees_with_the_formulas_node_by_node() {
    let [z, of_source, of_destination] = variables();
    let found = wide(&attend(&z, &of_source, &of_destination));
    let expected = naive(&block(), &wide(&z), &wide(&of_source), &wide(&of_destination));
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
}

#[test]
fn coefficients_sum_to_1_and_an_edge_to_itself_weighs_nothing() {
    // Scores far apart: exponentials of them as they are would be infinite or all 0.
    for scale in [1.0, 200.0, -200.0] {
        let scores = |n, stream| {
            let scores = values(n * HEADS, stream).into_iter().map(|s| scale * s).collect();
            Tensor::from_vec(scores, (n, HEADS), &Device::Cpu).unwrap()
        };
        let coefficients =
            AttentionSoftmax(Entries::of(&block())).apply(&scores(5, 3), &scores(3, 4)).unwrap();
        let coefficients = wide(&coefficients);
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
    let [z, of_source, of_destination] = &variables;
    let weights = values(3 * HEADS * PART, 5);
    // The loss Σ weights · out², so that the gradient of the output depends on it.
    let out = attend(z, of_source, of_destination);
    let w = Tensor::from_vec(weights.clone(), (3, HEADS * PART), &Device::Cpu).unwrap();
    let grads = (out.sqr().unwrap() * w).unwrap().sum_all().unwrap().backward().unwrap();
    let plain = [wide(z), wide(of_source), wide(of_destination)];
    let loss = |plain: &[Vec<f64>; 3]| -> f64 {
        let out = naive(&block(), &plain[0], &plain[1], &plain[2]);
        out.iter().zip(&weights).map(|(out, w)| out * out * f64::from(*w)).sum()
    };
    for (i, variable) in variables.iter().enumerate() {
        let grad = wide(grads.get(variable).unwrap());
        for at in 0..grad.len() {
            let mut moved = [plain.clone(), plain.clone()];
            moved[0][i][at] += 1e-6;
            moved[1][i][at] -= 1e-6;
            let expected = (loss(&moved[0]) - loss(&moved[1])) / 2e-6;
            assert!((grad[at] - expected).abs() < 1e-3, "{i} {at}: {} {expected}", grad[at]);
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
    let z = Tensor::from_vec(values(n * width, 1), (n, width), &Device::Cpu).unwrap();
    let a = Tensor::from_vec(values(width, 2), width, &Device::Cpu).unwrap();
    let [z, a] = [z, a].map(|tensor| Var::from_tensor(&tensor).unwrap());
    // The output and all gradients.
    let out = |n_threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
        pool.install(|| {
            let entries = Entries::of(&block);
            let scores = HeadScores { heads: 4 }.apply(&z, &a).unwrap();
            let coefficients = AttentionSoftmax(Arc::clone(&entries)).apply(&scores, &scores);
            let out = WeightedSum(entries).apply(&coefficients.unwrap(), &z).unwrap();
            let grads = out.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            [wide(&out), wide(grads.get(&z).unwrap()), wide(grads.get(&a).unwrap())]
        })
    };
    assert_eq!(out(1), out(3));
}

#[test]
fn refuses_rows_that_are_not_the_blocks() {
    let zeros = |shape: (usize, usize)| Tensor::zeros(shape, candle_core::DType::F32, &Device::Cpu);
    let softmax = |n_src, n_dst, heads| {
        let of_src = zeros((n_src, 2)).unwrap();
        AttentionSoftmax(Entries::of(&block())).apply(&of_src, &zeros((n_dst, heads)).unwrap())
    };
    let message = |found: Result<Tensor>| found.unwrap_err().to_string();
    assert!(message(softmax(4, 3, 2)).contains("5 sources, found 4"));
    assert!(message(softmax(5, 2, 2)).contains("3 destinations, found 2"));
    assert!(message(softmax(5, 3, 1)).contains("2 heads of sources, 1 of destinations"));
    let sum =
        WeightedSum(Entries::of(&block())).apply(&zeros((8, 2)).unwrap(), &zeros((5, 4)).unwrap());
    assert!(message(sum).contains("9 entries, found 8"));
    let sum =
        WeightedSum(Entries::of(&block())).apply(&zeros((9, 2)).unwrap(), &zeros((5, 3)).unwrap());
    assert!(message(sum).contains("rows of 3 elements, 2 heads"));
    let a = Tensor::zeros(3, candle_core::DType::F32, &Device::Cpu).unwrap();
    let scores = HeadScores { heads: 2 }.apply(&zeros((5, 3)).unwrap(), &a);
    assert!(message(scores).contains("2 heads"));
}
