//! Rows that `rapid` keeps, and their number.

use std::path::PathBuf;

use clap::Args;
use lodestore_cache::PolicyKind;
use lodestore_trainer::Strategy;
use lodestore_trainer::config::{Fetch, HotPolicy};

use crate::flags::parse_size;
use crate::usage::UsageError;

/// Flags of rows that come by a schedule.
#[derive(Args, Clone, Debug)]
pub(super) struct HotArgs {
    /// rapid: rows in each worker's hot set under --policy frequency, of which there are two; the
    /// oracle, the policy unless given, keeps twice as many. At most what it does not own [default:
    /// 10000].
    #[arg(long = "hot", value_name = "ROWS")]
    pub(super) n_hot: Option<usize>,
    /// rapid: batches prepared ahead [default: 4].
    #[arg(long, value_name = "Q")]
    pub(super) window: Option<usize>,
    /// rapid: batches of the window whose rows are read together [default: half of the window].
    /// Shared rows and neighbours on disk are read once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) together: Option<u32>,
    /// rapid: most bytes of rows that one worker's kept rows and batches may take. Batches are
    /// those of the window, the one that is trained on, and one that the trainer had to prepare
    /// itself. Both shrink to it; less than one batch takes is an error that says how much that is.
    /// Under sdt it is the memory of each worker; a third of it is for its partitions, see
    /// --reserve. A partition that is larger is an error that says how many partitions would fit.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) memory: Option<u64>,
    /// rapid: where the schedule is kept, and used if it is there already; beside the checkpoints
    /// unless given, or in a temporary file without any. Another file, or the schedule of another
    /// run, is an error, and stays.
    #[arg(long, value_name = "FILE")]
    pub(super) schedule: Option<PathBuf>,
}

impl HotArgs {
    /// Fails where a flag would do nothing.
    pub(super) fn check(&self, fetch: Fetch, strategy: Strategy) -> Result<(), UsageError> {
        let used = [
            ("--hot", self.n_hot.is_some()),
            ("--window", self.window.is_some()),
            ("--together", self.together.is_some()),
            ("--memory", self.memory.is_some() && strategy != Strategy::Sdt),
            ("--schedule", self.schedule.is_some()),
        ];
        match used.into_iter().find(|(_, used)| *used && fetch != Fetch::Rapid) {
            Some((flag, _)) => Err(UsageError::new(format!(
                "{flag} is for --strategy rapid, or hop with --fetch rapid"
            ))),
            None => Ok(()),
        }
    }
}

/// Returns which rows are kept, by `--policy`. Under other strategies the flag is for a tier.
pub(super) fn hot_policy(
    fetch: Fetch,
    policy: Option<PolicyKind>,
) -> Result<HotPolicy, UsageError> {
    match policy.filter(|_| fetch == Fetch::Rapid) {
        None | Some(PolicyKind::Oracle) => Ok(HotPolicy::Oracle),
        Some(PolicyKind::Frequency) => Ok(HotPolicy::Frequency),
        Some(policy) => Err(UsageError::new(format!(
            "--policy: the schedule of rapid cannot follow `{policy}`; one of: frequency, oracle"
        ))),
    }
}
