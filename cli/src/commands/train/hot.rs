//! What `rapid` keeps, and how much of it.

use std::path::PathBuf;

use clap::Args;
use lodestore_cache::PolicyKind;
use lodestore_trainer::{HotPolicy, Strategy};

use crate::size::parse_size;
use crate::usage::UsageError;

/// Flags of `--strategy rapid`.
#[derive(Args, Clone, Debug)]
pub(super) struct HotArgs {
    /// rapid: rows in each worker's hot set under --policy frequency, of which there are two; the oracle,
    /// the policy unless given, keeps twice as many.
    #[arg(long = "hot", value_name = "ROWS", default_value_t = 10_000)]
    pub(super) n_hot: usize,
    /// rapid: batches prepared ahead.
    #[arg(long, value_name = "Q", default_value_t = 4)]
    pub(super) window: usize,
    /// rapid: batches of the window whose rows are read together: a row that several need once, and
    /// neighbours on disk at once [default: half of the window].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) together: Option<u32>,
    /// rapid: most bytes of rows that one worker's kept rows and window may take; both shrink to it.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) memory: Option<u64>,
    /// rapid: where the schedule is kept, and used if it is there already; beside the checkpoints unless
    /// given, or in a temporary file without any.
    #[arg(long, value_name = "FILE")]
    pub(super) schedule: Option<PathBuf>,
}

/// Which rows are kept, by `--policy`; of other strategies the flag is for a tier.
pub(super) fn hot_policy(
    strategy: Strategy,
    policy: Option<PolicyKind>,
) -> Result<HotPolicy, UsageError> {
    match policy.filter(|_| strategy == Strategy::Rapid) {
        None | Some(PolicyKind::Oracle) => Ok(HotPolicy::Oracle),
        Some(PolicyKind::Frequency) => Ok(HotPolicy::Frequency),
        Some(policy) => Err(UsageError::new(format!(
            "--policy: --strategy rapid cannot follow `{policy}`; one of: frequency, oracle"
        ))),
    }
}
