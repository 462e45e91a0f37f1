//! A tier that many threads use concurrently.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::aged::{AgedDirectory, Evicted};
use crate::arena::check_rows;
use crate::bypass::{BypassSettings, Watch};
use crate::capacity::TierSpec;
use crate::directory::{DirectoryError, Placement, TierStats};
use crate::huge_vec::{HugeVec, MemoryError};
use crate::memory_budget::MemoryRequest;
use crate::policy::PolicySpec;
use crate::slots::NO_SLOT;
use crate::versioned::VersionedRows;

mod exchange;

pub(crate) use exchange::Above;

/// Reads of a row that is being written before it counts as missing.
const TRIES: usize = 3;

/// Bytes of rows that are prefetched together, before they are copied: few enough for the nearest
/// cache.
const NEAR_BYTES: usize = 16 << 10;

/// Rows of one tensor in memory, read and filled by all workers of a machine (the host tier of
/// CaPGNN, section 4.2).
///
/// It does under any number of owners the work of a [`crate::tier::Tier`] under one. A lock guards the
/// decisions, tens of nanoseconds per row, and no lock is held while a row is copied. Each row that
/// is decided to be kept gets a number, larger than all before. It is written under that number,
/// and a reader that has the place of a row takes it only under the number that it has with it. So
/// a row whose slot went to another in the meantime, or that is not written yet, is a miss, and
/// never a wrong row.
///
/// A bound on the age of rows is enforced by the lookup: a row that is older misses, and is written
/// over. While the hit rate stays too low, batches go past the tier.
///
/// ```
/// use lodestore_cache::{PolicySpec, SharedTier};
/// use lodestore_cache::shared::{BatchAccess, SharedSettings};
///
/// let settings = SharedSettings::default();
/// let tier = SharedTier::of_slots(100, 4, 1000, &PolicySpec::Clock, settings)?;
/// let (ids, mut out, mut access) = ([7, 9, 7], [0; 12], BatchAccess::default());
/// tier.lookup(&ids, &mut out, &mut access);
/// assert_eq!(access.misses(), [0, 1, 2]);
/// out.copy_from_slice(b"sevnninesevn"); // read positions 0, 1 and 2 from elsewhere
/// tier.admit(&ids, &out, &mut access);
///
/// tier.lookup(&ids, &mut out, &mut access);
/// assert!(access.misses().is_empty());
/// # Ok::<(), lodestore_cache::directory::DirectoryError>(())
/// ```
pub struct SharedTier {
    rows: VersionedRows,
    row_bytes: usize,
    decisions: Mutex<Decisions>,
}

/// Options of a shared tier beside its size and policy; by default rows never change, and the tier
/// is always used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SharedSettings {
    /// Greatest age at which a row may be used, in the time of [`SharedTier::advance`] (CaPGNN,
    /// section 4.2: the staleness bound ε). `None` for rows that never change.
    pub max_age: Option<u32>,
    /// When to go past the tier; `None` for never.
    pub bypass: Option<BypassSettings>,
}

struct Decisions {
    residents: AgedDirectory,
    watch: Watch,
    n_bypassed: u64,
    evicted: Vec<Evicted>,
    /// For each slot, the number of the row that was last decided to be there; 0 for none.
    numbers: HugeVec<u64>,
    /// Rows decided to be kept so far.
    n_kept: u64,
    /// Calls of [`SharedTier::remove`]: a row that was read before one may be old after it.
    n_removals: u64,
    /// Rows found where they were said to be, but not under their number.
    n_lost: u64,
}

/// Which removal from a [`SharedTier`] it was, counted from 1: for the tiers over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalidation(pub(crate) u64);

/// One batch on its way through a [`SharedTier`], from its lookup to its admission. Used again for
/// batch after batch, it keeps its memory.
#[derive(Default)]
pub struct BatchAccess {
    misses: Vec<u32>,
    slots: Vec<u32>,
    numbers: Vec<u64>,
    /// When the row of each position was right: of a hit its stamp, of a miss the time of lookup.
    stamps: Vec<u32>,
    placements: Vec<Placement>,
    n_removals: u64,
    /// The batch goes past the tier.
    is_past: bool,
}

impl SharedTier {
    /// Returns a tier for rows of `row_bytes` bytes with ids below `id_space`, which with all its
    /// bookkeeping stays within `capacity_bytes`; see [`crate::tier::Tier::new`].
    ///
    /// Fails when `row_bytes` is 0, the policy's inputs make no sense, or the system refuses the
    /// memory.
    pub fn new(
        capacity_bytes: usize,
        row_bytes: usize,
        id_space: u32,
        spec: &PolicySpec,
        settings: SharedSettings,
    ) -> Result<Self, DirectoryError> {
        let (free_bytes, wanted_rows) = (capacity_bytes as u64, id_space);
        let room =
            TierSpec { free_bytes, reserve_bytes: 0, row_bytes: row_bytes as u64, wanted_rows };
        Self::within(room, id_space, spec, settings)
    }

    /// Returns the same in what room there is, for as many rows as are wanted.
    ///
    /// Fails as [`SharedTier::new`].
    pub fn within(
        room: TierSpec,
        id_space: u32,
        spec: &PolicySpec,
        settings: SharedSettings,
    ) -> Result<Self, DirectoryError> {
        let row_bytes = usize::try_from(room.row_bytes).unwrap_or(usize::MAX);
        let slot_bytes = Self::bytes_beside(row_bytes, settings);
        let n_slots = room.rows_with_bookkeeping(slot_bytes, id_space, spec);
        Self::of_slots(n_slots, row_bytes, id_space, spec, settings)
    }

    /// Returns the bytes of a slot beside its row and the directory's own.
    fn bytes_beside(row_bytes: usize, settings: SharedSettings) -> usize {
        VersionedRows::slot_bytes(row_bytes)
            .saturating_add(size_of::<u64>() + AgedDirectory::slot_bytes(settings.max_age))
            .saturating_sub(row_bytes)
    }

    /// Returns a tier of exactly `n_slots` rows, or one per id if there are fewer ids.
    ///
    /// Fails as [`SharedTier::new`].
    pub fn of_slots(
        n_slots: u32,
        row_bytes: usize,
        id_space: u32,
        spec: &PolicySpec,
        settings: SharedSettings,
    ) -> Result<Self, DirectoryError> {
        if row_bytes == 0 {
            return Err(MemoryError::NoRowBytes.into());
        }
        let residents = AgedDirectory::new(n_slots, id_space, spec, settings.max_age)?;
        let n_slots = residents.directory().n_slots() as usize;
        let rows = VersionedRows::new(n_slots, row_bytes)?;
        let decisions = Decisions {
            residents,
            watch: Watch::new(settings.bypass),
            n_bypassed: 0,
            evicted: Vec::new(),
            numbers: HugeVec::new(n_slots)?,
            n_kept: 0,
            n_removals: 0,
            n_lost: 0,
        };
        Ok(Self { rows, row_bytes, decisions: Mutex::new(decisions) })
    }

    /// Advances the time to `now`, unless it is later already; returns it. Each worker may count
    /// its own batches, so that rows age with the worker that is ahead.
    pub fn advance(&self, now: u32) -> u32 {
        let mut decisions = self.lock();
        decisions.residents.advance(now);
        decisions.residents.now()
    }

    /// Copies the resident rows to their positions in `out`; all others are the misses of
    /// `access`, and `out` has bytes without meaning there. An id outside the id space misses.
    ///
    /// # Panics
    ///
    /// Unless `out` has `ids.len() * row_bytes` bytes.
    pub fn lookup(&self, ids: &[u32], out: &mut [u8], access: &mut BatchAccess) {
        check_rows(ids.len(), self.row_bytes, out.len());
        self.lock().find(ids, access);
        self.copy_found(out, access);
    }

    /// Copies the rows that were found to `out`; all others become misses.
    fn copy_found(&self, out: &mut [u8], access: &mut BatchAccess) {
        let BatchAccess { misses, slots, numbers, .. } = access;
        misses.clear();
        let mut n_lost = 0;
        let n_near = (NEAR_BYTES / self.row_bytes).max(1);
        let chunks = slots.chunks(n_near).zip(numbers.chunks(n_near));
        for (at, ((slots, numbers), rows)) in
            chunks.zip(out.chunks_mut(n_near * self.row_bytes)).enumerate()
        {
            let first = (at * n_near) as u32;
            n_lost += self.copy(first, slots, numbers, rows, misses);
        }
        if n_lost > 0 {
            self.lock().n_lost += n_lost;
        }
    }

    /// Offers the rows at the misses of `access`: position `i` has id `ids[i]` and its row at
    /// `rows[i * row_bytes..]`. The policy decides which are kept. When a row was removed since the
    /// lookup, any row, nothing is kept: what was read may be what has changed.
    ///
    /// # Panics
    ///
    /// Unless `ids` are those of the lookup and `rows` has `ids.len() * row_bytes` bytes.
    pub fn admit(&self, ids: &[u32], rows: &[u8], access: &mut BatchAccess) {
        check_rows(ids.len(), self.row_bytes, rows.len());
        if access.misses.is_empty() || !self.lock().keep(ids, access) {
            return;
        }
        self.write(rows, &access.placements, &access.numbers);
    }

    /// Writes rows to where they were placed, under their numbers.
    fn write(&self, rows: &[u8], placements: &[Placement], numbers: &[u64]) {
        for (&Placement { position, slot }, &number) in placements.iter().zip(numbers) {
            let start = position as usize * self.row_bytes;
            self.rows.write(slot as usize, number, &rows[start..start + self.row_bytes]);
        }
    }

    /// Takes rows out, for they have changed elsewhere: a lookup that begins after this misses
    /// them, and no row that was looked up before is kept. Ids that are not resident are fine.
    /// Returns the changes that tiers above have to apply.
    pub fn remove(&self, ids: &[u32]) -> Invalidation {
        let mut decisions = self.lock();
        if ids.is_empty() {
            return Invalidation(decisions.n_removals);
        }
        decisions.n_removals += 1;
        decisions.residents.remove(ids);
        Invalidation(decisions.n_removals)
    }

    /// Calls of [`SharedTier::remove`].
    pub(crate) fn n_removals(&self) -> u64 {
        self.lock().n_removals
    }

    /// Ends the last batch and sets the rows for `frequency`, see
    /// [`crate::directory::Directory::retarget`].
    pub(crate) fn retarget(&self, ids: &[u32]) {
        self.lock().residents.retarget(ids);
    }

    /// Returns the number of rows that fit.
    #[must_use]
    pub fn n_slots(&self) -> u32 {
        self.lock().residents.directory().n_slots()
    }

    /// Returns the bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Returns the memory of rows and all bookkeeping when full, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.rows.bytes() + self.bookkeeping_bytes()
    }

    /// Returns the memory of index, slots, policy, and the number, id and stamp of each row, in
    /// bytes.
    pub(crate) fn bookkeeping_bytes(&self) -> usize {
        let decisions = self.lock();
        decisions.numbers.bytes() + decisions.residents.bytes()
    }

    /// Returns the ids of all rows held.
    #[cfg(test)]
    pub(crate) fn residents(&self) -> Vec<u32> {
        self.lock().residents.directory().residents().map(|(id, _)| id).collect()
    }

    /// Returns whether the next batch goes past the tier.
    #[cfg(test)]
    pub(crate) fn is_resting(&self) -> bool {
        self.lock().watch.is_resting()
    }

    /// Returns counts since the tier was made. Found rows that could not be taken are misses.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        let decisions = self.lock();
        let stats = decisions.residents.stats();
        TierStats {
            hits: stats.hits - decisions.n_lost,
            misses: stats.misses + decisions.n_lost,
            bypassed: decisions.n_bypassed,
            ..stats
        }
    }

    /// Copies the rows found in `slots` under their `numbers` to `out`. Appends the positions of
    /// the others; `first` is the position of the first slot. Returns how many were found and not
    /// taken.
    fn copy(
        &self,
        first: u32,
        slots: &[u32],
        numbers: &[u64],
        out: &mut [u8],
        misses: &mut Vec<u32>,
    ) -> u64 {
        let found = slots.iter().filter(|&&slot| slot != NO_SLOT);
        self.rows.touch(found.map(|&slot| slot as usize));
        let mut n_lost = 0;
        let rows = out.chunks_exact_mut(self.row_bytes).zip(slots.iter().zip(numbers));
        for (position, (row, (&slot, &number))) in (first..).zip(rows) {
            if slot == NO_SLOT {
                misses.push(position);
            } else if self.rows.read(slot as usize, row, TRIES) != Ok(number) {
                misses.push(position);
                n_lost += 1;
            }
        }
        n_lost
    }

    /// Locks the decisions, also after a panic of another thread. That leaves worse decisions and no
    /// wrong row: a row is taken only under its number.
    fn lock(&self) -> MutexGuard<'_, Decisions> {
        self.decisions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Decisions {
    /// Returns the number of the row in `slot`; 0 for [`NO_SLOT`].
    fn number(&self, slot: u32) -> u64 {
        self.numbers.get(slot as usize).copied().unwrap_or_default()
    }

    /// Finds slots, numbers and stamps, or nothing while the tier is left alone.
    fn find(&mut self, ids: &[u32], access: &mut BatchAccess) {
        let BatchAccess { slots, numbers, stamps, n_removals, is_past, .. } = access;
        (*n_removals, *is_past) = (self.n_removals, self.watch.is_resting());
        if *is_past {
            slots.clear();
            slots.resize(ids.len(), NO_SLOT);
            self.n_bypassed += ids.len() as u64;
        } else {
            self.residents.lookup(ids, slots);
        }
        numbers.clear();
        numbers.extend(slots.iter().map(|&slot| self.number(slot)));
        stamps.clear();
        stamps.extend(slots.iter().map(|&slot| self.residents.stamp(slot)));
        let n_accesses = if *is_past { 0 } else { ids.len() };
        let n_hits = slots.iter().filter(|&&slot| slot != NO_SLOT).count();
        self.watch.count(n_hits, n_accesses, self.residents.directory().n_resident());
    }

    /// Decides which of the misses are kept, and numbers them; false when nothing is, for the tier
    /// is left alone or rows were removed since the lookup.
    fn keep(&mut self, ids: &[u32], access: &mut BatchAccess) -> bool {
        let BatchAccess { misses, stamps, placements, numbers, n_removals, is_past, .. } = access;
        if *is_past || self.n_removals != *n_removals {
            return false;
        }
        self.place(ids, stamps, misses, placements, numbers);
        true
    }

    /// Decides which of the rows at `positions` are kept, and numbers them.
    fn place(
        &mut self,
        ids: &[u32],
        stamps: &[u32],
        positions: &[u32],
        placements: &mut Vec<Placement>,
        numbers: &mut Vec<u64>,
    ) {
        self.residents.admit(ids, stamps, positions, placements, &mut self.evicted);
        numbers.clear();
        for placement in &*placements {
            self.n_kept += 1;
            self.numbers[placement.slot as usize] = self.n_kept;
            numbers.push(self.n_kept);
        }
    }
}

impl BatchAccess {
    /// Returns the positions that the last lookup did not find, ascending.
    #[must_use]
    pub fn misses(&self) -> &[u32] {
        &self.misses
    }

    /// Returns the times at which the row of each position of the last lookup was right.
    #[must_use]
    pub fn stamps(&self) -> &[u32] {
        &self.stamps
    }
}

impl MemoryRequest {
    /// Returns what a [`SharedTier`] asks for that could keep all rows; see
    /// [`MemoryRequest::of_tier`].
    #[must_use]
    pub fn of_shared_tier(
        row_bytes: usize,
        id_space: u32,
        spec: &PolicySpec,
        settings: SharedSettings,
        weight: u32,
    ) -> Self {
        let claim = Self::of_tier(row_bytes, id_space, spec, weight);
        let beside = SharedTier::bytes_beside(row_bytes, settings) as u64;
        Self { slot_bytes: claim.slot_bytes.saturating_add(beside), ..claim }
    }
}
