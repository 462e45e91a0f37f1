//! Rows in memory only, each with a stamp, which their owners publish and others pull.

use std::ops::Range;

use thiserror::Error;

use super::sync::{AtomicU64, Ordering, READ_TRIES};
use super::versioned::VersionedRows;
use crate::arena::ArenaError;

/// Bytes of rows that are brought near at once, before they are copied: few enough for the nearest
/// cache.
const NEAR_BYTES: usize = 16 << 10;

/// When a row was published, in the time of its publishers: an epoch, or a step.
pub type Stamp = u32;

/// The largest stamp.
pub const STAMP_MAX: Stamp = Stamp::MAX - 1;

/// The rows of one volatile tensor: halo embeddings (CaPGNN, section 4.2), or the historical
/// embeddings of GNNAutoScale.
///
/// Ranges of ids are claimed, each by one publisher. Any number of threads pull rows meanwhile,
/// without a lock: a row that is returned is whole, of the present claim, and never older than the
/// stamp that was asked for. A new claim of a range forgets the rows of the one before it.
///
/// ```
/// use lodestore_cache::VolatileRows;
///
/// let rows = VolatileRows::new([10..14], 4)?;
/// let claim = rows.claim(0).expect("no publisher has this range");
/// rows.publish(&[claim], &[11, 13], b"elevthir", 5).expect("both rows are of the claim");
///
/// let (mut out, mut lacking) = ([0; 8], Vec::new());
/// let oldest = rows.pull(&[13, 12], 5, &mut out, &mut lacking).expect("both ids are here");
/// assert_eq!((&out[..4], oldest), (&b"thir"[..], Some(5)));
/// assert_eq!(lacking, [1], "the position of 12, which has no row yet");
/// # Ok::<(), lodestore_cache::VolatileError>(())
/// ```
pub struct VolatileRows {
    ranges: Box<[Claimed]>,
    rows: VersionedRows,
}

/// Ids that one publisher claims.
struct Claimed {
    ids: Range<u32>,
    first_slot: usize,
    /// Twice the number of the claim that its rows are of, and 1 more while that is held.
    state: AtomicU64,
}

/// The right to publish the rows of one range, until it is released.
#[derive(Debug, PartialEq, Eq)]
pub struct VolatileClaim {
    range: usize,
    /// Counted from 1 for each range.
    number: u32,
}

/// Why volatile rows were not made, claimed, published or pulled.
#[derive(Debug, Error)]
pub enum VolatileError {
    /// There is no memory for the rows.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// Ranges must ascend and not overlap.
    #[error("the ids {range:?} do not come after those of the range before them")]
    Ranges {
        /// The range at fault.
        range: Range<u32>,
    },
    /// There is no such range.
    #[error("there is no range {range}; {n_ranges} ranges are held here")]
    NoRange {
        /// The range that was named.
        range: usize,
        /// Those that there are.
        n_ranges: usize,
    },
    /// Another publisher has the range.
    #[error("rows {ids:?} have a publisher already; one publishes them at a time")]
    Held {
        /// Ids of the range.
        ids: Range<u32>,
    },
    /// An id lies in none of the ranges.
    #[error("row {id} is not held here")]
    NotHere {
        /// The id.
        id: u32,
    },
    /// A row of another publisher, or of a claim that has ended.
    #[error("row {id} is not this publisher's; claim its range before publishing")]
    NotOwned {
        /// The id.
        id: u32,
    },
    /// The row is there with a later stamp.
    #[error("row {id} has a later stamp than {stamp}; claim its range again to go back")]
    Older {
        /// The first such id.
        id: u32,
        /// The stamp that was to be published.
        stamp: Stamp,
    },
    /// The stamp is reserved.
    #[error("{stamp} is no stamp; the largest is {STAMP_MAX}")]
    Stamp {
        /// The stamp.
        stamp: Stamp,
    },
    /// A buffer of another length than the rows.
    #[error("{n_ids} rows of {row_bytes} bytes need another buffer than one of {found} bytes")]
    Length {
        /// Rows.
        n_ids: usize,
        /// Bytes of each.
        row_bytes: usize,
        /// Bytes of the buffer.
        found: usize,
    },
}

impl VolatileRows {
    /// Makes room for a row of `row_bytes` for each id of `ranges`, which ascend. Memory of rows that
    /// are never published is reserved but not taken.
    pub fn new(
        ranges: impl IntoIterator<Item = Range<u32>>,
        row_bytes: usize,
    ) -> Result<Self, VolatileError> {
        let (mut first_slot, mut end) = (0, 0);
        let mut claimed = Vec::new();
        for ids in ranges {
            if ids.start < end || ids.end < ids.start {
                return Err(VolatileError::Ranges { range: ids });
            }
            end = ids.end;
            let n_ids = ids.len();
            claimed.push(Claimed { ids, first_slot, state: AtomicU64::new(0) });
            first_slot += n_ids;
        }
        let rows = VersionedRows::new(first_slot, row_bytes)?;
        Ok(Self { ranges: claimed.into(), rows })
    }

    /// Memory for `n_rows` rows of `row_bytes`, in bytes.
    #[must_use]
    pub fn bytes_of(n_rows: u64, row_bytes: usize) -> u64 {
        n_rows.saturating_mul(VersionedRows::slot_bytes(row_bytes) as u64)
    }

    /// Bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.rows.row_bytes()
    }

    /// The range that has `id`.
    #[must_use]
    pub fn range_of(&self, id: u32) -> Option<usize> {
        let after = self.ranges.partition_point(|range| range.ids.end <= id);
        self.ranges.get(after).filter(|range| range.ids.contains(&id)).map(|_| after)
    }

    /// Claims range `range` for one publisher, and forgets its rows. Fails while another has it.
    pub fn claim(&self, range: usize) -> Result<VolatileClaim, VolatileError> {
        let n_ranges = self.ranges.len();
        let of = self.ranges.get(range).ok_or(VolatileError::NoRange { range, n_ranges })?;
        let is_free = |state: u64| state.is_multiple_of(2) && state < u64::from(u32::MAX) * 2;
        let next = |state| is_free(state).then_some(state + 3);
        match of.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) {
            Ok(before) => Ok(VolatileClaim { range, number: number_of(before) + 1 }),
            Err(_) => Err(VolatileError::Held { ids: of.ids.clone() }),
        }
    }

    /// Ends a claim. Its rows stay until the next one.
    #[expect(clippy::needless_pass_by_value, reason = "a claim ends once")]
    pub fn release(&self, claim: VolatileClaim) {
        let held = u64::from(claim.number) * 2 + 1;
        let Some(of) = self.ranges.get(claim.range) else { return };
        let end = of.state.compare_exchange(held, held - 1, Ordering::AcqRel, Ordering::Relaxed);
        debug_assert!(end.is_ok(), "a claim is of these rows, and ends once");
    }

    /// Publishes `rows`, as many as `ids`, with `stamp`. All ids are checked before a row is written;
    /// of a row that comes twice the later stays.
    ///
    /// After [`VolatileError::Older`] all rows without a later stamp are written.
    pub fn publish(
        &self,
        claims: &[VolatileClaim],
        ids: &[u32],
        rows: &[u8],
        stamp: Stamp,
    ) -> Result<(), VolatileError> {
        self.check(ids.len(), rows.len())?;
        if stamp > STAMP_MAX {
            return Err(VolatileError::Stamp { stamp });
        }
        let mut own = None;
        for &id in ids {
            own = Some(self.owner(claims, id, own)?);
        }
        let (row_bytes, mut older) = (self.row_bytes(), None);
        for (row, &id) in ids.iter().enumerate() {
            let claim = self.owner(claims, id, own)?;
            own = Some(claim);
            let slot = self.ranges[claim.range].slot(id);
            let bytes = &rows[row * row_bytes..(row + 1) * row_bytes];
            if !self.rows.write(slot, tag(claim.number, stamp), bytes) {
                older = older.or(Some(id));
            }
        }
        older.map_or(Ok(()), |id| Err(VolatileError::Older { id, stamp }))
    }

    /// Writes the rows of `ids` that have `min_stamp` or a later one to their places in `out`, and
    /// the positions of all others to `lacking`, ascending: also of one that is being rewritten for longer
    /// than a few reads take, which is worth another pull. Returns the oldest stamp of those written.
    pub fn pull(
        &self,
        ids: &[u32],
        min_stamp: Stamp,
        out: &mut [u8],
        lacking: &mut Vec<u32>,
    ) -> Result<Option<Stamp>, VolatileError> {
        self.check(ids.len(), out.len())?;
        let missing = ids.iter().find(|&&id| self.range_of(id).is_none());
        if let Some(&id) = missing {
            return Err(VolatileError::NotHere { id });
        }
        lacking.clear();
        let mut oldest = None;
        let row_bytes = self.row_bytes();
        let near = (NEAR_BYTES / VersionedRows::slot_bytes(row_bytes)).max(1);
        let mut first = 0;
        for ids in ids.chunks(near) {
            self.rows.touch(ids.iter().filter_map(|&id| self.slot_of(id)));
            for (at, &id) in (first..).zip(ids) {
                let row = &mut out[at * row_bytes..(at + 1) * row_bytes];
                match self.read(id, min_stamp, row) {
                    Some(stamp) => oldest = Some(oldest.map_or(stamp, |old: Stamp| old.min(stamp))),
                    // Positions of a buffer in memory, of which there are fewer than 2^32.
                    None => lacking.push(at as u32),
                }
            }
            first += ids.len();
        }
        Ok(oldest)
    }

    /// Copies the row of `id` to `row` if it is of the present claim and has `min_stamp` or a later
    /// one; returns its stamp. Otherwise `row` has bytes without meaning.
    fn read(&self, id: u32, min_stamp: Stamp, row: &mut [u8]) -> Option<Stamp> {
        let range = &self.ranges[self.range_of(id)?];
        // Before the row is read: one of a later claim than this is not taken.
        let number = number_of(range.state.load(Ordering::Acquire));
        let tag = self.rows.read(range.slot(id), row, READ_TRIES).ok()?;
        let (of, stamp) = ((tag >> 32) as u32, (tag as u32).checked_sub(1)?);
        (of == number && number > 0 && stamp >= min_stamp).then_some(stamp)
    }

    /// The claim that has `id`; `hint` is tried first.
    fn owner<'a>(
        &self,
        claims: &'a [VolatileClaim],
        id: u32,
        hint: Option<&'a VolatileClaim>,
    ) -> Result<&'a VolatileClaim, VolatileError> {
        let has = |claim: &&VolatileClaim| {
            self.ranges.get(claim.range).is_some_and(|range| range.ids.contains(&id))
        };
        let claim = hint.filter(has).or_else(|| claims.iter().find(has));
        let claim = claim.ok_or_else(|| match self.range_of(id) {
            Some(_) => VolatileError::NotOwned { id },
            None => VolatileError::NotHere { id },
        })?;
        let state = self.ranges[claim.range].state.load(Ordering::Acquire);
        match state == u64::from(claim.number) * 2 + 1 {
            true => Ok(claim),
            false => Err(VolatileError::NotOwned { id }),
        }
    }

    fn slot_of(&self, id: u32) -> Option<usize> {
        self.range_of(id).map(|range| self.ranges[range].slot(id))
    }

    fn check(&self, n_ids: usize, found: usize) -> Result<(), VolatileError> {
        let row_bytes = self.row_bytes();
        match n_ids.checked_mul(row_bytes) == Some(found) {
            true => Ok(()),
            false => Err(VolatileError::Length { n_ids, row_bytes, found }),
        }
    }
}

impl Claimed {
    /// The slot of `id`, which is one of its ids.
    fn slot(&self, id: u32) -> usize {
        self.first_slot + (id - self.ids.start) as usize
    }
}

/// The number of the claim that rows of a range in `state` are of; 0 before the first.
fn number_of(state: u64) -> u32 {
    (state / 2) as u32
}

/// What a row is written under. It grows with the claim and then with the stamp; 0 for none.
fn tag(claim: u32, stamp: Stamp) -> u64 {
    (u64::from(claim) << 32) | (u64::from(stamp) + 1)
}
