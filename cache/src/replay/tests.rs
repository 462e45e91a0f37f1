use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::aged::AgedDirectory;
use crate::directory::Directory;
use crate::policy::{
    Candidate, DecaySpec, PolicyKind, Replacement, Scoreboard, next_uses, rank_by_degree,
    rank_by_frequency,
};
use crate::trace::TraceBuilder;

fn trace(epochs: &[Vec<Vec<u32>>]) -> Trace {
    builder(epochs).finish(None)
}

/// Returns a trace of ids below a bound, however few of them it asks for.
fn trace_of(epochs: &[Vec<Vec<u32>>], id_space: u32) -> Trace {
    builder(epochs).finish(Some(id_space))
}

fn builder(epochs: &[Vec<Vec<u32>>]) -> TraceBuilder {
    let mut builder = TraceBuilder::default();
    for epoch in epochs {
        builder.begin_epoch();
        epoch.iter().for_each(|batch| builder.push_batch(batch).unwrap());
    }
    builder
}

/// Returns every policy with what the trace can tell it.
fn specs(trace: &Trace) -> (Vec<PolicySpec>, ReplayInputs) {
    let rankings: Arc<[Arc<[u32]>]> = (0..trace.epochs().len())
        .map(|epoch| rank_by_frequency(trace.epoch_ids(epoch)).into())
        .collect();
    let ids = trace.distinct();
    let degrees: Vec<u32> = ids.iter().map(|id| id * 7 % 5).collect();
    let candidates = ids
        .iter()
        .zip(&degrees)
        .map(|(&id, &degree)| Candidate { id, degree, is_halo: true })
        .collect();
    let mut specs: Vec<PolicySpec> =
        PolicyKind::ALL.into_iter().filter_map(|kind| kind.try_into().ok()).collect();
    specs.extend([
        PolicySpec::Decay(DecaySpec {
            candidates,
            gamma: 0.9,
            interval: 3,
            replacement: Replacement::Any,
            scoreboard: Scoreboard::Dense,
        }),
        PolicySpec::Degree(rank_by_degree(&ids, &degrees).into()),
        PolicySpec::Frequency(Arc::clone(&rankings[0])),
        PolicySpec::Overlap((0..trace.id_space()).map(|id| (id % 4) as u16).collect()),
        oracle(trace),
    ]);
    let uses = next_uses(trace.ids(), trace.bounds()).unwrap();
    let inputs =
        ReplayInputs { next_uses: Some(uses.into()), rankings: Some(rankings), ahead: false };
    (specs, inputs)
}

fn oracle(trace: &Trace) -> PolicySpec {
    PolicySpec::Oracle { n_batches: trace.n_batches() }
}

fn replay(trace: &Trace, n_slots: u32, spec: &PolicySpec, inputs: ReplayInputs) -> ReplayStats {
    replay_on(trace, TierSizes::One(n_slots), spec, inputs)
}

fn replay_on(
    trace: &Trace,
    sizes: TierSizes,
    spec: &PolicySpec,
    inputs: ReplayInputs,
) -> ReplayStats {
    let mut replay = Replay::new(trace, sizes, spec, inputs).unwrap();
    let mut n_done = 0;
    while !replay.is_done() {
        n_done += replay.advance(5);
    }
    assert_eq!(n_done, trace.n_ids());
    replay.stats()
}

/// Returns the hits and evictions of a list of rows, the first to be evicted first.
fn naive(trace: &Trace, n_slots: usize, moves_hits: bool) -> (u64, u64) {
    let (mut rows, mut n_hits, mut n_evictions) = (Vec::<u32>::new(), 0, 0);
    for batch in 0..trace.n_batches() {
        let ids = &trace.ids()[trace.range(batch)];
        let (hits, misses): (Vec<u32>, Vec<u32>) = ids.iter().partition(|id| rows.contains(id));
        n_hits += hits.len() as u64;
        if moves_hits {
            rows.retain(|id| !hits.contains(id));
            rows.extend(hits);
        }
        for id in misses {
            if rows.len() == n_slots {
                let Some(at) = rows.iter().position(|row| !ids.contains(row)) else { continue };
                rows.remove(at);
                n_evictions += 1;
            }
            rows.push(id);
        }
    }
    (n_hits, n_evictions)
}

fn epochs() -> impl Strategy<Value = Vec<Vec<Vec<u32>>>> {
    let batch = prop::collection::vec(0u32..40, 0..15);
    prop::collection::vec(prop::collection::vec(batch, 0..12), 1..5)
}

proptest! {
    #[test]
    fn counts_are_those_of_a_naive_simulation(epochs in epochs(), n_slots in 0u32..45) {
        let trace = trace(&epochs);
        for (spec, moves_hits) in [(PolicySpec::Lru, true), (PolicySpec::Fifo, false)] {
            let found = replay(&trace, n_slots, &spec, ReplayInputs::default());
            let (hits, evictions) = naive(&trace, n_slots as usize, moves_hits);
            prop_assert_eq!((found.tier.hits, found.tier.evictions), (hits, evictions));
            prop_assert_eq!(found.moved_rows(), trace.n_ids() as u64 - hits);
        }
    }

    #[test]
    fn no_policy_moves_fewer_rows_than_the_oracle(epochs in epochs(), n_slots in 0u32..45) {
        let trace = trace(&epochs);
        let (specs, inputs) = specs(&trace);
        let optimum = replay(&trace, n_slots, &oracle(&trace), inputs.clone());
        for spec in specs.iter().filter(|spec| spec.kind() != PolicyKind::Unbounded) {
            for ahead in [false, true] {
                let found = replay(&trace, n_slots, spec, ReplayInputs { ahead, ..inputs.clone() });
                let name = spec.kind();
                let least = optimum.moved_rows();
                prop_assert!(found.moved_rows() >= least, "{name}, ahead: {ahead}");
                prop_assert!(ahead || found.n_ahead == 0, "{name} brought rows unasked");
                prop_assert_eq!(found.tier.hits + found.tier.misses, trace.n_ids() as u64);
            }
        }
        let enough = replay(&trace, 0, &PolicySpec::Unbounded, ReplayInputs::default());
        prop_assert_eq!(enough.tier.misses, u64::from(trace.n_distinct()));
        prop_assert_eq!(replay(&trace, 45, &oracle(&trace), inputs).tier.hits, enough.tier.hits);
    }
}

#[test]
fn rows_brought_ahead_hit_on_their_first_use_and_are_counted() {
    let trace = trace(&[vec![vec![1, 2], vec![1]], vec![vec![3], vec![3, 4]]]);
    let (_, inputs) = specs(&trace);
    let rankings = inputs.rankings.clone().unwrap();
    let spec = PolicySpec::Frequency(Arc::clone(&rankings[0]));
    let on_demand = replay(&trace, 1, &spec, inputs.clone());
    assert_eq!((on_demand.tier.hits, on_demand.n_ahead), (2, 0));
    let ahead = replay(&trace, 1, &spec, ReplayInputs { ahead: true, ..inputs });
    assert_eq!((ahead.tier.hits, ahead.n_ahead, ahead.moved_rows()), (4, 2, 4));
}

#[test]
fn two_tiers_take_the_memory_of_their_directories_and_of_what_they_know_of_each_row() {
    let trace = trace_of(&[vec![vec![1, 2]]], 100);
    let (device_rows, host_rows, inclusion) = (10, 20, Inclusion::Inclusive);
    let sizes = TierSizes::Two { n_devices: 2, device_rows, host_rows, inclusion };
    let found = replay_on(&trace, sizes, &PolicySpec::Lru, ReplayInputs::default());
    let directory = |n_rows| Directory::planned_bytes(n_rows, 100, &PolicySpec::Lru);
    let of_rows = AgedDirectory::slot_bytes(None) * 40 + size_of::<u64>() * 20;
    assert_eq!(found.bytes, 2 * directory(10) + directory(20) + of_rows);
    assert!(of_rows > 0);
}

/// Returns four epochs of 30 batches of up to 20 ids of 100, low ids more often than high ones.
fn fixed_trace() -> Trace {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u32 % 100
    };
    let mut batch = || (0..20).map(|_| next() * next() / 100).collect::<Vec<u32>>();
    let epochs: Vec<Vec<Vec<u32>>> = (0..4).map(|_| (0..30).map(|_| batch()).collect()).collect();
    trace(&epochs)
}

#[test]
fn every_policy_misses_as_often_as_ever() {
    let trace = fixed_trace();
    let (specs, inputs) = specs(&trace);
    let found: Vec<(&str, [u64; 3])> = specs
        .iter()
        .map(|spec| {
            let misses = [5, 25, 60]
                .map(|n_slots| replay(&trace, n_slots, spec, inputs.clone()).tier.misses);
            (spec.kind().name(), misses)
        })
        .collect();
    // As found; the twins and the proofs by hand elsewhere say that the decisions are right.
    let expected = [
        ("none", [2005, 2005, 2005]),
        ("lru", [1807, 1209, 412]),
        ("fifo", [1807, 1214, 520]),
        ("clock", [1807, 1138, 380]),
        ("sieve", [1807, 1129, 333]),
        ("s3-fifo", [1741, 1052, 346]),
        ("tinylfu", [1809, 1008, 300]),
        ("unbounded", [98, 98, 98]),
        ("decay", [1716, 1158, 489]),
        ("degree", [1799, 1451, 818]),
        ("frequency", [1652, 873, 231]),
        ("overlap", [1892, 1483, 765]),
        ("oracle", [1467, 643, 196]),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_trace_without_batches_is_done_immediately() {
    let trace = trace(&[]);
    let (specs, inputs) = specs(&trace);
    for spec in &specs {
        let found = replay(&trace, 3, spec, inputs.clone());
        assert_eq!(found.tier, TierStats::default());
    }
}

proptest! {
    #[test]
    fn two_tiers_of_which_one_has_no_room_are_one(
        epochs in epochs(),
        n_slots in 0u32..45,
        is_above: bool,
        inclusion in prop::sample::select(vec![Inclusion::Inclusive, Inclusion::Exclusive]),
    ) {
        let trace = trace(&epochs);
        let (specs, inputs) = specs(&trace);
        let (device_rows, host_rows) = if is_above { (n_slots, 0) } else { (0, n_slots) };
        let sizes = TierSizes::Two { n_devices: 1, device_rows, host_rows, inclusion };
        for spec in specs.iter().filter(|spec| is_for_two(spec)) {
            let one = replay(&trace, n_slots, spec, inputs.clone()).tier;
            let two = replay_on(&trace, sizes, spec, inputs.clone()).tier;
            prop_assert_eq!((two.hits, two.misses), (one.hits, one.misses), "{}", spec.kind());
        }
    }

    #[test]
    fn two_tiers_move_no_fewer_rows_than_the_oracle_of_both(
        epochs in epochs(),
        device_rows in 0u32..25,
        host_rows in 0u32..25,
    ) {
        let trace = trace(&epochs);
        let (specs, inputs) = specs(&trace);
        for inclusion in [Inclusion::Inclusive, Inclusion::Exclusive] {
            let sizes = TierSizes::Two { n_devices: 1, device_rows, host_rows, inclusion };
            let optimum = replay(&trace, sizes.rows(), &oracle(&trace), inputs.clone());
            for spec in specs.iter().filter(|spec| is_for_two(spec)) {
                let found = replay_on(&trace, sizes, spec, inputs.clone());
                prop_assert!(found.moved_rows() >= optimum.moved_rows(), "{}", spec.kind());
                let accesses = found.tier.hits + found.tier.misses;
                prop_assert_eq!(accesses, trace.n_ids() as u64);
            }
        }
    }

    #[test]
    fn misses_are_reported_batch_by_batch(epochs in epochs(), n_slots in 0u32..20) {
        let trace = trace(&epochs);
        let inclusion = Inclusion::Exclusive;
        let (n_devices, device_rows, host_rows) = (1, n_slots / 2, n_slots);
        let two = TierSizes::Two { n_devices, device_rows, host_rows, inclusion };
        for sizes in [TierSizes::One(n_slots), two] {
            let spec = PolicySpec::Lru;
            let mut replay = Replay::new(&trace, sizes, &spec, ReplayInputs::default()).unwrap();
            let mut missed = Vec::new();
            replay.missed(&mut missed);
            while replay.advance_batch() > 0 || !replay.is_done() {
                replay.missed(&mut missed);
                let n_missed = replay.stats().tier.misses;
                prop_assert_eq!(missed.len() as u64, n_missed);
            }
        }
    }
}

/// Returns whether a policy has two tiers: `oracle` needs one future, and `unbounded` no second
/// tier.
fn is_for_two(spec: &PolicySpec) -> bool {
    !matches!(spec.kind(), PolicyKind::Oracle | PolicyKind::Unbounded)
}

proptest! {
    /// Device after device, and then the host on what they missed, each by itself, come to the same
    /// as all of them in turn.
    #[test]
    fn devices_over_a_host_are_single_tiers_one_after_the_other(
        epochs in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(0u32..40, 0..12), 6..=6), 1..4),
        n_devices in prop::sample::select(vec![1u16, 2, 3, 6]),
        (device_rows, host_rows) in (0u32..20, 0u32..20),
    ) {
        let whole = trace(&epochs);
        let (specs, inputs) = specs(&whole);
        for spec in specs.iter().filter(|spec| spec.kind() != PolicyKind::Oracle) {
            let inclusion = Inclusion::Inclusive;
            let sizes = TierSizes::Two { n_devices, device_rows, host_rows, inclusion };
            let mut replay = Replay::new(&whole, sizes, spec, inputs.clone()).unwrap();
            let mut missed = vec![Vec::new(); whole.n_batches() as usize];
            for batch in &mut missed {
                replay.advance_batch();
                replay.missed(batch);
            }
            let levels = replay.stats().levels.unwrap();

            let mut below: Vec<Vec<Vec<u32>>> = epochs.iter().map(|_| vec![Vec::new(); 6]).collect();
            let (mut device_hits, mut device_evictions) = (0, 0);
            for device in 0..usize::from(n_devices) {
                let own: Vec<Vec<Vec<u32>>> = epochs.iter().map(|batches| {
                    batches.iter().skip(device).step_by(n_devices.into()).cloned().collect()
                }).collect();
                let one = trace_of(&own, whole.id_space());
                let asked: HashSet<u32> = one.ids().iter().copied().collect();
                let rankings = inputs.rankings.as_ref().unwrap().iter().map(|ranking| {
                    ranking.iter().copied().filter(|id| asked.contains(id)).collect()
                }).collect();
                let own_telling =
                    ReplayInputs { next_uses: None, rankings: Some(rankings), ahead: false };
                let spec = spec.among(|id| asked.contains(&id));
                let mut replay =
                    Replay::new(&one, TierSizes::One(device_rows), &spec, own_telling).unwrap();
                for epoch in &mut below {
                    for turn in 0..6 / usize::from(n_devices) {
                        replay.advance_batch();
                        replay.missed(&mut epoch[turn * usize::from(n_devices) + device]);
                    }
                }
                device_hits += replay.stats().tier.hits;
                device_evictions += replay.stats().tier.evictions;
            }
            prop_assert_eq!(levels.device.hits, device_hits, "{}", spec.kind());
            prop_assert_eq!(levels.device.evictions, device_evictions);

            let host = trace_of(&below, whole.id_space());
            let own_telling = ReplayInputs { next_uses: None, ..inputs.clone() };
            let mut replay =
                Replay::new(&host, TierSizes::One(host_rows), spec, own_telling).unwrap();
            for batch in &missed {
                let mut naive = Vec::new();
                replay.advance_batch();
                replay.missed(&mut naive);
                prop_assert_eq!(batch, &naive, "{}", spec.kind());
            }
            prop_assert_eq!(levels.host, replay.stats().tier);
        }
    }
}
