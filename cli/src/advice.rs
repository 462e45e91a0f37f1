//! What a user of `lode` can do about an error of a library, which knows no commands.

use anyhow::Error;
use lodestore_bucket::BucketError;
use lodestore_client::ClientError;
use lodestore_store::StoreError;

/// Returns the command that helps against an error, if one does.
pub(crate) fn command_against(error: &Error) -> Option<String> {
    let is_forgotten = |bucket: &BucketError| matches!(bucket, BucketError::UnknownHistory { .. });
    if error.chain().filter_map(|cause| cause.downcast_ref()).any(is_forgotten) {
        let advice =
            "`lode serve GRAPH --writable --publish URL --take-over` continues from this folder";
        return Some(advice.to_owned());
    }
    let wants_certificate = |error: &ClientError| match error {
        ClientError::Handshake { reason, .. } => reason.contains("requires a certificate"),
        _ => false,
    };
    if error.chain().filter_map(|cause| cause.downcast_ref()).any(wants_certificate) {
        return Some("--tls-cert and --tls-key give a certificate and its key".to_owned());
    }
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
