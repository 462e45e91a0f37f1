//! What a user of `lode` can do about an error of a library or a server, which know no flags.

use anyhow::Error;
use lodestore_bucket::BucketError;
use lodestore_graph::edges::{EdgeError, EdgeTextFault};
use lodestore_store::StoreError;

/// Phrases of messages, and the flag or command that does what they say. The first phrase that a
/// message contains decides. The match is on text, since servers send text.
const BY_PHRASE: [(&str, &str); 37] = [
    ("requires a certificate of its clients", "--tls-cert and --tls-key"),
    ("speaks TLS and this client does not", "--tls-ca FILE"),
    ("sent no token, or a wrong one", "--token-file FILE"),
    (
        "use the file of the admin token",
        "--token-file takes that of `lode serve --admin-token-file`",
    ),
    ("start the server with an admin token", "`lode serve --admin-token-file`"),
    ("writable, or with volatile tensors", "`lode serve --writable` or --volatile"),
    ("start it writable", "`lode serve --writable`"),
    ("start a writable server", "`lode serve --writable`"),
    ("start it with local partitions", "`lode serve --local-parts`"),
    ("as a follower of the other", "`lode serve --follow ADDRESS`"),
    ("follow the source instead", "`lode serve --follow ADDRESS`"),
    ("or allow it to be unserved", "--to, --keep or --unserved"),
    ("add or drop tensors there", "`lode import --into`, `lode drop-tensor`"),
    ("add or drop them, or, where", "`lode import --into`, `lode drop-tensor`"),
    ("with the same volatile tensors", "`lode serve --volatile`"),
    ("or start the server with it", "`lode serve --volatile`"),
    ("the socket mode 660 at the server", "`lode serve --unix-mode 660`"),
    ("read it from its folder", "--graph"),
    ("another state folder", "`lode serve --state-dir`"),
    ("take the partition over again", "`lode serve --take-over`"),
    ("raise that limit, or follow fewer", "--disk"),
    ("first, or choose another name", "--unpin"),
    ("build it with object storage", "cargo build -p lode --features object-store"),
    ("keep NaN on purpose", "--nan keep"),
    ("give that number or a tensor", "--nodes or --tensor"),
    ("name the type and width too", "--raw NAME=f32x128"),
    (
        "without refinement (0 rounds) it fits",
        "--refine 0; `lode partition --plan` shows each phase",
    ),
    ("most of them for", "`lode partition --plan` shows each phase"),
    ("a larger tau finds fewer", "--tau"),
    ("keeps them in TMPDIR, unless it is allowed more memory", "--evaluation-memory"),
    ("on a file system that all of them have", "--schedule"),
    ("for fewer epochs, or name another place", "--schedule"),
    ("bytes or more, or train with smaller batches", "--memory"),
    ("import the graph in more partitions", "`lode import --parts`"),
    (
        "allow more memory, or leave less to training",
        "`lode import --parts`, --memory or --reserve",
    ),
    ("if it only takes long, allow more time", "--peer-timeout"),
    ("this build has no METIS", "cargo build -p lode --features metis"),
];

/// Returns the command or flag that helps against an error with this message, if one does.
pub(crate) fn command_against(error: &Error, message: &str) -> Option<String> {
    error.chain().find_map(by_type).or_else(|| by_phrase(message).map(str::to_owned))
}

/// Returns the flag or command that does what a message says.
pub(crate) fn by_phrase(message: &str) -> Option<&'static str> {
    BY_PHRASE.iter().find(|(phrase, _)| message.contains(phrase)).map(|(_, advice)| *advice)
}

fn by_type(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(error) = edge_error(cause) {
        return advice_on_edges(error).map(str::to_owned);
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use lodestore_comm::error::CollectiveError;
    use lodestore_trainer::TrainError;

    use super::*;

    fn advice_on(error: TrainError) -> Option<String> {
        let message = error.to_string();
        command_against(&error.into(), &message)
    }

    #[test]
    fn errors_of_training_name_the_flag_of_their_setting() {
        let spill = TrainError::Spill { folder: "d".into(), source: io::ErrorKind::Other.into() };
        assert_eq!(advice_on(spill).as_deref(), Some("--evaluation-memory"));
        let elsewhere =
            TrainError::ScheduleElsewhere { path: "s".to_owned(), fault: "is absent".to_owned() };
        assert_eq!(advice_on(elsewhere).as_deref(), Some("--schedule"));
        let path = "s".to_owned();
        let room = TrainError::ScheduleRoom { path, expected: 2, found: 1, epochs: 3 };
        assert_eq!(advice_on(room).as_deref(), Some("--schedule"));
        let memory = TrainError::Memory { found: 1, least: 2, max_nodes: 1, row_bytes: 2 };
        assert_eq!(advice_on(memory).as_deref(), Some("--memory"));
        let silent = CollectiveError::Silent { rank: 1, waited: Duration::from_secs(9) };
        assert_eq!(advice_on(silent.into()).as_deref(), Some("--peer-timeout"));
    }
}
