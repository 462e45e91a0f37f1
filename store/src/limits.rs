//! Every limit of the store in one place; a file that asks for more is refused before it is read.

/// Bytes of a page: the unit of checksums and of reads.
pub const PAGE_BYTES: u64 = 4096;

/// Longest tensor name, in bytes. Names become parts of file names and of catalog keys.
pub const MAX_TENSOR_NAME_BYTES: usize = 64;

/// Longest row, in bytes; 4 Mi columns of `f32`. A server sends rows of 1 MiB at most, so that
/// `lode import` warns of longer ones.
pub const MAX_ROW_BYTES: usize = 16 << 20;

/// Longest row group of more than one row, in bytes before compression: a read of any row of a
/// group unpacks all of it.
pub const MAX_GROUP_BYTES: usize = 1 << 20;

/// Longest read that a plan asks for, unless one row alone is longer.
///
/// Larger single reads gain nothing on NVMe and have hung direct reads on some kernels.
pub const MAX_EXTENT_BYTES: u64 = 1 << 20;

/// Most tensors of one graph.
pub const MAX_TENSORS: usize = 1024;

/// Largest `graph.toml` that is read, in bytes; 65 535 partitions need 0.8 MiB.
pub const MAX_META_BYTES: u64 = 4 << 20;

/// Bytes of rows that were put which a process keeps in memory, about, of all partitions together.
/// Beyond that it moves them into tables on disk. Tables being written, and one put, come on top. A
/// partition that is not put to keeps what it has.
pub const WRITE_BUFFER_BYTES: usize = 128 << 20;

/// Most bytes of rows that one put may carry; they are in memory three times while it runs.
pub const MAX_PUT_BYTES: u64 = 256 << 20;

/// Most versions that one commit makes, each with a sync of every partition.
pub const MAX_VERSIONS_AHEAD: u32 = 1 << 16;

/// Commits of a partition whose ids its catalog keeps: 20 MB of them.
pub const COMMITS_KEPT: u32 = 1 << 20;

/// Commits that a manifest lists: the last ones.
pub const COMMITS_LISTED: u32 = 1024;

const _: () = assert!(MAX_PUT_BYTES >= MAX_ROW_BYTES as u64);
const _: () = assert!(MAX_EXTENT_BYTES.is_multiple_of(PAGE_BYTES));
const _: () = assert!(MAX_GROUP_BYTES <= MAX_ROW_BYTES);
const _: () = assert!(MAX_ROW_BYTES + 2 * PAGE_BYTES as usize <= u32::MAX as usize);
