//! What a user of `lode` can do about an error of a library, which knows no commands.

use anyhow::Error;
use lodestore_bucket::BucketError;
use lodestore_client::ClientError;
use lodestore_client::error::FailureCode;
use lodestore_graph::edges::{EdgeError, EdgeTextFault};
use lodestore_store::StoreError;
use lodestore_store::source::SourceError;

/// Returns the command or flag that helps against an error, if one does.
pub(crate) fn command_against(error: &Error) -> Option<String> {
    error.chain().find_map(advice_on)
}

fn advice_on(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(error) = edge_error(cause) {
        return advice_on_edges(error).map(str::to_owned);
    }
    if let Some(error) = cause.downcast_ref() {
        return advice_on_client(error).map(str::to_owned);
    }
    if let Some(error) = cause.downcast_ref() {
        return advice_on_import(error).map(str::to_owned);
    }
    if let Some(BucketError::UnknownHistory { .. }) = cause.downcast_ref() {
        let advice =
            "`lode serve GRAPH --writable --publish URL --take-over` continues from this folder";
        return Some(advice.to_owned());
    }
    if let Some(StoreError::HistoriesDiffer { dir, .. }) = cause.downcast_ref() {
        return Some(format!(
            "`lode pull` or `lode transfer --keep` fetches a partition again; `lode commit --align {}` \
             accepts all partitions as they are",
            dir.display()
        ));
    }
    None
}

fn advice_on_client(error: &ClientError) -> Option<&'static str> {
    match error {
        ClientError::Handshake { reason, .. } if reason.contains("requires a certificate") => {
            Some("--tls-cert and --tls-key give a certificate and its key")
        }
        ClientError::Handshake { reason, .. } if reason.contains("speaks TLS") => {
            Some("--tls-ca names the file of the authority")
        }
        ClientError::NoWriter { .. } => Some("`lode serve --writable` starts a writer"),
        ClientError::Refused { failure, .. } => match failure.code {
            FailureCode::Unauthenticated if failure.message.contains("admin token") => Some(
                "--token-file takes it, and is the file that `lode serve --admin-token-file` has",
            ),
            FailureCode::Unauthenticated => {
                Some("--token-file takes the file that `lode serve --token-file` has")
            }
            FailureCode::ReadOnly => Some("`lode serve --writable` starts a writer"),
            _ => None,
        },
        _ => None,
    }
}

fn advice_on_import(error: &lodestore_import::Error) -> Option<&'static str> {
    match error {
        lodestore_import::Error::Source(SourceError::Nan { .. }) => Some("--nan keep does so"),
        lodestore_import::Error::NoNodes { .. } => {
            Some("--nodes gives the number, --tensor a tensor")
        }
        lodestore_import::Error::Memory(_) => Some(
            "`lode partition --plan` shows what each phase needs, --refine 0 leaves refinement out",
        ),
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
