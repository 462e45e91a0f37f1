//! Writing a schedule: sampled by all threads, written by one, in memory of a few batches.

use std::num::NonZero;
use std::path::Path;
use std::sync::mpsc::{channel, sync_channel};
use std::thread;
use std::time::Instant;

use serde::Serialize;

use super::block::{self, Encoded, MAX_RAW_BYTES, Place};
use super::partial::Partial;
use super::{Schedule, ScheduleError, ScheduleSpec};
use crate::book::PartitionBook;
use crate::file_error::FileError;
use crate::ids::NodeId;
use crate::output_file::OutputPlace;
use crate::sampler::{Sampler, epoch_order};
use crate::topology::Topology;

/// A schedule that was written.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScheduleSummary {
    /// BLAKE3 of the content, in hexadecimal digits: of the run and of all batches, not of the
    /// compressed bytes of the file.
    pub digest: String,
    /// Batches of all epochs and workers.
    pub batches: u64,
    /// Those of them that a run before had written, and that were found sound.
    pub resumed: u64,
    /// Input nodes of all batches.
    pub ids: u64,
    /// Most input nodes of one batch.
    pub max_ids: u32,
    /// Size of the file.
    pub bytes: u64,
    /// Time taken.
    pub seconds: f64,
}

/// The graph that batches are sampled from.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleInput<'a> {
    /// In-neighbours of all nodes.
    pub topology: &'a Topology,
    /// The partition of each node.
    pub book: &'a PartitionBook,
    /// Nodes to train on.
    pub train_roots: &'a [NodeId],
}

/// Samples every batch of the run that `spec` describes and writes them to `path`, in place of a
/// schedule that may be there. A failure leaves that as it was, and so does a file that is none.
/// `progress` receives batches written and batches to write.
///
/// Until it is whole the file is called `PATH.partial`. A failure or a crash leaves that file, with
/// all batches but those that were being written. The same call takes it up where it ends, once it
/// has checked every batch in it. The one of another run, graph or list of roots is overwritten; a
/// file of that name that is no schedule is an error.
///
/// The content is the same for any `n_threads` (0 counts as 1), taken up or not. Memory does not
/// grow with epochs, but for 16 bytes per batch: each thread holds its sampler and at most three
/// batches.
pub fn write_schedule(
    input: &ScheduleInput<'_>,
    spec: &ScheduleSpec,
    path: &Path,
    n_threads: usize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ScheduleSummary, ScheduleError> {
    let start = Instant::now();
    check(input, spec)?;
    let sampler = || Sampler::new(input.topology, &spec.fanouts);
    let mut samplers: Vec<_> = (0..n_threads.max(1)).map(|_| sampler()).collect();
    let path = match OutputPlace::of(path).map_err(FileError::at(path, "replace"))? {
        OutputPlace::File(place) => place,
        OutputPlace::Stream(_) => {
            let (expected, found) = ("a file, which is read again", "a pipe or a device");
            return Err(ScheduleError::format(path, "the output", expected, found));
        }
    };
    let path = path.as_path();
    Schedule::refuse_other_file(path)?;
    let mut file = Partial::open(path, spec, input.topology.n_nodes())?;
    let mut resumed = 0;
    for epoch in 0..spec.epochs {
        let jobs = jobs_of(input, spec, epoch);
        let n_all = u64::from(spec.epochs) * jobs.len() as u64;
        let mut progress = |n_done| progress(n_done, n_all);
        let n_taken = take_up(&mut file, &jobs, &mut progress)?;
        resumed += n_taken as u64;
        match sample(&mut file, &jobs[n_taken..], &mut samplers, &mut progress) {
            Ok(()) => {}
            Err(error @ ScheduleError::TooLarge { .. }) => {
                file.remove();
                return Err(error);
            }
            Err(error) => return Err(error),
        }
    }
    let (footer, bytes) = file.finish(path)?;
    Ok(ScheduleSummary {
        digest: blake3::Hash::from_bytes(footer.digest).to_hex().to_string(),
        batches: footer.n_batches,
        resumed,
        ids: footer.n_ids,
        max_ids: footer.max_ids,
        bytes,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// Fails for what no schedule can be made of.
fn check(input: &ScheduleInput<'_>, spec: &ScheduleSpec) -> Result<(), ScheduleError> {
    let ScheduleInput { topology, book, train_roots } = input;
    let n_nodes = topology.n_nodes();
    spec.check()?;
    if book.n_nodes() != n_nodes {
        return Err(ScheduleError::Book { book: book.n_nodes(), topology: n_nodes });
    }
    match train_roots.iter().position(|root| root.0 >= n_nodes) {
        Some(position) => {
            Err(ScheduleError::Root { position, found: train_roots[position], n_nodes })
        }
        None => Ok(()),
    }
}

/// Batches that are sampled for an estimate.
const N_ESTIMATED: usize = 8;

/// Disk space that a run will roughly take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Bytes of the schedule.
    pub schedule_bytes: u64,
    /// Bytes of the [`super::NextUses`] of all workers, which only the oracle has.
    pub next_use_bytes: u64,
}

/// Returns what [`write_schedule`] will take for the same arguments: by some batches of the first
/// epoch, and the roots in them.
pub fn estimate_bytes(
    input: &ScheduleInput<'_>,
    spec: &ScheduleSpec,
) -> Result<Estimate, ScheduleError> {
    check(input, spec)?;
    let mut jobs = jobs_of(input, spec, 0);
    // A worker may have no root in a global batch.
    jobs.retain(|job| !job.roots.is_empty());
    let mut sampler = Sampler::new(input.topology, &spec.fanouts);
    let (mut n_bytes, mut n_sampled_ids, mut n_sampled_roots) = (0u64, 0u64, 0u64);
    for job in jobs.iter().step_by(jobs.len().div_ceil(N_ESTIMATED).max(1)) {
        let encoded = match sampler.sample_at_most(&job.roots, job.seed, MAX_WORDS) {
            Ok(batch) => block::encode(&batch, job.place, 0),
            Err(_) => continue, // writing will say so
        };
        let Ok(Encoded { bytes, n_ids, .. }) = encoded else { continue };
        // With its place in the index.
        n_bytes += bytes.len() as u64 + 8;
        n_sampled_ids += u64::from(n_ids);
        n_sampled_roots += job.roots.len() as u64;
    }
    let n_roots: u64 = jobs.iter().map(|job| job.roots.len() as u64).sum();
    let n_roots = u128::from(n_roots) * u128::from(spec.epochs);
    let of_all = |sampled: u64| {
        let all = (u128::from(sampled) * n_roots).checked_div(u128::from(n_sampled_roots));
        u64::try_from(all.unwrap_or(0)).unwrap_or(u64::MAX)
    };
    let next_use_bytes = of_all(size_of::<u32>() as u64 * n_sampled_ids);
    Ok(Estimate { schedule_bytes: of_all(n_bytes), next_use_bytes })
}

/// Edges of a batch at most: a block that holds more is past its bound in any case.
const MAX_WORDS: u32 = (MAX_RAW_BYTES / 4) as u32;

/// A batch to sample.
struct Job {
    place: Place,
    seed: u64,
    roots: Vec<NodeId>,
}

/// Returns the batches of an epoch in the order of the file.
fn jobs_of(input: &ScheduleInput<'_>, spec: &ScheduleSpec, epoch: u32) -> Vec<Job> {
    let (plan, mut jobs) = (spec.roots(input.book), Vec::new());
    let order = epoch_order(spec.seed, epoch, input.train_roots);
    for worker in 0..spec.workers {
        jobs.extend((0..).zip(plan.batches(&order, worker)).map(|(batch, roots)| Job {
            place: Place { epoch, worker, batch },
            seed: plan.seed_of(worker, epoch, batch),
            roots,
        }));
    }
    jobs
}

/// Takes up as many of the first `jobs` as a run before has left; returns how many.
fn take_up(
    file: &mut Partial,
    jobs: &[Job],
    progress: &mut dyn FnMut(u64),
) -> Result<usize, ScheduleError> {
    for (n_taken, job) in jobs.iter().enumerate() {
        if !file.take_up(job.place, &job.roots)? {
            return Ok(n_taken);
        }
        progress(file.n_batches());
    }
    Ok(jobs.len())
}

/// Samples `jobs` with a thread per sampler, or as many as are available, and writes them in order.
///
/// Thread t takes every job t, t + threads, … and sends its results through its own channel. So the
/// order needs no buffer, and a thread that runs ahead waits for the writer.
fn sample(
    file: &mut Partial,
    jobs: &[Job],
    samplers: &mut [Sampler<'_>],
    progress: &mut dyn FnMut(u64),
) -> Result<(), ScheduleError> {
    let header_crc = file.header_crc();
    let encode = |sampler: &mut Sampler<'_>, job: &Job| match sampler
        .sample_at_most(&job.roots, job.seed, MAX_WORDS)
    {
        Ok(batch) => block::encode(&batch, job.place, header_crc),
        Err(too_many) => Err(4 * too_many.found),
    };
    thread::scope(|scope| {
        let (mut starts, mut blocks) = (Vec::new(), Vec::new());
        for _ in 0..samplers.len() {
            let (start, started) = channel::<(&mut Sampler<'_>, _)>();
            let (sender, receiver) = sync_channel(1);
            let work = move || {
                let Ok((sampler, mine)) = started.recv() else { return };
                for job in mine {
                    if sender.send(encode(sampler, job)).is_err() {
                        return; // the writer has failed
                    }
                }
            };
            if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
            starts.push(start);
            blocks.push(receiver);
        }
        let Some(n_threads) = NonZero::new(starts.len()) else {
            let alone = &mut samplers[0];
            return jobs.iter().try_for_each(|job| write(file, job, encode(alone, job), progress));
        };
        // Only now is it known how many share the jobs.
        for (first, (start, sampler)) in starts.into_iter().zip(samplers).enumerate() {
            // A thread that has died hangs up, and the scope passes its panic on.
            let _ = start.send((sampler, jobs.iter().skip(first).step_by(n_threads.get())));
        }
        for (job, receiver) in jobs.iter().zip(blocks.iter().cycle()) {
            // A sampler that panicked hangs up; the scope passes its panic on.
            let Ok(encoded) = receiver.recv() else { return Ok(()) };
            write(file, job, encoded, progress)?;
        }
        Ok(())
    })
}

/// Writes the block of a job.
fn write(
    file: &mut Partial,
    job: &Job,
    encoded: Result<Encoded, u64>,
    progress: &mut dyn FnMut(u64),
) -> Result<(), ScheduleError> {
    let Place { epoch, worker, batch } = job.place;
    let encoded = encoded.map_err(|found_bytes| {
        let most_bytes = MAX_RAW_BYTES as u64;
        ScheduleError::TooLarge { epoch, worker, batch, most_bytes, found_bytes }
    })?;
    file.push(job.place, &encoded)?;
    progress(file.n_batches());
    Ok(())
}
