use std::sync::Arc;

use lodestore_graph::{NodeId, batch::Block};

use super::*;
use crate::matrix::workspace::Workspace;
use crate::model::{Model, ModelSpec};
use crate::options::{LayerOptions, ModelKind, Norm};
use crate::random::CounterRandom;

const WIDTH: usize = 4;
const N_NODES: usize = 5;

/// Returns the layer between two hidden ones of a model of three.
fn layer(kind: ModelKind, options: LayerOptions) -> Layer {
    let widths = vec![3, WIDTH, WIDTH, 2];
    let spec =
        ModelSpec { kind, widths, n_heads: 2, n_output_heads: 2, dropout: 0.0, layer: options };
    let layer = Model::new(&spec, 3).layers[1].clone();
    let random = CounterRandom::new(8, 0);
    let is_vector = |(_, parameter): &(usize, &Parameter)| parameter.shape().len() == 1;
    for (number, vector) in layer.parameters().iter().enumerate().filter(is_vector) {
        let value = |i: usize| 0.5 + random.unit((10 * number + i) as u64);
        let values: Vec<f32> = (0..vector.n_elements()).map(value).collect();
        vector.set(&values);
    }
    layer
}

/// Returns SAGE and GCN with all options.
fn layers() -> Vec<(String, LayerOptions, Layer)> {
    let mut layers = Vec::new();
    let norms = [Norm::None, Norm::Layer];
    for (norm, residual) in norms.into_iter().flat_map(|norm| [(norm, false), (norm, true)]) {
        for kind in [ModelKind::Sage, ModelKind::Gcn] {
            let options = LayerOptions { norm, residual };
            layers.push((format!("{kind} {norm} {residual}"), options, layer(kind, options)));
        }
    }
    layers
}

/// Returns one of several blocks: edges that repeat, a destination without any, and one node alone.
fn blocks() -> [Arc<Block>; 3] {
    let block = |n_src, offsets: &[u32], sources: &[u32]| {
        let (offsets, sources) = (offsets.to_vec(), sources.to_vec());
        Arc::new(Block { n_src, n_dst: offsets.len() as u32 - 1, offsets, sources })
    };
    [
        block(5, &[0, 3, 3, 6], &[1, 4, 4, 0, 2, 3]),
        block(4, &[0, 2, 5, 5], &[3, 3, 0, 1, 2]),
        block(1, &[0, 0], &[]),
    ]
}

fn nodes() -> Vec<NodeId> {
    [8, 3, 5, 1, 7].map(NodeId).to_vec()
}

fn degree(node: NodeId) -> u32 {
    node.0 % 4
}

/// Returns the parameters as the layer has them, as f64.
fn parameters(layer: &Layer) -> Vec<Vec<f64>> {
    layer.parameters().iter().map(|parameter| wide(&parameter.read())).collect()
}

/// Returns a layer by its formulas, one element after the other.
fn naive(
    layer: &Layer,
    options: LayerOptions,
    block: &Block,
    parameters: &[Vec<f64>],
    hidden: &[f64],
) -> Vec<f64> {
    let active: Vec<f64> = hidden.iter().map(|x| x.max(0.0)).collect();
    let row = |node: usize| &active[node * WIDTH..][..WIDTH];
    let is_sage = matches!(layer.conv, Conv::Sage(..));
    let n_dst = block.n_dst as usize;
    let mut out = Vec::new();
    for dst in 0..n_dst {
        let edges = block.offsets[dst] as usize..block.offsets[dst + 1] as usize;
        let sources: Vec<usize> = block.sources[edges].iter().map(|&s| s as usize).collect();
        let (n, in_all) = (sources.len() as f64, |node: usize| f64::from(degree(nodes()[node])));
        let of = |c: usize| sources.iter().map(move |&s| row(s)[c]);
        let mean = |c: usize| if sources.is_empty() { 0.0 } else { of(c).sum::<f64>() / n };
        let normalised = |c: usize| {
            let own = in_all(dst) + 1.0;
            let weight = |s: usize| in_all(dst) / n / ((in_all(s) + 1.0) * own).sqrt();
            row(dst)[c] / own + sources.iter().map(|&s| weight(s) * row(s)[c]).sum::<f64>()
        };
        let input: Vec<f64> = match is_sage {
            true => row(dst).iter().copied().chain((0..WIDTH).map(mean)).collect(),
            false => (0..WIDTH).map(normalised).collect(),
        };
        for column in 0..WIDTH {
            let products =
                input.iter().enumerate().map(|(i, x)| x * parameters[0][i * WIDTH + column]);
            out.push(products.sum::<f64>() + parameters[1][column]);
        }
    }
    let groups: Vec<Vec<usize>> = match options.norm {
        Norm::None => Vec::new(),
        Norm::Layer => (0..n_dst).map(|r| (0..WIDTH).map(|c| r * WIDTH + c).collect()).collect(),
    };
    for group in groups {
        let mean = group.iter().map(|&at| out[at]).sum::<f64>() / group.len() as f64;
        let squares = group.iter().map(|&at| (out[at] - mean).powi(2));
        let deviation = (squares.sum::<f64>() / group.len() as f64 + 1e-5).sqrt();
        for at in group {
            out[at] = (out[at] - mean) / deviation * parameters[2][at % WIDTH];
            out[at] += parameters[3][at % WIDTH];
        }
    }
    if options.residual {
        out.iter_mut().zip(&active).for_each(|(out, x)| *out += x);
    }
    out
}

/// Returns the rows of different sizes and signs, none of which is near the bend of an activation.
fn hidden(n_rows: usize) -> Vec<f32> {
    let random = CounterRandom::new(2, 0);
    let value = |i: usize| {
        let size = 0.1 + 0.9 * random.unit(i as u64);
        if random.bits(1000 + i as u64).is_multiple_of(3) { -size } else { size }
    };
    (0..n_rows * WIDTH).map(value).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| x.into()).collect()
}

/// Returns the loss Σ weights · out².
fn loss(out: &[f64]) -> f64 {
    out.iter().enumerate().map(|(i, y)| ((i % 5) as f64 - 1.5) * y * y).sum()
}

#[test]
fn rows_and_gradients_of_all_options_are_those_of_the_formulas() {
    let (nodes, workspace, dropout) = (nodes(), Workspace::default(), LayerDropout::default());
    for (name, options, layer) in layers() {
        for (number, block) in blocks().iter().enumerate() {
            let x = hidden(block.n_src as usize);
            let hop = Hop { block, nodes: &nodes, degree: &degree };
            let rows = Matrix::new(x.clone(), WIDTH);
            let (out, saved) = layer.forward(hop, Input::Hidden(&rows), dropout, &workspace);
            let (x, parameters) = (wide(&x), parameters(&layer));
            let expected = naive(&layer, options, block, &parameters, &x);
            assert_eq!(out.values().len(), expected.len());
            for (found, expected) in out.values().iter().zip(&expected) {
                let difference = (f64::from(*found) - expected).abs();
                assert!(difference < 1e-3, "{name}, block {number}: {found} {expected}");
            }
            let grad = |(i, y): (usize, &f32)| 2.0 * ((i % 5) as f32 - 1.5) * y;
            let grad = Matrix::new(out.values().iter().enumerate().map(grad).collect(), WIDTH);
            let (of_parameters, of_rows) = layer.backward(&saved, &grad, Some(&rows), &workspace);
            let step = 1e-6;
            let check = |found: f32, up: f64, down: f64, what: &str| {
                let expected = (up - down) / (2.0 * step);
                let difference = (f64::from(found) - expected).abs();
                let near = difference < 5e-3 * expected.abs().max(1.0);
                assert!(near, "{name}, block {number}, {what}: {found} {expected}");
            };
            for (at, found) in of_rows.unwrap().values().iter().enumerate() {
                let moved = |by: f64| {
                    let mut moved = x.clone();
                    moved[at] += by;
                    loss(&naive(&layer, options, block, &parameters, &moved))
                };
                check(*found, moved(step), moved(-step), &format!("row element {at}"));
            }
            assert_eq!(of_parameters.len(), parameters.len());
            for (list, found) in of_parameters.iter().enumerate() {
                assert_eq!(found.len(), parameters[list].len());
                for (at, found) in found.iter().enumerate() {
                    let moved = |by: f64| {
                        let mut moved = parameters.clone();
                        moved[list][at] += by;
                        loss(&naive(&layer, options, block, &moved, &x))
                    };
                    check(*found, moved(step), moved(-step), &format!("parameter {list}, {at}"));
                }
            }
        }
    }
}

#[test]
fn gradients_of_dropped_rows_and_residuals_agree_with_differences() {
    let (block, nodes, step) = (&blocks()[0], nodes(), 1e-2f32);
    let workspace = Workspace::default();
    let hop = Hop { block, nodes: &nodes, degree: &degree };
    for (name, _, layer) in layers() {
        let dropout = LayerDropout::new(0.4, 5, 1);
        let x = hidden(N_NODES);
        let forward = |x: &[f32]| {
            let rows = Matrix::new(x.to_vec(), WIDTH);
            let (out, saved) = layer.forward(hop, Input::Hidden(&rows), dropout, &workspace);
            (rows, out, saved)
        };
        let (rows, out, saved) = forward(&x);
        // A linear loss: what normalisation bends is left alone by small steps.
        let weight = |i: usize| (i % 5) as f32 - 1.5;
        let grad = (0..out.values().len()).map(weight).collect();
        let grad = Matrix::new(grad, WIDTH);
        let (_, found) = layer.backward(&saved, &grad, Some(&rows), &workspace);
        let loss = |x: &[f32]| -> f64 {
            let (_, out, _) = forward(x);
            wide(out.values()).iter().enumerate().map(|(i, y)| f64::from(weight(i)) * y).sum()
        };
        for (at, found) in found.unwrap().values().iter().enumerate() {
            let moved = |by: f32| {
                let mut moved = x.clone();
                moved[at] += by;
                loss(&moved)
            };
            let expected = (moved(step) - moved(-step)) / (2.0 * f64::from(step));
            let difference = (f64::from(*found) - expected).abs();
            assert!(difference < 0.05 * expected.abs().max(1.0), "{name} {at}: {found} {expected}");
        }
    }
}

#[test]
fn all_options_have_the_same_bits_for_any_number_of_threads() {
    let (n_nodes, random) = (3000u32, CounterRandom::new(6, 0));
    let sources: Vec<u32> = (0..15_000).map(|i| random.bits(i) as u32 % n_nodes).collect();
    let offsets = (0..=1500).map(|dst| 10 * dst).collect();
    let block = Arc::new(Block { n_src: n_nodes, n_dst: 1500, offsets, sources });
    let nodes: Vec<NodeId> = (0..n_nodes).map(NodeId).collect();
    let rows = Matrix::new(hidden(n_nodes as usize), WIDTH);
    for (name, _, layer) in layers() {
        let bits = |n_threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
            pool.install(|| {
                let hop = Hop { block: &block, nodes: &nodes, degree: &degree };
                let dropout = LayerDropout::new(0.4, 5, 1);
                let (input, workspace) = (Input::Hidden(&rows), Workspace::default());
                let (out, saved) = layer.forward(hop, input, dropout, &workspace);
                let (gradients, of_rows) = layer.backward(&saved, &out, Some(&rows), &workspace);
                let all = [vec![out.into_values(), of_rows.unwrap().into_values()], gradients];
                all.concat().concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
            })
        };
        let expected = bits(1);
        assert!((2..=4).all(|n_threads| bits(n_threads) == expected), "{name}");
    }
}
