//! Where a run leaves its checkpoints, and whether it continues from one.

use std::path::PathBuf;

use clap::Args;
use lodestore_trainer::config::CheckpointConfig;

use crate::usage::UsageError;

/// Flags of checkpoints.
#[derive(Args, Clone, Debug)]
pub(super) struct CheckpointArgs {
    /// Keep a checkpoint in this folder, replaced after each epoch. A killed run continues from it
    /// to the same parameters, bit for bit, if no put has changed features meanwhile.
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// With --checkpoint: also after every N steps.
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u32).range(1..))]
    checkpoint_every: Option<u32>,
    /// With --checkpoint: continue from the checkpoint in the folder, or begin if there is none.
    /// Settings of the computation must be as in the run that wrote it; those of fetching rows,
    /// --epochs, --patience, --no-test and --save-model may differ.
    #[arg(long)]
    resume: bool,
}

impl CheckpointArgs {
    pub(super) fn check(self) -> Result<Option<CheckpointConfig>, UsageError> {
        let Some(dir) = self.checkpoint else {
            let used = [
                ("--checkpoint-every", self.checkpoint_every.is_some()),
                ("--resume", self.resume),
            ];
            return match used.into_iter().find(|(_, used)| *used) {
                Some((flag, _)) => {
                    Err(UsageError::new(format!("{flag} needs the folder: --checkpoint DIR")))
                }
                None => Ok(None),
            };
        };
        let every_steps = self.checkpoint_every.unwrap_or(0);
        Ok(Some(CheckpointConfig { dir, every_steps, resume: self.resume }))
    }
}
