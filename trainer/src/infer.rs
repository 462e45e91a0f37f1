//! A saved model over all nodes of a graph.

use std::{error::Error, fmt, path::Path, str::FromStr};

use lodestore_graph::{NodeId, PartId};
use serde::Serialize;

use crate::{
    ModelKind, TrainError, TrainGraph, WorkerSources,
    features::FeatureRows,
    layerwise::{LayerPass, NodeSet, PassLimits, check_finite},
    matrix::Matrix,
    model::{Model, ModelSpec},
    saved::ModelFile,
    workspace::Workspace,
};

/// Which rows of a model are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum InferOutput {
    /// The last layer's: one value for each class.
    Logits,
    /// Those that the last layer reads: hidden rows after their activation.
    Embedding,
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
}

/// What takes the rows: they come in the order of node ids, some nodes' at a time.
pub type RowOutput<'s> = dyn FnMut(&[f32]) -> Result<(), Box<dyn Error + Send + Sync>> + 's;

impl<'a> Inference<'a> {
    /// Reads the model in `path`, and checks it against the graph. `sources` are those of a single
    /// worker, who owns all partitions; at most `memory_bytes` of rows are held in memory, and more
    /// go to a temporary file.
    ///
    /// Fails for a model of another shape, and for the embedding of a model of one layer.
    pub fn open(
        path: &Path,
        graph: &TrainGraph<'a>,
        sources: &WorkerSources,
        output: InferOutput,
        memory_bytes: u64,
    ) -> Result<Self, TrainError> {
        let file = ModelFile::read(path)?;
        let config = &file.config;
        let info = sources.local.tensor(&config.feature_tensor)?;
        let spec = ModelSpec::new(config, info.width as usize, file.n_classes()?);
        file.check(&spec)?;
        let model = Model::new(&spec, 0)?;
        let n_parameters = file.fill(&model)?;
        let n_layers = match output {
            InferOutput::Logits => model.layers().len(),
            InferOutput::Embedding => model.layers().len() - 1,
        };
        let Some(last) = n_layers.checked_sub(1) else {
            return Err(TrainError::Setting {
                setting: "output",
                expected: "logits for a model of one layer, which has no hidden rows".to_owned(),
                found: output.to_string(),
            });
        };
        let width = model.layers()[last].out_width()?;
        let owned: Vec<PartId> = graph.book.parts().collect();
        let pass = LayerPass {
            topology: graph.topology,
            features: FeatureRows::new(&info, config.normalize)?,
            loader: sources.untiered_loader(&config.feature_tensor, &owned)?,
            limits: PassLimits::within(memory_bytes),
        };
        let kind = config.model;
        Ok(Self { pass, model, kind, output, n_layers, width, n_parameters })
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

    /// Computes the rows of all nodes, and passes them to `rows` in the order of node ids.
    /// `progress` gets nodes done, and how many there are, summed over layers.
    ///
    /// Fails where a row is not finite, and names its node.
    pub fn run(
        &mut self,
        rows: &mut RowOutput<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), TrainError> {
        let layers = self.model.layers();
        let last = &layers[self.n_layers - 1];
        let activation = (self.output == InferOutput::Embedding).then(|| last.activation());
        let mut sink = |nodes: &[NodeId], out: &Matrix| {
            check_finite(nodes, out)?;
            let written = match activation {
                Some(activation) => {
                    rows(&activation.forward(out.values(), None, &Workspace::default()))
                }
                None => rows(out.values()),
            };
            written.map_err(TrainError::Output)
        };
        let all = NodeSet::all(self.pass.topology.n_nodes());
        self.pass.run(&layers[..self.n_layers], all, &mut sink, progress)
    }
}

impl fmt::Display for InferOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Logits => "logits",
            Self::Embedding => "embedding",
        })
    }
}

impl FromStr for InferOutput {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "logits" => Ok(Self::Logits),
            "embedding" => Ok(Self::Embedding),
            _ => Err(format!("no output `{name}`; there are: logits, embedding")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lodestore_graph::sampler::{Fanout, Sampler};

    use super::*;
    use crate::{
        conv::{Hop, Input, LayerDropout},
        dropout::Activation,
        layerwise::tests::{N_NODES, model, naive, pass, topology},
    };

    #[test]
    fn embeddings_are_the_rows_that_the_last_layer_reads() {
        let topology = topology();
        let all: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
        for kind in [ModelKind::Sage, ModelKind::Gcn, ModelKind::Gat] {
            let (width, model) = (4, model(kind, [6, 4], 5));
            let mut inference = Inference {
                pass: pass(&topology, PassLimits::within(2000)),
                model: model.clone(),
                kind,
                output: InferOutput::Embedding,
                n_layers: 2,
                width,
                n_parameters: 0,
            };
            let mut found = Vec::new();
            let mut keep = |rows: &[f32]| {
                found.extend_from_slice(rows);
                Ok(())
            };
            inference.run(&mut keep, &mut |_, _| ()).unwrap();
            let is_relu = kind != ModelKind::Gat;
            let activation = if is_relu { Activation::Relu } else { Activation::Elu };
            let hidden = naive(&model.first(2), &topology, &all);
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
            let (last, workspace) = (&model.layers()[2], Workspace::default());
            let (logits, _) =
                last.forward(hop, input, LayerDropout::default(), &workspace).unwrap();
            let expected = naive(&model, &topology, &all);
            assert!(is_near(logits.values(), expected.values()), "{kind}");
        }
    }

    fn is_near(found: &[f32], expected: &[f32]) -> bool {
        let is_near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4;
        found.len() == expected.len() && found.iter().zip(expected).all(is_near)
    }
}
