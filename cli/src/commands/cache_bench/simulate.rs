//! Every policy at every capacity, over some threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lodestore_cache::{Replay, ReplayStats, Trace};
use rayon::ThreadPoolBuilder;
use rayon::prelude::*;

use super::contestants::Contestant;

/// Accesses between two looks at the clock, or a batch if that is longer.
const ACCESSES_AT_ONCE: usize = 1 << 18;

/// What one policy did at one capacity.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    pub(super) stats: ReplayStats,
    /// Time of the whole replay: lookups, admissions, and finding the misses between them.
    pub(super) time: Duration,
}

/// Outcomes by contestant, then by capacity. They, but for their time, do not depend on the number
/// of threads. `progress` hears of accesses done, of how many.
pub(super) fn simulate(
    trace: &Trace,
    contestants: &[Contestant],
    capacities: &[u32],
    n_threads: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Vec<Vec<Outcome>>> {
    let jobs: Vec<(&Contestant, u32)> = contestants
        .iter()
        .flat_map(|contestant| {
            let n = if contestant.ignores_capacity() { 1 } else { capacities.len() };
            capacities[..n].iter().map(move |&capacity| (contestant, capacity))
        })
        .collect();
    let total = trace.n_ids() as u64 * jobs.len() as u64;
    let done = AtomicU64::new(0);
    let run = |&(contestant, capacity): &(&Contestant, u32)| {
        replay(trace, contestant, capacity, &|n_ids| {
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
            own.iter().copied().cycle().take(capacities.len()).collect()
        })
        .collect())
}

fn replay(
    trace: &Trace,
    contestant: &Contestant,
    capacity: u32,
    on_done: &dyn Fn(u64),
) -> Result<Outcome> {
    let telling = contestant.telling.clone();
    let mut replay = Replay::new(trace, capacity, &contestant.spec, telling)
        .with_context(|| format!("{} of {capacity} rows", contestant.label()))?;
    let mut time = Duration::ZERO;
    while !replay.is_done() {
        let start = Instant::now();
        let n_ids = replay.advance(ACCESSES_AT_ONCE);
        time += start.elapsed();
        on_done(n_ids as u64);
    }
    Ok(Outcome { stats: replay.stats(), time })
}
