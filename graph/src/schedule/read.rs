//! Reading a schedule: batches one by one, each checked.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::block::{self, FRAME_BYTES, Place, Shape};
use super::footer::{FOOTER_BYTES, Footer, crc_of};
use super::header::{self, HEADER_BYTES, ScheduleHeader};
use super::partial::is_of;
use super::{ScheduleError, ScheduleSpec};
use crate::batch::Batch;
use crate::book::PartitionBook;
use crate::file_error::FileError;
use crate::header::{array, u32_at};
use crate::ids::NodeId;
use crate::sampler::epoch_order;

/// An open schedule. Threads may share it; each batch is one read at its own place.
#[derive(Debug)]
pub struct Schedule {
    path: PathBuf,
    file: File,
    n_bytes: u64,
    header: ScheduleHeader,
    footer: Footer,
    /// Batches before each worker's in an epoch, then those of all workers.
    first_batch_of: Vec<u64>,
    /// Where each block starts, then where the last one ends.
    offsets: Vec<u64>,
}

impl Schedule {
    /// Opens the file and checks all of it but the batches, which are checked when read.
    pub fn open(path: &Path) -> Result<Self, ScheduleError> {
        let raw = RawFile::open(path)?;
        let mut page = [0; HEADER_BYTES];
        raw.read(0, &mut page)?;
        let header = header::decode(&page, path)?;
        let (footer, footer_at) = raw.footer(&header)?;
        let (index_at, index) = raw.index(&header, &footer, footer_at)?;
        let (counts, offsets) = index.split_at(4 * header.spec.workers as usize);
        let first_batch_of = raw.first_batches(&header, &footer, counts)?;
        let offsets = raw.offsets(offsets, index_at)?;
        let RawFile { path, file, n_bytes } = raw;
        Ok(Self { path, file, n_bytes, header, footer, first_batch_of, offsets })
    }

    /// Checks that the schedule was made for the graph with this uuid and number of nodes. Until
    /// then its ids may be those of any graph.
    pub fn expect_graph(&self, uuid: [u8; 16], n_nodes: u32) -> Result<(), ScheduleError> {
        let found = self.header.spec.graph_uuid;
        if (found, self.header.n_nodes) == (uuid, n_nodes) {
            return Ok(());
        }
        Err(ScheduleError::Graph {
            path: self.path.clone(),
            expected: uuid,
            expected_nodes: n_nodes,
            found,
            found_nodes: self.header.n_nodes,
        })
    }

    /// Returns the run that the schedule describes.
    #[must_use]
    pub fn spec(&self) -> &ScheduleSpec {
        &self.header.spec
    }

    /// Returns the number of nodes of the graph; all ids are below it.
    #[must_use]
    pub fn n_nodes(&self) -> u32 {
        self.header.n_nodes
    }

    /// Batches of `worker` in each epoch; 0 for a worker that does not exist.
    #[must_use]
    pub fn n_batches(&self, worker: u32) -> u32 {
        let ends = self.first_batch_of.get(worker as usize..).unwrap_or_default();
        ends.get(..2).map_or(0, |ends| (ends[1] - ends[0]) as u32)
    }

    /// Returns the most input nodes of one batch: RapidGNN's m_max (section 3), over all workers.
    #[must_use]
    pub fn max_ids(&self) -> u32 {
        self.footer.max_ids
    }

    /// Returns the input nodes of all batches.
    #[must_use]
    pub fn n_ids(&self) -> u64 {
        self.footer.n_ids
    }

    /// Returns the BLAKE3 of the content, as the writer gave it, in hexadecimal digits.
    #[must_use]
    pub fn digest_hex(&self) -> String {
        blake3::Hash::from_bytes(self.footer.digest).to_hex().to_string()
    }

    /// Returns the size of the file.
    #[must_use]
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Returns one batch.
    pub fn get(&self, worker: u32, epoch: u32, batch: u32) -> Result<Batch, ScheduleError> {
        if epoch >= self.spec().epochs || batch >= self.n_batches(worker) {
            return Err(ScheduleError::NoSuchBatch { epoch, worker, batch });
        }
        let per_epoch = self.first_batch_of[self.spec().workers as usize];
        let first = u64::from(epoch) * per_epoch + self.first_batch_of[worker as usize];
        let block_no = (first + u64::from(batch)) as usize;
        let (start, end) = (self.offsets[block_no], self.offsets[block_no + 1]);
        let mut bytes = vec![0; (end - start) as usize];
        let read = self.file.read_exact_at(&mut bytes, start);
        read.map_err(FileError::at(&self.path, "read"))?;
        let place = Place { epoch, worker, batch };
        let shape = Shape::of(self.spec(), self.header.n_nodes);
        block::decode(&bytes, place, self.header.crc, &shape).map_err(|fault| {
            ScheduleError::Block {
                path: self.path.clone(),
                offset: start,
                epoch,
                worker,
                batch,
                fault,
            }
        })
    }

    /// Returns the batches of one worker and epoch, in order, each read when it is asked for.
    pub fn batches(
        &self,
        worker: u32,
        epoch: u32,
    ) -> impl Iterator<Item = Result<Batch, ScheduleError>> {
        (0..self.n_batches(worker)).map(move |batch| self.get(worker, epoch, batch))
    }

    /// Fails if there is a file at `path` that does not begin as a schedule does. It is no schedule
    /// and must not be replaced.
    pub fn refuse_other_file(path: &Path) -> Result<(), ScheduleError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(FileError::at(path, "look at")(error).into()),
        };
        let mut found = Vec::new();
        let read = file.take(header::MAGIC.len() as u64).read_to_end(&mut found);
        read.map_err(FileError::at(path, "read"))?;
        if header::MAGIC.starts_with(&found) {
            return Ok(());
        }
        let found = "another file; move it away, or give another name";
        Err(ScheduleError::format(path, "the name is taken", "no file, or a schedule", found))
    }
}

/// Returns whether `path` holds the whole schedule that [`super::write_schedule`] would write for
/// these arguments. A file that is damaged where this looks is none.
///
/// The header says all that batches depend on but the list of roots. Every epoch goes through all
/// of them, so the first decides whether they are the same: its batches are read, the others not.
#[must_use]
pub fn is_schedule_of(
    spec: &ScheduleSpec,
    n_nodes: u32,
    book: &PartitionBook,
    train_roots: &[NodeId],
    path: &Path,
) -> bool {
    let Ok(schedule) = Schedule::open(path) else { return false };
    if schedule.spec() != spec || schedule.n_nodes() != n_nodes {
        return false;
    }
    has_roots(&schedule, book, train_roots).unwrap_or(false)
}

fn has_roots(
    schedule: &Schedule,
    book: &PartitionBook,
    train_roots: &[NodeId],
) -> Result<bool, ScheduleError> {
    let plan = schedule.spec().roots(book);
    let order = epoch_order(plan.seed, 0, train_roots);
    for worker in 0..plan.workers {
        let batches = plan.batches(&order, worker);
        if batches.len() as u64 != u64::from(schedule.n_batches(worker)) {
            return Ok(false);
        }
        for (found, roots) in schedule.batches(worker, 0).zip(batches) {
            if !is_of(found?.roots(), &roots) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// A file of which nothing is known yet but its size.
struct RawFile {
    path: PathBuf,
    file: File,
    n_bytes: u64,
}

impl RawFile {
    fn open(path: &Path) -> Result<Self, ScheduleError> {
        let file = File::open(path).map_err(FileError::at(path, "open"))?;
        let n_bytes = file.metadata().map_err(FileError::at(path, "measure"))?.len();
        let raw = Self { path: path.to_owned(), file, n_bytes };
        let least = (HEADER_BYTES + FOOTER_BYTES) as u64;
        if n_bytes < least {
            let expected = format!("at least {least} bytes");
            return Err(ScheduleError::format(path, "file size", expected, n_bytes));
        }
        Ok(raw)
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), ScheduleError> {
        Ok(self.file.read_exact_at(bytes, at).map_err(FileError::at(&self.path, "read"))?)
    }

    /// Returns the footer and where it starts.
    fn footer(&self, header: &ScheduleHeader) -> Result<(Footer, u64), ScheduleError> {
        let offset = self.n_bytes - FOOTER_BYTES as u64;
        let mut bytes = [0; FOOTER_BYTES];
        self.read(offset, &mut bytes)?;
        Ok((Footer::decode(&bytes, header.crc, &self.path, offset)?, offset))
    }

    /// Returns where the index starts, and its bytes: a count for each worker, an offset for each
    /// batch.
    fn index(
        &self,
        header: &ScheduleHeader,
        footer: &Footer,
        footer_at: u64,
    ) -> Result<(u64, Vec<u8>), ScheduleError> {
        let counts_bytes = 4 * u64::from(header.spec.workers);
        let index_bytes = footer.n_batches.checked_mul(8).and_then(|b| b.checked_add(counts_bytes));
        let index_at = index_bytes.and_then(|bytes| footer_at.checked_sub(bytes));
        let index_at = index_at.filter(|&at| at >= HEADER_BYTES as u64).ok_or_else(|| {
            let expected = format!("room for {} batches", footer.n_batches);
            let found = format!("a file of {} bytes", self.n_bytes);
            ScheduleError::format(&self.path, "index", expected, found)
        })?;
        // No longer than the file, so no larger than what is really there.
        let mut bytes = vec![0; (footer_at - index_at) as usize];
        self.read(index_at, &mut bytes)?;
        let found = crc_of(header.crc, &[&bytes]);
        ScheduleError::check_crc(&self.path, "index", index_at, footer.index_crc, found)?;
        Ok((index_at, bytes))
    }

    /// Returns the starts of the blocks, which must follow each other from the header to the index.
    fn offsets(&self, bytes: &[u8], index_at: u64) -> Result<Vec<u64>, ScheduleError> {
        let mut offsets: Vec<u64> =
            bytes.chunks_exact(8).map(|bytes| u64::from_le_bytes(array(bytes, 0))).collect();
        offsets.push(index_at);
        let follows = |ends: &[u64]| ends[0].saturating_add(FRAME_BYTES as u64) <= ends[1];
        if offsets[0] != HEADER_BYTES as u64 || !offsets.windows(2).all(follows) {
            let expected = "blocks one after the other from the header on";
            return Err(ScheduleError::format(&self.path, "index", expected, "other offsets"));
        }
        Ok(offsets)
    }

    /// Returns the running sums of the workers' batches, which must account for every batch.
    fn first_batches(
        &self,
        header: &ScheduleHeader,
        footer: &Footer,
        counts: &[u8],
    ) -> Result<Vec<u64>, ScheduleError> {
        let mut sums = vec![0u64];
        let mut sum = 0u64;
        sums.extend(counts.chunks_exact(4).map(|count| {
            sum += u64::from(u32_at(count, 0)); // at most 2¹⁶ counts below 2³²
            sum
        }));
        if sum.checked_mul(header.spec.epochs.into()) != Some(footer.n_batches) {
            let expected = format!("{} batches in all", footer.n_batches);
            let found = format!("{sum} in each of {} epochs", header.spec.epochs);
            return Err(ScheduleError::format(&self.path, "index", expected, found));
        }
        Ok(sums)
    }
}
