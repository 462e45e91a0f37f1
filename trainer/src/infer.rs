//! A saved model over all nodes of a graph.

use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
};

use lodestore_comm::threads::ThreadCollective;
use lodestore_graph::node_set::NodeSet;
use lodestore_graph::{NodeId, PartId};
use lodestore_models::matrix::Matrix;
use lodestore_models::matrix::workspace::Workspace;
use lodestore_models::metric::Accuracy;
use lodestore_models::model::Model;
use serde::Serialize;

use crate::error::{TrainError, check};
use crate::features::FeatureRows;
use crate::layerwise::{
    LayerPass, Owners, PassLimits, PassOutput, PassPlace, WorkFolder, check_finite, remove,
};
use crate::options::{Metric, ModelKind, by_name};
use crate::process_group::ProcessGroup;
use crate::run_model;
use crate::setup::Setup;
use crate::sources::{TrainGraph, WorkerSources};

/// Version of the rounding of products: 2 since gemm computes them.
const ROUNDING: u32 = 2;

/// Result of a saved model on a graph.
#[derive(Clone, Debug, Serialize)]
pub struct Evaluation {
    /// Which layers it has.
    pub model: ModelKind,
    /// Elements of all its parameters.
    pub parameters: u64,
    /// Name of the metric behind accuracy.
    pub metric: Metric,
    /// Accuracy on the validation nodes, with full neighbourhoods; absent without any.
    pub validation_accuracy: Option<f64>,
    /// The same on the test nodes.
    pub test_accuracy: Option<f64>,
}

/// Which rows of a model to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum InferOutput {
    /// The last layer's: one value for each class.
    Logits,
    /// The input of the last layer: hidden rows after their activation.
    Embedding,
}

/// The computation, and its scratch storage.
#[derive(Clone, Debug)]
pub struct InferConfig {
    /// Which rows.
    pub output: InferOutput,
    /// Most bytes of rows held in memory.
    pub memory_bytes: u64,
    /// Folder of the layers' rows, used by one process at a time. The same inference continues
    /// where an earlier process ended; leftovers of another inference are removed.
    pub work_dir: PathBuf,
    /// Version of the features: an inference over another version begins again.
    pub version: String,
}

/// A saved model that is ready to run over all nodes of a graph, with all their neighbours.
pub struct Inference<'a> {
    pass: LayerPass<'a>,
    model: Model,
    kind: ModelKind,
    output: InferOutput,
    n_layers: usize,
    width: usize,
    n_parameters: u64,
    work: WorkFolder,
}

/// Receives rows in the order of node ids, some nodes at a time.
pub type RowOutput<'s> = dyn FnMut(&[f32]) -> Result<(), Box<dyn Error + Send + Sync>> + 's;

impl<'a> Inference<'a> {
    /// Reads the model in `path`, and checks it against the graph. `sources` are those of a single
    /// worker, which owns all partitions.
    ///
    /// Fails for a model of another shape, and for the embedding of a model of one layer.
    pub fn open(
        path: &Path,
        graph: &TrainGraph<'a>,
        sources: &WorkerSources,
        infer: &InferConfig,
    ) -> Result<Self, TrainError> {
        let output = infer.output;
        let (file, config) = run_model::open(path)?;
        let info = sources.local.tensor(&config.feature_tensor)?;
        let spec = run_model::spec_of(&config, info.width as usize, file.n_classes()?);
        file.check(&spec)?;
        let model = Model::new(&spec, 0);
        let n_parameters = file.fill(&model, &spec)?;
        let n_layers = match output {
            InferOutput::Logits => model.layers.len(),
            InferOutput::Embedding => model.layers.len() - 1,
        };
        let expected = "logits for a model of one layer, which has no hidden rows";
        check(n_layers > 0, "output", expected, output)?;
        let width = model.layers[n_layers - 1].conv.out_width();
        let owned: Vec<PartId> = graph.book.parts().collect();
        let limits = PassLimits::within(infer.memory_bytes);
        let pass = LayerPass {
            topology: graph.topology,
            owners: Owners { book: graph.book, n_workers: 1 },
            features: FeatureRows::new(&info, config.normalize)?,
            loaders: vec![sources.untiered_loader(&config.feature_tensor, &owned)?],
            limits,
        };
        // Everything that determines the bits of the rows, except the kind of processor.
        let mut identity = blake3::Hasher::new();
        identity.update(&graph.uuid).update(file.digest().as_bytes());
        let chunk_bytes = limits.chunk_bytes;
        let settings = format!("{ROUNDING} {output} {chunk_bytes} {info:?} {}", infer.version);
        let identity = identity.update(settings.as_bytes()).finalize().to_hex();
        let work = WorkFolder::open(&infer.work_dir, &identity)
            .map_err(|source| TrainError::Spill { folder: infer.work_dir.clone(), source })?;
        let kind = config.model;
        Ok(Self { pass, model, kind, output, n_layers, width, n_parameters, work })
    }

    /// Returns which layers the model has.
    #[must_use]
    pub fn model(&self) -> ModelKind {
        self.kind
    }

    /// Returns the elements of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the elements of all parameters.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.n_parameters
    }

    /// Returns whether it continues an earlier process of this inference.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.work.place != PassPlace::default()
    }

    /// Computes the rows of all nodes, and passes them to `rows` in the order of node ids.
    /// `progress` receives nodes done, and how many there are, summed over layers: first those that
    /// another process has done.
    ///
    /// Fails where a row is not finite, and names its node.
    pub fn run(
        &mut self,
        rows: &mut RowOutput<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), TrainError> {
        let layers = &self.model.layers;
        let last = &layers[self.n_layers - 1];
        let activation = (self.output == InferOutput::Embedding).then(|| last.conv.activation());
        let mut sink = |nodes: &[NodeId], out: &mut Matrix| {
            check_finite(nodes, out)?;
            if let Some(activation) = activation {
                let active = activation.forward(out.values(), None, &Workspace::default());
                *out = Matrix::new(active, out.width());
            }
            Ok(())
        };
        let all = NodeSet::all(self.pass.topology.n_nodes());
        let mut alone = ThreadCollective::alone();
        let work = Some(&mut self.work);
        let output = PassOutput { sink: &mut sink, progress, work };
        let group = &mut ProcessGroup::new(&mut alone);
        let made = self.pass.run(&layers[..self.n_layers], all, group, output);
        if let Err(TrainError::NotFinite { .. }) = made {
            // Another attempt would fail alike.
            remove(&self.work.dir).map_err(|source| self.unkept(source))?;
        }
        let Some(made) = made? else { unreachable!("a pass in a folder keeps rows") };
        for piece in made.pieces() {
            let piece = piece.map_err(|source| self.unkept(source))?;
            rows(&piece).map_err(TrainError::Output)?;
        }
        Ok(())
    }

    /// Removes the folder of the layers' rows, after the caller has stored its output.
    pub fn remove_work(self) -> Result<(), TrainError> {
        remove(&self.work.dir).map_err(|source| self.unkept(source))
    }

    fn unkept(&self, source: io::Error) -> TrainError {
        TrainError::Spill { folder: self.work.dir.clone(), source }
    }
}

by_name!(InferOutput, "output", Logits = "logits", Embedding = "embedding");

/// Measures the accuracy of the model in `path` on the validation and test nodes of `graph`, with
/// all their neighbours. Its settings come from the file. `sources` are those of a single worker
/// that owns all partitions.
pub fn evaluate_saved(
    path: &Path,
    graph: &TrainGraph<'_>,
    sources: &WorkerSources,
) -> Result<Evaluation, TrainError> {
    let (file, config) = run_model::open(path)?;
    let sources = std::slice::from_ref(sources);
    let setup = Setup::new(&config, *graph, sources, vec![0], Some(&file))?;
    let parameters = file.fill(&setup.model, &setup.spec())?;
    let mut alone = ThreadCollective::alone();
    let group = &mut ProcessGroup::new(&mut alone);
    let Accuracy { validation: validation_accuracy, test: test_accuracy } =
        setup.evaluator()?.accuracy(&setup.model, group)?;
    let (model, metric) = (config.model, config.metric);
    Ok(Evaluation { model, parameters, metric, validation_accuracy, test_accuracy })
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::Arc,
    };

    use lodestore_graph::sampler::{Fanout, Sampler};

    use super::*;
    use crate::layerwise::tests::{N_NODES, first, model, naive, pass, topology};
    use lodestore_models::conv::{Hop, Input, LayerDropout};
    use lodestore_models::matrix::dropout::Activation;

    fn inference<'a>(
        pass: LayerPass<'a>,
        model: &Model,
        output: InferOutput,
        work: WorkFolder,
    ) -> Inference<'a> {
        let (model, kind) = (model.clone(), ModelKind::Sage);
        let n_layers = model.layers.len() - usize::from(output == InferOutput::Embedding);
        let width = model.layers[n_layers - 1].conv.out_width();
        Inference { pass, model, kind, output, n_layers, width, n_parameters: 0, work }
    }

    #[test]
    fn an_inference_that_ends_anywhere_continues_with_the_same_bits() {
        let topology = topology();
        for (kind, output) in [
            (ModelKind::Sage, InferOutput::Logits),
            (ModelKind::Gcn, InferOutput::Embedding),
            (ModelKind::Gat, InferOutput::Logits),
        ] {
            let model = model(kind, [6, 4], 5);
            // In memory and in files, some chunks in each stage.
            for n_bytes in [12_000, 1600] {
                let dir = tempfile::tempdir().unwrap();
                let work = dir.path().join("work");
                let run = |identity: &str, n_calls: u32| {
                    let folder = WorkFolder::open(&work, identity).unwrap().saving_always();
                    let pass = pass(&topology, PassLimits::within(n_bytes));
                    let mut inference = inference(pass, &model, output, folder);
                    let (mut rows, mut places) = (Vec::new(), Vec::new());
                    let mut keep = |piece: &[f32]| {
                        rows.extend_from_slice(piece);
                        Ok(())
                    };
                    // Ends like a killed process: nothing is removed.
                    let mut progress = |done: u64, total: u64| {
                        places.push((done, total));
                        assert!(places.len() < n_calls as usize, "killed");
                    };
                    let run = || inference.run(&mut keep, &mut progress).unwrap();
                    let is_done = catch_unwind(AssertUnwindSafe(run)).is_ok();
                    if is_done {
                        inference.remove_work().unwrap();
                    }
                    (is_done, rows, places)
                };
                let (is_done, expected, places) = run("a", u32::MAX);
                assert!(is_done && !work.exists());
                let total = places[0].1;
                assert_eq!(places.last(), Some(&(total, total)));
                assert_eq!(places[0].0, 0);
                assert!(places.len() > 8, "{places:?}");
                for n_calls in (2..places.len() as u32).step_by(3) {
                    let (is_done, rows, _) = run("a", n_calls);
                    assert!(!is_done && rows.is_empty());
                    let (is_done, rows, after) = run("a", u32::MAX);
                    assert!(is_done);
                    assert_eq!(rows, expected, "{kind} {n_bytes} {n_calls}");
                    // All rounds up to the call before the last, and the starts of two stages.
                    let most = places.len() - n_calls as usize + 3;
                    assert!(after.len() <= most, "{after:?} {places:?}");
                }
                // Killed again and again, a round or two each.
                let mut n_runs = 0;
                let rows = loop {
                    n_runs += 1;
                    let (is_done, rows, _) = run("a", 4);
                    if is_done {
                        break rows;
                    }
                    assert!(n_runs < 100);
                };
                assert!(n_runs > 2);
                assert_eq!(rows, expected);
                // Rows of another inference are not used.
                assert!(!run("b", 6).0);
                let (_, rows, after) = run("a", u32::MAX);
                assert_eq!((after[0].0, rows), (0, expected));
            }
        }
    }

    #[test]
    fn a_folder_of_other_files_is_left_alone_and_lost_rows_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().join("work");
        std::fs::create_dir(&work).unwrap();
        std::fs::write(work.join("letters"), "dear").unwrap();
        let refused = WorkFolder::open(&work, "a").unwrap_err().to_string();
        assert!(refused.contains("letters is not of an inference"), "{refused}");
        assert!(remove(&work).is_err() && work.join("letters").exists());
        std::fs::remove_file(work.join("letters")).unwrap();
        let folder = WorkFolder::open(&work, "a").unwrap();
        folder.rows_file(0, 0).unwrap();
        let lost = folder.rows_file(0, 8).unwrap_err().to_string();
        assert!(lost.contains("has 0 bytes of the 8 that are recorded"), "{lost}");
        remove(&work).unwrap();
        assert!(!work.exists());
    }

    #[test]
    fn embeddings_are_the_rows_that_the_last_layer_reads() {
        let (topology, dir) = (topology(), tempfile::tempdir().unwrap());
        let all: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
        for kind in [ModelKind::Sage, ModelKind::Gcn, ModelKind::Gat] {
            let (width, model) = (4, model(kind, [6, 4], 5));
            let work = WorkFolder::open(&dir.path().join(kind.to_string()), "a").unwrap();
            let pass = pass(&topology, PassLimits::within(2000));
            let mut inference = inference(pass, &model, InferOutput::Embedding, work);
            let mut found = Vec::new();
            let mut keep = |rows: &[f32]| {
                found.extend_from_slice(rows);
                Ok(())
            };
            inference.run(&mut keep, &mut |_, _| ()).unwrap();
            let is_relu = kind != ModelKind::Gat;
            let activation = if is_relu { Activation::Relu } else { Activation::Elu };
            let hidden = naive(&first(&model, 2), &topology, &all);
            let expected = activation.forward(hidden.values(), None, &Workspace::default());
            assert!(is_near(&found, &expected), "{kind}");
            assert_eq!(found.iter().all(|value| *value >= 0.0), is_relu, "{kind}");
            // The last layer makes the logits of them.
            let batch = Sampler::new(&topology, &[Fanout::All]).sample(&all, 0);
            let row = |node: &NodeId| found[node.index() * width..][..width].to_vec();
            let x: Vec<f32> = batch.nodes.iter().flat_map(row).collect();
            let block = Arc::new(batch.blocks.into_iter().next().unwrap());
            let degree = |node| topology.in_degree(node);
            let hop = Hop { block: &block, nodes: &batch.nodes, degree: &degree };
            let input = Input::Features { x: &x, width };
            let (last, workspace) = (&model.layers[2], Workspace::default());
            let (logits, _) = last.forward(hop, input, LayerDropout::default(), &workspace);
            let expected = naive(&model, &topology, &all);
            assert!(is_near(logits.values(), expected.values()), "{kind}");
        }
    }

    fn is_near(found: &[f32], expected: &[f32]) -> bool {
        let is_near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4;
        found.len() == expected.len() && found.iter().zip(expected).all(is_near)
    }
}
