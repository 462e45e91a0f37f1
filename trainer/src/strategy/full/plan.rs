//! Plan of each layer: which rows partitions exchange.

use lodestore_models::conv::Conv;
use lodestore_models::layer::Layer;

/// Rows of a layer that partitions exchange: the narrower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Travels {
    /// Input rows of the layer; the receiver multiplies them with the weights.
    Rows,
    /// Products of the input rows with the layer's weights.
    Transformed,
}

/// Plan of a layer's computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerPlan {
    pub(crate) travels: Travels,
    /// Width of input rows.
    pub(crate) in_width: usize,
    /// Width of exchanged rows.
    pub(crate) message_width: usize,
    /// Width of output rows.
    pub(crate) out_width: usize,
}

impl LayerPlan {
    /// Makes the plan of each of `layers` over features of `width`. Features of the halo are kept,
    /// so the first layer exchanges nothing; its plan is the one with less arithmetic.
    pub(crate) fn of_layers(layers: &[Layer], width: usize, features: FeatureForm) -> Vec<Self> {
        let mut in_width = width;
        let plan = |(number, layer): (usize, &Layer)| {
            let out_width = layer.conv.out_width();
            let of_features = (number == 0).then_some(features);
            let (travels, message_width) = travels(&layer.conv, in_width, of_features);
            let plan = Self { travels, in_width, message_width, out_width };
            in_width = out_width;
            plan
        };
        layers.iter().enumerate().map(plan).collect()
    }
}

/// Form of the features: dense, or mostly zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FeatureForm {
    Dense,
    Sparse,
}

fn travels(conv: &Conv, in_width: usize, of_features: Option<FeatureForm>) -> (Travels, usize) {
    let transformed = match conv {
        Conv::Sage(linear) | Conv::Gcn(linear) => linear.bias.width(),
        Conv::Gat(gat) => gat.projection.weight().width(),
    };
    let is_projected = matches!(conv, Conv::Gat(_)) && of_features.is_some();
    let is_sparse = of_features == Some(FeatureForm::Sparse);
    if is_projected || is_sparse || transformed < in_width {
        return (Travels::Transformed, transformed);
    }
    (Travels::Rows, in_width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::LayerOptions;
    use crate::options::ModelKind;
    use lodestore_models::model::{Model, ModelSpec};

    fn plans(kind: ModelKind, widths: &[usize], features: FeatureForm) -> Vec<(Travels, usize)> {
        let layer = LayerOptions::default();
        let widths = widths.to_vec();
        let width = widths[0];
        let spec = ModelSpec { kind, widths, n_heads: 2, n_output_heads: 2, dropout: 0.0, layer };
        let model = Model::new(&spec, 1);
        let plans = LayerPlan::of_layers(&model.layers, width, features);
        plans.iter().map(|plan| (plan.travels, plan.message_width)).collect()
    }

    #[test]
    fn what_is_narrower_travels() {
        use FeatureForm::{Dense, Sparse};
        use Travels::{Rows, Transformed};
        for kind in [ModelKind::Gcn, ModelKind::Sage] {
            let last = (Transformed, 5);
            let physics = plans(kind, &[8415, 256, 256, 5], Sparse);
            assert_eq!(physics, [(Transformed, 256), (Rows, 256), last]);
            assert_eq!(plans(kind, &[10, 256, 5], Dense), [(Rows, 10), last]);
            assert_eq!(plans(kind, &[10, 256, 5], Sparse), [(Transformed, 256), last]);
            assert_eq!(plans(kind, &[10, 4, 40], Dense), [(Transformed, 4), (Rows, 4)]);
        }
        // Two heads of the last layer side by side.
        assert_eq!(
            plans(ModelKind::Gat, &[9, 16, 4], Dense),
            [(Transformed, 16), (Transformed, 8)]
        );
        assert_eq!(plans(ModelKind::Gat, &[99, 16, 40], Dense)[1], (Rows, 16));
    }
}
