//! Accuracy of a model with full neighbourhoods.

use lodestore_graph::NodeId;
use lodestore_graph::node_set::NodeSet;
use lodestore_models::matrix::Matrix;
use lodestore_models::metric::{Accuracy, Measure};
use lodestore_models::model::Model;

use crate::error::TrainError;
use crate::labels::Labels;
use crate::layerwise::{LayerPass, PassOutput, check_finite};
use crate::options::Metric;
use crate::process_group::ProcessGroup;

/// Computes logits of validation and test nodes.
pub(crate) struct Evaluator<'a> {
    pub(crate) pass: LayerPass<'a>,
    pub(crate) labels: &'a Labels,
    pub(crate) metric: Metric,
    /// Whether test nodes are measured too.
    pub(crate) measure_test: bool,
}

impl Evaluator<'_> {
    /// Returns the metric of `model` in the leader. Each process computes the logits of its
    /// workers' nodes.
    ///
    /// Fails if a logit is not finite.
    pub(crate) fn accuracy(
        &self,
        model: &Model,
        group: &mut ProcessGroup<'_>,
    ) -> Result<Accuracy, TrainError> {
        let (labels, n_nodes) = (self.labels, self.pass.topology.n_nodes());
        let test: &[NodeId] = if self.measure_test { &labels.test } else { &[] };
        let in_test = NodeSet::new(n_nodes, test.iter().copied());
        let mut measures = [Measure::new(self.metric), Measure::new(self.metric)];
        let mut measure = |nodes: &[NodeId], logits: &mut Matrix| {
            check_finite(nodes, logits)?;
            let targets = labels.targets_of(nodes);
            for (number, node) in nodes.iter().enumerate() {
                let split = usize::from(in_test.contains(*node));
                measures[split].add(number, logits, &targets);
            }
            Ok(())
        };
        let wanted = labels.validation.iter().chain(test).copied();
        let wanted = NodeSet::new(n_nodes, wanted);
        let (sink, progress) = (&mut measure, &mut |_, _| ());
        let output = PassOutput { sink, progress, work: None };
        self.pass.run(&model.layers, wanted, group, output)?;
        let [validation, test] = measures.map(Measure::value);
        Ok(Accuracy { validation, test })
    }
}

#[cfg(test)]
mod tests;
