//! Every policy at every capacity, over some threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lodestore_cache::replay::{ReplayStats, TierSizes};
use lodestore_cache::{Replay, Trace};
use rayon::ThreadPoolBuilder;
use rayon::prelude::*;

use super::contestants::Contestant;
use crate::traces::LoadedTrace;

/// Accesses between two looks at the clock, or a batch if that is longer.
const ACCESSES_AT_ONCE: usize = 1 << 18;

/// A trace, its contestants, and the tiers of each capacity there. Several, each of another worker,
/// all have the same contestants and capacities.
pub(super) struct Lane {
    pub(super) loaded: LoadedTrace,
    pub(super) contestants: Vec<Contestant>,
    pub(super) sizes: Vec<TierSizes>,
}

/// Result of one policy at one capacity.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) stats: ReplayStats,
    /// Hits and accesses of the batches between two points, if asked for.
    pub(super) over_time: Vec<[u64; 2]>,
    /// Time of the whole replay: lookups, admissions, and finding the misses between them.
    pub(super) time: Duration,
}

impl Outcome {
    /// Adds the counts of another worker's tier. Two levels are replayed on one trace only.
    fn add(&mut self, other: &Self) {
        let (sum, stats) = (&mut self.stats, &other.stats);
        sum.tier.hits += stats.tier.hits;
        sum.tier.misses += stats.tier.misses;
        sum.tier.evictions += stats.tier.evictions;
        sum.levels = sum.levels.or(stats.levels);
        sum.n_ahead += stats.n_ahead;
        sum.bytes += stats.bytes;
        self.time += other.time;
        let n_points = self.over_time.len().max(other.over_time.len());
        self.over_time.resize(n_points, [0, 0]);
        for (sum, point) in self.over_time.iter_mut().zip(&other.over_time) {
            *sum = [sum[0] + point[0], sum[1] + point[1]];
        }
    }
}

/// Returns the outcomes by contestant, then by capacity, summed over the lanes. They, but for their
/// time, do not depend on the number of threads. `progress` receives the accesses done, and all.
pub(super) fn simulate(
    lanes: &[Lane],
    n_threads: usize,
    batches_per_point: Option<u32>,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Vec<Vec<Outcome>>> {
    let Some(first) = lanes.first() else { return Ok(Vec::new()) };
    let n_capacities = first.sizes.len();
    let mut jobs = Vec::new();
    for lane in lanes {
        for (number, contestant) in lane.contestants.iter().enumerate() {
            let n = if contestant.ignores_capacity() { 1 } else { n_capacities };
            jobs.extend((0..n).map(|at| (lane, number, at)));
        }
    }
    let total = jobs.iter().map(|(lane, ..)| lane.loaded.trace.n_ids() as u64).sum();
    let done = AtomicU64::new(0);
    let run = |&(lane, number, at): &(&Lane, usize, usize)| {
        let (trace, sizes) = (&lane.loaded.trace, lane.sizes[at]);
        replay(trace, &lane.contestants[number], sizes, batches_per_point, &|n_ids| {
            progress(done.fetch_add(n_ids, Ordering::Relaxed) + n_ids, total);
        })
    };
    let pool = ThreadPoolBuilder::new().num_threads(n_threads).build();
    let pool = pool.context("cannot start threads")?;
    let outcomes: Result<Vec<Outcome>> =
        pool.install(|| jobs.par_iter().with_max_len(1).map(run).collect());
    let mut sums = vec![vec![Outcome::default(); n_capacities]; first.contestants.len()];
    for (&(_, number, at), outcome) in jobs.iter().zip(&outcomes?) {
        sums[number][at].add(outcome);
    }
    for (contestant, sums) in first.contestants.iter().zip(&mut sums) {
        if let (true, [of_first, others @ ..]) = (contestant.ignores_capacity(), &mut sums[..]) {
            others.fill(of_first.clone());
        }
    }
    Ok(sums)
}

fn replay(
    trace: &Trace,
    contestant: &Contestant,
    sizes: TierSizes,
    batches_per_point: Option<u32>,
    on_done: &dyn Fn(u64),
) -> Result<Outcome> {
    let (inputs, sizes) = (contestant.inputs.clone(), contestant.sizes(sizes));
    let mut replay = Replay::new(trace, sizes, &contestant.spec, inputs)
        .with_context(|| format!("{} of {} rows", contestant.label(), sizes.rows()))?;
    let (mut time, mut over_time, mut before) = (Duration::ZERO, Vec::new(), [0, 0]);
    while !replay.is_done() {
        let start = Instant::now();
        let n_ids = match batches_per_point {
            Some(n_batches) => (0..n_batches).map(|_| replay.advance_batch()).sum(),
            None => replay.advance(ACCESSES_AT_ONCE),
        };
        time += start.elapsed();
        if batches_per_point.is_some() {
            let tier = replay.stats().tier;
            let now = [tier.hits, tier.hits + tier.misses];
            over_time.push([now[0] - before[0], now[1] - before[1]]);
            before = now;
        }
        on_done(n_ids as u64);
    }
    Ok(Outcome { stats: replay.stats(), over_time, time })
}

/// Returns the ids that a contestant misses, as a trace of as many batches. They are the ids, and
/// where each batch starts, then where the last one ends.
pub(super) fn misses(
    trace: &Trace,
    contestant: &Contestant,
    sizes: TierSizes,
) -> Result<(Vec<u32>, Vec<u64>)> {
    let (inputs, sizes) = (contestant.inputs.clone(), contestant.sizes(sizes));
    let mut replay = Replay::new(trace, sizes, &contestant.spec, inputs)?;
    let (mut ids, mut offsets) = (Vec::new(), vec![0]);
    while !replay.is_done() {
        replay.advance_batch();
        replay.missed(&mut ids);
        offsets.push(ids.len() as u64);
    }
    ids.iter_mut().for_each(|id| *id = trace.given(*id));
    Ok((ids, offsets))
}
