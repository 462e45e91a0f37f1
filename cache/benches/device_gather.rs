//! Batches gathered on a CUDA device, beside what the device can do at most.
//!
//! - Gather: rows in random slots into a batch tensor, as a share of a plain copy of as many bytes
//!   within the device. It includes the check of the list of slots on the host and its transfer,
//!   which limits narrow rows, but not the lookup.
//! - Hits: the same with the lookup, as trainers do it: ids in, rows out.
//! - Staging: a batch that misses as a whole, and whose rows are already in staging. The share is
//!   that of a plain copy of as many bytes from pinned memory.
//!
//! Bytes are counted once, as those of the batch; every batch is checked once. Without a CUDA
//! device it reports that there is none. With `--test` it runs small.

use std::convert::Infallible;
use std::error::Error;
use std::time::Instant;

use cudarc::driver::CudaStream;
use lodestore_cache::device::TierShape;
use lodestore_cache::device::{BatchTensor, Device, DeviceSettings};
use lodestore_cache::{DeviceTier, PolicySpec};

struct Scale {
    n_slots: u32,
    batch_rows: usize,
    n_rounds: u32,
    widths: &'static [usize],
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(error) => {
            println!("SKIPPED: no CUDA device ({error})");
            return Ok(());
        }
    };
    let scale = if std::env::args().any(|arg| arg == "--test") {
        Scale { n_slots: 500, batch_rows: 300, n_rounds: 2, widths: &[100, 512] }
    } else {
        let widths = &[100, 128, 400, 512, 1024, 2408, 4096];
        Scale { n_slots: 1 << 20, batch_rows: 1 << 17, n_rounds: 20, widths }
    };
    println!("device: {device}; batches of {} rows of {} slots", scale.batch_rows, scale.n_slots);
    println!(
        "{:>6} {:>12} {:>9} {:>12} {:>12} {:>9}",
        "bytes", "gather GB/s", "of copy", "hits GB/s", "stage GB/s", "of copy"
    );
    for &row_bytes in scale.widths {
        let (gather, hits, copy) = gather_hits_and_copy(&device, &scale, row_bytes)?;
        let (staging, pinned) = staging_and_pinned(&device, &scale, row_bytes)?;
        println!(
            "{row_bytes:>6} {gather:>12.1} {:>8.1}% {hits:>12.1} {staging:>12.1} {:>8.1}%",
            100.0 * gather / copy,
            100.0 * staging / pinned,
        );
    }
    Ok(())
}

/// Rows of a batch that fills slots.
const FILLED_AT_ONCE: usize = 1 << 16;

/// Returns GB/s of a gather, of one with its lookup, and of a copy within the device.
fn gather_hits_and_copy(
    device: &Device,
    scale: &Scale,
    row_bytes: usize,
) -> Result<(f64, f64, f64), Box<dyn Error>> {
    let settings = DeviceSettings::default();
    let n_slots = scale.n_slots;
    let mut tier = DeviceTier::new(
        device,
        TierShape { capacity_rows: n_slots, row_bytes, id_space: n_slots },
        &PolicySpec::Unbounded,
        settings,
    )?;
    let ids: Vec<u32> = (0..n_slots).collect();
    let mut filling = tier.tensor(FILLED_AT_ONCE)?;
    for ids in ids.chunks(FILLED_AT_ONCE) {
        tier.gather(ids, &mut filling, |ids, rows| {
            rows.copy_from_slice(&rows_of(ids, row_bytes));
            Ok::<(), std::convert::Infallible>(())
        })?;
    }
    drop(filling);
    let mut tensor = tier.tensor(scale.batch_rows)?;
    // Neither in order nor all different, like the rows of a batch.
    let mix = |at: usize| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let ids: Vec<u32> =
        (0..scale.batch_rows).map(|at| (mix(at) % u64::from(n_slots)) as u32).collect();
    let slots: Vec<u32> = ids.iter().map(|&id| tier.directory().slot_of(id)).collect();
    tier.gather_slots(&slots, &mut tensor)?;
    check(&tensor, &ids, row_bytes)?;
    let stream = stream_of(&tensor);
    let n_bytes = tensor.n_bytes();
    let gather =
        rate(&stream, scale.n_rounds, n_bytes, || Ok(tier.gather_slots(&slots, &mut tensor)?))?;
    let hits = rate(&stream, scale.n_rounds, n_bytes, || {
        Ok(tier.gather(&ids, &mut tensor, |_, _| Err(std::fmt::Error))?)
    })?;
    let from = stream.alloc_zeros::<u8>(n_bytes)?;
    let mut to = stream.alloc_zeros::<u8>(n_bytes)?;
    let copy = rate(&stream, scale.n_rounds, n_bytes, || Ok(stream.memcpy_dtod(&from, &mut to)?))?;
    Ok((gather, hits, copy))
}

/// Returns GB/s of a batch that is staged, and of a copy from pinned memory.
#[expect(unsafe_code, reason = "pinned memory is allocated without initial values")]
fn staging_and_pinned(
    device: &Device,
    scale: &Scale,
    row_bytes: usize,
) -> Result<(f64, f64), Box<dyn Error>> {
    let settings = DeviceSettings::default();
    let mut tier = DeviceTier::new(
        device,
        TierShape { capacity_rows: 0, row_bytes, id_space: scale.n_slots },
        &PolicySpec::None,
        settings,
    )?;
    let mut tensor = tier.tensor(scale.batch_rows)?;
    let ids: Vec<u32> = (0..scale.batch_rows as u32).collect();
    tier.gather(&ids, &mut tensor, |ids, rows| {
        rows.copy_from_slice(&rows_of(ids, row_bytes));
        Ok::<(), Infallible>(())
    })?;
    check(&tensor, &ids, row_bytes)?;
    let stream = stream_of(&tensor);
    let n_bytes = tensor.n_bytes();
    let staging = rate(&stream, scale.n_rounds, n_bytes, || {
        Ok(tier.gather(&ids, &mut tensor, |_, _| Ok::<(), Infallible>(()))?)
    })?;
    // SAFETY: what it holds is copied, and not looked at.
    let pinned = unsafe { stream.context().alloc_pinned::<u8>(n_bytes) }?;
    let mut to = stream.alloc_zeros::<u8>(n_bytes)?;
    let copy =
        rate(&stream, scale.n_rounds, n_bytes, || Ok(stream.memcpy_htod(&pinned, &mut to)?))?;
    Ok((staging, copy))
}

/// Returns GB/s over some rounds, after one that does not count.
fn rate(
    stream: &CudaStream,
    n_rounds: u32,
    n_bytes: usize,
    mut round: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    round()?;
    stream.synchronize()?;
    let start = Instant::now();
    for _ in 0..n_rounds {
        round()?;
    }
    stream.synchronize()?;
    Ok(n_bytes as f64 * f64::from(n_rounds) / start.elapsed().as_secs_f64() / 1e9)
}

fn stream_of(tensor: &BatchTensor) -> std::sync::Arc<CudaStream> {
    let rows = tensor.as_cuda().expect("a tensor of a CUDA device");
    std::sync::Arc::clone(rows.stream())
}

fn rows_of(ids: &[u32], row_bytes: usize) -> Vec<u8> {
    let row =
        |&id: &u32| (0..row_bytes as u32).map(move |at| (id ^ id >> 8).wrapping_mul(at | 1) as u8);
    ids.iter().flat_map(row).collect()
}

fn check(tensor: &BatchTensor, ids: &[u32], row_bytes: usize) -> Result<(), Box<dyn Error>> {
    let mut rows = vec![0; tensor.n_bytes()];
    tensor.read(&mut rows)?;
    assert!(rows == rows_of(ids, row_bytes), "wrong rows of {row_bytes} bytes");
    Ok(())
}
