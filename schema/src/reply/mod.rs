//! Answers of a server.

mod description;
mod failure;

use crate::error::{Decoded, WireError};
use crate::frame;
use crate::limits::{REPLY_TRAVERSAL_WORDS_MAX, ROW_BYTES_MAX};
use crate::lodestore_capnp::{copied, declared, followed, followed_file, reply};
use crate::request::u128_of;
use crate::stats::ServerStats;
use crate::versions::{VersionTag, Versions};

pub use description::{Description, FollowerState, MovedPart, PartState, Role, TensorDescription};
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
        /// In the last chunk: the versions that the rows are of.
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
        /// The label of the version that was asked for; 0 where it is unknown.
        label: u128,
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
                rows.set_version(versions.lowest.number);
                rows.set_tag(versions.lowest.tag);
                if !versions.above.is_empty() {
                    versions.write_above(rows.reborrow().init_above(versions.n_above()));
                }
                if versions.n_tags() > 0 {
                    versions.write_tags(rows.init_above_tags(versions.n_tags()));
                }
            }
            Self::Description(description) => {
                description::write(description, root.init_description());
            }
            Self::Failure(failure) => failure::write(failure, root.init_failure()),
            Self::Stats(stats) => stats.write(root.init_stats()),
            Self::Pushed { version } => root.init_pushed().set_version(*version),
            Self::Committed { version, label } => {
                let mut committed = root.init_committed();
                committed.set_version(*version);
                committed.set_label_high((*label >> 64) as u64);
                committed.set_label_low(*label as u64);
            }
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
                rows.set_version(versions.lowest.number);
                rows.set_tag(versions.lowest.tag);
                if !versions.above.is_empty() {
                    versions.write_above(rows.reborrow().init_above(versions.n_above()));
                }
                if versions.n_tags() > 0 {
                    versions.write_tags(rows.init_above_tags(versions.n_tags()));
                }
            }
            Self::SharedRows { first_row, n_rows, offset, awaited, versions } => {
                let mut rows = root.init_shared_rows();
                rows.set_first_row(*first_row);
                rows.set_n_rows(*n_rows);
                rows.set_offset(*offset);
                rows.set_awaited(*awaited);
                rows.set_version(versions.lowest.number);
                rows.set_tag(versions.lowest.tag);
                if !versions.above.is_empty() {
                    versions.write_above(rows.reborrow().init_above(versions.n_above()));
                }
                if versions.n_tags() > 0 {
                    versions.write_tags(rows.init_above_tags(versions.n_tags()));
                }
            }
            Self::Copied(copied) => copied.write(root.init_copied()),
            Self::Followed(followed) => followed.write(root.init_followed()),
            Self::Declared(declared) => declared.write(root.init_declared()),
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
        frame::decode("reply", head, REPLY_TRAVERSAL_WORDS_MAX, |reader| {
            Self::read(reader.get_root()?)
        })
    }

    fn read(root: reply::Reader<'_>) -> Decoded<Self> {
        Ok(match root.which()? {
            reply::Rows(rows) => {
                let rows = rows?;
                let lowest = VersionTag { number: rows.get_version(), tag: rows.get_tag() };
                let versions = Versions::read(lowest, rows.get_above()?, rows.get_above_tags()?);
                Self::Rows { first_row: rows.get_first_row(), n_rows: rows.get_n_rows(), versions }
            }
            reply::Description(description) => Self::Description(description::read(description?)?),
            reply::Failure(failure) => Self::Failure(failure::read(failure?)?),
            reply::Stats(stats) => Self::Stats(ServerStats::read(stats?)?),
            reply::Pushed(pushed) => Self::Pushed { version: pushed?.get_version() },
            reply::Committed(committed) => {
                let committed = committed?;
                let label = u128_of(committed.get_label_high(), committed.get_label_low());
                Self::Committed { version: committed.get_version(), label }
            }
            reply::Compacting(run) => Self::Compacting { run: run?.get_run() },
            reply::Shared(shared) => {
                let shared = shared?;
                Self::Shared { n_bytes: shared.get_n_bytes(), n_tensors: shared.get_tensors() }
            }
            reply::Lent(lent) => {
                let lent = lent?;
                Self::Lent { n_bytes: lent.get_n_bytes(), offset: lent.get_offset() }
            }
            reply::LentRows(rows) => {
                let rows = rows?;
                let (first_row, n_rows) = (rows.get_first_row(), rows.get_n_rows());
                let lowest = VersionTag { number: rows.get_version(), tag: rows.get_tag() };
                let versions = Versions::read(lowest, rows.get_above()?, rows.get_above_tags()?);
                Self::LentRows { first_row, n_rows, versions }
            }
            reply::SharedRows(rows) => {
                let rows = rows?;
                let lowest = VersionTag { number: rows.get_version(), tag: rows.get_tag() };
                Self::SharedRows {
                    first_row: rows.get_first_row(),
                    n_rows: rows.get_n_rows(),
                    offset: rows.get_offset(),
                    awaited: rows.get_awaited(),
                    versions: Versions::read(lowest, rows.get_above()?, rows.get_above_tags()?),
                }
            }
            reply::Copied(copied) => Self::Copied(Copied::read(copied?)),
            reply::Followed(followed) => Self::Followed(Followed::read(followed?)?),
            reply::Declared(declared) => Self::Declared(Declared::read(declared?)?),
            reply::Claimed(claimed) => Self::Claimed { n_rows: claimed?.get_n_rows() },
            reply::Published(published) => Self::Published { n_rows: published?.get_n_rows() },
            reply::Stamps(stamps) => Self::Stamps { n_rows: stamps?.get_n_rows() },
        })
    }
}

impl Declared {
    fn write(&self, mut to: declared::Builder<'_>) {
        to.set_dtype(&self.dtype);
        to.set_width(self.width);
        to.set_row_bytes(self.row_bytes);
        to.set_range_rows(self.range_rows);
    }

    fn read(from: declared::Reader<'_>) -> Decoded<Self> {
        let row_bytes = from.get_row_bytes();
        if row_bytes == 0 || row_bytes as usize > ROW_BYTES_MAX {
            return Err(format!("rows of {row_bytes} bytes").into());
        }
        let dtype = from.get_dtype()?.to_string()?;
        let (width, range_rows) = (from.get_width(), from.get_range_rows());
        Ok(Self { dtype, width, row_bytes, range_rows })
    }
}

impl Copied {
    fn write(&self, mut to: copied::Builder<'_>) {
        to.set_version(self.version);
        to.set_is_given_up(self.is_given_up);
        to.set_is_last(self.is_last);
        to.set_crc32(self.crc32);
    }

    fn read(from: copied::Reader<'_>) -> Self {
        Self {
            version: from.get_version(),
            is_given_up: from.get_is_given_up(),
            is_last: from.get_is_last(),
            crc32: from.get_crc32(),
        }
    }
}

impl Followed {
    fn write(&self, mut to: followed::Builder<'_>) {
        to.set_version(self.version);
        to.set_is_last(self.is_last);
        to.set_crc32(self.crc32);
        let n_files = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        let mut files = to.init_files(n_files);
        for (at, (name, n_bytes)) in (0..n_files).zip(&self.files) {
            let mut file = files.reborrow().get(at);
            file.set_name(name);
            file.set_n_bytes(*n_bytes);
        }
    }

    fn read(from: followed::Reader<'_>) -> Decoded<Self> {
        let file = |file: followed_file::Reader<'_>| -> Decoded<_> {
            Ok((file.get_name()?.to_string()?, file.get_n_bytes()))
        };
        Ok(Self {
            version: from.get_version(),
            files: from.get_files()?.iter().map(file).collect::<Decoded<_>>()?,
            is_last: from.get_is_last(),
            crc32: from.get_crc32(),
        })
    }
}

#[cfg(test)]
mod tests;
