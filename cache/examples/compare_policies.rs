//! Replays one trace under several policies, beside the optimum that knows the future.
//!
//! Run with `cargo run -p lodestore-cache --example compare_policies`.

use std::error::Error;

use lodestore_cache::policy::next_uses;
use lodestore_cache::replay::{ReplayInputs, TierSizes};
use lodestore_cache::trace::TraceBuilder;
use lodestore_cache::{PolicySpec, Replay, Trace};

fn main() -> Result<(), Box<dyn Error>> {
    let trace = skewed_trace()?;
    let oracle = PolicySpec::Oracle { n_batches: trace.n_batches() };
    for spec in [PolicySpec::Fifo, PolicySpec::Lru, PolicySpec::S3Fifo, oracle] {
        let mut inputs = ReplayInputs::default();
        if let PolicySpec::Oracle { .. } = spec {
            inputs.next_uses = Some(next_uses(trace.ids(), trace.bounds())?.into());
        }
        let mut replay = Replay::new(&trace, TierSizes::One(100), &spec, inputs)?;
        while replay.advance_batch() > 0 {}
        let stats = replay.stats();
        let rate = stats.tier.hits as f64 / trace.n_ids() as f64;
        println!(
            "{:<8} {:>5.1} % hits, {} rows moved",
            spec.kind().to_string(),
            100.0 * rate,
            stats.moved_rows()
        );
    }
    Ok(())
}

/// Returns batches of ids below 1,000, of which low ones are more frequent.
fn skewed_trace() -> Result<Trace, Box<dyn Error>> {
    let (mut builder, mut state) = (TraceBuilder::default(), 1u64);
    for _ in 0..200 {
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let share = (state >> 33) as f64 / f64::from(1u32 << 31);
            (1000.0 * share.powi(3)) as u32
        };
        builder.push_batch(&(0..50).map(|_| draw()).collect::<Vec<u32>>())?;
    }
    Ok(builder.finish(Some(1000)))
}
