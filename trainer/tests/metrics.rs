//! Metrics and labels of all kinds, and what a run says of those that it cannot use.

use std::sync::Arc;

use crate::planted::{
    N_CLASSES, N_NODES, Planted, bytes_of, config, ondemand, planted, rows_of_all, run,
};
use lodestore_client::RowSource;
use lodestore_client::source::memory::MemorySource;
use lodestore_graph::NodeId;
use lodestore_store::Dtype;
use lodestore_trainer::step::Place;
use lodestore_trainer::{Metric, ModelKind, TrainConfig, TrainError};

fn classes(graph: &Planted) -> Vec<i64> {
    let labels = rows_of_all(graph, "label");
    labels.as_chunks::<8>().0.iter().map(|label| i64::from_le_bytes(*label)).collect()
}

/// Returns the planted graph with other labels, and features that `change` has passed.
fn with_labels(
    graph: &Planted,
    dtype: Dtype,
    width: u32,
    labels: Vec<u8>,
    change: impl Fn(&mut [f32]),
) -> Planted {
    let feat = graph.rows.tensor("feat").unwrap();
    let features = rows_of_all(graph, "feat");
    let features = features.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value));
    let mut features: Vec<f32> = features.collect();
    change(&mut features);
    let mut rows = MemorySource::new(graph.book.clone());
    rows.add("feat", Dtype::F32, feat.width, bytes_of(&features, f32::to_le_bytes)).unwrap();
    rows.add("label", dtype, width, labels).unwrap();
    rows.add("split", Dtype::U8, 1, rows_of_all(graph, "split")).unwrap();
    Planted { rows: Arc::new(rows), ..planted(2) }
}

/// Returns each class as a label of its own, and one that no node has.
fn several(graph: &Planted) -> Vec<u8> {
    let row = |class: i64| (0..=i64::from(N_CLASSES)).map(move |of| u8::from(class == of));
    classes(graph).into_iter().flat_map(row).collect()
}

fn settings(metric: Metric, dir: &std::path::Path) -> TrainConfig {
    let epochs = 15;
    TrainConfig { metric, epochs, dropout: 0.0, ..config(ondemand(), 2, dir) }
}

#[test]
fn several_labels_are_learnt_alike_from_bytes_and_floats() {
    let (graph, dir) = (planted(2), tempfile::tempdir().unwrap());
    let labels = several(&graph);
    let floats: Vec<f32> = labels.iter().copied().map(f32::from).collect();
    let graphs = [
        with_labels(&graph, Dtype::U8, 4, labels, |_| ()),
        with_labels(&graph, Dtype::F32, 4, bytes_of(&floats, f32::to_le_bytes), |_| ()),
    ];
    for (metric, least) in [(Metric::F1Micro, 0.7), (Metric::RocAuc, 0.85)] {
        let reports = graphs.each_ref().map(|graph| {
            let config = TrainConfig { model: ModelKind::Gcn, ..settings(metric, dir.path()) };
            run(graph, &config).unwrap()
        });
        let [bytes, floats] = &reports;
        assert_eq!(bytes.step_losses, floats.step_losses);
        assert_eq!((bytes.metric, bytes.test_accuracy), (metric, floats.test_accuracy));
        assert!(bytes.test_accuracy.unwrap() > least, "{metric} {:?}", bytes.test_accuracy);
    }
}

#[test]
fn the_area_of_two_classes_is_measured_and_f1_of_classes_is_the_accuracy() {
    let (graph, dir) = (planted(2), tempfile::tempdir().unwrap());
    let two: Vec<i64> = classes(&graph).iter().map(|class| i64::from(*class > 0)).collect();
    let two = with_labels(&graph, Dtype::I64, 1, bytes_of(&two, i64::to_le_bytes), |_| ());
    let report = run(&two, &settings(Metric::RocAuc, dir.path())).unwrap();
    assert!(report.test_accuracy.unwrap() > 0.8, "{:?}", report.test_accuracy);
    let [accuracy, f1] = [Metric::Accuracy, Metric::F1Micro]
        .map(|metric| run(&graph, &settings(metric, dir.path())).unwrap());
    assert_eq!(accuracy.test_accuracy, f1.test_accuracy);
    assert_eq!(accuracy.step_losses, f1.step_losses);
}

#[test]
fn labels_and_features_that_cannot_be_used_are_named() {
    let (graph, dir) = (planted(2), tempfile::tempdir().unwrap());
    let message = |graph: &Planted, metric| {
        run(graph, &settings(metric, dir.path())).unwrap_err().to_string()
    };
    let three = message(&graph, Metric::RocAuc);
    assert!(three.contains("`metric` must be accuracy or f1-micro"), "{three}");
    let labels = several(&graph);
    let of_bytes = with_labels(&graph, Dtype::U8, 4, labels.clone(), |_| ());
    let accuracy = message(&of_bytes, Metric::Accuracy);
    assert!(accuracy.contains("`metric` must be f1-micro or roc-auc"), "{accuracy}");
    let split = rows_of_all(&graph, "split");
    let node = split.iter().position(|split| *split == 0).unwrap();
    let mut wrong = labels;
    wrong[4 * node + 2] = 7;
    let wrong = with_labels(&graph, Dtype::U8, 4, wrong, |_| ());
    let wrong = message(&wrong, Metric::F1Micro);
    assert!(wrong.contains(&format!("node {node} is in the training split")), "{wrong}");
    assert!(wrong.contains("label 2 of it is 7; expected 0 or 1"), "{wrong}");
    let narrow = with_labels(&graph, Dtype::F32, 1, vec![0; 4 * N_NODES as usize], |_| ());
    let narrow = message(&narrow, Metric::F1Micro);
    assert!(narrow.contains("f32 of width 1") && narrow.contains("several labels"), "{narrow}");
    let labels = bytes_of(&classes(&graph), i64::to_le_bytes);
    let spoil = |features: &mut [f32]| features[8 * node + 3] = f32::NAN;
    let nan = with_labels(&graph, Dtype::I64, 1, labels, spoil);
    let nan = message(&nan, Metric::Accuracy);
    assert!(nan.contains(&format!("feature 3 of node {node} is NaN in epoch 0, step")), "{nan}");
    // Numbers that are none only in the model: after the first update.
    let steep = settings(Metric::Accuracy, dir.path());
    let steep = TrainConfig { learning_rate: 1e30, ..steep };
    let diverged = run(&graph, &steep).unwrap_err();
    let TrainError::Diverged { node, place: Place { epoch: 0, step: 1 }, .. } = diverged else {
        panic!("{diverged}")
    };
    assert_eq!(split[node.index()], 0, "a root");
    assert!(
        diverged
            .to_string()
            .contains(&format!("in epoch 0, step 1, where the model's row of node {node}")),
        "{diverged}"
    );
    // No batch has a node without neighbours that is not trained on; the evaluation has it.
    let is_alone = |node: usize| graph.topology.in_degree(NodeId(node as u32)) == 0;
    let node = (0..split.len()).find(|&node| split[node] == 1 && is_alone(node)).unwrap();
    let labels = bytes_of(&classes(&graph), i64::to_le_bytes);
    let spoil = |features: &mut [f32]| features[8 * node + 3] = f32::NAN;
    let nan = with_labels(&graph, Dtype::I64, 1, labels, spoil);
    let nan = message(&nan, Metric::Accuracy);
    assert!(nan.contains(&format!("row of node {node} is not finite")), "{nan}");
}

#[test]
fn an_area_of_nodes_without_two_labels_is_refused_before_the_first_step() {
    let (graph, dir) = (planted(2), tempfile::tempdir().unwrap());
    let split = rows_of_all(&graph, "split");
    // The nodes of a split have no other than the first class, or no label but the first.
    let with_blind = |blind: u8| {
        let classes = classes(&graph).into_iter().zip(&split);
        let classes = classes.map(|(class, split)| i64::from(class > 0 && *split != blind));
        let classes: Vec<i64> = classes.collect();
        let several = classes.iter().flat_map(|class| [1, u8::from(*class == 1)]).collect();
        let classes = bytes_of(&classes, i64::to_le_bytes);
        [
            with_labels(&graph, Dtype::I64, 1, classes, |_| ()),
            with_labels(&graph, Dtype::U8, 2, several, |_| ()),
        ]
    };
    let settings = TrainConfig { epochs: 1, ..settings(Metric::RocAuc, dir.path()) };
    for (blind, name) in [(1, "validation"), (2, "test")] {
        for graph in with_blind(blind) {
            let message = run(&graph, &settings).unwrap_err().to_string();
            let expected = format!("all {name} nodes have the same labels, found roc-auc");
            assert!(message.contains(&expected), "{message}");
        }
    }
    // Test nodes that are not measured, or any where nothing is.
    let [graph, _] = with_blind(2);
    let unmeasured = TrainConfig { measure_test: false, ..settings };
    run(&graph, &unmeasured).unwrap();
    let [graph, _] = with_blind(1);
    run(&graph, &TrainConfig { evaluate_every: 0, ..unmeasured }).unwrap();
}
