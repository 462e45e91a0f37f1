use super::*;

#[test]
fn coefficients_and_each_layers_rows_have_masks_of_their_own() {
    let mask = |dropout: Option<Dropout>| {
        let mut row = vec![1.0; 100];
        dropout.unwrap().mask([5].into_iter()).apply(&mut row);
        row
    };
    let [first, second] = [0, 1].map(|layer| LayerDropout::new(0.5, 3, layer));
    let masks = [first.rows, first.coefficients, second.rows, second.coefficients].map(mask);
    for (i, of_one) in masks.iter().enumerate() {
        assert!(masks[..i].iter().all(|other| other != of_one), "mask {i}");
    }
}

/// A layer's output for node 9 with neighbours 4 and 6, in two batches that put them elsewhere.
#[test]
fn a_node_drops_the_same_in_any_batch() {
    let small = Block { n_src: 3, n_dst: 1, offsets: vec![0, 2], sources: vec![1, 2] };
    let (offsets, sources) = (vec![0, 1, 3, 4], vec![3, 3, 4, 0]);
    let large = Block { n_src: 5, n_dst: 3, offsets, sources };
    let ids = |ids: &[u32]| ids.iter().map(|&id| NodeId(id)).collect::<Vec<_>>();
    let batches = [(small, ids(&[9, 4, 6]), 0), (large, ids(&[1, 9, 2, 4, 6]), 1)];
    let width = 8;
    let rows_of = |nodes: &[NodeId]| {
        let elements = nodes.iter().flat_map(|node| node.0 * 8..node.0 * 8 + 8);
        elements.map(|element| element as f32 * 0.01).collect::<Vec<f32>>()
    };
    let layers = [
        Conv::Sage(Linear::new(2 * width, 4, 1, 0)),
        Conv::Gcn(Linear::new(width, 4, 1, 0)),
        Conv::Gat(Gat::new([width, 4], 2, crate::conv::gat::Heads::Concatenated, 1, 0)),
    ];
    for layer in layers {
        let outputs = |dropout: LayerDropout| {
            batches.clone().map(|(block, nodes, at)| {
                let (block, x) = (Arc::new(block), rows_of(&nodes));
                let hop = Hop { block: &block, nodes: &nodes, degree: &|_| 2 };
                let hidden = Matrix::new(x.clone(), width);
                let inputs = [Input::Features { x: &x, width }, Input::Hidden(&hidden)];
                inputs.map(|input| {
                    let (out, _) = layer.forward(hop, input, dropout, &Workspace::default());
                    out.values()[at * 4..][..4].to_vec()
                })
            })
        };
        let [small, large] = outputs(LayerDropout::new(0.5, 3, 0));
        assert_eq!(small, large);
        assert_ne!(small, outputs(LayerDropout::new(0.5, 3, 1))[0]);
        assert_ne!(small, outputs(LayerDropout::default())[0]);
    }
}

/// Returns the loss Σ weights · out², as a function of a layer's rows, and its gradient.
fn loss(layer: &Conv, hop: Hop<'_>, hidden: &Matrix) -> (f64, Matrix) {
    let (out, _) = layer.forward(
        hop,
        Input::Hidden(hidden),
        LayerDropout::new(0.3, 5, 1),
        &Workspace::default(),
    );
    let weight = |i: usize| (i % 5) as f32 - 1.5;
    let terms = out.values().iter().enumerate();
    let loss = terms.clone().map(|(i, v)| f64::from(weight(i)) * f64::from(*v).powi(2)).sum();
    let grad = terms.map(|(i, v)| 2.0 * weight(i) * v).collect();
    (loss, Matrix::new(grad, out.width()))
}

#[test]
fn vector_jacobian_products_agree_with_finite_differences() {
    let (offsets, sources) = (vec![0, 3, 3, 6], vec![1, 4, 4, 0, 2, 3]);
    let block = Arc::new(Block { n_src: 5, n_dst: 3, offsets, sources });
    let nodes: Vec<_> = [8, 3, 5, 1, 7].map(NodeId).to_vec();
    let hop = Hop { block: &block, nodes: &nodes, degree: &|node| node.0 % 4 };
    let (width, out_width) = (6, 4);
    let random = crate::random::CounterRandom::new(2, 0);
    let rows = (0..5 * width as u64).map(|i| random.unit(i) * 2.0 - 1.0).collect();
    let hidden = Matrix::new(rows, width);
    let averaged = crate::conv::gat::Heads::Averaged;
    let layers = [
        Conv::Sage(Linear::new(2 * width, out_width, 1, 0)),
        Conv::Gcn(Linear::new(width, out_width, 1, 0)),
        Conv::Gat(Gat::new([width, out_width], 2, averaged, 1, 0)),
    ];
    let step = 1e-2f32;
    for layer in layers {
        let dropout = LayerDropout::new(0.3, 5, 1);
        let workspace = Workspace::default();
        let input = Input::Hidden(&hidden);
        let (_, saved) = layer.forward(hop, input, dropout, &workspace);
        let (_, grad) = loss(&layer, hop, &hidden);
        let (of_parameters, of_rows) = layer.backward(&saved, &grad, Some(&hidden), &workspace);
        let close = |found: f32, up: f64, down: f64| {
            let expected = (up - down) / (2.0 * f64::from(step));
            let difference = (f64::from(found) - expected).abs();
            assert!(difference < 2e-2 * expected.abs().max(1.0), "{found} {expected}");
        };
        for (i, found) in of_rows.unwrap().values().iter().enumerate() {
            // Not across the bend of an activation.
            if hidden.values()[i].abs() < 2.0 * step {
                continue;
            }
            let moved = |by: f32| {
                let mut moved = hidden.clone();
                moved.values_mut()[i] += by;
                loss(&layer, hop, &moved).0
            };
            close(*found, moved(step), moved(-step));
        }
        for (parameter, found) in layer.parameters().iter().zip(of_parameters) {
            let values = parameter.read().to_vec();
            for (i, found) in found.into_iter().enumerate() {
                let moved = |by: f32| {
                    let mut moved = values.clone();
                    moved[i] += by;
                    parameter.set(&moved);
                    let (loss, _) = loss(&layer, hop, &hidden);
                    parameter.set(&values);
                    loss
                };
                close(found, moved(step), moved(-step));
            }
        }
    }
}

#[test]
fn sparse_features_give_what_dense_ones_give() {
    let (offsets, sources) = (vec![0, 3, 3, 6], vec![1, 4, 4, 0, 2, 3]);
    let block = Arc::new(Block { n_src: 5, n_dst: 3, offsets, sources });
    let nodes: Vec<_> = [8, 3, 5, 1, 7].map(NodeId).to_vec();
    let hop = Hop { block: &block, nodes: &nodes, degree: &|node| node.0 % 4 };
    let width = 50;
    let sparse = crate::matrix::sparse::tests::sparse(5, width);
    let dense = sparse.to_dense();
    let averaged = crate::conv::gat::Heads::Averaged;
    let layers = [
        Conv::Sage(Linear::new(2 * width, 4, 1, 0)),
        Conv::Gcn(Linear::new(width, 4, 1, 0)),
        Conv::Gat(Gat::new([width, 4], 2, averaged, 1, 0)),
    ];
    for layer in layers {
        for dropout in [LayerDropout::default(), LayerDropout::new(0.5, 3, 0)] {
            let inputs = [Input::Sparse(&sparse), Input::Features { x: dense.values(), width }];
            let [of_sparse, of_dense] = inputs.map(|input| {
                let (out, saved) = layer.forward(hop, input, dropout, &Workspace::default());
                let (gradients, _) = layer.backward(&saved, &out, None, &Workspace::default());
                [vec![out.into_values()], gradients].concat().concat()
            });
            assert_eq!(of_sparse.len(), of_dense.len());
            for (sparse, dense) in of_sparse.iter().zip(of_dense) {
                assert!((sparse - dense).abs() < 1e-5, "{sparse} {dense}");
            }
        }
    }
}
