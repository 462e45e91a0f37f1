//! What a user of `lode` can do about an error of a library, which knows no commands.

use anyhow::Error;
use lodestore_store::StoreError;

/// Returns the command that helps against an error, if one does.
pub(crate) fn command_against(error: &Error) -> Option<String> {
    let store = error.chain().find_map(|cause| cause.downcast_ref::<StoreError>())?;
    match store {
        StoreError::HistoriesDiffer { dir, .. } => Some(format!(
            "`lode pull` or `lode transfer --keep` fetches a partition again; `lode commit --align {}` \
             accepts all partitions as they are",
            dir.display()
        )),
        _ => None,
    }
}
