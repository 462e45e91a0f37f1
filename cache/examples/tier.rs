//! Keeps rows in a tier of slots: looks a batch up, fetches what misses, and offers it.
//!
//! Run with `cargo run -p lodestore-cache --example tier`.

use std::error::Error;

use lodestore_cache::{PolicyKind, Tier};

const ROW_BYTES: usize = 4;
const N_IDS: u32 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    // The capacity counts rows and all bookkeeping.
    let mut tier = Tier::new(16 << 10, ROW_BYTES, N_IDS, PolicyKind::S3Fifo)?;
    let (mut misses, mut fetched) = (Vec::new(), 0);
    for round in 0..4u32 {
        let ids: Vec<u32> = (0..100).map(|i| (i * 7 + round * 70) % N_IDS).collect();
        let mut rows = vec![0; ids.len() * ROW_BYTES];
        tier.lookup(&ids, &mut rows, &mut misses);
        fetched += misses.len();
        for &position in &misses {
            let at = position as usize;
            rows[at * ROW_BYTES..][..ROW_BYTES].copy_from_slice(&row_of(ids[at]));
        }
        tier.admit(&ids, &rows, &misses);
        for (row, &id) in rows.chunks_exact(ROW_BYTES).zip(&ids) {
            assert_eq!(row, row_of(id));
        }
    }
    println!("{fetched} rows fetched, {} slots, {:?}", tier.n_slots(), tier.stats());
    Ok(())
}

/// Fetches a row from where all rows are.
fn row_of(id: u32) -> [u8; ROW_BYTES] {
    id.to_le_bytes()
}
