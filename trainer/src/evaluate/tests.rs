use super::*;
use std::sync::Arc;

use lodestore_client::{MemorySource, PullStats};
use lodestore_graph::{
    PartId, PartitionBook, edges::MemoryEdges, relabel::Relabelling, sampler::Fanout,
};
use lodestore_store::Dtype;

use crate::{ModelKind, TrainConfig, WorkerSources, model::ModelSpec, random::CounterRandom};

const N_NODES: u32 = 40;
const WIDTH: usize = 3;

fn topology() -> Topology {
    let random = CounterRandom::new(1, 0);
    let edge = |i: u64| [random.bits(2 * i) as u32 % N_NODES, random.bits(2 * i + 1) as u32 % 30];
    let mut edges: Vec<[u32; 2]> = (0..90).map(edge).collect();
    edges.push([N_NODES - 1, 0]);
    let edges = MemoryEdges::new(edges).unwrap();
    Topology::from_edges(&edges, &Relabelling::identity(N_NODES), true).unwrap()
}

fn rows() -> Vec<f32> {
    let random = CounterRandom::new(2, 0);
    (0..u64::from(N_NODES) * WIDTH as u64).map(|i| random.unit(i) - 0.5).collect()
}

fn sources() -> WorkerSources {
    let book = PartitionBook::from_counts(&[N_NODES]).unwrap();
    let mut source = MemorySource::new(book);
    let bytes = bytemuck::cast_slice(&rows()).to_vec();
    source.add("feat", Dtype::F32, WIDTH as u32, bytes).unwrap();
    let labels: Vec<i64> = (0..i64::from(N_NODES)).map(|i| i % 4).collect();
    source.add("label", Dtype::I64, 1, bytemuck::cast_slice(&labels).to_vec()).unwrap();
    let splits = (0..N_NODES).map(|i| [0, 1, 2, 2, 9][i as usize % 5]).collect();
    source.add("split", Dtype::U8, 1, splits).unwrap();
    let source = Arc::new(source);
    WorkerSources {
        local: Arc::clone(&source) as _,
        remote: Arc::clone(&source) as _,
        untiered: source,
        filled: PullStats::default(),
    }
}

/// Accuracy over `nodes` by the way that training takes.
fn naive(model: &Model, topology: &Topology, labels: &Labels, nodes: &[NodeId]) -> f64 {
    let batch = Sampler::new(topology, &[Fanout::All; 3]).sample(nodes, 0);
    let blocks: Vec<_> = batch.blocks.into_iter().map(Arc::new).collect();
    let degree = |node| topology.in_degree(node);
    let hops = Hops { blocks: &blocks, nodes: &batch.nodes, degree: &degree };
    let all = rows();
    let row = |node: &NodeId| all[node.index() * WIDTH..][..WIDTH].to_vec();
    let x: Vec<f32> = batch.nodes.iter().flat_map(row).collect();
    let logits = model.forward(hops, &x, WIDTH, 0).unwrap();
    let classes = labels.classes_of(nodes);
    let targets = Tensor::from_vec(classes, nodes.len(), &Device::Cpu).unwrap();
    count_right(&logits, &targets).unwrap() as f64 / nodes.len() as f64
}

#[test]
fn chunks_and_batches_give_the_accuracy_of_a_plain_forward_pass() {
    let (topology, sources) = (topology(), sources());
    let owned = [PartId(0)];
    let book = PartitionBook::from_counts(&[N_NODES]).unwrap();
    let labels = Labels::read(&sources, &owned, &book, &TrainConfig::default()).unwrap();
    for (kind, seed) in [(ModelKind::Sage, 3), (ModelKind::Gcn, 4), (ModelKind::Gat, 5)] {
        let widths = vec![WIDTH, 6, 4, labels.n_classes];
        let spec = ModelSpec { kind, widths, n_heads: 2, n_output_heads: 3, dropout: 0.0 };
        let model = Model::new(&spec, seed).unwrap();
        let expected = Accuracy {
            validation: Some(naive(&model, &topology, &labels, &labels.validation)),
            test: Some(naive(&model, &topology, &labels, &labels.test)),
        };
        for (roots, chunk_bytes) in [(1000, 1 << 20), (1000, 40), (5, 40), (1, 1)] {
            let info = sources.local.tensor("feat").unwrap();
            let mut evaluator = Evaluator::new(
                &labels,
                &topology,
                Sampler::new(&topology, &[Fanout::All; 3]),
                FeatureRows::new(&info, false).unwrap(),
                sources.loader("feat", &owned).unwrap(),
                EvaluationLimits { roots, chunk_bytes },
            )
            .unwrap();
            assert_eq!(evaluator.accuracy(&model).unwrap(), expected, "{kind} {roots}");
            // No operation is kept for a backward pass.
            let hidden = evaluator.first_layer(0, model.first_layer()).unwrap();
            assert!(!hidden.track_op(), "{kind}");
            let EvaluationBatch { nodes, blocks, .. } = &evaluator.batches[0];
            let degree = |node| topology.in_degree(node);
            let hops = Hops { blocks, nodes, degree: &degree };
            assert!(!model.finish_evaluation(hops, hidden).unwrap().track_op(), "{kind}");
        }
    }
}
