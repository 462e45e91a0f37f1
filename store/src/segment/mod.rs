//! Segments: immutable files with the rows of one tensor of one partition at one version.
//!
//! ```text
//! offset                         bytes                content
//! 0                              4096                 header page (header.rs)
//! 4096                           4096 x n_pages       rows or row groups back to back, last page
//!                                                     zero padded
//! 4096 x (1 + n_pages)           4 x n_pages, padded  CRC-32 of each data page (checksum.rs)
//! after that table               4 x groups, padded   stored bytes of each row group; none in raw
//! last page of the file          4096                 footer page (footer.rs)
//! ```
//!
//! A raw segment's length follows from its header, a compressed one's from its footer.
//!
//! Crash argument: the footer is written last, and the file is synced before its name becomes part
//! of a graph. A file without a valid footer is not a segment.

mod copy;
mod footer;
mod header;
mod open;
mod parts;
#[expect(clippy::module_inception, reason = "one file per concept; this one is the segment")]
mod segment;
mod writer;

pub(crate) use copy::SoundBytes;
pub use header::SegmentIdentity;
pub(crate) use parts::{FoundEnds, identity_of};
pub use segment::Segment;
pub use writer::{SegmentDigest, SegmentWriter};

/// Newest segment format that this release writes and reads.
pub const SEGMENT_FORMAT_VERSION: u32 = 3;

#[cfg(test)]
mod tests;
