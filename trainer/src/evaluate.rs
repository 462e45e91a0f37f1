//! Accuracy with full neighbourhoods.

use lodestore_graph::NodeId;

use crate::{
    TrainError,
    labels::Labels,
    layerwise::{LayerPass, NodeSet},
    loss::largest,
    matrix::Matrix,
    model::Model,
};

/// The validation and test nodes, and what it takes to compute their logits.
pub(crate) struct Evaluator<'a> {
    pass: LayerPass<'a>,
    labels: &'a Labels,
    /// Whether test nodes are measured too.
    measure_test: bool,
}

/// Accuracy on both splits; absent for an empty one, or one that is not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Accuracy {
    pub(crate) validation: Option<f64>,
    pub(crate) test: Option<f64>,
}

impl<'a> Evaluator<'a> {
    /// Makes an evaluator by `pass`; test nodes are left out unless they are to be measured.
    pub(crate) fn new(pass: LayerPass<'a>, labels: &'a Labels, measure_test: bool) -> Self {
        Self { pass, labels, measure_test }
    }

    /// Returns the accuracy of `model` as it is now.
    pub(crate) fn accuracy(&mut self, model: &Model) -> Result<Accuracy, TrainError> {
        let (labels, n_nodes) = (self.labels, self.pass.topology.n_nodes());
        let test: &[NodeId] = if self.measure_test { &labels.test } else { &[] };
        let in_test = NodeSet::new(n_nodes, test.iter().copied());
        let mut n_right = [0u64; 2];
        let mut count = |nodes: &[NodeId], logits: &Matrix| {
            let rows = logits.values().chunks_exact(logits.width().max(1));
            for ((node, class), row) in nodes.iter().zip(labels.classes_of(nodes)).zip(rows) {
                let is_right = largest(row) == class as usize;
                n_right[usize::from(in_test.contains(*node))] += u64::from(is_right);
            }
            Ok(())
        };
        let wanted = labels.validation.iter().chain(test).copied();
        let wanted = NodeSet::new(n_nodes, wanted);
        self.pass.run(model.layers(), wanted, &mut count, &mut |_, _| ())?;
        let rate = |right: u64, n: usize| (n > 0).then(|| right as f64 / n as f64);
        Ok(Accuracy {
            validation: rate(n_right[0], labels.validation.len()),
            test: rate(n_right[1], test.len()),
        })
    }
}

#[cfg(test)]
mod tests;
