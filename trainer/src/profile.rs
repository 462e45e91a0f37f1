//! Capabilities of the device that trains, in the terms of RAPA (CaPGNN, Eqs. 13 and 14).

use std::sync::Arc;
use std::time::Instant;

use lodestore_graph::batch::Block;
use lodestore_graph::rapa::DeviceProfile;
use lodestore_models::matrix::Matrix;
use lodestore_models::matrix::spmm::{OwnRows, Spmm};
use lodestore_models::matrix::workspace::Workspace;
use lodestore_models::random::CounterRandom;

use crate::error::{TrainError, check};

/// Entries of each row of the sparse matrix, or all if the matrix is smaller.
const ENTRIES_PER_ROW: usize = 32;

/// Measures this machine's processor, on which training computes. Each job runs `runs` times on
/// square matrices of f32 of `size` rows; its time is the mean without the first run. `progress`
/// receives the number of jobs done, and of all jobs. Host and device share one memory here, so the
/// three transfers are one copy.
///
/// The paper takes 11 585 rows and 50 runs. Devices are compared with one another, so all must be
/// measured alike.
///
/// Fails for a size or a number of runs of 0.
pub fn profile_device(
    size: usize,
    runs: u32,
    memory_bytes: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<DeviceProfile, TrainError> {
    for (setting, found) in [("size", size as u64), ("runs", runs.into())] {
        check(found > 0, setting, "at least 1", found)?;
    }
    let random = CounterRandom::new(size as u64, 0);
    let matrix: Vec<f32> = (0..(size * size) as u64).map(|at| random.unit(at)).collect();
    let mut copied = vec![0.0f32; matrix.len()];
    let copy_seconds = mean_seconds(runs, || {
        copied.copy_from_slice(&matrix);
        std::hint::black_box(&mut copied);
    });
    progress(1, 3);
    let (sparse, workspace) = (sparse(size, random), Workspace::default());
    let spmm_seconds = mean_seconds(runs, || {
        workspace.give(std::hint::black_box(sparse.product(&matrix, size, &workspace)));
    });
    progress(2, 3);
    let dense = Matrix::new(matrix, size);
    let mm_seconds = mean_seconds(runs, || {
        workspace.give_matrix(std::hint::black_box(dense.times(dense.view(), &workspace)));
    });
    progress(3, 3);
    Ok(DeviceProfile {
        name: "cpu".to_owned(),
        h2d_seconds: copy_seconds,
        d2h_seconds: copy_seconds,
        idt_seconds: copy_seconds,
        spmm_seconds,
        mm_seconds,
        memory_bytes,
    })
}

/// Returns a square matrix with this many entries in each row, in random columns.
fn sparse(size: usize, random: CounterRandom) -> Spmm {
    let per_row = ENTRIES_PER_ROW.min(size);
    let n_entries = size * per_row;
    let sources = (0..n_entries as u64).map(|at| (random.bits(at) % size as u64) as u32).collect();
    let offsets = (0..=size).map(|row| (row * per_row) as u32).collect();
    let block = Block { n_src: size as u32, n_dst: size as u32, offsets, sources };
    Spmm::new(Arc::new(block), vec![1.0; n_entries], OwnRows::Added(vec![0.0; size].into()))
}

fn mean_seconds(runs: u32, mut job: impl FnMut()) -> f64 {
    job();
    let start = Instant::now();
    for _ in 0..runs {
        job();
    }
    start.elapsed().as_secs_f64() / f64::from(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_a_time_and_larger_jobs_take_longer() {
        let mut jobs = Vec::new();
        let small = profile_device(8, 3, 5, &mut |done, of| jobs.push((done, of))).unwrap();
        assert_eq!(jobs, [(1, 3), (2, 3), (3, 3)]);
        let large = profile_device(256, 3, 5, &mut |_, _| ()).unwrap();
        assert_eq!((small.name.as_str(), small.memory_bytes), ("cpu", 5));
        for (small, large) in [
            (small.h2d_seconds, large.h2d_seconds),
            (small.spmm_seconds, large.spmm_seconds),
            (small.mm_seconds, large.mm_seconds),
        ] {
            assert!(small > 0.0 && large > small, "{small} {large}");
        }
    }

    #[test]
    fn nothing_cannot_be_measured() {
        assert!(profile_device(0, 3, 5, &mut |_, _| ()).unwrap_err().to_string().contains("size"));
        assert!(profile_device(3, 0, 5, &mut |_, _| ()).unwrap_err().to_string().contains("runs"));
    }
}
