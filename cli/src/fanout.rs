//! The flag of how many neighbours are sampled.

use clap::Args;
use lodestore_graph::sampler::Fanout;

/// `--fanout`, for every command that samples.
#[derive(Args, Clone)]
pub struct FanoutArgs {
    /// Neighbours per node and layer, the hop next to the roots first; -1 takes all.
    #[arg(
        long,
        value_name = "N,N,...",
        value_delimiter = ',',
        default_value = "10,10",
        allow_hyphen_values = true
    )]
    pub fanout: Vec<Fanout>,
}
