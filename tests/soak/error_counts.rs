//! Errors that clients may receive while faults happen, by kind; any other fails the test.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use lodestore_client::ClientError;
use lodestore_schema::FailureCode;

pub(crate) const NO_SPACE: &str = "No space left on device";

/// A kind of error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Connect,
    Unavailable,
    Deadline,
    /// A server has no room or time, or has ended, or given the partition up.
    Refused,
    /// A write found no room on the one disk that is filled.
    DiskFull,
    /// That server writes nothing more until it is started again.
    WritesStopped,
    /// No server has the partition at this moment, or none takes its puts.
    NoReplica,
    /// A server that may hold what is put was never found.
    Unreachable,
}

impl Kind {
    pub(crate) const ALL: [Self; 8] = [
        Self::Connect,
        Self::Unavailable,
        Self::Deadline,
        Self::Refused,
        Self::DiskFull,
        Self::WritesStopped,
        Self::NoReplica,
        Self::Unreachable,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Unavailable => "connection broken",
            Self::Deadline => "deadline",
            Self::Refused => "refused: overloaded, late, stopping, elsewhere",
            Self::DiskFull => "refused: disk full",
            Self::WritesStopped => "refused: an earlier write failed",
            Self::NoReplica => "no replica",
            Self::Unreachable => "server unreachable",
        }
    }
}

pub(crate) struct ErrorCounts {
    /// Folder of the graph whose disk may be full, as errors name it.
    on_disk: String,
    counts: [AtomicU64; Kind::ALL.len()],
}

impl ErrorCounts {
    pub(crate) fn new(on_disk: &Path) -> Self {
        Self { on_disk: on_disk.display().to_string(), counts: Default::default() }
    }

    pub(crate) fn note(&self, error: &ClientError) {
        let kind = self.kind(error).unwrap_or_else(|| panic!("no fault explains it: {error}"));
        self.counts[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of reports of each kind.
    pub(crate) fn counts(&self) -> Vec<(Kind, u64)> {
        Kind::ALL.iter().map(|&kind| (kind, self.count(kind))).collect()
    }

    pub(crate) fn count(&self, kind: Kind) -> u64 {
        self.counts[kind as usize].load(Ordering::Relaxed)
    }

    fn kind(&self, error: &ClientError) -> Option<Kind> {
        Some(match error {
            ClientError::Connect { .. } | ClientError::Away { .. } => Kind::Connect,
            ClientError::Unavailable { .. } => Kind::Unavailable,
            ClientError::Deadline { .. } => Kind::Deadline,
            ClientError::NoReplica { .. } | ClientError::NoWriter { .. } => Kind::NoReplica,
            ClientError::Unreachable { .. } => Kind::Unreachable,
            ClientError::Refused { failure, .. } => {
                let says = |what: &str| {
                    [self.on_disk.as_str(), NO_SPACE, what]
                        .iter()
                        .all(|it| failure.message.contains(it))
                };
                match failure.code {
                    FailureCode::Deadline
                    | FailureCode::Elsewhere
                    | FailureCode::Overloaded
                    | FailureCode::Behind
                    | FailureCode::PutLost
                    | FailureCode::Stopping => Kind::Refused,
                    FailureCode::Internal if says("") => Kind::DiskFull,
                    FailureCode::ReadOnly if says("an earlier write failed (") => {
                        Kind::WritesStopped
                    }
                    _ => return None,
                }
            }
            _ => return None,
        })
    }
}
