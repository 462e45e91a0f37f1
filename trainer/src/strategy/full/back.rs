//! The backward pass through a partition's layers.
//!
//! Each layer has three phases. The first computes the gradients of the halo's rows, which are then
//! sent to their owners. The second, meanwhile, computes gradients that depend on this partition
//! alone. The third adds the received gradients and computes the rest.

use lodestore_models::conv::{Conv, gat::Gat};
use lodestore_models::layer::Layer;
use lodestore_models::linear::Linear;
use lodestore_models::matrix::Matrix;
use lodestore_models::matrix::sparse::Rows;
use lodestore_models::matrix::spmm::add_scaled;

use super::{
    operator::Side,
    part::{Aggregator, Part, form_of, neighbour_weight, own_weight},
    plan::{LayerPlan, Travels},
};

impl Part {
    /// First phase of layer `number`: up to the gradients of the halo's rows.
    pub(crate) fn begin_back(&mut self, number: usize, layer: &Layer) {
        let plan = self.plans[number];
        let Some(mut grad) = self.pass.grad.take() else {
            unreachable!("a layer goes back from a gradient")
        };
        if layer.is_residual
            && let Some(hidden) = number.checked_sub(1).and_then(|before| self.pass.output(before))
        {
            let mut own = self.workspace.copy(grad.values());
            layer.conv.activation().backward(hidden.values(), None, &mut own);
            self.pass.beside = Some(own);
        }
        let state = &mut self.pass.layers[number];
        if let (Some(norm), Some(normed)) = (&layer.norm, state.normed.take()) {
            let (of_norm, of_rows) = norm.gradients(&normed, &grad, &self.workspace);
            self.pass.of_layer.of_norm = of_norm;
            self.workspace.give_matrix(std::mem::replace(&mut grad, of_rows));
            self.workspace.give_matrix(normed.into_rows());
        }
        match &layer.conv {
            Conv::Sage(linear) | Conv::Gcn(linear) => {
                self.begin_linear(number, linear, plan, grad);
            }
            Conv::Gat(gat) => self.begin_attention(number, gat, plan, grad),
        }
    }

    fn begin_linear(&mut self, number: usize, linear: &Linear, plan: LayerPlan, grad: Matrix) {
        let workspace = &self.workspace;
        self.pass.of_layer.others.push(grad.sum_of_rows());
        if plan.travels == Travels::Rows && number > 0 {
            self.pass.of_sums = Some(linear.projection.row_gradient(&grad, workspace));
        }
        let width = plan.message_width;
        let of_product = match plan.travels {
            Travels::Rows => self.pass.of_sums.as_ref(),
            Travels::Transformed => Some(&grad),
        };
        match (&self.aggregator, of_product) {
            (_, None) => (),
            (Aggregator::Weighted(operator), Some(of_product)) => {
                self.pass.halo = workspace.take(self.graph.n_halo() * width);
                let form = form_of(operator, plan);
                let halo = &mut self.pass.halo;
                operator.transposed(of_product.values(), form, Side::Halo, width, halo);
            }
            (Aggregator::Attention { .. }, _) => {
                unreachable!("a partition was given a layer of another kind")
            }
        }
        self.pass.grad = Some(grad);
    }

    fn begin_attention(&mut self, number: usize, gat: &Gat, plan: LayerPlan, grad: Matrix) {
        let state = &mut self.pass.layers[number];
        let Some(attended) = state.attended.take() else {
            unreachable!("attention has coefficients")
        };
        let (others, mut all) = gat.attention_gradients(&attended, &grad);
        self.workspace.give_matrix(grad);
        self.pass.of_layer.others.extend(others);
        if plan.travels == Travels::Rows {
            let rows = kept(state.rows.as_ref());
            let of_weight = gat.projection.weight_gradient(rows, &all);
            self.pass.of_layer.weights.push(of_weight);
            all = gat.projection.row_gradient(&all, &self.workspace);
        }
        let width = all.width();
        self.split(all.into_values(), width);
    }

    /// Splits gradients into those of own rows and of the halo's rows.
    fn split(&mut self, mut all: Vec<f32>, width: usize) {
        let n_own = self.graph.n_own * width;
        let mut halo = self.workspace.take(all.len() - n_own);
        halo.copy_from_slice(&all[n_own..]);
        all.truncate(n_own);
        (self.pass.own, self.pass.halo) = (all, halo);
    }

    /// Second phase: gradients of own rows from own destinations, and of weights that only own rows
    /// are multiplied with.
    pub(crate) fn go_back(&mut self, number: usize, layer: &Layer) {
        let plan = self.plans[number];
        let (workspace, width) = (&self.workspace, plan.message_width);
        let Some(grad) = &self.pass.grad else { return };
        let of_product = match plan.travels {
            Travels::Rows => self.pass.of_sums.as_ref(),
            Travels::Transformed => Some(grad),
        };
        if let (Aggregator::Weighted(operator), Some(of_product)) = (&self.aggregator, of_product) {
            self.pass.own = workspace.take(self.graph.n_own * width);
            let (form, own) = (form_of(operator, plan), &mut self.pass.own);
            operator.transposed(of_product.values(), form, Side::Own, width, own);
        }
        let state = &self.pass.layers[number];
        if plan.travels == Travels::Rows {
            let of_weight = kept(state.rows.as_ref()).transposed_times(grad);
            self.pass.of_layer.weights.push(of_weight);
            return;
        }
        let Conv::Sage(linear) = &layer.conv else { return };
        // The half of the weights that own rows are multiplied with.
        let mut of_weight = vec![0.0; plan.in_width * plan.out_width];
        if let Some([own, _]) = &state.inputs {
            self.inputs.own.add_weight_gradient(own, grad, &mut of_weight);
        } else {
            of_weight = kept(state.rows.as_ref()).transposed_times(grad);
            let weight = own_weight(linear, plan.in_width);
            self.pass.of_own = Some(grad.times_transposed(weight.matrix(), workspace));
        }
        self.pass.of_layer.weights.push(of_weight);
    }

    /// Third phase, after gradients from other partitions were added to own rows: makes the
    /// gradient of the previous layer's output.
    pub(crate) fn end_back(&mut self, number: usize, layer: &Layer) {
        let plan = self.plans[number];
        let state = std::mem::take(&mut self.pass.layers[number]);
        let mut of_layer = std::mem::take(&mut self.pass.of_layer);
        let (workspace, pass, width) = (&self.workspace, &mut self.pass, plan.message_width);
        let mut of_rows = Matrix::new(std::mem::take(&mut pass.own), width);
        let halo = Matrix::new(std::mem::take(&mut pass.halo), width);
        if plan.travels == Travels::Transformed {
            let mut of_weight = vec![0.0; plan.in_width * width];
            if let Some([own, of_halo]) = &state.inputs {
                self.inputs.own.add_weight_gradient(own, &of_rows, &mut of_weight);
                self.inputs.halo.add_weight_gradient(of_halo, &halo, &mut of_weight);
            } else {
                of_weight = kept(state.rows.as_ref()).transposed_times(&of_rows);
                let weight = neighbour_weight(&layer.conv, plan.in_width);
                let before = of_rows.times_transposed(weight.matrix(), workspace);
                workspace.give_matrix(std::mem::replace(&mut of_rows, before));
            }
            of_layer.weights.push(of_weight);
        }
        workspace.give_matrix(halo);
        let weights = match of_layer.weights.len() {
            1 => of_layer.weights.swap_remove(0),
            _ => of_layer.weights.concat(),
        };
        let lists = [weights].into_iter().chain(of_layer.others).chain(of_layer.of_norm);
        pass.gradients.push(lists.collect());
        for matrix in [pass.grad.take(), pass.of_sums.take()].into_iter().flatten() {
            workspace.give_matrix(matrix);
        }
        state.inputs.into_iter().flatten().for_each(|rows| rows.give_to(workspace));
        state.rows.into_iter().for_each(|rows| workspace.give_rows(rows));
        pass.layers[number].output = state.output;
        let Some(before) = number.checked_sub(1) else {
            workspace.give_matrix(of_rows);
            return;
        };
        if let Some(of_own) = pass.of_own.take() {
            add_scaled(of_rows.values_mut(), 1.0, of_own.values());
            workspace.give_matrix(of_own);
        }
        let Some(hidden) = pass.output(before) else {
            unreachable!("the layer before has an output")
        };
        layer.conv.activation().backward(
            hidden.values(),
            state.mask.as_ref(),
            of_rows.values_mut(),
        );
        if let Some(beside) = pass.beside.take() {
            add_scaled(of_rows.values_mut(), 1.0, &beside);
            workspace.give(beside);
        }
        pass.grad = Some(of_rows);
    }
}

/// Returns the rows that a layer's weights were multiplied with.
fn kept(rows: Option<&Rows>) -> &Rows {
    let Some(rows) = rows else { unreachable!("a layer keeps the rows that its weights meet") };
    rows
}
