//! Hits copied out of a tier that many threads share. For comparison: a tier of one owner, and a
//! plain copy of the same rows at random.
//!
//! Every id is resident, under `sieve`; batches are 15 000 random ids. It measures look-ups and
//! copies, not misses, in rows per second of all threads together. With `--test` it runs small.

use std::error::Error;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use lodestore_cache::shared::{BatchAccess, SharedSettings};
use lodestore_cache::{PolicySpec, SharedTier, Tier};

struct Scale {
    n_slots: u32,
    batch_rows: usize,
    n_rounds: usize,
    widths: &'static [usize],
}

fn main() -> Result<(), Box<dyn Error>> {
    let scale = if std::env::args().any(|arg| arg == "--test") {
        Scale { n_slots: 500, batch_rows: 300, n_rounds: 2, widths: &[100, 512] }
    } else {
        Scale {
            n_slots: 1 << 18,
            batch_rows: 15_000,
            n_rounds: 200,
            widths: &[100, 400, 512, 2408],
        }
    };
    println!("{} slots, batches of {}; M rows/s", scale.n_slots, scale.batch_rows);
    println!("{:>6} {:>9} {:>9} {:>9} {:>9}", "bytes", "copy", "owned", "shared", "shared x2");
    for &row_bytes in scale.widths {
        let copy = plain_copy(&scale, row_bytes);
        let owned = owned(&scale, row_bytes)?;
        let [one, two] = [1, 2].map(|n_threads| shared(&scale, row_bytes, n_threads));
        println!("{row_bytes:>6} {copy:>9.1} {owned:>9.1} {:>9.1} {:>9.1}", one?, two?);
    }
    Ok(())
}

/// Returns the ids of a round: neither in order nor all different.
fn ids(scale: &Scale, seed: usize) -> Vec<u32> {
    let mix = |at: usize| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let first = (seed * scale.n_rounds + 1) * scale.batch_rows;
    let ids = (first..first + scale.batch_rows).map(mix);
    ids.map(|id| (id % u64::from(scale.n_slots)) as u32).collect()
}

fn rows(ids: &[u32], row_bytes: usize) -> Vec<u8> {
    ids.iter().flat_map(|&id| id.to_le_bytes().into_iter().cycle().take(row_bytes)).collect()
}

/// Runs `round` often, and returns millions of rows per second.
fn rate(scale: &Scale, mut round: impl FnMut(&[u32])) -> f64 {
    let batches: Vec<Vec<u32>> = (0..8).map(|seed| ids(scale, seed)).collect();
    round(&batches[0]);
    let start = Instant::now();
    for at in 0..scale.n_rounds {
        round(&batches[at % batches.len()]);
    }
    (scale.n_rounds * scale.batch_rows) as f64 / start.elapsed().as_secs_f64() / 1e6
}

fn plain_copy(scale: &Scale, row_bytes: usize) -> f64 {
    let rows = vec![1u8; scale.n_slots as usize * row_bytes];
    let mut out = vec![0; scale.batch_rows * row_bytes];
    rate(scale, |ids| {
        for (&id, out) in ids.iter().zip(out.chunks_exact_mut(row_bytes)) {
            out.copy_from_slice(&rows[id as usize * row_bytes..][..row_bytes]);
        }
    })
}

fn owned(scale: &Scale, row_bytes: usize) -> Result<f64, Box<dyn Error>> {
    let n_slots = scale.n_slots;
    let mut tier = Tier::of_slots(n_slots, row_bytes, n_slots, &PolicySpec::Sieve)?;
    let all: Vec<u32> = (0..n_slots).collect();
    let mut misses = Vec::new();
    for ids in all.chunks(1 << 14) {
        let rows = rows(ids, row_bytes);
        tier.lookup(ids, &mut rows.clone(), &mut misses);
        tier.admit(ids, &rows, &misses);
    }
    let mut out = vec![0; scale.batch_rows * row_bytes];
    let rate = rate(scale, |ids| {
        tier.lookup(ids, &mut out, &mut misses);
        assert!(misses.is_empty(), "all rows are resident");
    });
    assert_eq!(out[..row_bytes], rows(&ids(scale, (scale.n_rounds - 1) % 8)[..1], row_bytes));
    Ok(rate)
}

fn shared(scale: &Scale, row_bytes: usize, n_threads: usize) -> Result<f64, Box<dyn Error>> {
    let n_slots = scale.n_slots;
    let tier = SharedTier::of_slots(
        n_slots,
        row_bytes,
        n_slots,
        &PolicySpec::Sieve,
        SharedSettings::default(),
    )?;
    let all: Vec<u32> = (0..n_slots).collect();
    let mut access = BatchAccess::default();
    for ids in all.chunks(1 << 14) {
        let rows = rows(ids, row_bytes);
        tier.lookup(ids, &mut rows.clone(), &mut access);
        tier.admit(ids, &rows, &mut access);
    }
    let barrier = Barrier::new(n_threads);
    let worker = || {
        let mut access = BatchAccess::default();
        let mut out = vec![0; scale.batch_rows * row_bytes];
        barrier.wait();
        let rate = rate(scale, |ids| {
            tier.lookup(ids, &mut out, &mut access);
            assert!(access.misses().is_empty(), "all rows are resident");
        });
        assert_eq!(out[..row_bytes], rows(&ids(scale, (scale.n_rounds - 1) % 8)[..1], row_bytes));
        rate
    };
    let rates = thread::scope(|scope| {
        let workers: Vec<_> = (0..n_threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or(f64::NAN)).sum::<f64>()
    });
    Ok(rates)
}
