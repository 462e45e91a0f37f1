//! Flags of a model's layers and of updates.

use clap::Args;
use lodestore_trainer::options::{
    Aggregation, LayerOptions, Norm, Optimizer, RateSchedule, UpdateOptions, WarmUp,
};

/// Flags of layers, and of the updates made from gradients.
#[derive(Args, Clone, Debug)]
pub(super) struct OptionArgs {
    /// sage: how neighbours' rows become one: mean, max or sum (of sampled ones, scaled to stand
    /// for all of them).
    #[arg(long, value_name = "A", default_value_t)]
    aggregation: Aggregation,
    /// sage and gcn: normalise the rows of all layers but the last: none, batch or layer. With
    /// `batch` it is by each worker's own batch, and accuracy is measured with running statistics.
    #[arg(long, value_name = "N", default_value_t)]
    norm: Norm,
    /// sage and gcn of three layers or more: each layer between two hidden ones adds its input to
    /// its output.
    #[arg(long)]
    residual: bool,
    /// Optimiser: adam (weight decay is part of the gradient) or adamw (it shrinks parameters).
    #[arg(long, value_name = "O", default_value_t)]
    optimizer: Optimizer,
    /// Learning rate after the warm-up: constant, or cosine (down to 0 at the end of --epochs,
    /// which --resume cannot change then).
    #[arg(long, value_name = "S", default_value_t)]
    lr_schedule: RateSchedule,
    /// The learning rate rises to its whole over this number of steps (500) or epochs (2epochs).
    #[arg(long, value_name = "N", default_value_t)]
    warm_up: WarmUp,
    /// Scale the gradient of all parameters, averaged over workers, down to this Euclidean norm
    /// where it is larger.
    #[arg(long, value_name = "X")]
    clip_norm: Option<f32>,
}

impl OptionArgs {
    pub(super) fn layer(&self) -> LayerOptions {
        let Self { aggregation, norm, residual, .. } = *self;
        LayerOptions { aggregation, norm, residual }
    }

    pub(super) fn update(&self) -> UpdateOptions {
        let Self { optimizer, lr_schedule, warm_up, clip_norm, .. } = *self;
        UpdateOptions { optimizer, schedule: lr_schedule, warm_up, clip_norm }
    }
}
