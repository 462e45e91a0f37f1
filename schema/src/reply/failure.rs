//! Why a request failed.

use std::time::Duration;

use thiserror::Error;

use crate::error::Decoded;
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
    /// The version that was asked for is here by another commit.
    OtherHistory,
}

impl FailureCode {
    /// All of them, each with the word for it in reports and metrics. They are in the order of
    /// their numbers, which are those of the schema: `ALL[i].0 as usize == i`.
    pub const ALL: [(Self, &'static str); 19] = [
        (Self::Invalid, "invalid"),
        (Self::TooLarge, "too_large"),
        (Self::NotFound, "not_found"),
        (Self::Damaged, "damaged"),
        (Self::Overloaded, "overloaded"),
        (Self::Deadline, "deadline"),
        (Self::Stopping, "stopping"),
        (Self::Internal, "internal"),
        (Self::ReadOnly, "read_only"),
        (Self::Unauthenticated, "unauthenticated"),
        (Self::Elsewhere, "elsewhere"),
        (Self::OtherVersion, "other_version"),
        (Self::Unsupported, "unsupported"),
        (Self::Behind, "behind"),
        (Self::PutLost, "put_lost"),
        (Self::Held, "held"),
        (Self::NotOwned, "not_owned"),
        (Self::Older, "older"),
        (Self::OtherHistory, "other_history"),
    ];

    /// Returns the word for it in reports and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

pub(super) fn write(from: &Failure, mut to: failure::Builder<'_>) {
    let code = wire::FailureCode::try_from(from.code as u16);
    to.set_code(code.expect("the schema has all codes"));
    to.set_message(&from.message);
    to.set_retry_after_ms(u32::try_from(from.retry_after.as_millis()).unwrap_or(u32::MAX));
}

pub(super) fn read(from: failure::Reader<'_>) -> Decoded<Failure> {
    let code = from.get_code().map_err(|e| {
        format!("failure code {} is unknown to wire version {}", e.0, WireVersions::SPOKEN)
    })?;
    Ok(Failure {
        code: FailureCode::ALL[code as usize].0,
        message: from.get_message()?.to_string()?,
        retry_after: Duration::from_millis(u64::from(from.get_retry_after_ms())),
    })
}
