//! A tier without its bytes: which rows are resident, in which slots, and which come and go.

mod chunk;
mod leases;

use thiserror::Error;

use crate::ghosts::Ghosts;
use crate::huge_vec::MemoryError;
use crate::index::{REMEMBERED, RowIndex};
use crate::policy::{NeedsPlan, Offer, Piece, Policy, PolicySpec};
use crate::slots::{NO_SLOT, Slots, VACANT};

pub(crate) use chunk::CHUNK_IDS;
use chunk::{Chunk, Hits};
use leases::Leases;

/// Decides, batch by batch, which rows stay in how many slots. The owner of the slots' bytes does
/// as it decides. A [`crate::tier::Tier`] in host memory, a device and a simulation without bytes
/// thus decide alike.
///
/// ```
/// use lodestore_cache::{Directory, PolicySpec};
/// use lodestore_cache::directory::Placement;
/// use lodestore_cache::slots::NO_SLOT;
///
/// let mut directory = Directory::new(2, 1000, &PolicySpec::Lru)?;
/// let (mut slots, mut placements) = (Vec::new(), Vec::new());
/// directory.lookup(&[7, 9], &mut slots);
/// assert_eq!(slots, [NO_SLOT, NO_SLOT]);
/// directory.admit(&[7, 9], &[0, 1], &mut placements);
/// assert_eq!(placements[1], Placement { position: 1, slot: 1 });
///
/// directory.lookup(&[9, 5], &mut slots);
/// assert_eq!(slots, [1, NO_SLOT]);
/// # Ok::<(), lodestore_cache::directory::DirectoryError>(())
/// ```
///
/// A batch begins with its lookup and ends with the next one. Slots that it read or filled, and all
/// while some are [lent](Directory::lease), are held: they get no other row. When nothing else is
/// left further rows are not kept, so no batch, however large or repetitive, can wait for its own
/// rows.
pub struct Directory {
    index: RowIndex,
    slots: Slots,
    policy: Box<dyn Policy>,
    /// Rows that are gone and that the policy wants to know again.
    ghosts: Ghosts,
    spec: PolicySpec,
    id_space: u32,
    stats: TierStats,
    /// State of the chunk being admitted.
    chunk: Chunk,
    /// Positions in the order in which the policy wants them.
    chosen: Vec<u32>,
    leases: Leases,
}

/// Counters since the start, in rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Positions of lookups that found their row.
    pub hits: u64,
    /// Positions of lookups that did not; a repeated id counts twice.
    pub misses: u64,
    /// Rows stored.
    pub admissions: u64,
    /// Rows evicted for others.
    pub evictions: u64,
    /// Rows that were taken out by [`Directory::remove`].
    pub removals: u64,
    /// Part of `misses`: the row was there, but too old.
    pub stale: u64,
    /// Positions of batches that went past the tier, neither hits nor misses.
    pub bypassed: u64,
}

/// A row of a batch gets a slot, which may hold a row that goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Its position in the batch.
    pub position: u32,
    /// Its slot.
    pub slot: u32,
}

/// Why there is no directory.
#[derive(Debug, Error)]
pub enum DirectoryError {
    /// The policy cannot work with its inputs.
    #[error(transparent)]
    Policy(#[from] NeedsPlan),
    /// The memory cannot be allocated.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl Directory {
    /// Returns a directory of `capacity_rows` slots, or one per id if there are fewer ids, for ids
    /// below `id_space`. `none` has no slots and `unbounded` one per id, whatever the capacity.
    ///
    /// Fails when the policy's inputs make no sense or the system refuses the memory.
    pub fn new(
        capacity_rows: u32,
        id_space: u32,
        spec: &PolicySpec,
    ) -> Result<Self, DirectoryError> {
        spec.check()?;
        let n_slots = spec.n_slots(capacity_rows, id_space);
        let n_ghosts = spec.n_ghosts(n_slots);
        Ok(Self {
            index: RowIndex::new(id_space, n_slots.saturating_add(n_ghosts))?,
            slots: Slots::new(n_slots)?,
            policy: spec.build(n_slots, id_space)?,
            ghosts: Ghosts::new(n_ghosts)?,
            spec: spec.clone(),
            id_space,
            stats: TierStats::default(),
            chunk: Chunk::default(),
            chosen: Vec::new(),
            leases: Leases::default(),
        })
    }

    /// Returns the memory that a directory will take, in bytes, beside what follows the size of a
    /// batch.
    #[must_use]
    pub fn planned_bytes(capacity_rows: u32, id_space: u32, spec: &PolicySpec) -> usize {
        let n_slots = spec.n_slots(capacity_rows, id_space);
        let n_ghosts = spec.n_ghosts(n_slots);
        Slots::planned_bytes(n_slots)
            .saturating_add(Ghosts::planned_bytes(n_ghosts))
            .saturating_add(RowIndex::planned_bytes(id_space, n_slots.saturating_add(n_ghosts)))
            .saturating_add(spec.planned_bytes(n_slots, id_space))
    }

    /// Sets, for `oracle`, the next uses of the batch to come: for each position the batch that
    /// uses its id next, as [`crate::policy::next_uses`] returns them. Batches are numbered from 0
    /// in the order of their lookups. A batch that is not announced is taken as the last use of its
    /// rows. Other policies ignore it.
    pub fn announce(&mut self, next_uses: &[u32]) {
        self.policy.announce(next_uses);
    }

    /// Sets, for `frequency`, the rows of the next epoch, best first. As many of them count as
    /// there are slots. All other rows give way as [`Directory::wanted`] ones come. Other policies
    /// ignore it.
    pub fn retarget(&mut self, ids: &[u32]) {
        self.policy.retarget(ids);
    }

    /// Begins a batch. Writes the slot of each id, or [`NO_SLOT`], to `slots`. An id outside the id
    /// space misses.
    pub fn lookup(&mut self, ids: &[u32], slots: &mut Vec<u32>) {
        slots.clear();
        slots.resize(ids.len(), NO_SLOT);
        self.lookup_with(ids, |first, found| {
            slots[first..first + found.len()].copy_from_slice(found);
        });
    }

    /// Does a [`Self::lookup`] in pieces: `on_found` gets the slots from a position on.
    pub(crate) fn lookup_with(&mut self, ids: &[u32], on_found: impl FnMut(usize, &[u32])) {
        self.begin_with(ids, |index, _, ids, found| index.find(ids, found), on_found);
    }

    /// Does the same, where `find` writes the slots of ids from a position on, [`NO_SLOT`] for
    /// none.
    fn begin_with(
        &mut self,
        ids: &[u32],
        find: impl Fn(&RowIndex, usize, &[u32], &mut [u32]),
        mut on_found: impl FnMut(usize, &[u32]),
    ) {
        self.slots.begin_batch();
        self.policy.begin_batch();
        let heeds_reads = self.policy.heeds_reads();
        let mut found = [NO_SLOT; CHUNK_IDS];
        let mut hits = Hits::new();
        let mut n_hits = 0;
        for (chunk, ids) in ids.chunks(CHUNK_IDS).enumerate() {
            let (first, found) = (chunk * CHUNK_IDS, &mut found[..ids.len()]);
            find(&self.index, first, ids, found);
            let (hits, positions) = hits.of(first as u32, found);
            if heeds_reads {
                self.slots.read(hits);
            }
            self.policy.on_lookup(&Piece { ids, found, hits, positions }, &mut self.slots);
            n_hits += hits.len() as u64;
            on_found(first, found);
        }
        self.policy.end_lookup(&self.slots);
        self.stats.hits += n_hits;
        self.stats.misses += ids.len() as u64 - n_hits;
    }

    /// Writes the rows that the policy wants beside those that the batch misses, at most one per
    /// slot. The owner reads them with the misses, at best in one pull, and admits them. They may
    /// be among the misses too. The policy does not need them: rows that do not come are only a
    /// lost chance.
    pub fn wanted(&self, ids: &mut Vec<u32>) {
        ids.clear();
        ids.extend(self.policy.wanted().iter().filter(|&&id| self.index.get(id) == NO_SLOT));
    }

    /// Returns a number that changes whenever [`Directory::wanted`] may return rows that it did not
    /// return before. While it stays the same, the wanted rows are those of the last call that are
    /// not resident yet, which are fewer to look for.
    #[must_use]
    pub fn wanted_revision(&self) -> u64 {
        self.policy.wanted_revision() + self.stats.removals
    }

    /// Offers the rows at `positions` of `ids`, in order. Those that the policy keeps are written
    /// to `placements` and count as resident: the owner must fill their slots. An id that is
    /// resident already keeps its row; one outside the id space is not kept.
    ///
    /// # Panics
    ///
    /// Unless every position is below `ids.len()`.
    pub fn admit(&mut self, ids: &[u32], positions: &[u32], placements: &mut Vec<Placement>) {
        placements.clear();
        let mut chosen = std::mem::take(&mut self.chosen);
        chosen.clear();
        let positions =
            if self.policy.choose(positions, &mut chosen) { &chosen } else { positions };
        for positions in positions.chunks(RowIndex::SLACK_IDS) {
            let mut chunk = std::mem::take(&mut self.chunk);
            chunk.begin(ids, positions, self.id_space);
            self.policy.retain(&mut chunk.offers, &self.slots);
            chunk.locate(&self.index);
            self.policy.prepare(&chunk.ids, &self.slots);
            for at in 0..chunk.offers.len() {
                self.admit_one(&mut chunk, at, placements);
            }
            self.stats.evictions += chunk.evicted.len() as u64;
            chunk.end(&mut self.index, &self.ghosts);
            self.chunk = chunk;
        }
        self.chosen = chosen;
        self.stats.admissions += placements.len() as u64;
    }

    /// Offers an id of a chunk. An evicted id is left in the chunk, and in the index.
    #[inline]
    fn admit_one(&mut self, chunk: &mut Chunk, at: usize, placements: &mut Vec<Placement>) {
        let ((id, position), home) = (chunk.offers[at], chunk.homes[at]);
        let entry = self.index.entry(home, id);
        if entry < REMEMBERED {
            return;
        }
        let is_remembered = self.ghosts.place(id, entry).is_some();
        let mut offer = Offer { id, position, is_remembered };
        let slot = if self.leases.are_none() {
            self.slots.take_free().or_else(|| self.policy.evict(offer, &mut self.slots))
        } else {
            self.take_unused()
        };
        let Some(slot) = slot else {
            if self.ghosts.is_some() && self.policy.remembers() {
                let remembered = self.remember(id, chunk);
                self.set(home, id, entry, remembered);
            }
            return;
        };
        let evicted = self.slots.fill(slot, id);
        if evicted != VACANT {
            let remembers = self.ghosts.is_some() && self.policy.remembers();
            let after = if remembers { self.remember(evicted, chunk) } else { NO_SLOT };
            chunk.evicted.push((evicted, after));
        }
        let place = self.ghosts.place(id, entry);
        place.into_iter().for_each(|place| self.ghosts.forget(place));
        self.set(home, id, entry, slot);
        offer.is_remembered = place.is_some();
        self.policy.insert(offer, slot, &mut self.slots);
        placements.push(Placement { position, slot });
    }

    /// Returns the entry that the index must have of an id that is remembered.
    fn remember(&mut self, id: u32, chunk: &mut Chunk) -> u32 {
        let Some((entry, forgotten)) = self.ghosts.push(id) else { return NO_SLOT };
        if forgotten != VACANT {
            chunk.forgotten.push(forgotten);
        }
        entry
    }

    /// Changes the index from one entry of an id to another; [`NO_SLOT`] changes nothing.
    fn set(&mut self, home: u32, id: u32, before: u32, after: u32) {
        match (before, after) {
            (_, NO_SLOT) => {}
            (NO_SLOT, _) => self.index.insert(home, id, after),
            _ => self.index.replace(home, id, after),
        }
    }

    /// Removes rows that have changed elsewhere: the next lookup of these ids misses. Ids may
    /// repeat, and need not be resident.
    pub fn remove(&mut self, ids: &[u32]) {
        for &id in ids {
            let slot = self.index.get(id);
            if slot == NO_SLOT {
                continue;
            }
            self.index.remove(self.index.home(id), id);
            self.policy.on_remove(id, slot, &mut self.slots);
            self.slots.vacate(slot);
            self.stats.removals += 1;
        }
    }

    /// Returns the slot of one id, or [`NO_SLOT`]. No policy learns of it.
    #[must_use]
    pub fn slot_of(&self, id: u32) -> u32 {
        self.index.get(id)
    }

    /// Returns the ids of all rows held, with their slots, in the order of slots.
    pub fn residents(&self) -> impl Iterator<Item = (u32, u32)> {
        self.slots.residents()
    }

    /// Returns the ids of all resident rows. If the policy knows which are read again, these come
    /// first. Each group is in the order of slots.
    #[must_use]
    pub fn hottest(&self) -> Vec<u32> {
        let is_hot = |&(_, slot): &(u32, u32)| self.policy.is_hot(slot);
        let (hot, others): (Vec<_>, Vec<_>) = self.residents().partition(is_hot);
        hot.into_iter().chain(others).map(|(id, _)| id).collect()
    }

    /// Returns the number of rows held.
    #[must_use]
    pub fn n_resident(&self) -> usize {
        self.slots.n_resident() as usize
    }

    /// Returns the number of slots that have had a row, which are the first. The next rows go to
    /// those behind them.
    #[must_use]
    pub fn n_used(&self) -> u32 {
        self.slots.n_used()
    }

    /// Returns the number of rows that fit.
    #[must_use]
    pub fn n_slots(&self) -> u32 {
        self.slots.n_slots()
    }

    /// Returns the policy that decides.
    #[must_use]
    pub fn policy(&self) -> &PolicySpec {
        &self.spec
    }

    /// Returns the memory of index, slots and policy, in bytes, beside what follows the size of a
    /// batch.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.slots.bytes() + self.ghosts.bytes() + self.index.bytes() + self.policy.bytes()
    }

    /// Returns counts since the start.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        self.stats
    }
}

#[cfg(test)]
mod tests;
