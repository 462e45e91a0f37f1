//! Flags of a model's layers, of updates, and of checkpoints.

use std::path::PathBuf;

use clap::Args;
use lodestore_trainer::config::CheckpointConfig;
use lodestore_trainer::options::{
    LayerOptions, Norm, Optimizer, RateSchedule, UpdateOptions, WarmUp,
};

use crate::usage::{UsageError, refuse_given};

/// Flags of layers, and of the updates made from gradients.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Layers and optimiser")]
pub(super) struct OptionArgs {
    /// sage and gcn: normalise the rows of all layers but the last: none or layer.
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
        LayerOptions { norm: self.norm, residual: self.residual }
    }

    pub(super) fn update(&self) -> UpdateOptions {
        let Self { optimizer, lr_schedule, warm_up, clip_norm, .. } = *self;
        UpdateOptions { optimizer, schedule: lr_schedule, warm_up, clip_norm }
    }
}

/// Flags of checkpoints.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Checkpoints")]
pub(super) struct CheckpointArgs {
    /// Keep a checkpoint in this folder, replaced after each epoch. A killed run continues from it
    /// to the same parameters, bit for bit. It has the version of the rows.
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// With --checkpoint: also after every N steps.
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u32).range(1..))]
    checkpoint_every: Option<u32>,
    /// With --checkpoint: continue from the checkpoint in the folder, or begin if there is none.
    /// Settings of the computation and the version of the rows must be as in the run that wrote it
    /// (--mixed-versions allows another version); those of fetching rows, --epochs, --patience, --no-test and --save-model may differ.
    #[arg(long)]
    resume: bool,
}

impl CheckpointArgs {
    /// Returns whether the run may continue one that was interrupted.
    pub(super) fn resumes(&self) -> bool {
        self.resume
    }

    pub(super) fn check(self) -> Result<Option<CheckpointConfig>, UsageError> {
        let Some(dir) = self.checkpoint else {
            let used = [
                ("--checkpoint-every", self.checkpoint_every.is_some()),
                ("--resume", self.resume),
            ];
            refuse_given(&used, "needs the folder: --checkpoint DIR")?;
            return Ok(None);
        };
        let every_steps = self.checkpoint_every.unwrap_or(0);
        Ok(Some(CheckpointConfig { dir, every_steps, resume: self.resume }))
    }
}
