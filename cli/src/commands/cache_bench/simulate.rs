//! Every policy at every capacity, over some threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lodestore_cache::{Replay, ReplayStats, TierSizes, Trace};
use rayon::ThreadPoolBuilder;
use rayon::prelude::*;

use super::contestants::Contestant;

/// Accesses between two looks at the clock, or a batch if that is longer.
const ACCESSES_AT_ONCE: usize = 1 << 18;

/// What one policy did at one capacity.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) stats: ReplayStats,
    /// Hit rates of the batches between two points, if asked for; none where they have no id.
    pub(super) over_time: Vec<Option<f64>>,
    /// Time of the whole replay: lookups, admissions, and finding the misses between them.
    pub(super) time: Duration,
}

/// Outcomes by contestant, then by capacity. They, but for their time, do not depend on the number
/// of threads. `progress` hears of accesses done, of how many.
pub(super) fn simulate(
    trace: &Trace,
    contestants: &[Contestant],
    capacities: &[TierSizes],
    n_threads: usize,
    batches_per_point: Option<u32>,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Vec<Vec<Outcome>>> {
    let jobs: Vec<(&Contestant, TierSizes)> = contestants
        .iter()
        .flat_map(|contestant| {
            let n = if contestant.ignores_capacity() { 1 } else { capacities.len() };
            capacities[..n].iter().map(move |&capacity| (contestant, capacity))
        })
        .collect();
    let total = trace.n_ids() as u64 * jobs.len() as u64;
    let done = AtomicU64::new(0);
    let run = |&(contestant, sizes): &(&Contestant, TierSizes)| {
        replay(trace, contestant, sizes, batches_per_point, &|n_ids| {
            progress(done.fetch_add(n_ids, Ordering::Relaxed) + n_ids, total);
        })
    };
    let pool = ThreadPoolBuilder::new().num_threads(n_threads).build();
    let pool = pool.context("cannot start threads")?;
    let outcomes: Result<Vec<Outcome>> =
        pool.install(|| jobs.par_iter().with_max_len(1).map(run).collect());
    let mut outcomes = outcomes?.into_iter();
    Ok(contestants
        .iter()
        .map(|contestant| {
            let n = if contestant.ignores_capacity() { 1 } else { capacities.len() };
            let own: Vec<Outcome> = outcomes.by_ref().take(n).collect();
            own.iter().cloned().cycle().take(capacities.len()).collect()
        })
        .collect())
}

fn replay(
    trace: &Trace,
    contestant: &Contestant,
    sizes: TierSizes,
    batches_per_point: Option<u32>,
    on_done: &dyn Fn(u64),
) -> Result<Outcome> {
    let (telling, sizes) = (contestant.telling.clone(), contestant.sizes(sizes));
    let mut replay = Replay::new(trace, sizes, &contestant.spec, telling)
        .with_context(|| format!("{} of {} rows", contestant.label(), sizes.rows()))?;
    let (mut time, mut over_time, mut before) = (Duration::ZERO, Vec::new(), (0, 0));
    while !replay.is_done() {
        let start = Instant::now();
        let n_ids = match batches_per_point {
            Some(n_batches) => (0..n_batches).map(|_| replay.advance_batch()).sum(),
            None => replay.advance(ACCESSES_AT_ONCE),
        };
        time += start.elapsed();
        if batches_per_point.is_some() {
            let tier = replay.stats().tier;
            let now = (tier.hits, tier.hits + tier.misses);
            let (hits, accesses) = (now.0 - before.0, now.1 - before.1);
            over_time.push((accesses > 0).then(|| hits as f64 / accesses as f64));
            before = now;
        }
        on_done(n_ids as u64);
    }
    Ok(Outcome { stats: replay.stats(), over_time, time })
}

/// The ids that a contestant misses, as a trace of as many batches: the ids, and where each batch
/// starts, then where the last one ends.
pub(super) fn misses(
    trace: &Trace,
    contestant: &Contestant,
    sizes: TierSizes,
) -> Result<(Vec<u32>, Vec<u64>)> {
    let (telling, sizes) = (contestant.telling.clone(), contestant.sizes(sizes));
    let mut replay = Replay::new(trace, sizes, &contestant.spec, telling)?;
    let (mut ids, mut offsets) = (Vec::new(), vec![0]);
    while !replay.is_done() {
        replay.advance_batch();
        replay.missed(&mut ids);
        offsets.push(ids.len() as u64);
    }
    ids.iter_mut().for_each(|id| *id = trace.given(*id));
    Ok((ids, offsets))
}
