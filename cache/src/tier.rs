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
    /// The id in each slot that was ever filled; slots fill from 0.
    ids: Vec<u32>,
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
}

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
        for &position in positions {
            let position = position as usize;
            let id = ids[position];
            if id >= self.id_space || self.index.get(id) != NO_SLOT {
                continue;
            }
            let Some(slot) = self.policy.place() else { break };
            self.take_slot(slot, id);
            let start = position * row_bytes;
            self.arena.row_mut(slot).copy_from_slice(&rows[start..start + row_bytes]);
        }
        self.policy.end_batch();
    }

    /// Gives `slot` to `id`, evicting whoever has it.
    fn take_slot(&mut self, slot: u32, id: u32) {
        match self.ids.get_mut(slot as usize) {
            Some(resident) => {
                self.index.remove(*resident);
                *resident = id;
                self.stats.evictions += 1;
            }
            None => {
                debug_assert_eq!(slot as usize, self.ids.len(), "slots fill from 0");
                self.ids.push(id);
            }
        }
        self.index.insert(id, slot);
        self.stats.admissions += 1;
    }

    /// Number of rows held.
    #[must_use]
    pub fn n_resident(&self) -> usize {
        self.ids.len()
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
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// The row of an id: no two ids below 2³² share one of at least 4 bytes.
    fn row_of(id: u32, row_bytes: usize) -> impl Iterator<Item = u8> {
        id.to_le_bytes().into_iter().cycle().take(row_bytes)
    }

    /// Looks `ids` up, checks every hit, brings the misses as their owner would; returns them.
    fn serve(tier: &mut Tier, ids: &[u32]) -> Vec<u32> {
        let row_bytes = tier.row_bytes();
        let mut out = vec![0xEE; ids.len() * row_bytes];
        let mut misses = Vec::new();
        tier.lookup(ids, &mut out, &mut misses);
        for (position, (&id, row)) in (0..).zip(ids.iter().zip(out.chunks_mut(row_bytes))) {
            if misses.binary_search(&position).is_ok() {
                assert!(row.iter().all(|&byte| byte == 0xEE), "a miss leaves its row alone");
                row.iter_mut().zip(row_of(id, row_bytes)).for_each(|(to, from)| *to = from);
            } else {
                assert!(row.iter().copied().eq(row_of(id, row_bytes)), "a hit is what was put");
            }
        }
        tier.admit(ids, &out, &misses);
        misses
    }

    /// CLOCK with second chances as the textbook has it: a queue whose front is under the hand.
    struct NaiveClock {
        n_slots: usize,
        queue: VecDeque<(u32, bool)>,
    }

    impl NaiveClock {
        /// True on a hit.
        fn access(&mut self, id: u32) -> bool {
            if let Some(entry) = self.queue.iter_mut().find(|entry| entry.0 == id) {
                entry.1 = true;
                return true;
            }
            if self.n_slots == 0 {
                return false;
            }
            while self.queue.len() == self.n_slots {
                if let Some((id, true)) = self.queue.pop_front() {
                    self.queue.push_back((id, false));
                }
            }
            self.queue.push_back((id, false));
            false
        }
    }

    #[test]
    fn misses_of_a_fixed_trace_are_pinned() {
        let trace: Vec<u32> =
            (0u32..4000).map(|i| (i * i * 7 + i / 3) % 97 % (1 + i % 53)).collect();
        let mut tier = Tier::with_slots(20, 8, 100, PolicyKind::Clock).unwrap();
        for batch in trace.chunks(64) {
            serve(&mut tier, batch);
        }
        let counted = TierStats { hits: 2012, misses: 1988, admissions: 963, evictions: 943 };
        assert_eq!(tier.stats(), counted);
    }

    #[test]
    fn a_batch_larger_than_the_tier_is_served_and_repeats_are_stored_once() {
        let mut tier = Tier::with_slots(2, 4, 100, PolicyKind::Clock).unwrap();
        assert_eq!(serve(&mut tier, &[5, 5, 6, 7, 5, 8]), [0, 1, 2, 3, 4, 5]);
        assert_eq!(serve(&mut tier, &[8, 7, 6, 5]), [0, 1]);
        assert_eq!(tier.n_resident(), 2);
        let counted = TierStats { hits: 2, misses: 8, admissions: 4, evictions: 2 };
        assert_eq!(tier.stats(), counted);
    }

    #[test]
    fn nothing_fits_into_nothing() {
        for kind in PolicyKind::ALL {
            let mut tier = Tier::new(0, 400, 1000, kind).unwrap();
            assert_eq!(serve(&mut tier, &[1, 1]), [0, 1]);
            assert_eq!(serve(&mut tier, &[1]), [0]);
            assert_eq!((tier.n_resident(), tier.n_slots()), (0, 0));
        }
        let mut tier = Tier::new(1 << 20, 400, 0, PolicyKind::Clock).unwrap();
        assert_eq!(serve(&mut tier, &[0, u32::MAX]), [0, 1]);
        assert!(matches!(Tier::new(9, 0, 9, PolicyKind::Clock), Err(ArenaError::NoRowBytes)));
    }

    #[test]
    fn more_capacity_than_rows_takes_only_what_the_rows_need() {
        let mut tier = Tier::new(usize::MAX, 16, 50, PolicyKind::Clock).unwrap();
        assert_eq!(tier.n_slots(), 50);
        let ids: Vec<u32> = (0..50).rev().collect();
        assert_eq!(serve(&mut tier, &ids).len(), 50);
        assert!(serve(&mut tier, &ids).is_empty());
        assert_eq!(tier.stats().evictions, 0);
    }

    #[test]
    #[should_panic(expected = "do not fill an output")]
    fn an_output_of_the_wrong_size_is_refused() {
        let mut tier = Tier::with_slots(2, 4, 100, PolicyKind::Clock).unwrap();
        tier.lookup(&[1, 2], &mut [0; 7], &mut Vec::new());
    }

    proptest! {
        #[test]
        fn one_row_at_a_time_is_textbook_clock(
            trace in prop::collection::vec(0u32..30, 0..300),
            n_slots in 0u32..12,
        ) {
            let mut tier = Tier::with_slots(n_slots, 5, 30, PolicyKind::Clock).unwrap();
            let mut naive = NaiveClock { n_slots: n_slots as usize, queue: VecDeque::new() };
            for &id in &trace {
                prop_assert_eq!(serve(&mut tier, &[id]).is_empty(), naive.access(id));
            }
        }

        #[test]
        fn batches_never_pass_the_capacity_and_always_get_their_rows(
            batches in prop::collection::vec(prop::collection::vec(0u32..40, 0..600), 0..20),
            n_slots in 0u32..50,
            row_bytes in 1usize..70,
            id_space in prop::sample::select(vec![30u32, 40, 1000]),
        ) {
            let mut tier = Tier::with_slots(n_slots, row_bytes, id_space, PolicyKind::Clock).unwrap();
            for batch in &batches {
                let misses = serve(&mut tier, batch);
                let missed = |id| misses.iter().any(|&i| batch[i as usize] == id);
                let fresh = batch.iter().collect::<std::collections::HashSet<_>>();
                for &id in fresh.into_iter().filter(|&&id| id < id_space) {
                    let resident = tier.index.get(id) != NO_SLOT;
                    let room = tier.n_resident() < tier.n_slots() as usize;
                    prop_assert!(resident || !missed(id) || !room, "a missed row finds room");
                }
                let stats = tier.stats();
                prop_assert!(tier.n_resident() <= n_slots as usize);
                prop_assert_eq!(tier.n_resident() as u64, stats.admissions - stats.evictions);
            }
        }

        #[test]
        fn a_capacity_in_bytes_is_filled_and_never_passed(
            capacity_bytes in 0usize..100_000,
            row_bytes in 1usize..600,
            id_space in 0u32..10_000,
        ) {
            let tier = Tier::new(capacity_bytes, row_bytes, id_space, PolicyKind::Clock).unwrap();
            prop_assert!(tier.bytes() <= capacity_bytes);
            let larger = Tier::with_slots(tier.n_slots() + 1, row_bytes, id_space, PolicyKind::Clock);
            prop_assert!(tier.n_slots() == id_space || larger.unwrap().bytes() > capacity_bytes);
        }
    }
}
