use super::*;
use crate::policy::{Candidate, DecaySpec, NEVER, PolicyKind, Replacement, Scoreboard, next_uses};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

/// Looks a batch up and admits its misses; returns the number of positions that hit.
fn serve(directory: &mut Directory, ids: &[u32]) -> usize {
    let (mut slots, mut placements) = (Vec::new(), Vec::new());
    directory.lookup(ids, &mut slots);
    let misses: Vec<u32> =
        (0..).zip(&slots).filter(|(_, slot)| **slot == NO_SLOT).map(|(at, _)| at).collect();
    directory.admit(ids, &misses, &mut placements);
    ids.len() - misses.len()
}

/// Returns the hits of a whole trace.
fn hits(spec: &PolicySpec, n_slots: u32, batches: &[Vec<u32>]) -> usize {
    let mut directory = Directory::new(n_slots, 100, spec).unwrap();
    let ids = batches.concat();
    let ends = batches.iter().scan(0, |end, batch| {
        *end += batch.len();
        Some(*end)
    });
    let bounds: Vec<usize> = std::iter::once(0).chain(ends).collect();
    let uses = next_uses(&ids, &bounds).unwrap();
    let mut n_hits = 0;
    for (batch, bounds) in batches.iter().zip(bounds.windows(2)) {
        directory.announce(&uses[bounds[0]..bounds[1]]);
        n_hits += serve(&mut directory, batch);
    }
    n_hits
}

fn oracle(n_batches: usize) -> PolicySpec {
    PolicySpec::Oracle { n_batches: n_batches as u32 }
}

fn reactive() -> impl Iterator<Item = PolicySpec> {
    PolicyKind::ALL.into_iter().filter_map(|kind| PolicySpec::try_from(kind).ok())
}

/// Returns the policies that need a plan, but for the oracle.
fn planned(id_space: u32) -> [PolicySpec; 4] {
    let ids: std::sync::Arc<[u32]> = (0..id_space).rev().step_by(2).collect();
    let candidates =
        (0..id_space).map(|id| Candidate { id, degree: id % 7, is_halo: true }).collect();
    let (gamma, interval, scoreboard) = (0.9, 2, Scoreboard::Compact);
    let replacement = Replacement::Any;
    [
        PolicySpec::Degree(std::sync::Arc::clone(&ids)),
        PolicySpec::Frequency(ids),
        PolicySpec::Overlap((0..id_space).map(|id| (id % 5) as u16).collect()),
        PolicySpec::Decay(DecaySpec { candidates, gamma, interval, replacement, scoreboard }),
    ]
}

/// Returns the most hits of any sequence of choices, by trying all.
fn best(batches: &[Vec<u32>], n_slots: usize) -> usize {
    let mut reached = HashMap::from([(Vec::new(), 0)]);
    for batch in batches {
        let mut next = HashMap::new();
        for (mut pool, n_hits) in reached {
            let n_hits = n_hits + pool.iter().filter(|id| batch.contains(id)).count();
            pool.extend(batch);
            pool.sort_unstable();
            pool.dedup();
            for chosen in (0..1u32 << pool.len()).filter(|bits| bits.count_ones() <= n_slots as u32)
            {
                let picked = (0..pool.len()).filter(|i| chosen >> i & 1 == 1).map(|i| pool[i]);
                let most = next.entry(picked.collect()).or_insert(n_hits);
                *most = n_hits.max(*most);
            }
        }
        reached = next;
    }
    reached.into_values().max().unwrap_or(0)
}

/// Returns batches of distinct ids, like those of samplers.
fn batches(ids: u32, longest: usize, most: usize) -> impl Strategy<Value = Vec<Vec<u32>>> {
    let batch = prop::collection::hash_set(0..ids, 0..=longest);
    prop::collection::vec(batch.prop_map(|ids| ids.into_iter().collect()), 0..most)
}

proptest! {
    #[test]
    fn the_oracle_is_the_optimum(batches in batches(6, 3, 9), n_slots in 0u32..5) {
        let optimum = hits(&oracle(batches.len()), n_slots, &batches);
        prop_assert_eq!(optimum, best(&batches, n_slots as usize));
    }

    #[test]
    fn no_policy_hits_more_than_the_oracle(batches in batches(40, 20, 60), n_slots in 0u32..40) {
        let most = hits(&oracle(batches.len()), n_slots, &batches);
        for spec in reactive().filter(|spec| spec.kind() != PolicyKind::Unbounded) {
            let found = hits(&spec, n_slots, &batches);
            prop_assert!(found <= most, "{} hits {found}, the oracle {most}", spec.kind());
        }
        let enough = hits(&PolicySpec::Unbounded, 0, &batches);
        prop_assert_eq!(enough, hits(&oracle(batches.len()), 40, &batches));
    }

    #[test]
    fn a_batch_keeps_its_own_rows(
        batches in prop::collection::vec(prop::collection::vec(0u32..60, 0..40), 1..40),
        n_slots in 1u32..40,
    ) {
        for spec in reactive().chain(planned(60)) {
            let mut directory = Directory::new(n_slots, 60, &spec).unwrap();
            for batch in &batches {
                let (mut slots, mut placements) = (Vec::new(), Vec::new());
                directory.lookup(batch, &mut slots);
                let removed = &batch[..batch.len() / 4];
                directory.remove(removed);
                let all: Vec<u32> = (0..batch.len() as u32).collect();
                directory.admit(batch, &all, &mut placements);
                let taken: HashSet<u32> = placements.iter().map(|placed| placed.slot).collect();
                prop_assert_eq!(taken.len(), placements.len(), "a slot is filled once a batch");
                let held = slots.iter().zip(batch).filter(|(_, id)| !removed.contains(id));
                prop_assert!(held.map(|(slot, _)| slot).all(|slot| !taken.contains(slot)));
                for placed in &placements {
                    let id = batch[placed.position as usize];
                    prop_assert_eq!(directory.slot_of(id), placed.slot);
                }
                prop_assert!(directory.n_resident() <= directory.n_slots() as usize);
                prop_assert_eq!(directory.n_resident(), directory.residents().count());
            }
        }
    }

    /// Steps: 0 lends, 1 takes back, all others serve a batch by one of two ways.
    #[test]
    fn rows_stay_where_they_are_while_they_are_lent(
        steps in prop::collection::vec((0u8..8, prop::collection::vec(0u32..40, 0..12)), 1..60),
        n_slots in 1u32..44,
    ) {
        for spec in reactive().chain(planned(40)) {
            let mut directory = Directory::new(n_slots, 40, &spec).unwrap();
            let (mut n_leases, mut ever, mut slots) = (0, HashSet::new(), Vec::new());
            let mut placements = Vec::new();
            for (step, batch) in &steps {
                match step {
                    0 => {
                        directory.lease();
                        n_leases += 1;
                    }
                    1 if n_leases > 0 => {
                        directory.end_lease();
                        n_leases -= 1;
                    }
                    2 => directory.remove(batch),
                    _ => {
                        let (before, stats) = (directory.residents().collect::<Vec<_>>(), directory.stats());
                        let there: Vec<u32> = batch.iter().map(|&id| directory.slot_of(id)).collect();
                        if directory.lookup_for_lease(batch, &mut slots) {
                            prop_assert_eq!(&slots, &there);
                            prop_assert!(!slots.contains(&NO_SLOT));
                            prop_assert_eq!(directory.stats().hits, stats.hits + batch.len() as u64);
                        } else {
                            prop_assert_eq!(directory.stats(), stats);
                        }
                        prop_assert_eq!(before, directory.residents().collect::<Vec<_>>());
                        let positions: Vec<u32> = (0..batch.len() as u32).collect();
                        directory.lookup(batch, &mut slots);
                        directory.admit(batch, &positions, &mut placements);
                        for placed in &placements {
                            prop_assert!(ever.insert(placed.slot) || n_leases == 0, "{}", spec.kind());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn memory_is_what_was_planned(n_slots in 0u32..3000, id_space in 0u32..5000) {
        let ids: std::sync::Arc<[u32]> = (0..50).collect();
        let specs = reactive().chain([
            PolicySpec::Degree(ids),
            PolicySpec::Overlap(vec![3, 0, 9].into()),
            oracle(100),
        ]);
        for spec in specs {
            let directory = Directory::new(n_slots, id_space, &spec).unwrap();
            let planned = Directory::planned_bytes(n_slots, id_space, &spec);
            prop_assert_eq!(directory.bytes(), planned, "{}", spec.kind());
        }
    }
}

/// Returns the ids of a trace that miss, in batches of one.
fn misses_one_by_one(spec: &PolicySpec, n_slots: u32, trace: &[u32]) -> Vec<u32> {
    let mut directory = Directory::new(n_slots, 100, spec).unwrap();
    trace.iter().copied().filter(|&id| serve(&mut directory, &[id]) == 0).collect()
}

#[test]
fn misses_of_small_traces_are_those_worked_out_by_hand() {
    // Belady's own kind of trace: 1 2 3 4 1 2 5 1 2 3 4 5, of which FIFO misses 9 with 3 slots and,
    // which is its anomaly, 10 with 4.
    let trace = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];
    let misses = |spec, n_slots| misses_one_by_one(&spec, n_slots, &trace);
    assert_eq!(misses(PolicySpec::Fifo, 3), [1, 2, 3, 4, 1, 2, 5, 3, 4]);
    assert_eq!(misses(PolicySpec::Fifo, 4), [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]);
    assert_eq!(misses(PolicySpec::Lru, 3), [1, 2, 3, 4, 1, 2, 5, 3, 4, 5]);
    assert_eq!(misses(PolicySpec::Lru, 4), [1, 2, 3, 4, 5, 3, 4, 5]);
    // 1 and 2 are marked when 5 comes: the hand clears both and takes 3. Both are marked again when
    // 3 comes back for 4, and 4 for 5, which is where the hand goes next.
    assert_eq!(misses(PolicySpec::Clock, 4), [1, 2, 3, 4, 5, 3, 4, 5]);
    assert_eq!(misses(PolicySpec::Sieve, 4), [1, 2, 3, 4, 5, 3, 4, 5]);
    assert_eq!(misses(PolicySpec::Unbounded, 0), [1, 2, 3, 4, 5]);
    assert_eq!(misses(PolicySpec::None, 4), trace);
    let batches: Vec<Vec<u32>> = trace.map(|id| vec![id]).to_vec();
    // With bypass 4 is not kept, nor is 5, since 1, 2 and 3 are used before them.
    assert_eq!(hits(&oracle(12), 3, &batches), 12 - 7);
}

#[test]
fn a_row_that_was_taken_out_comes_back_once_all_that_was_lent_is_back() {
    let mut directory = Directory::new(10, 10, &PolicySpec::Sieve).unwrap();
    let (all, mut slots): (Vec<u32>, _) = ((0..10).collect(), Vec::new());
    serve(&mut directory, &all);
    // Always two at a time, one of which continues when the other ends.
    assert!(directory.lookup_for_lease(&all, &mut slots));
    directory.lease();
    directory.remove(&[7]);
    serve(&mut directory, &[8]);
    assert!(directory.lookup_for_lease(&[1, 2], &mut slots), "its slot is not needed yet");
    directory.lease();
    serve(&mut directory, &all);
    assert_eq!(directory.slot_of(7), NO_SLOT, "it may be looked at");
    assert!(!directory.lookup_for_lease(&[1, 2], &mut slots), "now it is needed");
    directory.end_lease();
    assert!(!directory.lookup_for_lease(&[1, 2], &mut slots), "it is still wanted");
    serve(&mut directory, &all);
    assert_eq!(directory.slot_of(7), NO_SLOT, "one still looks");
    assert!(!directory.lookup_for_lease(&[1, 2], &mut slots));
    directory.end_lease();
    serve(&mut directory, &all);
    assert_ne!(directory.slot_of(7), NO_SLOT);
    assert!(directory.lookup_for_lease(&all, &mut slots));
}

#[test]
fn a_scan_does_not_pass_the_trial_queue() {
    // Ten slots, one of them on trial. 1 is used twice more, so it moves to main; of the scan only
    // the last row stays, and 12, which came back soon, is found worthy of main.
    let mut directory = Directory::new(10, 100, &PolicySpec::S3Fifo).unwrap();
    let all: Vec<u32> = (1..11).collect();
    all.iter().for_each(|&id| assert_eq!(serve(&mut directory, &[id]), 0));
    assert_eq!((serve(&mut directory, &[1]), serve(&mut directory, &[1])), (1, 1));
    (11..20).for_each(|id| assert_eq!(serve(&mut directory, &[id]), 0));
    let resident = |directory: &Directory, id| directory.slot_of(id) != NO_SLOT;
    assert!(resident(&directory, 1) && !resident(&directory, 2), "1 was used, 2 was not");
    assert_eq!(serve(&mut directory, &[10]), 0, "10 went to ghost");
    assert!((20..29).all(|id| serve(&mut directory, &[id]) == 0));
    assert!(resident(&directory, 10) && resident(&directory, 1) && !resident(&directory, 19));
}

#[test]
fn a_row_of_higher_overlap_replaces_one_of_lower() {
    let ratios = [0, 1, 1, 2, 3, 1].into();
    let mut directory = Directory::new(2, 6, &PolicySpec::Overlap(ratios)).unwrap();
    let ids = |directory: &Directory| directory.residents().map(|row| row.0).collect::<Vec<_>>();
    serve(&mut directory, &[1, 2]);
    serve(&mut directory, &[5, 0]);
    assert_eq!(ids(&directory), [1, 2], "an equal one replaces none");
    serve(&mut directory, &[3]);
    assert_eq!(ids(&directory), [3, 2], "the oldest of the lowest goes");
    serve(&mut directory, &[2, 4]);
    assert_eq!(ids(&directory), [4, 2], "2 is of the batch, so 3 goes for 4");
}

#[test]
fn the_hot_set_of_an_epoch_yields_to_the_next() {
    let first: std::sync::Arc<[u32]> = [7, 3, 7, 5].into();
    let mut directory = Directory::new(2, 10, &PolicySpec::Frequency(first)).unwrap();
    let (mut wanted, mut placements) = (Vec::new(), Vec::new());
    directory.wanted(&mut wanted);
    assert_eq!(wanted, [7, 3]);
    directory.admit(&wanted, &[0, 1], &mut placements);
    assert_eq!((serve(&mut directory, &[3, 7, 5]), placements.len()), (2, 2));
    directory.retarget(&[5, 7, 1]);
    directory.wanted(&mut wanted);
    assert_eq!(
        (serve(&mut directory, &[7, 3]), &wanted[..]),
        (2, &[5][..]),
        "3 serves till 5 comes"
    );
    assert_eq!(serve(&mut directory, &[5, 1]), 0);
    assert_eq!(serve(&mut directory, &[7, 5, 3]), 2);
    assert_eq!(directory.stats().evictions, 1);
}

#[test]
fn a_batch_without_announcement_is_the_last_of_its_rows() {
    let mut directory = Directory::new(4, 10, &oracle(9)).unwrap();
    assert_eq!((serve(&mut directory, &[1, 2]), directory.n_resident()), (0, 0));
    directory.announce(&[2, NEVER, 1_000_000]);
    assert_eq!((serve(&mut directory, &[1, 2, 3]), directory.n_resident()), (0, 1));
}

#[test]
fn rows_that_do_not_come_as_announced_are_given_up_first() {
    let mut directory = Directory::new(3, 10, &oracle(4)).unwrap();
    let mut serve_announced = |ids: &[u32], next_uses: &[u32]| {
        directory.announce(next_uses);
        let n_hits = serve(&mut directory, ids);
        (n_hits, directory.residents().map(|row| row.0).collect::<Vec<_>>())
    };
    assert_eq!(serve_announced(&[1, 2, 3], &[1, 1, 3]), (0, vec![1, 2, 3]));
    // 1 does not come, 3 comes early, 2 as it should.
    assert_eq!(serve_announced(&[3, 2, 4], &[2, 2, 2]), (2, vec![4, 2, 3]));
    assert_eq!(serve_announced(&[2, 3, 4, 5], &[3, NEVER, 3, 3]), (3, vec![4, 2, 5]));
    assert_eq!(serve_announced(&[4, 5, 2], &[NEVER; 3]), (3, vec![4, 2, 5]));
    // Past the number of batches in its inputs.
    assert_eq!(serve_announced(&[4, 6], &[9, 9]), (1, vec![4, 2, 5]));
    directory.remove(&[2, 4]);
    assert_eq!((serve(&mut directory, &[5, 2]), directory.n_resident()), (1, 1));
}

#[test]
fn names_without_inputs_are_refused() {
    let error = PolicySpec::try_from(PolicyKind::Oracle).unwrap_err();
    assert!(error.to_string().contains("`oracle` needs inputs"));
}

#[test]
fn rows_that_were_read_again_are_the_hottest_where_the_policy_keeps_that() {
    for spec in reactive() {
        let mut directory = Directory::new(6, 100, &spec).unwrap();
        serve(&mut directory, &[10, 11, 12, 13, 14]);
        serve(&mut directory, &[12, 14]);
        let hottest = directory.hottest();
        let mut all = hottest.clone();
        all.sort_unstable();
        let mut residents: Vec<u32> = directory.residents().map(|(id, _)| id).collect();
        residents.sort_unstable();
        assert_eq!(all, residents, "{spec:?}");
        if matches!(spec, PolicySpec::Sieve | PolicySpec::Clock) {
            assert_eq!(hottest, [12, 14, 10, 11, 13], "{spec:?}");
        }
    }
}
