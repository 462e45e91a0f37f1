//! What a user of `lode` can do about an error of a library, which knows no commands.

use anyhow::Error;
use lodestore_bucket::BucketError;
use lodestore_client::ClientError;
use lodestore_graph::edges::{EdgeError, EdgeTextFault};
use lodestore_store::StoreError;

/// Returns the command that helps against an error, if one does.
pub(crate) fn command_against(error: &Error) -> Option<String> {
    let is_forgotten = |bucket: &BucketError| matches!(bucket, BucketError::UnknownHistory { .. });
    if error.chain().filter_map(|cause| cause.downcast_ref()).any(is_forgotten) {
        let advice =
            "`lode serve GRAPH --writable --publish URL --take-over` continues from this folder";
        return Some(advice.to_owned());
    }
    if let Some(edges) = error.chain().find_map(edge_error) {
        return advice_on_edges(edges).map(str::to_owned);
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

/// Returns the error of edges that a cause is or holds.
fn edge_error<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a EdgeError> {
    match cause.downcast_ref::<lodestore_import::Error>() {
        Some(lodestore_import::Error::Edges(error)) => Some(error),
        _ => cause.downcast_ref(),
    }
}

fn advice_on_edges(error: &EdgeError) -> Option<&'static str> {
    match error {
        EdgeError::UnknownFormat { .. } => Some("--edge-format names it"),
        EdgeError::Sparse { .. } => Some("--nodes gives their number"),
        EdgeError::Text { error, .. } if error.fault == EdgeTextFault::ExtraColumn => Some(
            "--ignore-extra-columns skips columns after the source and the destination of an edge",
        ),
        _ => None,
    }
}
