//! Which codec rows are better served by, from a sample.

use std::path::Path;

use super::{CodecChoice, GroupEncoder, SegmentCodec};
use crate::error::StoreError;

/// Groups that are looked at, evenly spread over the segment.
const SAMPLE_GROUPS: u64 = 64;

impl CodecChoice {
    /// [`CodecChoice::Auto`] takes zstd for rows that shrink at least this much, and where a random row out of memory takes at most [`CodecChoice::MAX_SLOWER`] times as long
    /// as a raw one. Measured: unpacking a group takes 400 ns and 8 ns per stored byte, copying a raw row
    /// 0.15 ns per byte. So rows of 1 KiB, two to a group, have to shrink 76 times.
    pub const MIN_RATIO: u64 = 20;

    /// See [`CodecChoice::MIN_RATIO`].
    pub const MAX_SLOWER: f64 = 4.0;

    /// [`CodecChoice::Auto`] takes raw for rows below this many bytes, which hardly ever shrink enough.
    pub const MIN_ROW_BYTES: usize = 1024;

    /// [`CodecChoice::Auto`] takes raw for segments below this many bytes: they fit any memory.
    pub const MIN_SEGMENT_BYTES: u64 = 1 << 20;
}

/// The codec for the segment `file` of `n_rows` rows of `row_bytes`; `copy_rows` fills a buffer
/// with the rows from the given one on, and is asked for a sample only where that decides.
pub(crate) fn choose<E: From<StoreError>>(
    choice: CodecChoice,
    file: &Path,
    n_rows: u32,
    row_bytes: usize,
    mut copy_rows: impl FnMut(u32, &mut [u8]) -> Result<(), E>,
) -> Result<SegmentCodec, E> {
    let zstd = SegmentCodec::zstd_for(row_bytes);
    let segment_bytes = u64::from(n_rows) * row_bytes as u64;
    match choice {
        CodecChoice::Raw => return Ok(SegmentCodec::Raw),
        CodecChoice::Zstd => return Ok(zstd),
        CodecChoice::Auto
            if row_bytes < CodecChoice::MIN_ROW_BYTES
                || segment_bytes < CodecChoice::MIN_SEGMENT_BYTES =>
        {
            return Ok(SegmentCodec::Raw);
        }
        CodecChoice::Auto => {}
    }
    let group_rows = zstd.group_rows().min(n_rows);
    let n_groups = u64::from(n_rows / group_rows);
    let mut group = vec![0; group_rows as usize * row_bytes];
    let mut encoder = GroupEncoder::new(group.len()).map_err(StoreError::io(file, "compress"))?;
    let n_samples = n_groups.min(SAMPLE_GROUPS);
    let mut stored_bytes = 0;
    for sample in 0..n_samples {
        let first = (sample * n_groups / n_samples) as u32 * group_rows;
        copy_rows(first, &mut group)?;
        let stored = encoder.store(&group).map_err(StoreError::io(file, "compress"))?;
        stored_bytes += stored.len() as u64;
    }
    let raw_bytes = n_samples * group.len() as u64;
    let shrinks = stored_bytes * CodecChoice::MIN_RATIO <= raw_bytes;
    // A random row is unpacked with its whole group.
    let unpack_ns = 400.0 + 8.0 * stored_bytes as f64 / n_samples as f64;
    let copy_ns = 0.15 * row_bytes as f64;
    let is_fast = unpack_ns <= CodecChoice::MAX_SLOWER * copy_ns;
    Ok(if shrinks && is_fast { zstd } else { SegmentCodec::Raw })
}
