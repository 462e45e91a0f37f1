//! A partition in an epoch: its rows at each boundary between layers, and what their gradients
//! need.

use std::{sync::Arc, time::Instant};

use lodestore_graph::halo::part_graph::PartGraph;
use lodestore_models::attention::Entries;
use lodestore_models::conv::{
    Conv, LayerDropout,
    gat::{Attended, Gat},
};
use lodestore_models::layer::Layer;
use lodestore_models::linear::Linear;
use lodestore_models::loss::{Loss, Targets};
use lodestore_models::matrix::Matrix;
use lodestore_models::matrix::dropout::Mask;
use lodestore_models::matrix::sparse::Rows;
use lodestore_models::matrix::spmm::{OwnRows, add_scaled};
use lodestore_models::matrix::workspace::Workspace;
use lodestore_models::norm::Normed;
use lodestore_models::parameter::Values;

use super::{
    inputs::{EpochRows, Inputs},
    operator::{Destinations, Form, Operator, Sources},
    plan::{LayerPlan, Travels},
};

/// A partition with what an epoch leaves to the next.
pub(crate) struct Part {
    pub(crate) graph: PartGraph,
    pub(crate) inputs: Inputs,
    pub(crate) aggregator: Aggregator,
    pub(crate) plans: Vec<LayerPlan>,
    pub(crate) roots: PartRoots,
    pub(crate) workspace: Workspace,
    pub(super) pass: PartPass,
    /// Time to compute in the present epoch.
    pub(crate) seconds: f64,
}

/// Training nodes of a partition, with their labels.
pub(crate) struct PartRoots {
    pub(crate) local_ids: Vec<u32>,
    pub(crate) targets: Targets,
}

/// Aggregation of the rows of neighbours.
pub(crate) enum Aggregator {
    Weighted(Operator),
    Attention { entries: Arc<Entries>, keys: Vec<u64> },
}

/// The state of a forward and a backward pass.
#[derive(Default)]
pub(super) struct PartPass {
    pub(super) layers: Vec<LayerState>,
    /// Rows of the present layer that travel, or their gradient.
    pub(super) own: Vec<f32>,
    pub(super) halo: Vec<f32>,
    /// The aggregated rows of the present layer, or its output where rows are transformed first.
    sums: Vec<f32>,
    /// The gradient of the present layer's output.
    pub(super) grad: Option<Matrix>,
    /// That of its aggregated rows, where these are transformed after.
    pub(super) of_sums: Option<Matrix>,
    /// Additions to own rows beside those by edges: before the activation, and past it.
    pub(super) of_own: Option<Matrix>,
    pub(super) beside: Option<Vec<f32>>,
    pub(super) of_layer: OfLayer,
    /// From the last layer on.
    pub(super) gradients: Vec<Vec<Vec<f32>>>,
}

/// Values that a layer's backward pass needs from its forward pass.
#[derive(Default)]
pub(super) struct LayerState {
    /// Its output, before any activation.
    pub(super) output: Option<Matrix>,
    /// The rows that its weights were multiplied with, unless they are kept inputs.
    pub(super) rows: Option<Rows>,
    /// Inputs of the first layer: own ones, and those of the halo, after dropout.
    pub(super) inputs: Option<[EpochRows; 2]>,
    pub(super) mask: Option<Mask>,
    pub(super) normed: Option<Normed>,
    pub(super) attended: Option<Attended>,
}

/// Gradients of the parameters of a layer, as they become known.
#[derive(Default)]
pub(super) struct OfLayer {
    /// Parts of the weights, some of their rows each.
    pub(super) weights: Vec<Vec<f32>>,
    pub(super) others: Vec<Vec<f32>>,
    pub(super) of_norm: Vec<Vec<f32>>,
}

impl Part {
    /// Adds the time since `start` to the part's.
    pub(crate) fn took(&mut self, start: Instant) {
        self.seconds += start.elapsed().as_secs_f64();
    }

    /// Computes what travels of layer `number`; of the first one also what the halo's kept rows
    /// make.
    pub(crate) fn begin_layer(&mut self, number: usize, layer: &Layer, dropout: LayerDropout) {
        let plan = self.plans[number];
        if number == 0 {
            self.begin_first(layer, plan, dropout);
            return;
        }
        let workspace = &self.workspace;
        let Some(hidden) = self.pass.layers[number - 1].output.as_ref() else {
            unreachable!("the layer before has an output")
        };
        let mask = dropout.of_rows(self.graph.own());
        let active = layer.conv.activation().forward(hidden.values(), mask.as_ref(), workspace);
        let active = Matrix::new(active, hidden.width());
        let mut state = LayerState { mask, ..LayerState::default() };
        (self.pass.own, self.pass.sums) = match (plan.travels, &layer.conv) {
            (Travels::Rows, _) => (active.into_values(), Vec::new()),
            (Travels::Transformed, conv) => {
                let weight = neighbour_weight(conv, plan.in_width);
                let own = active.times(weight.matrix(), workspace);
                let sums = match conv {
                    Conv::Sage(linear) => {
                        let weight = own_weight(linear, plan.in_width);
                        active.times(weight.matrix(), workspace).into_values()
                    }
                    _ => Vec::new(),
                };
                state.rows = Some(Rows::Dense(active));
                (own.into_values(), sums)
            }
        };
        self.pass.halo = workspace.take(self.graph.n_halo() * plan.message_width);
        self.pass.layers.push(state);
    }

    fn begin_first(&mut self, layer: &Layer, plan: LayerPlan, dropout: LayerDropout) {
        let (workspace, inputs) = (&self.workspace, &self.inputs);
        let masks = [self.graph.own(), self.graph.halo()].map(|nodes| dropout.of_rows(nodes));
        let own = inputs.own.in_epoch(masks[0].as_ref(), workspace);
        let halo = inputs.halo.in_epoch(masks[1].as_ref(), workspace);
        match plan.travels {
            Travels::Transformed => {
                let values = neighbour_weight(&layer.conv, plan.in_width);
                let weight = values.matrix();
                self.pass.own = inputs.own.times(&own, weight, workspace).into_values();
                self.pass.halo = inputs.halo.times(&halo, weight, workspace).into_values();
                if let Conv::Sage(linear) = &layer.conv {
                    let values = own_weight(linear, plan.in_width);
                    let sums = inputs.own.times(&own, values.matrix(), workspace);
                    self.pass.sums = sums.into_values();
                }
            }
            Travels::Rows if inputs.are_sparse() => (),
            Travels::Rows => {
                self.pass.own = inputs.own.dense(&own, workspace);
                self.pass.halo = inputs.halo.dense(&halo, workspace);
            }
        }
        let inputs = Some([own, halo]);
        self.pass.layers.push(LayerState { inputs, ..LayerState::default() });
    }

    /// Aggregates the rows of some destinations, where that is done for each by itself.
    pub(crate) fn aggregate(&mut self, number: usize, which: Destinations) {
        let plan = self.plans[number];
        let Aggregator::Weighted(operator) = &self.aggregator else { return };
        let (pass, workspace) = (&mut self.pass, &self.workspace);
        let form = form_of(operator, plan);
        let width = plan.message_width;
        if pass.sums.is_empty() {
            let out_width = if form == Form::Whole { operator.own.out_width(width) } else { width };
            pass.sums = workspace.take(self.graph.n_own * out_width);
        }
        let halo = if which == Destinations::Inner { &[][..] } else { &pass.halo[..] };
        let x = Sources { own: &pass.own, halo, width };
        operator.aggregate(x, form, which, &mut pass.sums);
    }

    /// Makes the output of layer `number` from its aggregated rows, or, with attention, from all
    /// rows.
    pub(crate) fn end_layer(&mut self, number: usize, layer: &Layer, dropout: LayerDropout) {
        let plan = self.plans[number];
        let mut out = match (&self.aggregator, &layer.conv) {
            (Aggregator::Attention { .. }, Conv::Gat(gat)) => {
                self.attend(number, gat, plan, dropout)
            }
            (Aggregator::Weighted(operator), Conv::Sage(linear) | Conv::Gcn(linear)) => {
                let sums = std::mem::take(&mut self.pass.sums);
                match plan.travels {
                    Travels::Transformed => {
                        let mut out = Matrix::new(sums, plan.out_width);
                        linear.add_bias(&mut out);
                        out
                    }
                    Travels::Rows => {
                        let sums = Matrix::new(sums, operator.own.out_width(plan.in_width));
                        let rows = Rows::Dense(sums);
                        let out = linear.forward(&rows, &self.workspace);
                        self.pass.layers[number].rows = Some(rows);
                        out
                    }
                }
            }
            _ => unreachable!("a partition was given a layer of another kind"),
        };
        let workspace = &self.workspace;
        for memory in [&mut self.pass.own, &mut self.pass.halo] {
            workspace.give(std::mem::take(memory));
        }
        if let Some(norm) = &layer.norm {
            let (rows, normed) = norm.forward(out, workspace);
            out = rows;
            self.pass.layers[number].normed = Some(normed);
        }
        if layer.is_residual
            && let Some(hidden) = number.checked_sub(1).and_then(|before| self.pass.output(before))
        {
            let own = layer.conv.activation().forward(hidden.values(), None, workspace);
            add_scaled(out.values_mut(), 1.0, &own);
            workspace.give(own);
        }
        self.pass.layers[number].output = Some(out);
    }

    fn attend(
        &mut self,
        number: usize,
        gat: &Gat,
        plan: LayerPlan,
        dropout: LayerDropout,
    ) -> Matrix {
        let Aggregator::Attention { entries, keys } = &self.aggregator else {
            unreachable!("attention is of GAT")
        };
        let workspace = &self.workspace;
        let all = joined(&self.pass.own, &self.pass.halo, workspace);
        let z = match plan.travels {
            Travels::Transformed => Matrix::new(all, plan.message_width),
            Travels::Rows => {
                let rows = Rows::Dense(Matrix::new(all, plan.in_width));
                let z = gat.projection.forward(&rows, workspace);
                self.pass.layers[number].rows = Some(rows);
                z
            }
        };
        let mask = dropout.coefficients.map(|dropout| dropout.mask(keys.iter().copied()));
        let (out, attended) = gat.attend_over(Arc::clone(entries), z, mask);
        self.pass.layers[number].attended = Some(attended);
        out
    }

    /// Returns the part's mean loss, and how many of its roots are right. Begins the way back with
    /// the gradient of the mean over `n_all` training nodes.
    pub(crate) fn loss(&mut self, n_all: u64) -> (f64, u64) {
        let Some(logits) = self.logits() else { unreachable!("a model has a layer") };
        let Loss { mean, n_right, gradient } =
            Loss::of_rows(logits, &self.roots.local_ids, &self.roots.targets, n_all);
        self.pass.grad = Some(gradient);
        (mean, n_right)
    }

    /// Returns the last layer's rows.
    pub(crate) fn logits(&self) -> Option<&Matrix> {
        self.pass.layers.last().and_then(|last| last.output.as_ref())
    }

    /// Returns the gradients of all parameters, in their order, and ends the epoch.
    pub(crate) fn end_epoch(&mut self) -> Vec<f32> {
        let pass = std::mem::take(&mut self.pass);
        let outputs = pass.layers.into_iter().filter_map(|layer| layer.output);
        outputs.for_each(|output| self.workspace.give_matrix(output));
        self.workspace.end_step();
        self.inputs.end_epoch();
        pass.gradients.into_iter().rev().flatten().flatten().collect()
    }
}

impl PartPass {
    pub(super) fn output(&self, number: usize) -> Option<&Matrix> {
        self.layers[number].output.as_ref()
    }
}

/// Returns the weights that neighbours' rows are multiplied with.
pub(super) fn neighbour_weight(conv: &Conv, in_width: usize) -> Values<'_> {
    match conv {
        // Those of own rows are above them.
        Conv::Sage(linear) => linear.weight().read_rows(in_width..2 * in_width),
        Conv::Gcn(linear) => linear.weight().read(),
        Conv::Gat(gat) => gat.projection.weight().read(),
    }
}

/// Returns the weights that GraphSAGE multiplies own rows with.
pub(super) fn own_weight(linear: &Linear, in_width: usize) -> Values<'_> {
    linear.weight().read_rows(0..in_width)
}

/// Returns what an aggregated row is.
pub(super) fn form_of(operator: &Operator, plan: LayerPlan) -> Form {
    match (plan.travels, &operator.own) {
        (Travels::Transformed, OwnRows::Beside) => Form::Onto,
        _ => Form::Whole,
    }
}

/// Returns own rows with those of the halo after them.
fn joined(own: &[f32], halo: &[f32], workspace: &Workspace) -> Vec<f32> {
    let mut all = workspace.take(own.len() + halo.len());
    all[..own.len()].copy_from_slice(own);
    all[own.len()..].copy_from_slice(halo);
    all
}
