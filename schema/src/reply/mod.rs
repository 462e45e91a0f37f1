//! Answers of a server.

mod description;
mod failure;

use crate::error::{WireError, bad_reply};
use crate::frame;
use crate::limits::{REPLY_TRAVERSAL_WORDS_MAX, ROW_BYTES_MAX};
use crate::lodestore_capnp::{copied, declared, followed, followed_file, reply};
use crate::stats::ServerStats;
use crate::versions::Versions;

pub use description::{Description, PartState, Role, TensorDescription, graph_tag};
pub use failure::{Failure, FailureCode};

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
    /// Counters of the server.
    Stats(ServerStats),
    /// A piece of a put is here; after the last one its rows are durable, and seen once committed.
    Pushed {
        /// The version that they are for; 0 after a piece that is not the last.
        version: u32,
    },
    /// Rows that were put up to then are a version.
    Committed {
        /// The newest version that has come so far: that asked for or a later one.
        version: u32,
    },
    /// A compaction runs or waits to run.
    Compacting {
        /// Its number: it is over when [`UpdateStats::runs_ended`](crate::stats::UpdateStats) has
        /// come there.
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
    /// A chunk as in `Rows`, which is in that memory.
    SharedRows {
        /// Position of the chunk's first row in the request's ids.
        first_row: u32,
        /// Rows in the chunk.
        n_rows: u32,
        /// Offset of the chunk's first byte, in the memory.
        offset: u32,
        /// Whether the server waits for an acknowledgement that the rows have been copied.
        awaited: bool,
        /// As in `Rows`.
        versions: Versions,
    },
    /// A step of moving a partition is done; a piece of its pending rows is the body.
    Copied(Copied),
    /// A step of following a partition is done; a manifest or a piece is the body.
    Followed(Followed),
    /// A volatile tensor is there.
    Declared(Declared),
    /// Rows may be published.
    Claimed {
        /// Stamps of all ranges that were claimed.
        n_rows: u64,
    },
    /// A piece of a publication is there.
    Published {
        /// Its rows.
        n_rows: u32,
    },
    /// After the last chunk of a pull of volatile rows: their stamps are the body, `u32::MAX` for
    /// rows that are not there.
    Stamps {
        /// Rows of the pull.
        n_rows: u32,
    },
}

/// A volatile tensor as a server has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// Name of the element type.
    pub dtype: String,
    /// Elements of a row.
    pub width: u32,
    /// Bytes of a row, 1 to 1 MiB.
    pub row_bytes: u32,
    /// Rows that are claimed together; 0 for all of a partition.
    pub range_rows: u32,
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
    /// Bytes of the body.
    pub crc32: u32,
}

/// Result of a step of following a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// Version of the manifest.
    pub version: u32,
    /// Its files with their bytes.
    pub files: Vec<(String, u64)>,
    /// No piece comes after this one.
    pub is_last: bool,
    /// Bytes of the body.
    pub crc32: u32,
}

impl Reply {
    /// Appends prefix and head for a reply whose body will be `body_bytes` long.
    pub fn append_to(&self, body_bytes: usize, out: &mut Vec<u8>) {
        let mut message = frame::builder();
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
            Self::Failure(failure) => failure::write(failure, root.init_failure()),
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
            Self::Declared(declared) => write_declared(declared, root.init_declared()),
            Self::Claimed { n_rows } => root.init_claimed().set_n_rows(*n_rows),
            Self::Published { n_rows } => root.init_published().set_n_rows(*n_rows),
            Self::Stamps { n_rows } => root.init_stamps().set_n_rows(*n_rows),
        }
        frame::append_frame(&message, body_bytes, out);
    }

    /// Reads a head.
    ///
    /// # Errors
    /// `Malformed` when the bytes are no reply of this schema, or describe what cannot be.
    pub fn decode(head: &[u8]) -> Result<Self, WireError> {
        let reader = frame::open("reply", head, REPLY_TRAVERSAL_WORDS_MAX)?;
        let root = reader.get_root::<reply::Reader<'_>>().map_err(bad_reply)?;
        Ok(match root.which().map_err(bad_reply)? {
            reply::Rows(rows) => {
                let rows = rows.map_err(bad_reply)?;
                let versions =
                    Versions::read(rows.get_version(), rows.get_above().map_err(bad_reply)?);
                Self::Rows { first_row: rows.get_first_row(), n_rows: rows.get_n_rows(), versions }
            }
            reply::Description(description) => {
                Self::Description(description::read(description.map_err(bad_reply)?)?)
            }
            reply::Failure(failure) => Self::Failure(failure::read(failure.map_err(bad_reply)?)?),
            reply::Stats(stats) => Self::Stats(ServerStats::read(stats.map_err(bad_reply)?)?),
            reply::Pushed(pushed) => {
                Self::Pushed { version: pushed.map_err(bad_reply)?.get_version() }
            }
            reply::Committed(committed) => {
                Self::Committed { version: committed.map_err(bad_reply)?.get_version() }
            }
            reply::Compacting(run) => Self::Compacting { run: run.map_err(bad_reply)?.get_run() },
            reply::Shared(shared) => {
                let shared = shared.map_err(bad_reply)?;
                Self::Shared { n_bytes: shared.get_n_bytes(), n_tensors: shared.get_tensors() }
            }
            reply::Lent(lent) => {
                let lent = lent.map_err(bad_reply)?;
                Self::Lent { n_bytes: lent.get_n_bytes(), offset: lent.get_offset() }
            }
            reply::LentRows(rows) => {
                let rows = rows.map_err(bad_reply)?;
                let versions =
                    Versions::read(rows.get_version(), rows.get_above().map_err(bad_reply)?);
                Self::LentRows {
                    first_row: rows.get_first_row(),
                    n_rows: rows.get_n_rows(),
                    versions,
                }
            }
            reply::SharedRows(rows) => {
                let rows = rows.map_err(bad_reply)?;
                Self::SharedRows {
                    first_row: rows.get_first_row(),
                    n_rows: rows.get_n_rows(),
                    offset: rows.get_offset(),
                    awaited: rows.get_awaited(),
                    versions: Versions::read(
                        rows.get_version(),
                        rows.get_above().map_err(bad_reply)?,
                    ),
                }
            }
            reply::Copied(copied) => Self::Copied(read_copied(copied.map_err(bad_reply)?)),
            reply::Followed(followed) => {
                Self::Followed(read_followed(followed.map_err(bad_reply)?)?)
            }
            reply::Declared(declared) => {
                Self::Declared(read_declared(declared.map_err(bad_reply)?)?)
            }
            reply::Claimed(claimed) => {
                Self::Claimed { n_rows: claimed.map_err(bad_reply)?.get_n_rows() }
            }
            reply::Published(published) => {
                Self::Published { n_rows: published.map_err(bad_reply)?.get_n_rows() }
            }
            reply::Stamps(stamps) => {
                Self::Stamps { n_rows: stamps.map_err(bad_reply)?.get_n_rows() }
            }
        })
    }
}

fn write_copied(from: &Copied, mut to: copied::Builder<'_>) {
    to.set_version(from.version);
    to.set_is_given_up(from.is_given_up);
    to.set_is_last(from.is_last);
    to.set_crc32(from.crc32);
}

fn write_declared(from: &Declared, mut to: declared::Builder<'_>) {
    to.set_dtype(&from.dtype);
    to.set_width(from.width);
    to.set_row_bytes(from.row_bytes);
    to.set_range_rows(from.range_rows);
}

fn read_declared(from: declared::Reader<'_>) -> Result<Declared, WireError> {
    let row_bytes = from.get_row_bytes();
    if row_bytes == 0 || row_bytes as usize > ROW_BYTES_MAX {
        return Err(bad_reply(format!("rows of {row_bytes} bytes")));
    }
    Ok(Declared {
        dtype: from.get_dtype().map_err(bad_reply)?.to_string().map_err(bad_reply)?,
        width: from.get_width(),
        row_bytes,
        range_rows: from.get_range_rows(),
    })
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
        let name = file.get_name().map_err(bad_reply)?.to_string().map_err(bad_reply)?;
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
        files: read_files(from.get_files().map_err(bad_reply)?)?,
        is_last: from.get_is_last(),
        crc32: from.get_crc32(),
    })
}

#[cfg(test)]
mod tests;
