//! A tier that many threads use at once.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::arena::{ArenaError, check_rows};
use crate::directory::{Directory, DirectoryError, Placement, TierStats};
use crate::index::NO_SLOT;
use crate::pages::PageVec;
use crate::policy::PolicySpec;
use crate::tier::slots_within;
use crate::versioned::VersionedRows;

/// Reads of a row that is being written before it counts as missing.
const TRIES: usize = 3;

/// Bytes of rows that are brought near at once, before they are copied: few enough for the nearest
/// cache.
const NEAR_BYTES: usize = 16 << 10;

/// Rows of one tensor in memory, read and filled by all workers of a machine (the host tier of
/// CaPGNN, section 4.2).
///
/// What a [`crate::Tier`] does under one owner, this does under any number: a lock guards the
/// decisions, tens of nanoseconds per row, and no lock is held while a row is copied. Each row that
/// is decided to be kept gets a number, larger than all before; it is written under that number,
/// and a reader that was told where a row lies takes it only under the number that it was told. So
/// a row whose slot went to another in the meantime, or that is not written yet, is a miss, and
/// never a wrong row.
///
/// ```
/// use lodestore_cache::{Passage, PolicySpec, SharedTier};
///
/// let tier = SharedTier::of_slots(100, 4, 1000, &PolicySpec::Clock)?;
/// let (ids, mut out, mut passage) = ([7, 9, 7], [0; 12], Passage::default());
/// tier.lookup(&ids, &mut out, &mut passage);
/// assert_eq!(passage.misses(), [0, 1, 2]);
/// out.copy_from_slice(b"sevnninesevn"); // read positions 0, 1 and 2 from elsewhere
/// tier.admit(&ids, &out, &mut passage);
///
/// tier.lookup(&ids, &mut out, &mut passage);
/// assert!(passage.misses().is_empty());
/// # Ok::<(), lodestore_cache::DirectoryError>(())
/// ```
pub struct SharedTier {
    rows: VersionedRows,
    row_bytes: usize,
    decisions: Mutex<Decisions>,
}

struct Decisions {
    directory: Directory,
    /// Of each slot, the number of the row that was last decided to be there; 0 for none.
    numbers: PageVec<u64>,
    /// Rows decided to be kept so far.
    n_kept: u64,
    /// Calls of [`SharedTier::remove`]: a row that was read before one may be old after it.
    n_removals: u64,
    /// Rows found where they were said to be, but not under their number.
    n_lost: u64,
}

/// One batch on its way through a [`SharedTier`], from its lookup to its admission. Used again for
/// batch after batch, it keeps its memory.
#[derive(Default)]
pub struct Passage {
    misses: Vec<u32>,
    slots: Vec<u32>,
    numbers: Vec<u64>,
    placements: Vec<Placement>,
    n_removals: u64,
}

impl SharedTier {
    /// A tier for rows of `row_bytes` bytes with ids below `id_space`, which with all its
    /// bookkeeping stays within `capacity_bytes`; see [`crate::Tier::new`].
    ///
    /// Fails when `row_bytes` is 0, the policy's inputs make no sense, or the system refuses the
    /// memory.
    pub fn new(
        capacity_bytes: usize,
        row_bytes: usize,
        id_space: u32,
        spec: &PolicySpec,
    ) -> Result<Self, DirectoryError> {
        let n_slots = slots_within(capacity_bytes, slot_bytes(row_bytes), id_space, spec);
        Self::of_slots(n_slots, row_bytes, id_space, spec)
    }

    /// A tier of exactly `n_slots` rows, or one per id if there are fewer ids.
    ///
    /// Fails as [`SharedTier::new`].
    pub fn of_slots(
        n_slots: u32,
        row_bytes: usize,
        id_space: u32,
        spec: &PolicySpec,
    ) -> Result<Self, DirectoryError> {
        if row_bytes == 0 {
            return Err(ArenaError::NoRowBytes.into());
        }
        let directory = Directory::new(n_slots, id_space, spec)?;
        let n_slots = directory.n_slots() as usize;
        let rows = VersionedRows::new(n_slots, row_bytes)?;
        let numbers = PageVec::new(n_slots)?;
        let decisions = Decisions { directory, numbers, n_kept: 0, n_removals: 0, n_lost: 0 };
        Ok(Self { rows, row_bytes, decisions: Mutex::new(decisions) })
    }

    /// Copies the resident rows to their positions in `out`; all others are the misses of
    /// `passage`, and `out` has bytes without meaning there. An id outside the id space misses.
    ///
    /// # Panics
    ///
    /// Unless `out` has `ids.len() * row_bytes` bytes.
    pub fn lookup(&self, ids: &[u32], out: &mut [u8], passage: &mut Passage) {
        check_rows(ids.len(), self.row_bytes, out.len());
        let Passage { misses, slots, numbers, n_removals, .. } = passage;
        {
            let mut decisions = self.lock();
            decisions.directory.lookup(ids, slots);
            numbers.clear();
            numbers.extend(slots.iter().map(|&slot| decisions.number(slot)));
            *n_removals = decisions.n_removals;
        }
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

    /// Offers the rows at the misses of `passage`: position `i` has id `ids[i]` and its row at
    /// `rows[i * row_bytes..]`. The policy decides which are kept. When a row was removed since the
    /// lookup, any row, nothing is kept: what was read may be what has changed.
    ///
    /// # Panics
    ///
    /// Unless `ids` are those of the lookup and `rows` has `ids.len() * row_bytes` bytes.
    pub fn admit(&self, ids: &[u32], rows: &[u8], passage: &mut Passage) {
        check_rows(ids.len(), self.row_bytes, rows.len());
        let Passage { misses, placements, numbers, n_removals, .. } = passage;
        if misses.is_empty() || !self.lock().keep(ids, misses, *n_removals, placements, numbers) {
            return;
        }
        for (&Placement { position, slot }, &number) in placements.iter().zip(numbers.iter()) {
            let start = position as usize * self.row_bytes;
            self.rows.write(slot as usize, number, &rows[start..start + self.row_bytes]);
        }
    }

    /// Takes rows out, for they have changed elsewhere: a lookup that begins after this misses
    /// them, and no row that was looked up before is kept. Ids that are not resident are fine.
    pub fn remove(&self, ids: &[u32]) {
        if ids.is_empty() {
            return;
        }
        let mut decisions = self.lock();
        decisions.n_removals += 1;
        decisions.directory.remove(ids);
    }

    /// Number of rows that fit.
    #[must_use]
    pub fn n_slots(&self) -> u32 {
        self.lock().directory.n_slots()
    }

    /// Bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Memory of rows and all bookkeeping when full, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let decisions = self.lock();
        self.rows.bytes() + decisions.numbers.bytes() + decisions.directory.bytes()
    }

    /// Counts since the tier was made. What was found and could not be taken is a miss.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        let decisions = self.lock();
        let TierStats { hits, misses, .. } = decisions.directory.stats();
        let (hits, misses) = (hits - decisions.n_lost, misses + decisions.n_lost);
        TierStats { hits, misses, ..decisions.directory.stats() }
    }

    /// Copies the rows found in `slots` under their `numbers` to `out`, and appends the positions
    /// of the others, of which `first` is the first; gives how many were found and not taken.
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

    /// A panic of another thread leaves decisions that are worse and give no wrong row: a row is
    /// taken only under its number.
    fn lock(&self) -> MutexGuard<'_, Decisions> {
        self.decisions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Decisions {
    /// The number of the row in `slot`; 0 for [`NO_SLOT`].
    fn number(&self, slot: u32) -> u64 {
        self.numbers.get(slot as usize).copied().unwrap_or_default()
    }

    /// Decides which of `misses` are kept, and numbers them; keeps nothing when rows were removed
    /// since there were `n_removals`.
    fn keep(
        &mut self,
        ids: &[u32],
        misses: &[u32],
        n_removals: u64,
        placements: &mut Vec<Placement>,
        numbers: &mut Vec<u64>,
    ) -> bool {
        if self.n_removals != n_removals {
            return false;
        }
        self.directory.admit(ids, misses, placements);
        numbers.clear();
        for placement in &*placements {
            self.n_kept += 1;
            self.numbers[placement.slot as usize] = self.n_kept;
            numbers.push(self.n_kept);
        }
        true
    }
}

impl Passage {
    /// Positions that the last lookup did not find, ascending.
    #[must_use]
    pub fn misses(&self) -> &[u32] {
        &self.misses
    }
}

/// Memory of a slot without its directory's share, in bytes.
const fn slot_bytes(row_bytes: usize) -> usize {
    VersionedRows::slot_bytes(row_bytes).saturating_add(size_of::<u64>())
}
