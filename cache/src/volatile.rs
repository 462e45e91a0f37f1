//! Rows in memory only, each with a stamp, which their owners publish and others pull.

use std::marker::PhantomData;
use std::ops::Range;

use thiserror::Error;

use super::sync::{AtomicU64, Ordering, READ_TRIES};
use super::versioned::VersionedRows;
use crate::huge_vec::MemoryError;

/// When a row was published, in the time of its publishers: an epoch, or a step.
pub type Stamp = u32;

/// The largest stamp.
pub const STAMP_MAX: Stamp = Stamp::MAX - 1;

/// Stands for the stamp of a row that is not there.
pub const NO_STAMP: Stamp = Stamp::MAX;

/// The rows of one volatile tensor: halo embeddings (CaPGNN, section 4.2), or the historical
/// embeddings of GNNAutoScale.
///
/// Ranges of ids are claimed, each by one publisher. Any number of threads pull rows meanwhile,
/// without a lock. A returned row is whole, of the present claim, and never older than the
/// requested stamp. A new claim of a range drops the rows of the one before it.
///
/// ```
/// use lodestore_cache::volatile::{NO_STAMP, VolatileRows};
///
/// let rows = VolatileRows::new([10..14], 4)?;
/// let claims = [rows.claim(0)?];
/// let publication = rows.check_publication(&claims, &[11, 13], 5)?;
/// rows.publish_checked(&publication, &[11, 13], 0, b"elevthir")?;
///
/// let (mut out, mut stamps) = ([0; 8], [0; 2]);
/// let n_lacking = rows.pull_stamped(&rows.locate(&[13, 12])?, 5, &mut out, &mut stamps)?;
/// assert_eq!((&out[..4], n_lacking), (&b"thir"[..], 1));
/// assert_eq!(stamps, [5, NO_STAMP], "12 has no row yet");
/// # Ok::<(), lodestore_cache::volatile::VolatileError>(())
/// ```
pub struct VolatileRows {
    ranges: Box<[Claimed]>,
    rows: VersionedRows,
}

/// Ids that one publisher claims.
struct Claimed {
    ids: Range<u32>,
    first_slot: u32,
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

/// The place of a row: what a search for its id has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolatilePlace {
    range: u32,
    slot: u32,
}

/// Rows that may be published under claims that cannot end meanwhile.
#[derive(Debug)]
pub struct VolatilePublication<'a> {
    rows: Vec<Permitted>,
    stamp: Stamp,
    _claims: PhantomData<&'a [VolatileClaim]>,
}

/// A row of a publication, and the number of the claim that it is of.
#[derive(Clone, Copy, Debug)]
struct Permitted {
    slot: u32,
    claim: u32,
}

/// Why volatile rows were not made, claimed, published or pulled.
#[derive(Debug, Error)]
pub enum VolatileError {
    /// There is no memory for the rows.
    #[error(transparent)]
    Memory(#[from] MemoryError),
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
    /// Ids that are not those of whole ranges.
    #[error(
        "rows {ids:?} are not claimed by whole ranges; those from {} to {} (exclusive) are claimed \
         together",
        whole.start, whole.end
    )]
    NotWhole {
        /// Ids that were to be claimed.
        ids: Range<u32>,
        /// Ids of a range that has some of them and others.
        whole: Range<u32>,
    },
    /// An id is in none of the ranges.
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
    /// Makes room for a row of `row_bytes` for each id of `ranges`, which ascend. Memory of rows
    /// that are never published is reserved but not taken.
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
            // Ranges are apart: all of their ids are no more than there are.
            let n_ids = ids.end - ids.start;
            claimed.push(Claimed { ids, first_slot, state: AtomicU64::new(0) });
            first_slot += n_ids;
        }
        let rows = VersionedRows::new(first_slot as usize, row_bytes)?;
        Ok(Self { ranges: claimed.into(), rows })
    }

    /// Returns the memory for `n_rows` rows of `row_bytes`, in bytes.
    #[must_use]
    pub fn bytes_of(n_rows: u64, row_bytes: usize) -> u64 {
        n_rows.saturating_mul(VersionedRows::slot_bytes(row_bytes) as u64)
    }

    /// Returns the bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.rows.row_bytes()
    }

    /// Returns the range that has `id`.
    #[must_use]
    pub fn range_of(&self, id: u32) -> Option<usize> {
        let after = self.ranges.partition_point(|range| range.ids.end <= id);
        self.ranges.get(after).filter(|range| range.ids.contains(&id)).map(|_| after)
    }

    /// Returns the number of ranges.
    #[must_use]
    pub fn n_ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Returns the number of ids of a range; 0 where there is no such range.
    #[must_use]
    pub fn n_ids_of(&self, range: usize) -> usize {
        self.ranges.get(range).map_or(0, |range| range.ids.len())
    }

    /// Returns the memory of all rows, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.rows.bytes()
    }

    /// Returns the ranges whose ids are exactly `ids`, which may span several that have no gap
    /// between them.
    ///
    /// Fails for ids of none, and where a range has some of them and others.
    pub fn ranges_of(&self, ids: Range<u32>) -> Result<Range<usize>, VolatileError> {
        let not_here = |id| VolatileError::NotHere { id };
        if ids.is_empty() {
            return Err(not_here(ids.start));
        }
        let first = self.range_of(ids.start).ok_or_else(|| not_here(ids.start))?;
        let (mut after, mut end) = (first, ids.start);
        while end < ids.end {
            let next = self.ranges.get(after).map(|range| &range.ids);
            // Between ranges there may be empty ones.
            let whole = next.filter(|whole| whole.contains(&end) || whole.is_empty());
            let whole = whole.ok_or_else(|| not_here(end))?;
            if !whole.is_empty() && (whole.start < ids.start || whole.end > ids.end) {
                return Err(VolatileError::NotWhole { ids, whole: whole.clone() });
            }
            (after, end) = (after + 1, end.max(whole.end));
        }
        Ok(first..after)
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

    /// Renews a claim, without a moment in which another publisher could take it, and forgets its
    /// rows.
    pub fn renew(&self, claim: &mut VolatileClaim) -> Result<(), VolatileError> {
        let n_ranges = self.ranges.len();
        let range = claim.range;
        let of = self.ranges.get(range).ok_or(VolatileError::NoRange { range, n_ranges })?;
        let held = u64::from(claim.number) * 2 + 1;
        let number = claim.number.checked_add(1);
        let next = number.map(|number| u64::from(number) * 2 + 1);
        let is_next = next.is_some_and(|next| {
            of.state.compare_exchange(held, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        match number.filter(|_| is_next) {
            Some(number) => {
                claim.number = number;
                Ok(())
            }
            None => Err(VolatileError::Held { ids: of.ids.clone() }),
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

    /// Checks that rows of `ids` may be published with `stamp` under `claims`, which ascend by
    /// range. The ids are searched for here only: [`VolatileRows::publish_checked`] writes the
    /// rows.
    pub fn check_publication<'a>(
        &self,
        claims: &'a [VolatileClaim],
        ids: &[u32],
        stamp: Stamp,
    ) -> Result<VolatilePublication<'a>, VolatileError> {
        debug_assert!(claims.is_sorted_by_key(|claim| claim.range), "claims ascend by range");
        if stamp > STAMP_MAX {
            return Err(VolatileError::Stamp { stamp });
        }
        let mut rows = Vec::with_capacity(ids.len());
        let mut last: Option<(&Claimed, u32)> = None;
        for &id in ids {
            let known = last.filter(|(range, _)| range.ids.contains(&id));
            let (range, claim) = match known {
                Some(known) => known,
                None => self.owner(claims, id)?,
            };
            last = Some((range, claim));
            rows.push(Permitted { slot: range.slot(id), claim });
        }
        Ok(VolatilePublication { rows, stamp, _claims: PhantomData })
    }

    /// Writes the rows of `ids`, which are those of `publication` from position `first` on. The
    /// later of two for one id stays.
    ///
    /// After [`VolatileError::Older`] all rows without a later stamp are written.
    ///
    /// # Panics
    ///
    /// Unless the publication has a row for each of `ids`.
    pub fn publish_checked(
        &self,
        publication: &VolatilePublication<'_>,
        ids: &[u32],
        first: usize,
        rows: &[u8],
    ) -> Result<(), VolatileError> {
        self.check(ids.len(), rows.len())?;
        let (row_bytes, stamp) = (self.row_bytes(), publication.stamp);
        let permitted = &publication.rows[first..first + ids.len()];
        let mut older = None;
        self.rows.each_ahead(
            permitted,
            |row| row.slot as usize,
            |at, row| {
                let bytes = &rows[at * row_bytes..(at + 1) * row_bytes];
                if !self.rows.write(row.slot as usize, tag(row.claim, stamp), bytes) {
                    older = older.or(Some(ids[at]));
                }
            },
        );
        older.map_or(Ok(()), |id| Err(VolatileError::Older { id, stamp }))
    }

    /// Finds the places of rows of `ids`, published or not. A pull of them searches no more.
    pub fn locate(&self, ids: &[u32]) -> Result<Vec<VolatilePlace>, VolatileError> {
        let mut last = 0;
        let place = |&id: &u32| {
            let is_last = self.ranges.get(last).is_some_and(|range| range.ids.contains(&id));
            if !is_last {
                last = self.range_of(id).ok_or(VolatileError::NotHere { id })?;
            }
            // Ranges are bounded by their ids, of which there are at most 2^32.
            Ok(VolatilePlace { range: last as u32, slot: self.ranges[last].slot(id) })
        };
        ids.iter().map(place).collect()
    }

    /// Writes the rows at `places` that have `min_stamp` or a later one to their places in `out`,
    /// and the stamp of each row to `stamps`. All others are lacking: their stamp is [`NO_STAMP`],
    /// and their place in `out` has zeros. A row that is being rewritten for longer than a few
    /// reads take is lacking too, and worth another pull. Returns the number of lacking rows.
    ///
    /// # Panics
    ///
    /// Unless there is exactly one stamp for each place, and the places are of these rows.
    pub fn pull_stamped(
        &self,
        places: &[VolatilePlace],
        min_stamp: Stamp,
        out: &mut [u8],
        stamps: &mut [Stamp],
    ) -> Result<usize, VolatileError> {
        self.check(places.len(), out.len())?;
        assert_eq!(places.len(), stamps.len(), "a stamp for each row");
        let (row_bytes, mut n_lacking) = (self.row_bytes(), 0);
        self.rows.each_ahead(
            places,
            |place| place.slot as usize,
            |at, &place| {
                let row = &mut out[at * row_bytes..(at + 1) * row_bytes];
                stamps[at] = self.read(place, min_stamp, row).unwrap_or_else(|| {
                    row.fill(0);
                    n_lacking += 1;
                    NO_STAMP
                });
            },
        );
        Ok(n_lacking)
    }

    /// Finds the first position from `first` on whose row does not have `min_stamp` or a later one,
    /// or is being written. No row is copied.
    ///
    /// # Panics
    ///
    /// Unless the places are of these rows.
    #[must_use]
    pub fn first_lacking(
        &self,
        places: &[VolatilePlace],
        min_stamp: Stamp,
        first: usize,
    ) -> Option<usize> {
        let is_there = |&VolatilePlace { range, slot }: &VolatilePlace| {
            let number = number_of(self.ranges[range as usize].state.load(Ordering::Acquire));
            let tag = self.rows.try_tag(slot as usize).unwrap_or(0);
            stamp_of(tag, number).is_some_and(|stamp| stamp >= min_stamp)
        };
        let left = places.get(first..).unwrap_or_default();
        left.iter().position(|place| !is_there(place)).map(|at| first + at)
    }

    /// Copies the row at `place` to `row` if it is of the present claim and has `min_stamp` or a
    /// later one; returns its stamp. Otherwise `row` has bytes without meaning.
    fn read(&self, place: VolatilePlace, min_stamp: Stamp, row: &mut [u8]) -> Option<Stamp> {
        let range = &self.ranges[place.range as usize];
        // Before the row is read: one of a later claim than this is not taken.
        let number = number_of(range.state.load(Ordering::Acquire));
        let tag = self.rows.read(place.slot as usize, row, READ_TRIES).ok()?;
        stamp_of(tag, number).filter(|&stamp| stamp >= min_stamp)
    }

    /// Finds the range of `id`, and the number of its claim among `claims`.
    fn owner(&self, claims: &[VolatileClaim], id: u32) -> Result<(&Claimed, u32), VolatileError> {
        let not_owned = || VolatileError::NotOwned { id };
        let range = self.range_of(id).ok_or(VolatileError::NotHere { id })?;
        let found = claims.binary_search_by_key(&range, |claim| claim.range);
        let (of, number) = (&self.ranges[range], claims[found.map_err(|_| not_owned())?].number);
        let is_held = of.state.load(Ordering::Acquire) == u64::from(number) * 2 + 1;
        is_held.then_some((of, number)).ok_or_else(not_owned)
    }

    fn check(&self, n_ids: usize, found: usize) -> Result<(), VolatileError> {
        let row_bytes = self.row_bytes();
        match n_ids.checked_mul(row_bytes) == Some(found) {
            true => Ok(()),
            false => Err(VolatileError::Length { n_ids, row_bytes, found }),
        }
    }
}

impl VolatileClaim {
    /// Returns the range that it is of.
    #[must_use]
    pub fn range(&self) -> usize {
        self.range
    }
}

impl Claimed {
    /// Returns the slot of `id`, which is one of its ids.
    fn slot(&self, id: u32) -> u32 {
        self.first_slot + (id - self.ids.start)
    }
}

/// Returns the number of the claim that rows of a range in `state` are of; 0 before the first.
fn number_of(state: u64) -> u32 {
    (state / 2) as u32
}

/// Returns the stamp of a row that was written under `tag`, if that was by claim `number`.
fn stamp_of(tag: u64, number: u32) -> Option<Stamp> {
    let (of, stamp) = ((tag >> 32) as u32, (tag as u32).checked_sub(1)?);
    (of == number && number > 0).then_some(stamp)
}

/// Returns the tag that a row is written under. It grows with the claim and then with the stamp; 0
/// is no row.
fn tag(claim: u32, stamp: Stamp) -> u64 {
    (u64::from(claim) << 32) | (u64::from(stamp) + 1)
}
