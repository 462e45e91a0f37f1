//! A sample of rows, how it shrinks and how fast it unpacks; [`CodecCase`] decides by that.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use super::rule::{CodecCase, CodecVerdict, fits};
use super::{CodecChoice, GroupEncoder, SegmentCodec, StoredGroup, with_decoder};
use crate::error::StoreError;
use crate::plan::DiskProfile;
use crate::reader::available_memory_bytes;
use crate::row::RowIdx;

/// Groups that are looked at, evenly spread over the rows.
const SAMPLE_GROUPS: u64 = 64;

/// Bytes of rows of each group that are unpacked for one measurement, one group at least.
const TIMED_BYTES: usize = 64 << 10;

/// Measurements of a group, of which the shortest counts: others were interrupted.
const TIMED_ROUNDS: usize = 3;

impl CodecChoice {
    /// [`CodecChoice::Auto`] takes raw for rows below this many bytes in a table that fits in
    /// memory: they hardly ever shrink enough.
    pub const MIN_ROW_BYTES: usize = 1024;

    /// [`CodecChoice::Auto`] takes raw for tables below this many bytes: they fit any memory.
    pub const MIN_TABLE_BYTES: u64 = 1 << 20;

    /// Returns the codec for rows of this many bytes, by a sample of `table` where the choice
    /// leaves that open. `copy_rows` fills a buffer with the rows from the given one on.
    pub(crate) fn settle<E: From<StoreError>>(
        self,
        row_bytes: usize,
        table: impl FnOnce() -> SampledTable,
        copy_rows: impl FnMut(u32, &mut [u8]) -> Result<(), E>,
    ) -> Result<SegmentCodec, E> {
        match self {
            Self::Raw => Ok(SegmentCodec::Raw),
            Self::Zstd => Ok(SegmentCodec::zstd_for(row_bytes)),
            Self::Auto => {
                let assessed = table().assess(copy_rows)?;
                Ok(assessed.map_or(SegmentCodec::Raw, |(_, verdict)| verdict.codec))
            }
        }
    }
}

/// Rows to take a sample of, the table that they stand for, and where it will be read.
#[derive(Clone, Debug)]
pub(crate) struct SampledTable {
    /// Named in errors.
    pub(crate) file: PathBuf,
    pub(crate) n_rows: u32,
    pub(crate) row_bytes: usize,
    /// Bytes of all of the table's rows on this machine.
    pub(crate) table_bytes: u64,
    pub(crate) disk: DiskProfile,
    pub(crate) memory_bytes: Option<u64>,
}

impl SampledTable {
    /// Returns a table of these rows alone, to be read on this machine from a disk of this profile.
    pub(crate) fn new(file: PathBuf, n_rows: u32, row_bytes: usize, disk: DiskProfile) -> Self {
        let (table_bytes, memory_bytes) =
            (u64::from(n_rows) * row_bytes as u64, available_memory_bytes());
        Self { file, n_rows, row_bytes, table_bytes, disk, memory_bytes }
    }

    /// Takes a sample; returns its sizes and times, and what follows from them. Returns `None` for
    /// a table that is raw without a look: see [`SampledTable::raw_anyway`].
    pub(crate) fn assess<E: From<StoreError>>(
        &self,
        copy_rows: impl FnMut(u32, &mut [u8]) -> Result<(), E>,
    ) -> Result<Option<(CodecCase, CodecVerdict)>, E> {
        if self.raw_anyway().is_some() {
            return Ok(None);
        }
        let sample = self.sample(copy_rows)?;
        let shrunk = sample.stored_bytes as f64 / sample.raw_bytes as f64;
        let case = CodecCase {
            row_bytes: self.row_bytes,
            raw_bytes: self.table_bytes,
            zstd_bytes: (self.table_bytes as f64 * shrunk) as u64,
            decode_bytes_per_s: sample.raw_bytes as f64 / sample.unpack_seconds,
            disk: self.disk,
            memory_bytes: self.memory_bytes,
        };
        Ok(Some((case, case.judge())))
    }

    /// Returns why no sample would make it anything but raw.
    pub(crate) fn raw_anyway(&self) -> Option<&'static str> {
        if self.n_rows == 0 || self.table_bytes < CodecChoice::MIN_TABLE_BYTES {
            return Some("the table has less than 1 MiB");
        }
        let is_short = self.row_bytes < CodecChoice::MIN_ROW_BYTES;
        (is_short && fits(self.table_bytes, self.memory_bytes))
            .then_some("the table fits in memory, and its rows are short")
    }

    fn sample<E: From<StoreError>>(
        &self,
        mut copy_rows: impl FnMut(u32, &mut [u8]) -> Result<(), E>,
    ) -> Result<Sample, E> {
        let group_rows = SegmentCodec::zstd_for(self.row_bytes).group_rows().min(self.n_rows);
        let n_groups = u64::from(self.n_rows / group_rows);
        let mut group = vec![0; group_rows as usize * self.row_bytes];
        let failed = |source| StoreError::io(&self.file, "compress")(source);
        let mut encoder = GroupEncoder::new(group.len()).map_err(failed)?;
        let n_samples = n_groups.min(SAMPLE_GROUPS);
        let mut all = Sample::default();
        for sample in 0..n_samples {
            let first = (sample * n_groups / n_samples) as u32 * group_rows;
            copy_rows(first, &mut group)?;
            let stored = encoder.store(&group).map_err(failed)?;
            all.raw_bytes += group.len() as u64;
            all.stored_bytes += stored.len() as u64;
            let (raw_bytes, row_bytes) = (group.len(), self.row_bytes);
            all.unpack_seconds +=
                unpack_seconds(&StoredGroup { stored, first_row: RowIdx(0), raw_bytes, row_bytes });
        }
        Ok(all)
    }
}

/// Groups of a table, all together.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    raw_bytes: u64,
    stored_bytes: u64,
    unpack_seconds: f64,
}

/// Returns the seconds in which this thread unpacks the group; what was just compressed does
/// unpack.
fn unpack_seconds(group: &StoredGroup<'_>) -> f64 {
    let repeats = (TIMED_BYTES / group.raw_bytes.max(1)).clamp(1, 16);
    with_decoder(|decoder| {
        let mut unpack = || drop(black_box(decoder.unpacked(black_box(group)).map(<[u8]>::len)));
        // Its memory is there from now on.
        unpack();
        let rounds = (0..TIMED_ROUNDS).map(|_| {
            let start = Instant::now();
            (0..repeats).for_each(|_| unpack());
            start.elapsed().as_secs_f64() / repeats as f64
        });
        rounds.fold(f64::INFINITY, f64::min)
    })
}
