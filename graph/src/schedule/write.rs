//! Writing a schedule: sampled by all threads, written by one, in memory of a few batches.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Instant;

use serde::Serialize;

use super::block::{self, Encoded, MAX_RAW_BYTES, Place};
use super::footer::{Footer, crc_of};
use super::{ScheduleError, ScheduleSpec, header};
use crate::sampler::{Sampler, batch_seed, batches_of, epoch_order};
use crate::topology::Topology;
use crate::{NodeId, PartitionBook};

/// A schedule that was written.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScheduleSummary {
    /// BLAKE3 of the content, in hexadecimal digits: of the run and of all batches, not of the
    /// compressed bytes of the file.
    pub digest: String,
    /// Batches of all epochs and workers.
    pub batches: u64,
    /// Input nodes of all batches.
    pub ids: u64,
    /// Most input nodes of one batch.
    pub max_ids: u32,
    /// Size of the file.
    pub bytes: u64,
    /// Time taken.
    pub seconds: f64,
}

/// Samples every batch of the run that `spec` describes and writes them to `path`, in place of a
/// file that may be there; a failure leaves that file as it was. `progress` is told batches
/// written and batches to write.
///
/// The content is the same for any `n_threads` (0 counts as 1). Memory does not grow with epochs,
/// but for 8 bytes per batch: each thread holds its sampler and at most three batches.
pub fn write_schedule(
    topology: &Topology,
    book: &PartitionBook,
    train_roots: &[NodeId],
    spec: &ScheduleSpec,
    path: &Path,
    progress: &mut dyn FnMut(u64, u64),
    n_threads: usize,
) -> Result<ScheduleSummary, ScheduleError> {
    let start = Instant::now();
    let n_nodes = topology.n_nodes();
    spec.check()?;
    if book.n_nodes() != n_nodes {
        return Err(ScheduleError::Book { book: book.n_nodes(), topology: n_nodes });
    }
    if let Some(position) = train_roots.iter().position(|root| root.0 >= n_nodes) {
        let found = train_roots[position];
        return Err(ScheduleError::Root { position, found, n_nodes });
    }
    let sampler = || Sampler::new(topology, &spec.fanouts);
    let mut samplers: Vec<_> = (0..n_threads.max(1)).map(|_| sampler()).collect();
    let mut writer = Writer::create(path, spec, n_nodes)?;
    for epoch in 0..spec.epochs {
        let jobs = jobs_of(spec, book, train_roots, epoch);
        writer.write_epoch(&jobs, &mut samplers, progress)?;
    }
    let (footer, bytes) = writer.finish(path)?;
    Ok(ScheduleSummary {
        digest: blake3::Hash::from_bytes(footer.digest).to_hex().to_string(),
        batches: footer.n_batches,
        ids: footer.n_ids,
        max_ids: footer.max_ids,
        bytes,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// A batch to sample.
struct Job {
    place: Place,
    seed: u64,
    roots: Vec<NodeId>,
}

/// The batches of an epoch in the order of the file.
fn jobs_of(
    spec: &ScheduleSpec,
    book: &PartitionBook,
    train_roots: &[NodeId],
    epoch: u32,
) -> Vec<Job> {
    let order = epoch_order(spec.seed, epoch, train_roots);
    let mut jobs = Vec::new();
    for worker in 0..spec.workers {
        let batches = batches_of(&order, worker, spec.workers, book, spec.batch_size);
        jobs.extend((0..).zip(batches).map(|(batch, roots)| Job {
            place: Place { epoch, worker, batch },
            seed: batch_seed(spec.seed, worker, epoch, batch),
            roots,
        }));
    }
    jobs
}

/// A file under a temporary name; removed when dropped before [`Writer::finish`].
struct Writer {
    partial: PathBuf,
    /// `None` once finished.
    file: Option<BufWriter<File>>,
    header_crc: u32,
    n_epochs: u64,
    /// Batches per epoch of each worker.
    batches_of: Vec<u32>,
    /// Where each block starts, then where the index does.
    offsets: Vec<u64>,
    footer: Footer,
    digest: blake3::Hasher,
}

impl Writer {
    fn create(path: &Path, spec: &ScheduleSpec, n_nodes: u32) -> Result<Self, ScheduleError> {
        let mut name = OsString::from(path);
        name.push(format!(".partial-{}", std::process::id()));
        let partial = PathBuf::from(name);
        let file = File::create(&partial).map_err(io_error(&partial, "create"))?;
        let (header, header_crc) = header::encode(spec, n_nodes);
        let mut writer = Self {
            partial,
            file: Some(BufWriter::new(file)),
            header_crc,
            n_epochs: spec.epochs.into(),
            batches_of: vec![0; spec.workers as usize],
            offsets: vec![header.len() as u64],
            footer: Footer::default(),
            digest: blake3::Hasher::new(),
        };
        writer.digest.update(&header);
        writer.append(&header)?;
        Ok(writer)
    }

    /// Samples `jobs` with a thread per sampler and writes them in order.
    ///
    /// Thread t takes every job t, t + threads, … and hands over through a channel of its own, so
    /// the order needs no buffer, and a thread that runs ahead waits for the writer.
    fn write_epoch(
        &mut self,
        jobs: &[Job],
        samplers: &mut [Sampler<'_>],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), ScheduleError> {
        let (n_threads, header_crc) = (samplers.len(), self.header_crc);
        thread::scope(|scope| {
            let mut blocks = Vec::with_capacity(n_threads);
            for (first, sampler) in samplers.iter_mut().enumerate() {
                let (sender, receiver) = sync_channel(1);
                let mine = jobs.iter().skip(first).step_by(n_threads);
                scope.spawn(move || {
                    for job in mine {
                        let batch = sampler.sample(&job.roots, job.seed);
                        let encoded = block::encode(&batch, job.place, header_crc);
                        if sender.send(encoded).is_err() {
                            return; // the writer has failed
                        }
                    }
                });
                blocks.push(receiver);
            }
            self.write_blocks(jobs, &blocks, progress)
        })
    }

    fn write_blocks(
        &mut self,
        jobs: &[Job],
        blocks: &[Receiver<Result<Encoded, usize>>],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), ScheduleError> {
        for (job, receiver) in jobs.iter().zip(blocks.iter().cycle()) {
            // A sampler that panicked hangs up; the scope passes its panic on.
            let Ok(encoded) = receiver.recv() else { return Ok(()) };
            let Place { epoch, worker, batch } = job.place;
            let encoded = encoded.map_err(|found_bytes| {
                let most_bytes = MAX_RAW_BYTES;
                ScheduleError::TooLarge { epoch, worker, batch, most_bytes, found_bytes }
            })?;
            self.write_block(job.place, &encoded)?;
            progress(self.footer.n_batches, self.n_epochs * jobs.len() as u64);
        }
        Ok(())
    }

    fn write_block(&mut self, place: Place, block: &Encoded) -> Result<(), ScheduleError> {
        self.append(&block.bytes)?;
        let start = self.offsets.last().copied().unwrap_or_default();
        self.offsets.push(start + block.bytes.len() as u64);
        self.digest.update(&block.digest);
        self.footer.n_batches += 1;
        self.footer.n_ids += u64::from(block.n_ids);
        self.footer.max_ids = self.footer.max_ids.max(block.n_ids);
        if place.epoch == 0 {
            self.batches_of[place.worker as usize] += 1;
        }
        Ok(())
    }

    /// Seals the file, makes it durable, and gives it its name. Gives the footer and the size.
    fn finish(mut self, path: &Path) -> Result<(Footer, u64), ScheduleError> {
        let index_at = self.offsets.pop().unwrap_or_default();
        let mut tail = Vec::with_capacity(4 * self.batches_of.len() + 8 * self.offsets.len());
        tail.extend(self.batches_of.iter().flat_map(|count| count.to_le_bytes()));
        tail.extend(self.offsets.iter().flat_map(|offset| offset.to_le_bytes()));
        self.footer.index_crc = crc_of(self.header_crc, &[&tail]);
        self.footer.digest = *self.digest.finalize().as_bytes();
        tail.extend(self.footer.encode(self.header_crc));
        self.append(&tail)?;
        if let Some(file) = self.file.take() {
            let synced = file.into_inner().map_err(io::IntoInnerError::into_error);
            let synced = synced.and_then(|file| file.sync_all());
            let named = synced.and_then(|()| fs::rename(&self.partial, path));
            if let Err(source) = named.and_then(|()| sync_directory_of(path)) {
                // Nothing is there to remove when it was renamed already.
                let _ = fs::remove_file(&self.partial);
                return Err(io_error(path, "finish")(source));
            }
        }
        Ok((self.footer, index_at + tail.len() as u64))
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), ScheduleError> {
        let written = self.file.as_mut().map_or(Ok(()), |file| file.write_all(bytes));
        written.map_err(io_error(&self.partial, "write"))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            // There is nobody to tell, and the name says what it is.
            let _ = fs::remove_file(&self.partial);
        }
    }
}

fn io_error(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> ScheduleError {
    let path = path.to_owned();
    move |source| ScheduleError::Io { path, action, source }
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}
