//! A tier: a directory of rows and the memory that holds them.

use std::io;

use memmap2::MmapMut;

use crate::arena::Arena;
use crate::capacity::TierSpec;
use crate::directory::{Directory, DirectoryError, Placement, TierStats};
use crate::memory_budget::MemoryRequest;
use crate::policy::{PolicyKind, PolicySpec};
use crate::slots::absent;

/// Rows of one tensor in memory, read and filled in batches by one owner.
///
/// A batch is looked up, its misses are read by the owner, and these are admitted:
///
/// ```
/// use lodestore_cache::{PolicyKind, Tier};
///
/// let mut tier = Tier::new(1 << 20, 4, 1000, PolicyKind::Clock)?;
/// let (ids, mut out, mut misses) = ([7, 9, 7], [0; 12], Vec::new());
/// tier.lookup(&ids, &mut out, &mut misses);
/// assert_eq!(misses, [0, 1, 2]);
/// out.copy_from_slice(b"sevnninesevn"); // read positions 0, 1 and 2 from elsewhere
/// tier.admit(&ids, &out, &misses);
///
/// tier.lookup(&ids, &mut out, &mut misses);
/// assert!(misses.is_empty());
/// # Ok::<(), lodestore_cache::directory::DirectoryError>(())
/// ```
///
/// A lookup copies rows out before it returns. The [`Directory`] underneath decides which rows
/// stay.
pub struct Tier {
    arena: Arena,
    directory: Directory,
    placements: Vec<Placement>,
}

/// The slots that a batch reads and fills: see [`Tier::decide`].
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// For each position the slot of its row, [`crate::slots::NO_SLOT`] where it is absent.
    pub slots: Vec<u32>,
    /// The absent rows that are kept.
    pub placements: Vec<Placement>,
}

impl Tier {
    /// Returns a tier for rows of `row_bytes` bytes with ids below `id_space`. Rows and bookkeeping
    /// stay within `capacity_bytes`. The policy must need no more than its name. A capacity that
    /// holds no row makes a tier that always misses; one larger than all rows takes only the memory
    /// of these. `unbounded` takes what all rows need, whatever the capacity.
    ///
    /// Fails when `row_bytes` is 0, the policy needs inputs, or the system refuses the memory.
    pub fn new(
        capacity_bytes: usize,
        row_bytes: usize,
        id_space: u32,
        kind: PolicyKind,
    ) -> Result<Self, DirectoryError> {
        let spec = PolicySpec::try_from(kind)?;
        let n_slots = Self::slots_within(capacity_bytes, row_bytes, id_space, &spec);
        Self::of_slots(n_slots, row_bytes, id_space, &spec)
    }

    /// Returns the slots that fit in a number of bytes with their bookkeeping.
    fn slots_within(
        capacity_bytes: usize,
        row_bytes: usize,
        id_space: u32,
        spec: &PolicySpec,
    ) -> u32 {
        let room = TierSpec {
            free_bytes: capacity_bytes as u64,
            reserve_bytes: 0,
            row_bytes: row_bytes as u64,
            wanted_rows: id_space,
        };
        room.rows_with_bookkeeping(0, id_space, spec)
    }

    /// Returns a tier of exactly `n_slots` rows, or one per id if there are fewer ids, under any
    /// policy.
    ///
    /// Fails when `row_bytes` is 0, the policy's inputs make no sense, or the system refuses the
    /// memory.
    pub fn of_slots(
        n_slots: u32,
        row_bytes: usize,
        id_space: u32,
        spec: &PolicySpec,
    ) -> Result<Self, DirectoryError> {
        let directory = Directory::new(n_slots, id_space, spec)?;
        let arena = Arena::new(directory.n_slots(), row_bytes)?;
        Ok(Self { arena, directory, placements: Vec::new() })
    }

    /// Does the same as [`Tier::new`] under any policy, with rows in zeroed memory that `make`
    /// allocates. Others can read such memory, for example a shared file.
    ///
    /// Fails when `row_bytes` is 0, the policy's inputs make no sense, the system refuses the
    /// memory, or `make` fails; without slots it is not called.
    pub fn with_memory(
        make: impl FnOnce(usize) -> io::Result<MmapMut>,
        capacity_bytes: usize,
        row_bytes: usize,
        id_space: u32,
        spec: &PolicySpec,
    ) -> Result<Self, DirectoryError> {
        let n_slots = Self::slots_within(capacity_bytes, row_bytes, id_space, spec);
        let directory = Directory::new(n_slots, id_space, spec)?;
        let arena = Arena::made_by(make, directory.n_slots(), row_bytes)?;
        Ok(Self { arena, directory, placements: Vec::new() })
    }

    /// Copies the resident rows to their positions in `out`. Writes the positions in `ids` of all
    /// others to `misses`, ascending; `out` keeps its bytes there. An id outside the id space
    /// misses.
    ///
    /// # Panics
    ///
    /// Unless `out` has `ids.len() * row_bytes` bytes.
    pub fn lookup(&mut self, ids: &[u32], out: &mut [u8], misses: &mut Vec<u32>) {
        misses.clear();
        self.arena.check_rows(ids.len(), out.len());
        let arena = &self.arena;
        self.directory.lookup_with(ids, |first, found| {
            arena.copy_found(first, found, &mut out[first * arena.row_bytes()..], misses);
        });
    }

    /// Offers the rows at `positions` of a batch: position `i` has id `ids[i]` and its row at
    /// `rows[i * row_bytes..]`. The policy decides which are kept. An id that is resident already
    /// keeps the row it has; one outside the id space is not kept.
    ///
    /// # Panics
    ///
    /// Unless every position is below `ids.len()` and `rows` has `ids.len() * row_bytes` bytes.
    pub fn admit(&mut self, ids: &[u32], rows: &[u8], positions: &[u32]) {
        self.arena.check_rows(ids.len(), rows.len());
        let row_bytes = self.arena.row_bytes();
        self.directory.admit(ids, positions, &mut self.placements);
        for &Placement { position, slot } in &self.placements {
            let start = position as usize * row_bytes;
            self.arena.row_mut(slot).copy_from_slice(&rows[start..start + row_bytes]);
        }
    }

    /// Decides for a batch what [`Tier::lookup`], and [`Tier::admit`] of all that it misses, would
    /// decide, and moves no row. The rows move later, in the order of the decisions: first those
    /// that are found leave ([`Tier::copy_out`]), then those that come get their slots
    /// ([`Tier::fill`]).
    pub fn decide(&mut self, ids: &[u32], decision: &mut Decision) {
        let Decision { slots, placements } = decision;
        self.directory.lookup(ids, slots);
        let absent: Vec<u32> = absent(slots).collect();
        self.directory.admit(ids, &absent, placements);
    }

    /// Copies the row in `slots[i]` to row `at[i]` of `out`; nothing for [`crate::slots::NO_SLOT`].
    ///
    /// # Panics
    ///
    /// Unless there is a position for each slot, and a row of `out` for each position.
    pub fn copy_out(&self, slots: &[u32], at: &[u32], out: &mut [u8]) {
        self.arena.copy_to(slots, at, out);
    }

    /// Writes a row to a slot that was decided for it.
    ///
    /// # Panics
    ///
    /// Unless there is such a slot and `row` has the length of a row.
    pub fn fill(&mut self, slot: u32, row: &[u8]) {
        self.arena.row_mut(slot).copy_from_slice(row);
    }

    /// Returns the slots of rows that are all resident. The owner of the tier's memory reads them
    /// in place: slot `i` is row `i` of it. See [`Directory::lookup_for_lease`].
    pub fn lookup_for_lease(&mut self, ids: &[u32], slots: &mut Vec<u32>) -> bool {
        self.directory.lookup_for_lease(ids, slots)
    }

    /// Keeps the rows in place: see [`Directory::lease`].
    pub fn lease(&mut self) {
        self.directory.lease();
    }

    /// Ends that: see [`Directory::end_lease`].
    pub fn end_lease(&mut self) {
        self.directory.end_lease();
    }

    /// Removes rows that have changed elsewhere: the next lookup of these ids misses. Ids may
    /// repeat, and need not be resident.
    pub fn remove(&mut self, ids: &[u32]) {
        self.directory.remove(ids);
    }

    /// Sets the next uses for `oracle`, see [`Directory::announce`].
    pub fn announce(&mut self, next_uses: &[u32]) {
        self.directory.announce(next_uses);
    }

    /// Returns what is resident, and why.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Returns the number of rows held.
    #[must_use]
    pub fn n_resident(&self) -> usize {
        self.directory.n_resident()
    }

    /// Returns the number of rows that fit.
    #[must_use]
    pub fn n_slots(&self) -> u32 {
        self.directory.n_slots()
    }

    /// Returns the bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.arena.row_bytes()
    }

    /// Returns the memory of the slots and all bookkeeping when full, in bytes. Pages of slots that
    /// were never filled are reserved but not taken.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.arena.bytes() + self.directory.bytes()
    }

    /// Returns counts since the tier was made.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        self.directory.stats()
    }
}

impl MemoryRequest {
    /// Returns what a [`Tier`] asks for that could keep all rows: with each row its part of the
    /// bookkeeping that all of them take. A tier of fewer rows, made for this many bytes, stays
    /// within them.
    #[must_use]
    pub fn of_tier(row_bytes: usize, id_space: u32, spec: &PolicySpec, weight: u32) -> Self {
        let bookkeeping = Directory::planned_bytes(id_space, id_space, spec);
        let per_row = bookkeeping.div_ceil(id_space.max(1) as usize);
        let slot_bytes = row_bytes.saturating_add(per_row) as u64;
        Self { slot_bytes, wanted_rows: id_space, weight }
    }
}

#[cfg(test)]
mod tests;
