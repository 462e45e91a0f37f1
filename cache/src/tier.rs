//! A tier: slots of rows, an index from id to slot, and a policy that decides which rows stay.

use crate::arena::{Arena, ArenaError};
use crate::index::{NO_SLOT, RowIndex};
use crate::policy::{Policy, PolicyKind};

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
/// # Ok::<(), lodestore_cache::ArenaError>(())
/// ```
///
/// A lookup copies rows out at once, so no row is ever pinned and no batch, however large or
/// repetitive, can wait for its own rows.
pub struct Tier {
    arena: Arena,
    index: RowIndex,
    policy: Policy,
    /// The id in each slot that was ever filled, or [`VACANT`]; slots fill from 0.
    ids: Vec<u32>,
    /// Slots in `ids` that are vacant.
    n_vacant: usize,
    /// Ids that the chunk being admitted pushes out.
    evicted: Vec<u32>,
    id_space: u32,
    kind: PolicyKind,
    stats: TierStats,
}

/// What a tier did since it was made, counted in rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Positions of lookups that found their row.
    pub hits: u64,
    /// Positions of lookups that did not; an id that stands twice counts twice.
    pub misses: u64,
    /// Rows stored.
    pub admissions: u64,
    /// Rows that had to go for another.
    pub evictions: u64,
    /// Rows that were taken out by [`Tier::remove`].
    pub removals: u64,
}

/// In the place of an id: a slot whose row was removed. Ids are below the id space, so none is it.
const VACANT: u32 = u32::MAX;

impl Tier {
    /// A tier for rows of `row_bytes` bytes with ids below `id_space`, which with all its
    /// bookkeeping stays within `capacity_bytes`. A capacity that holds no row gives a tier that
    /// always misses; one larger than all rows takes only what these need.
    ///
    /// Fails when `row_bytes` is 0 or the system refuses the memory.
    pub fn new(
        capacity_bytes: usize,
        row_bytes: usize,
        id_space: u32,
        kind: PolicyKind,
    ) -> Result<Self, ArenaError> {
        let n_slots = slots_within(capacity_bytes, row_bytes, id_space, kind);
        Self::with_slots(n_slots, row_bytes, id_space, kind)
    }

    /// A tier of exactly `n_slots` rows, or one per id if there are fewer ids.
    ///
    /// Fails when `row_bytes` is 0 or the system refuses the memory.
    pub fn with_slots(
        n_slots: u32,
        row_bytes: usize,
        id_space: u32,
        kind: PolicyKind,
    ) -> Result<Self, ArenaError> {
        let n_slots = if kind == PolicyKind::None { 0 } else { n_slots.min(id_space) };
        Ok(Self {
            arena: Arena::new(n_slots, row_bytes)?,
            index: RowIndex::new(id_space, n_slots),
            policy: Policy::new(kind, n_slots),
            ids: Vec::with_capacity(n_slots as usize),
            n_vacant: 0,
            evicted: Vec::with_capacity(RowIndex::SLACK_IDS),
            id_space,
            kind,
            stats: TierStats::default(),
        })
    }

    /// Copies the resident rows to their positions in `out`, and leaves in `misses` the positions
    /// in `ids` of all others, ascending; `out` keeps its bytes there. An id outside the id space
    /// misses.
    ///
    /// # Panics
    ///
    /// Unless `out` has `ids.len() * row_bytes` bytes.
    pub fn lookup(&mut self, ids: &[u32], out: &mut [u8], misses: &mut Vec<u32>) {
        misses.clear();
        let policy = &mut self.policy;
        let on_hits = |slots: &[u32]| policy.on_lookup(slots);
        self.arena.copy_hits(&self.index, ids, out, misses, on_hits);
        self.stats.hits += (ids.len() - misses.len()) as u64;
        self.stats.misses += misses.len() as u64;
    }

    /// Offers the rows at `positions` of a batch: position `i` has id `ids[i]` and its row at
    /// `rows[i * row_bytes..]`. The policy decides which are kept. An id that is resident already
    /// keeps the row it has; one outside the id space is not kept.
    ///
    /// # Panics
    ///
    /// Unless every position is below `ids.len()` and `rows` has `ids.len() * row_bytes` bytes.
    pub fn admit(&mut self, ids: &[u32], rows: &[u8], positions: &[u32]) {
        let row_bytes = self.arena.row_bytes();
        assert!(
            ids.len().checked_mul(row_bytes) == Some(rows.len()),
            "{} rows of {row_bytes} bytes cannot be {} bytes",
            ids.len(),
            rows.len()
        );
        for positions in positions.chunks(RowIndex::SLACK_IDS) {
            let wants_more = self.admit_chunk(ids, rows, positions);
            self.index.remove_all(&self.evicted);
            self.stats.evictions += self.evicted.len() as u64;
            self.evicted.clear();
            if !wants_more {
                break;
            }
        }
        self.policy.end_batch();
    }

    /// Stores rows until the policy keeps no more of this batch: then `false`. The ids that had
    /// to go are in `evicted`, still in the index.
    fn admit_chunk(&mut self, ids: &[u32], rows: &[u8], positions: &[u32]) -> bool {
        let row_bytes = self.arena.row_bytes();
        for &position in positions {
            let position = position as usize;
            let id = ids[position];
            if id >= self.id_space || self.index.get(id) != NO_SLOT {
                continue;
            }
            let Some(slot) = self.policy.place() else { return false };
            match self.ids.get_mut(slot as usize) {
                Some(resident) => match std::mem::replace(resident, id) {
                    VACANT => self.n_vacant -= 1,
                    evicted => self.evicted.push(evicted),
                },
                None => {
                    debug_assert_eq!(slot as usize, self.ids.len(), "slots fill from 0");
                    self.ids.push(id);
                }
            }
            self.index.insert(id, slot);
            let start = position * row_bytes;
            self.arena.row_mut(slot).copy_from_slice(&rows[start..start + row_bytes]);
            self.stats.admissions += 1;
        }
        true
    }

    /// Takes rows out, for they have changed elsewhere: the next lookup of these ids misses. Ids
    /// that are not resident, or stand twice, are fine.
    pub fn remove(&mut self, ids: &[u32]) {
        for &id in ids {
            let slot = self.index.get(id);
            if slot == NO_SLOT {
                continue;
            }
            self.index.remove_all(&[id]);
            self.ids[slot as usize] = VACANT;
            self.policy.on_remove(slot);
            self.n_vacant += 1;
            self.stats.removals += 1;
        }
    }

    /// Number of rows held.
    #[must_use]
    pub fn n_resident(&self) -> usize {
        self.ids.len() - self.n_vacant
    }

    /// Number of rows that fit.
    #[must_use]
    pub fn n_slots(&self) -> u32 {
        self.arena.n_slots()
    }

    /// Bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.arena.row_bytes()
    }

    /// Memory of the slots and all bookkeeping when full, in bytes. Pages of slots that were
    /// never filled are reserved but not taken.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let per_slot = bookkeeping_bytes(self.kind);
        self.arena.bytes() + self.index.bytes() + self.n_slots() as usize * per_slot
    }

    /// Counts since the tier was made.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        self.stats
    }
}

/// Bytes that a slot takes beside its row and the index: its id and the policy's state.
fn bookkeeping_bytes(kind: PolicyKind) -> usize {
    size_of::<u32>() + kind.slot_bytes()
}

/// The most slots, up to one per id, whose rows and bookkeeping fit into `capacity_bytes`.
fn slots_within(capacity_bytes: usize, row_bytes: usize, id_space: u32, kind: PolicyKind) -> u32 {
    let fits = |n_slots: u32| {
        let per_slot = row_bytes.saturating_add(bookkeeping_bytes(kind));
        let slots = (n_slots as usize).saturating_mul(per_slot);
        slots.saturating_add(RowIndex::planned_bytes(id_space, n_slots)) <= capacity_bytes
    };
    let (mut most, mut too_many) = (0, u64::from(id_space) + 1);
    while u64::from(most) + 1 < too_many {
        let middle = u64::from(most).midpoint(too_many) as u32;
        if fits(middle) {
            most = middle;
        } else {
            too_many = u64::from(middle);
        }
    }
    most
}

#[cfg(test)]
mod tests;
