//! Why a request failed.

use std::time::Duration;

use thiserror::Error;

use crate::error::{WireError, bad_reply};
use crate::lodestore_capnp::{self as wire, failure};
use crate::wire_versions::WireVersions;

/// Why a request failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{message}")]
pub struct Failure {
    /// Fault of the client or the server, and whether to retry.
    pub code: FailureCode,
    /// Expected and found values, and the remedy.
    pub message: String,
    /// When to retry an `Overloaded` request.
    pub retry_after: Duration,
}

/// The kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureCode {
    /// The request is wrong and will stay wrong.
    Invalid,
    /// The request passes a limit.
    TooLarge,
    /// No such tensor, node or partition here.
    NotFound,
    /// The data on disk failed its checksum.
    Damaged,
    /// The server has no room now; retry later.
    Overloaded,
    /// The deadline passed before the answer was ready.
    Deadline,
    /// The server is going down; another may answer.
    Stopping,
    /// A fault of the server.
    Internal,
    /// The server takes no updates.
    ReadOnly,
    /// A token is wanted first.
    Unauthenticated,
    /// Another graph is served here now, or not this partition: ask `describe` again.
    Elsewhere,
    /// There are no rows of the version that was asked for.
    OtherVersion,
    /// The connection's wire version has no such request; see
    /// [`crate::request::RequestBody::versions`].
    Unsupported,
    /// A lower version is here than the lowest that will do.
    Behind,
    /// Pieces of the put are missing: all of it must be sent again.
    PutLost,
    /// Another connection has claimed the rows.
    Held,
    /// The rows are to be claimed before they are published.
    NotOwned,
    /// A row is there with a later stamp.
    Older,
}

impl FailureCode {
    /// All of them, in the order of their numbers: `ALL[i] as usize == i`.
    pub const ALL: [Self; 18] = [
        Self::Invalid,
        Self::TooLarge,
        Self::NotFound,
        Self::Damaged,
        Self::Overloaded,
        Self::Deadline,
        Self::Stopping,
        Self::Internal,
        Self::ReadOnly,
        Self::Unauthenticated,
        Self::Elsewhere,
        Self::OtherVersion,
        Self::Unsupported,
        Self::Behind,
        Self::PutLost,
        Self::Held,
        Self::NotOwned,
        Self::Older,
    ];

    /// Returns the word for it in reports and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::TooLarge => "too_large",
            Self::NotFound => "not_found",
            Self::Damaged => "damaged",
            Self::Overloaded => "overloaded",
            Self::Deadline => "deadline",
            Self::Stopping => "stopping",
            Self::Internal => "internal",
            Self::ReadOnly => "read_only",
            Self::Unauthenticated => "unauthenticated",
            Self::Elsewhere => "elsewhere",
            Self::OtherVersion => "other_version",
            Self::Unsupported => "unsupported",
            Self::Behind => "behind",
            Self::PutLost => "put_lost",
            Self::Held => "held",
            Self::NotOwned => "not_owned",
            Self::Older => "older",
        }
    }
}

pub(super) fn write(from: &Failure, mut to: failure::Builder<'_>) {
    to.set_code(match from.code {
        FailureCode::Invalid => wire::FailureCode::Invalid,
        FailureCode::TooLarge => wire::FailureCode::TooLarge,
        FailureCode::NotFound => wire::FailureCode::NotFound,
        FailureCode::Damaged => wire::FailureCode::Damaged,
        FailureCode::Overloaded => wire::FailureCode::Overloaded,
        FailureCode::Deadline => wire::FailureCode::Deadline,
        FailureCode::Stopping => wire::FailureCode::Stopping,
        FailureCode::Internal => wire::FailureCode::Internal,
        FailureCode::ReadOnly => wire::FailureCode::ReadOnly,
        FailureCode::Unauthenticated => wire::FailureCode::Unauthenticated,
        FailureCode::Elsewhere => wire::FailureCode::Elsewhere,
        FailureCode::OtherVersion => wire::FailureCode::OtherVersion,
        FailureCode::Unsupported => wire::FailureCode::Unsupported,
        FailureCode::Behind => wire::FailureCode::Behind,
        FailureCode::PutLost => wire::FailureCode::PutLost,
        FailureCode::Held => wire::FailureCode::Held,
        FailureCode::NotOwned => wire::FailureCode::NotOwned,
        FailureCode::Older => wire::FailureCode::Older,
    });
    to.set_message(&from.message);
    to.set_retry_after_ms(u32::try_from(from.retry_after.as_millis()).unwrap_or(u32::MAX));
}

pub(super) fn read(from: failure::Reader<'_>) -> Result<Failure, WireError> {
    let code = from.get_code().map_err(|e| {
        bad_reply(format!(
            "failure code {} is unknown to wire version {}",
            e.0,
            WireVersions::SPOKEN
        ))
    })?;
    Ok(Failure {
        code: match code {
            wire::FailureCode::Invalid => FailureCode::Invalid,
            wire::FailureCode::TooLarge => FailureCode::TooLarge,
            wire::FailureCode::NotFound => FailureCode::NotFound,
            wire::FailureCode::Damaged => FailureCode::Damaged,
            wire::FailureCode::Overloaded => FailureCode::Overloaded,
            wire::FailureCode::Deadline => FailureCode::Deadline,
            wire::FailureCode::Stopping => FailureCode::Stopping,
            wire::FailureCode::Internal => FailureCode::Internal,
            wire::FailureCode::ReadOnly => FailureCode::ReadOnly,
            wire::FailureCode::Unauthenticated => FailureCode::Unauthenticated,
            wire::FailureCode::Elsewhere => FailureCode::Elsewhere,
            wire::FailureCode::OtherVersion => FailureCode::OtherVersion,
            wire::FailureCode::Unsupported => FailureCode::Unsupported,
            wire::FailureCode::Behind => FailureCode::Behind,
            wire::FailureCode::PutLost => FailureCode::PutLost,
            wire::FailureCode::Held => FailureCode::Held,
            wire::FailureCode::NotOwned => FailureCode::NotOwned,
            wire::FailureCode::Older => FailureCode::Older,
        },
        message: from.get_message().map_err(bad_reply)?.to_string().map_err(bad_reply)?,
        retry_after: Duration::from_millis(u64::from(from.get_retry_after_ms())),
    })
}
