//! Look-ups in a dense index beside those in open addressing, by the share of ids that is resident.
//!
//! Under `degree` a fixed set of rows is resident, so only look-ups are timed. Batches have 15 000
//! random ids, of which nine in ten hit. The number of slots decides which index a directory has.
//! One with room for a sixth of all ids has the dense one, and serves the same rows to the same
//! ids. With `--test` it runs small.

use std::error::Error;
use std::time::Instant;

use lodestore_cache::slots::NO_SLOT;
use lodestore_cache::{Directory, PolicySpec};

const BATCH_IDS: usize = 15_000;

fn main() -> Result<(), Box<dyn Error>> {
    let is_test = std::env::args().any(|arg| arg == "--test");
    let (resident_rows, n_rounds) =
        if is_test { (&[1 << 8][..], 2) } else { (&[1 << 14, 1 << 17, 1 << 20][..], 400) };
    println!("{:>9} {:>6} {:>18} {:>18}", "resident", "ids", "dense", "open addressing");
    for &n_rows in resident_rows {
        for ids_per_row in [7, 16, 32, 64] {
            let id_space = n_rows * ids_per_row;
            let [dense, open] = [id_space / 6, n_rows].map(|n_slots| {
                time(n_rows, n_slots, id_space, n_rounds).map(|(nanos, n_bytes)| {
                    format!("{nanos:5.2} ns {:5.0} MB", n_bytes as f64 / 1e6)
                })
            });
            println!("{n_rows:>9} {ids_per_row:>5}x {:>18} {:>18}", dense?, open?);
        }
    }
    Ok(())
}

/// Returns nanoseconds per id of the median batch, and bytes of the whole directory.
fn time(
    n_rows: u32,
    n_slots: u32,
    id_space: u32,
    n_rounds: usize,
) -> Result<(f64, usize), Box<dyn Error>> {
    let stride = id_space / n_rows;
    let resident: Vec<u32> = (0..n_rows).map(|row| row * stride).collect();
    let spec = PolicySpec::Degree(resident.clone().into());
    let mut directory = Directory::new(n_slots, id_space, &spec)?;
    let positions: Vec<u32> = (0..n_rows).collect();
    directory.admit(&resident, &positions, &mut Vec::new());
    let (mut slots, mut times, mut n_hits) = (Vec::new(), Vec::new(), 0);
    for round in 0..n_rounds {
        let ids: Vec<u32> = (0..BATCH_IDS).map(|at| id(round, at, n_rows, stride)).collect();
        let start = Instant::now();
        directory.lookup(&ids, &mut slots);
        times.push(start.elapsed().as_nanos() as f64 / BATCH_IDS as f64);
        n_hits += slots.iter().filter(|&&slot| slot != NO_SLOT).count();
    }
    assert_eq!(n_hits, n_rounds * BATCH_IDS * 9 / 10, "both serve the same rows");
    times.sort_unstable_by(f64::total_cmp);
    Ok((times[times.len() / 2], directory.bytes()))
}

/// Returns some row that is resident, or at each tenth position the id after it.
fn id(round: usize, at: usize, n_rows: u32, stride: u32) -> u32 {
    let mixed = ((round * BATCH_IDS + at) as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let row = ((mixed * u64::from(n_rows)) >> 32) as u32;
    row * stride + u32::from(at.is_multiple_of(10))
}
