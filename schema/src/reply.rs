//! What a server answers.

mod description;

use std::time::Duration;

use thiserror::Error;

use crate::limits::REPLY_TRAVERSAL_WORDS_MAX;
use crate::lodestore_capnp::{self as wire, copied, failure, followed, followed_file, reply};
use crate::{ServerStats, Versions, WireError, WireVersions, message};

pub use description::{Description, PartState, Role, TensorDescription, graph_tag};

/// A reply less its body: the rows of a chunk follow the head.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// One chunk of a pull's answer: rows `first_row..first_row + n_rows` of the request's ids.
    Rows {
        /// Position of the chunk's first row in the request's ids.
        first_row: u32,
        /// Rows in the chunk.
        n_rows: u32,
        /// In the last chunk: versions that the partitions here had reached afterwards.
        versions: Versions,
    },
    /// The graph and where its rows live.
    Description(Description),
    /// The request failed; a pull that failed has no further chunks.
    Failure(Failure),
    /// What the server counted.
    Stats(ServerStats),
    /// A piece of a put is here; after the last one its rows are durable, and seen once committed.
    Pushed {
        /// The version that they are for; 0 after a piece that is not the last.
        version: u32,
    },
    /// What was put up to then is a version.
    Committed {
        /// The newest version that has come so far: that asked for or a later one.
        version: u32,
    },
    /// A compaction runs or waits to run.
    Compacting {
        /// Its number: it is over when [`UpdateStats::runs_ended`](crate::UpdateStats) has come
        /// there.
        run: u64,
    },
    /// Memory for the rows of this connection; its descriptor comes with the frame.
    Shared {
        /// Its length.
        n_bytes: u32,
        /// Tensors of which the memory that keeps rows can be asked for too.
        n_tensors: u16,
    },
    /// The memory that keeps rows of a tensor; its descriptor comes with the frame.
    Lent {
        /// Its length; 0 where rows are not lent, without a descriptor.
        n_bytes: u64,
        /// Where it begins in the file.
        offset: u64,
    },
    /// A chunk as in `Rows`, whose rows are in that memory, in the slots that follow as u32.
    LentRows {
        /// Position of the chunk's first row in the request's ids.
        first_row: u32,
        /// Rows in the chunk.
        n_rows: u32,
        /// As in `Rows`.
        versions: Versions,
    },
    /// A chunk as in `Rows`, which stands in that memory.
    SharedRows {
        /// Position of the chunk's first row in the request's ids.
        first_row: u32,
        /// Rows in the chunk.
        n_rows: u32,
        /// Of the chunk's first byte, in the memory.
        offset: u32,
        /// Whether the server waits to be told that the rows have been copied.
        awaited: bool,
        /// As in `Rows`.
        versions: Versions,
    },
    /// A step of moving a partition is done; a piece of its pending rows is the body.
    Copied(Copied),
    /// A step of following a partition is done; a manifest or a piece is the body.
    Followed(Followed),
}

/// The answer to a step of moving a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// The partition's committed version.
    pub version: u32,
    /// This move has taken the partition away before.
    pub is_given_up: bool,
    /// No piece comes after this one.
    pub is_last: bool,
    /// Of the body.
    pub crc32: u32,
}

/// What a step of following a partition gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// Version of the manifest.
    pub version: u32,
    /// Its files with their bytes.
    pub files: Vec<(String, u64)>,
    /// No piece comes after this one.
    pub is_last: bool,
    /// Of the body.
    pub crc32: u32,
}

/// Why a request failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{message}")]
pub struct Failure {
    /// Who is at fault and whether to retry.
    pub code: FailureCode,
    /// What was expected, what was found, what to do.
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
    /// The connection's wire version has no such request; see [`crate::RequestBody::versions`].
    Unsupported,
    /// A lower version is here than the lowest that will do.
    Behind,
    /// Pieces of the put are missing: all of it must be sent again.
    PutLost,
}

impl FailureCode {
    /// All of them, in the order of their numbers: `ALL[i] as usize == i`.
    pub const ALL: [Self; 15] = [
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
    ];

    /// The word for it in reports and metrics.
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
        }
    }
}

impl Reply {
    /// Appends prefix and head for a reply whose body will be `body_bytes` long.
    pub fn append_to(&self, body_bytes: usize, out: &mut Vec<u8>) {
        let mut message = message::builder();
        let root = message.init_root::<reply::Builder<'_>>();
        match self {
            Self::Rows { first_row, n_rows, versions } => {
                let mut rows = root.init_rows();
                rows.set_first_row(*first_row);
                rows.set_n_rows(*n_rows);
                rows.set_version(versions.lowest);
                if !versions.above.is_empty() {
                    versions.write_above(rows.init_above(versions.n_above()));
                }
            }
            Self::Description(description) => {
                description::write(description, root.init_description());
            }
            Self::Failure(failure) => write_failure(failure, root.init_failure()),
            Self::Stats(stats) => stats.write(root.init_stats()),
            Self::Pushed { version } => root.init_pushed().set_version(*version),
            Self::Committed { version } => root.init_committed().set_version(*version),
            Self::Compacting { run } => root.init_compacting().set_run(*run),
            Self::Shared { n_bytes, n_tensors } => {
                let mut shared = root.init_shared();
                shared.set_n_bytes(*n_bytes);
                shared.set_tensors(*n_tensors);
            }
            Self::Lent { n_bytes, offset } => {
                let mut lent = root.init_lent();
                lent.set_n_bytes(*n_bytes);
                lent.set_offset(*offset);
            }
            Self::LentRows { first_row, n_rows, versions } => {
                let mut rows = root.init_lent_rows();
                rows.set_first_row(*first_row);
                rows.set_n_rows(*n_rows);
                rows.set_version(versions.lowest);
                if !versions.above.is_empty() {
                    versions.write_above(rows.init_above(versions.n_above()));
                }
            }
            Self::SharedRows { first_row, n_rows, offset, awaited, versions } => {
                let mut rows = root.init_shared_rows();
                rows.set_first_row(*first_row);
                rows.set_n_rows(*n_rows);
                rows.set_offset(*offset);
                rows.set_awaited(*awaited);
                rows.set_version(versions.lowest);
                if !versions.above.is_empty() {
                    versions.write_above(rows.init_above(versions.n_above()));
                }
            }
            Self::Copied(copied) => write_copied(copied, root.init_copied()),
            Self::Followed(followed) => write_followed(followed, root.init_followed()),
        }
        message::append_frame(&message, body_bytes, out);
    }

    /// Reads a head.
    ///
    /// # Errors
    /// `Malformed` when the bytes are no reply of this schema, or describe what cannot be.
    pub fn decode(head: &[u8]) -> Result<Self, WireError> {
        let reader = message::open("reply", head, REPLY_TRAVERSAL_WORDS_MAX)?;
        let root = reader.get_root::<reply::Reader<'_>>().map_err(bad)?;
        Ok(match root.which().map_err(bad)? {
            reply::Rows(rows) => {
                let rows = rows.map_err(bad)?;
                let versions = Versions::read(rows.get_version(), rows.get_above().map_err(bad)?);
                Self::Rows { first_row: rows.get_first_row(), n_rows: rows.get_n_rows(), versions }
            }
            reply::Description(description) => {
                Self::Description(description::read(description.map_err(bad)?)?)
            }
            reply::Failure(failure) => Self::Failure(read_failure(failure.map_err(bad)?)?),
            reply::Stats(stats) => Self::Stats(ServerStats::read(stats.map_err(bad)?)?),
            reply::Pushed(pushed) => Self::Pushed { version: pushed.map_err(bad)?.get_version() },
            reply::Committed(committed) => {
                Self::Committed { version: committed.map_err(bad)?.get_version() }
            }
            reply::Compacting(run) => Self::Compacting { run: run.map_err(bad)?.get_run() },
            reply::Shared(shared) => {
                let shared = shared.map_err(bad)?;
                Self::Shared { n_bytes: shared.get_n_bytes(), n_tensors: shared.get_tensors() }
            }
            reply::Lent(lent) => {
                let lent = lent.map_err(bad)?;
                Self::Lent { n_bytes: lent.get_n_bytes(), offset: lent.get_offset() }
            }
            reply::LentRows(rows) => {
                let rows = rows.map_err(bad)?;
                let versions = Versions::read(rows.get_version(), rows.get_above().map_err(bad)?);
                Self::LentRows {
                    first_row: rows.get_first_row(),
                    n_rows: rows.get_n_rows(),
                    versions,
                }
            }
            reply::SharedRows(rows) => {
                let rows = rows.map_err(bad)?;
                Self::SharedRows {
                    first_row: rows.get_first_row(),
                    n_rows: rows.get_n_rows(),
                    offset: rows.get_offset(),
                    awaited: rows.get_awaited(),
                    versions: Versions::read(rows.get_version(), rows.get_above().map_err(bad)?),
                }
            }
            reply::Copied(copied) => Self::Copied(read_copied(copied.map_err(bad)?)),
            reply::Followed(followed) => Self::Followed(read_followed(followed.map_err(bad)?)?),
        })
    }
}

pub(crate) fn bad(reason: impl ToString) -> WireError {
    WireError::malformed("reply", reason)
}

fn write_copied(from: &Copied, mut to: copied::Builder<'_>) {
    to.set_version(from.version);
    to.set_is_given_up(from.is_given_up);
    to.set_is_last(from.is_last);
    to.set_crc32(from.crc32);
}

fn write_followed(from: &Followed, mut to: followed::Builder<'_>) {
    to.set_version(from.version);
    to.set_is_last(from.is_last);
    to.set_crc32(from.crc32);
    write_files(&from.files, to.init_files(count(&from.files)));
}

fn count<T>(list: &[T]) -> u32 {
    u32::try_from(list.len()).unwrap_or(u32::MAX)
}

fn write_files(
    from: &[(String, u64)],
    mut to: capnp::struct_list::Builder<'_, followed_file::Owned>,
) {
    for (at, (name, n_bytes)) in (0..to.len()).zip(from) {
        let mut to = to.reborrow().get(at);
        to.set_name(name);
        to.set_n_bytes(*n_bytes);
    }
}

fn read_files(
    from: capnp::struct_list::Reader<'_, followed_file::Owned>,
) -> Result<Vec<(String, u64)>, WireError> {
    let file = |file: followed_file::Reader<'_>| {
        let name = file.get_name().map_err(bad)?.to_string().map_err(bad)?;
        Ok((name, file.get_n_bytes()))
    };
    from.iter().map(file).collect()
}

fn read_copied(from: copied::Reader<'_>) -> Copied {
    Copied {
        version: from.get_version(),
        is_given_up: from.get_is_given_up(),
        is_last: from.get_is_last(),
        crc32: from.get_crc32(),
    }
}

fn read_followed(from: followed::Reader<'_>) -> Result<Followed, WireError> {
    Ok(Followed {
        version: from.get_version(),
        files: read_files(from.get_files().map_err(bad)?)?,
        is_last: from.get_is_last(),
        crc32: from.get_crc32(),
    })
}

fn write_failure(from: &Failure, mut to: failure::Builder<'_>) {
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
    });
    to.set_message(&from.message);
    to.set_retry_after_ms(u32::try_from(from.retry_after.as_millis()).unwrap_or(u32::MAX));
}

fn read_failure(from: failure::Reader<'_>) -> Result<Failure, WireError> {
    let code = from.get_code().map_err(|e| {
        bad(format!("failure code {} is unknown to wire version {}", e.0, WireVersions::SPOKEN))
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
        },
        message: from.get_message().map_err(bad)?.to_string().map_err(bad)?,
        retry_after: Duration::from_millis(u64::from(from.get_retry_after_ms())),
    })
}

#[cfg(test)]
mod tests;
