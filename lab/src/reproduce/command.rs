//! Which paper is reproduced.

use anyhow::Result;
use clap::Subcommand;

use super::capgnn::CapFiguresArgs;
use super::hop::HopFiguresArgs;
use super::sdt::SdtFiguresArgs;
use super::{Paper, ReproduceArgs};
use lode_cli::console::Console;

/// Measure what a paper claims, and set its figures beside ours.
#[derive(Subcommand)]
#[command(after_help = "\
Example:
  lode-lab reproduce rapidgnn --out rapidgnn
  lode-lab reproduce hopgnn --graph my-graph --out hopgnn
  lode-lab reproduce sdtgnn --graph my-graph --out sdtgnn
  lode-lab reproduce capgnn --graph my-graph --out capgnn")]
pub(crate) enum ReproduceCommand {
    /// The schedule-driven one: steady cache and prefetching.
    Rapidgnn(ReproduceArgs),
    /// The score-driven one: a buffer with eviction.
    Massivegnn(ReproduceArgs),
    /// The feature-centric one: models or roots go to the features.
    Hopgnn(HopFiguresArgs),
    /// The streaming one: a local model for each partition, and averages of them.
    Sdtgnn(SdtFiguresArgs),
    /// The full-batch one: halos that are exchanged, kept, narrowed or given up.
    Capgnn(CapFiguresArgs),
}

impl ReproduceCommand {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        match self {
            Self::Rapidgnn(args) => args.run(console),
            Self::Massivegnn(args) => {
                ReproduceArgs { paper: Paper::Massivegnn, ..args }.run(console)
            }
            Self::Hopgnn(args) => args.run(console),
            Self::Sdtgnn(args) => args.run(console),
            Self::Capgnn(args) => args.run(console),
        }
    }
}
