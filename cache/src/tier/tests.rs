use super::*;
use crate::huge_vec::MemoryError;
use crate::memory_budget::{MemoryBudget, shares};
use crate::slots::NO_SLOT;
use proptest::prelude::*;
use std::collections::VecDeque;

/// Returns the row of an id: no two ids below 2³² share one of at least 4 bytes.
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

/// Returns the same by a decision, whose rows move after that of the next batch.
fn decide(tier: &mut Tier, ids: &[u32]) -> (Vec<u32>, Decision) {
    let mut decision = Decision::default();
    tier.decide(ids, &mut decision);
    (ids.to_vec(), decision)
}

fn move_rows(tier: &mut Tier, ids: &[u32], decision: &Decision) -> Vec<u32> {
    let row_bytes = tier.row_bytes();
    let positions: Vec<u32> = (0..ids.len() as u32).rev().collect();
    let mut out = vec![0xEE; ids.len() * row_bytes];
    tier.copy_out(&decision.slots, &positions, &mut out);
    let rows = out.chunks_exact(row_bytes).rev();
    let mut misses = Vec::new();
    for ((position, row), (&id, &slot)) in (0..).zip(rows).zip(ids.iter().zip(&decision.slots)) {
        if slot == NO_SLOT {
            assert!(row.iter().all(|&byte| byte == 0xEE), "a miss leaves its row alone");
            misses.push(position);
        } else {
            assert!(row.iter().copied().eq(row_of(id, row_bytes)), "a hit is what was put");
        }
    }
    for placed in &decision.placements {
        let row: Vec<u8> = row_of(ids[placed.position as usize], row_bytes).collect();
        tier.fill(placed.slot, &row);
    }
    misses
}

/// CLOCK with second chances as the textbook has it: a queue whose front is under the hand.
struct NaiveClock {
    n_slots: usize,
    queue: VecDeque<(u32, bool)>,
}

impl NaiveClock {
    /// Returns whether the access hits.
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
    let trace: Vec<u32> = (0u32..4000).map(|i| (i * i * 7 + i / 3) % 97 % (1 + i % 53)).collect();
    let mut tier = Tier::of_slots(20, 8, 100, &PolicySpec::Clock).unwrap();
    for batch in trace.chunks(64) {
        serve(&mut tier, batch);
    }
    let counted = TierStats {
        hits: 2719,
        misses: 1281,
        admissions: 257,
        evictions: 237,
        ..TierStats::default()
    };
    assert_eq!(tier.stats(), counted);
}

#[test]
fn a_batch_larger_than_the_tier_is_served_and_repeats_are_stored_once() {
    let mut tier = Tier::of_slots(2, 4, 100, &PolicySpec::Clock).unwrap();
    assert_eq!(serve(&mut tier, &[5, 5, 6, 7, 5, 8]), [0, 1, 2, 3, 4, 5]);
    assert_eq!(serve(&mut tier, &[8, 7, 6, 5]), [0, 1], "the hits stay");
    assert_eq!(serve(&mut tier, &[8, 6]), [0]);
    assert_eq!(tier.n_resident(), 2);
    let counted =
        TierStats { hits: 3, misses: 9, admissions: 3, evictions: 1, ..TierStats::default() };
    assert_eq!(tier.stats(), counted);
}

#[test]
fn a_row_that_was_removed_misses_and_comes_back_as_it_then_is() {
    let mut tier = Tier::of_slots(3, 4, 100, &PolicySpec::Clock).unwrap();
    serve(&mut tier, &[1, 2, 3]);
    tier.remove(&[2, 9, 2, u32::MAX, 100]);
    assert_eq!((tier.n_resident(), tier.stats().removals), (2, 1));
    let (mut out, mut misses) = ([0; 12], Vec::new());
    tier.lookup(&[1, 2, 3], &mut out, &mut misses);
    assert_eq!(misses, [1]);
    out[4..8].copy_from_slice(b"anew");
    tier.admit(&[1, 2, 3], &out, &misses);
    tier.lookup(&[2], &mut out[..4], &mut misses);
    assert_eq!((&out[..4], &misses[..]), (&b"anew"[..], &[][..]));
    assert_eq!((tier.n_resident(), tier.stats().evictions), (3, 0));
}

#[test]
fn nothing_fits_into_nothing() {
    for kind in PolicyKind::ALL {
        let Ok(mut tier) = Tier::new(0, 400, 1000, kind) else { continue };
        if kind == PolicyKind::Unbounded {
            continue;
        }
        assert_eq!(serve(&mut tier, &[1, 1]), [0, 1]);
        assert_eq!(serve(&mut tier, &[1]), [0]);
        assert_eq!((tier.n_resident(), tier.n_slots()), (0, 0));
    }
    let mut tier = Tier::new(1 << 20, 400, 0, PolicyKind::Clock).unwrap();
    assert_eq!(serve(&mut tier, &[0, u32::MAX]), [0, 1]);
    assert!(matches!(
        Tier::new(9, 0, 9, PolicyKind::Clock),
        Err(DirectoryError::Memory(MemoryError::NoRowBytes))
    ));
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
#[should_panic(expected = "do not fill")]
fn an_output_of_the_wrong_size_is_refused() {
    let mut tier = Tier::of_slots(2, 4, 100, &PolicySpec::Clock).unwrap();
    tier.lookup(&[1, 2], &mut [0; 7], &mut Vec::new());
}

proptest! {
    #[test]
    fn rows_that_move_after_later_decisions_are_those_of_one_batch_after_the_other(
        batches in prop::collection::vec(prop::collection::vec(0u32..30, 0..12), 0..30),
        n_slots in 0u32..20, n_ahead in 0usize..5, is_oracle: bool,
    ) {
        let bounds = batches.iter().scan(0, |end, batch| {
            *end += batch.len();
            Some(*end)
        });
        let bounds: Vec<usize> = std::iter::once(0).chain(bounds).collect();
        let uses = crate::policy::next_uses(&batches.concat(), &bounds).unwrap();
        let n_batches = batches.len() as u32;
        let spec = if is_oracle { PolicySpec::Oracle { n_batches } } else { PolicySpec::Lru };
        let mut tiers = [(); 2].map(|()| Tier::of_slots(n_slots, 5, 30, &spec).unwrap());
        let [twin, tier] = &mut tiers;
        let (mut expected, mut found, mut waiting) = (Vec::new(), Vec::new(), VecDeque::new());
        for (ids, bounds) in batches.iter().zip(bounds.windows(2)) {
            let uses = &uses[bounds[0]..bounds[1]];
            twin.announce(uses);
            expected.push(serve(twin, ids));
            tier.announce(uses);
            waiting.push_back(decide(tier, ids));
            while waiting.len() > n_ahead {
                let (ids, decision) = waiting.pop_front().unwrap();
                found.push(move_rows(tier, &ids, &decision));
            }
        }
        for (ids, decision) in waiting {
            found.push(move_rows(tier, &ids, &decision));
        }
        prop_assert_eq!(found, expected);
        prop_assert_eq!(tier.stats(), twin.stats());
    }
}

proptest! {
    #[test]
    fn one_row_at_a_time_is_textbook_clock(
        trace in prop::collection::vec(0u32..30, 0..300),
        n_slots in 0u32..12,
    ) {
        let mut tier = Tier::of_slots(n_slots, 5, 30, &PolicySpec::Clock).unwrap();
        let mut naive = NaiveClock { n_slots: n_slots as usize, queue: VecDeque::new() };
        for &id in &trace {
            prop_assert_eq!(serve(&mut tier, &[id]).is_empty(), naive.access(id));
        }
    }

    #[test]
    fn batches_never_pass_the_capacity_and_always_get_their_rows(
        batches in prop::collection::vec(prop::collection::vec(0u32..40, 0..600), 0..20),
        removed in prop::collection::vec(prop::collection::vec(0u32..45, 0..9), 20),
        n_slots in 0u32..50,
        row_bytes in 1usize..70,
        id_space in prop::sample::select(vec![30u32, 40, 1000]),
    ) {
        let mut tier = Tier::of_slots(n_slots, row_bytes, id_space, &PolicySpec::Clock).unwrap();
        for (batch, removed) in batches.iter().zip(&removed) {
            let misses = serve(&mut tier, batch);
            let missed = |id| misses.iter().any(|&i| batch[i as usize] == id);
            let fresh = batch.iter().collect::<std::collections::HashSet<_>>();
            for &id in fresh.into_iter().filter(|&&id| id < id_space) {
                let resident = tier.directory.slot_of(id) != NO_SLOT;
                let room = tier.n_resident() < tier.n_slots() as usize;
                prop_assert!(resident || !missed(id) || !room, "a missed row finds room");
            }
            let stats = tier.stats();
            prop_assert!(tier.n_resident() <= n_slots as usize);
            let gone = stats.evictions + stats.removals;
            prop_assert_eq!(tier.n_resident() as u64, stats.admissions - gone);
            tier.remove(removed);
            prop_assert!(removed.iter().all(|&id| tier.directory.slot_of(id) == NO_SLOT));
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
        let larger = Tier::of_slots(tier.n_slots() + 1, row_bytes, id_space, &PolicySpec::Clock);
        prop_assert!(tier.n_slots() == id_space || larger.unwrap().bytes() > capacity_bytes);
    }
}

proptest! {
    /// Rows of several widths in one budget: every tier gets what it was promised, and all rows
    /// where the budget has room for them.
    #[test]
    fn tiers_of_several_widths_share_a_budget(
        budget in prop_oneof![0u64..2000, 0u64..200_000, Just(1 << 30)],
        tensors in prop::collection::vec((1usize..600, 0u32..300, 0u32..9), 1..5),
    ) {
        for kind in PolicyKind::REACTIVE {
            let spec = PolicySpec::try_from(kind).unwrap();
            let claims: Vec<MemoryRequest> = tensors
                .iter()
                .map(|&(width, n_rows, weight)| MemoryRequest::of_tier(width, n_rows, &spec, weight))
                .collect();
            let memory_budget = MemoryBudget::new(budget);
            let mut grants = Vec::new();
            let rows = shares(budget, &claims);
            for ((claim, rows), &(width, n_rows, _)) in claims.iter().zip(rows).zip(&tensors) {
                let bytes = claim.slot_bytes * u64::from(rows);
                let tier = Tier::new(bytes as usize, width, n_rows, kind).unwrap();
                if tier.n_slots() > 0 {
                    grants.push(memory_budget.reserve(tier.bytes() as u64).unwrap());
                }
                if budget == 1 << 30 && kind != PolicyKind::None {
                    prop_assert_eq!(tier.n_slots(), n_rows, "{}", kind);
                }
            }
        }
    }
}
