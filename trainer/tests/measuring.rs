//! Saved models on other nodes and other rows: what is normalised, what is refused, what is needed.

use std::{path::Path, sync::Arc};

use crate::planted::{
    N_CLASSES, N_NODES, Planted, bytes_of, config, ondemand, planted, rows_of_all, run,
};
use lodestore_client::RowSource;
use lodestore_client::source::memory::MemorySource;
use lodestore_graph::NodeId;
use lodestore_store::Dtype;
use lodestore_trainer::infer::{Evaluation, InferConfig, InferOutput, Inference, evaluate_saved};
use lodestore_trainer::report::RowsFrom;
use lodestore_trainer::{TrainConfig, TrainError, TrainGraph, WorkerSources};

/// The planted graph's rows, to be changed.
struct Rows {
    width: u32,
    features: Vec<f32>,
    labels: Vec<i64>,
    splits: Vec<u8>,
}

impl Rows {
    fn of(graph: &Planted) -> Self {
        let (features, labels) = (rows_of_all(graph, "feat"), rows_of_all(graph, "label"));
        Self {
            width: graph.rows.tensor("feat").unwrap().width,
            features: features
                .as_chunks::<4>()
                .0
                .iter()
                .map(|it| f32::from_le_bytes(*it))
                .collect(),
            labels: labels.as_chunks::<8>().0.iter().map(|it| i64::from_le_bytes(*it)).collect(),
            splits: rows_of_all(graph, "split"),
        }
    }

    /// Returns the first node of a split.
    fn first_in(&self, split: u8) -> usize {
        self.splits.iter().position(|it| *it == split).unwrap()
    }

    /// Returns the same in rows of `width`, of which the first elements are these, and others
    /// zeros.
    fn widened(self, width: u32) -> Self {
        let row = |row: &[f32]| {
            let mut row = row.to_vec();
            row.resize(width as usize, 0.0);
            row
        };
        let features = self.features.chunks(self.width as usize).flat_map(row).collect();
        Self { width, features, ..self }
    }

    /// Returns the planted graph with these rows.
    fn graph(&self) -> Planted {
        let graph = planted(2);
        let mut rows = MemorySource::new(graph.book.clone());
        let features = bytes_of(&self.features, f32::to_le_bytes);
        rows.add("feat", Dtype::F32, self.width, features).unwrap();
        rows.add("label", Dtype::I64, 1, bytes_of(&self.labels, i64::to_le_bytes)).unwrap();
        rows.add("split", Dtype::U8, 1, self.splits.clone()).unwrap();
        Planted { rows: Arc::new(rows), ..graph }
    }
}

/// Returns a run that saves its model to `path`.
fn settings(path: &Path) -> TrainConfig {
    let dir = path.parent().unwrap();
    TrainConfig { save_model: Some(path.to_owned()), ..config(ondemand(), 2, dir) }
}

fn sources(graph: &Planted) -> WorkerSources {
    let rows = Arc::clone(&graph.rows) as Arc<dyn RowSource>;
    WorkerSources::new(Arc::clone(&rows), rows)
}

fn on(graph: &Planted) -> TrainGraph<'_> {
    let (topology, book) = (&graph.topology, &graph.book);
    TrainGraph { topology, book, uuid: [3; 16], rows_from: RowsFrom::Embedded }
}

fn evaluate(graph: &Planted, path: &Path) -> Result<Evaluation, TrainError> {
    evaluate_saved(path, &on(graph), &sources(graph))
}

fn infer(graph: &Planted, path: &Path, work_dir: &Path) -> Result<Vec<f32>, TrainError> {
    let (output, version) = (InferOutput::Logits, String::new());
    let work_dir = work_dir.to_owned();
    let config = InferConfig { output, memory_bytes: 20_000, work_dir, version };
    let mut inference = Inference::open(path, &on(graph), &sources(graph), &config)?;
    let mut found = Vec::new();
    let mut keep = |rows: &[f32]| {
        found.extend_from_slice(rows);
        Ok(())
    };
    inference.run(&mut keep, &mut |_, _| ())?;
    inference.remove_work()?;
    Ok(found)
}

#[test]
fn normalised_features_are_so_in_training_evaluation_and_inference() {
    let dir = tempfile::tempdir().unwrap();
    let (path, work) = (dir.path().join("model"), dir.path().join("work"));
    // Dense rows, and rows that count as sparse.
    for width in [8, 100] {
        // Powers of two: a normalised row has the same bits then.
        let plain = Rows::of(&planted(2)).widened(width);
        let mut scaled = Rows::of(&planted(2)).widened(width);
        for (node, row) in scaled.features.chunks_mut(width as usize).enumerate() {
            let scale = 2f32.powi((node * 7 % 9) as i32 - 3);
            row.iter_mut().for_each(|value| *value *= scale);
        }
        let graphs = [plain.graph(), scaled.graph()];
        for normalize in [true, false] {
            let found = graphs.each_ref().map(|graph| {
                let settings = TrainConfig { normalize, dropout: 0.0, ..settings(&path) };
                let report = run(graph, &settings).unwrap();
                let epochs = report.epochs.iter();
                let measured: Vec<_> =
                    epochs.map(|it| [it.validation_accuracy, it.test_accuracy]).collect();
                (report.step_losses, measured)
            });
            assert_eq!(found[0] == found[1], normalize, "{width}");
            if normalize {
                assert_eq!(found[0].1, found[1].1, "{width}");
            }
            // The same model on both.
            let measured = graphs.each_ref().map(|graph| {
                let found = evaluate(graph, &path).unwrap();
                [found.validation_accuracy, found.test_accuracy]
            });
            let inferred = graphs.each_ref().map(|graph| infer(graph, &path, &work).unwrap());
            assert_eq!(measured[0] == measured[1], normalize, "{width}");
            assert_eq!(inferred[0] == inferred[1], normalize, "{width}");
            assert_eq!(inferred[0].len(), (N_CLASSES * N_NODES) as usize);
        }
    }
}

#[test]
fn an_inference_names_the_node_whose_row_is_not_finite() {
    let (graph, dir) = (planted(2), tempfile::tempdir().unwrap());
    let (path, work) = (dir.path().join("model"), dir.path().join("work"));
    run(&graph, &settings(&path)).unwrap();
    let expected = infer(&graph, &path, &work).unwrap();
    assert!(expected.iter().all(|value| value.is_finite()));
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        // No other row reads one of an isolated node.
        let alone = (0..N_NODES).find(|&node| graph.topology.in_degree(NodeId(node)) == 0);
        let node = alone.unwrap_or(N_NODES - 7);
        let mut rows = Rows::of(&graph);
        rows.features[8 * node as usize + 3] = wrong;
        let error = infer(&rows.graph(), &path, &work).unwrap_err();
        assert!(
            matches!(error, TrainError::NotFinite { node: found } if found.0 == node),
            "{error}"
        );
        assert!(error.to_string().contains(&format!("row of node {node} is not finite")));
        // An inference that would continue would only meet the same row again.
        assert!(!work.exists());
    }
}

#[test]
fn labels_out_of_range_are_named_before_the_first_step() {
    let (graph, dir) = (planted(2), tempfile::tempdir().unwrap());
    let path = dir.path().join("model");
    for (split, name) in [(0, "training"), (1, "validation"), (2, "test")] {
        for label in [-1, i64::MIN, 1 << 16, i64::MAX] {
            let mut rows = Rows::of(&graph);
            let node = rows.first_in(split);
            rows.labels[node] = label;
            let error = run(&rows.graph(), &settings(&path)).unwrap_err();
            let TrainError::Label { node: found, label: seen, limit, .. } = error else {
                panic!("{error}")
            };
            assert_eq!((found.internal.index(), seen, limit), (node, label, 1 << 16));
            let message = error.to_string();
            let expected = format!(
                "node {node} is in the {name} split but its label is {label}; expected 0..65536"
            );
            assert!(message.contains(&expected), "{message}");
            assert!(!path.exists(), "no step was made");
        }
    }
    // Nodes in no split need no label.
    let mut rows = Rows::of(&graph);
    let node = rows.first_in(255);
    rows.labels[node] = -1;
    run(&rows.graph(), &settings(&path)).unwrap();
    // A model's file decides how many classes there are.
    for (split, name) in [(1, "validation"), (2, "test")] {
        for label in [-1, N_CLASSES.into(), 70_000] {
            let mut rows = Rows::of(&graph);
            let node = rows.first_in(split);
            rows.labels[node] = label;
            let error = evaluate(&rows.graph(), &path).unwrap_err();
            assert!(matches!(error, TrainError::Label { .. }), "{error}");
            let expected = format!(
                "node {node} is in the {name} split but its label is {label}; expected 0..3"
            );
            assert!(error.to_string().contains(&expected), "{error}");
        }
    }
}

#[test]
fn an_evaluation_needs_the_nodes_that_it_measures_and_their_classes_alone() {
    let (graph, dir) = (planted(2), tempfile::tempdir().unwrap());
    let path = dir.path().join("model");
    run(&graph, &settings(&path)).unwrap();
    let expected = evaluate(&graph, &path).unwrap();
    let accuracies = |of: &Evaluation| [of.validation_accuracy, of.test_accuracy];
    assert!(accuracies(&expected).iter().all(Option::is_some));
    // Labels of training nodes are not looked at.
    let mut rows = Rows::of(&graph);
    let node = rows.first_in(0);
    rows.labels[node] = 99;
    assert_eq!(accuracies(&evaluate(&rows.graph(), &path).unwrap()), accuracies(&expected));
    // Nor are there any.
    let mut rows = Rows::of(&graph);
    rows.splits.iter_mut().filter(|split| **split == 0).for_each(|split| *split = 255);
    assert_eq!(accuracies(&evaluate(&rows.graph(), &path).unwrap()), accuracies(&expected));
    // Classes that no measured node has.
    let mut rows = Rows::of(&graph);
    for (split, label) in rows.splits.iter_mut().zip(&rows.labels) {
        *split = if *label == 0 { *split } else { 255 };
    }
    evaluate(&rows.graph(), &path).unwrap();
    rows.splits.fill(0);
    let error = evaluate(&rows.graph(), &path).unwrap_err();
    assert!(matches!(error, TrainError::NothingToMeasure { .. }), "{error}");
    assert!(error.to_string().contains("`split` marks no node for validation or test"), "{error}");
    // Training still needs some.
    rows.splits.fill(1);
    let error = run(&rows.graph(), &settings(&path)).unwrap_err();
    assert!(matches!(error, TrainError::NothingToTrain { .. }), "{error}");
}
