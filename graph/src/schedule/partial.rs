//! The file of a schedule while it grows: `NAME.partial`, until it is whole.
//!
//! Blocks are appended one by one. A file that was left behind, also by a crash, is resumed after
//! its last sound block.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::block::{self, Encoded, FRAME_BYTES, Place, Shape};
use super::footer::{Footer, crc_of};
use super::header::{self, HEADER_BYTES};
use super::{ScheduleError, ScheduleSpec};
use crate::file_error::FileError;
use crate::ids::NodeId;

/// Bytes between two syncs: more than this is not lost when the power fails.
const SYNC_BYTES: u64 = 256 << 20;

/// How long a lock may be held before it is another run's.
const LOCK_PATIENCE: Duration = Duration::from_millis(250);

/// A file that grows by one block after the other; it stays there when dropped before it is whole.
pub(super) struct Partial {
    path: PathBuf,
    file: File,
    header_crc: u32,
    shape: Shape,
    /// Bytes that a run before has left; those past the blocks that are accounted for are not
    /// known to be sound.
    left_bytes: u64,
    synced_bytes: u64,
    /// Batches per epoch of each worker.
    batches_of: Vec<u32>,
    /// Where each block starts, then where the next one will.
    offsets: Vec<u64>,
    footer: Footer,
    digest: blake3::Hasher,
}

/// Opens the file called `path`, or creates it, and locks it. Fails for a link, behind which is
/// another file than an unfinished schedule.
///
/// The earlier holder of the lock may have renamed the file to its final name meanwhile, or removed
/// it. Then the lock is that of a file that must not be touched, and the name is opened again.
fn open_locked(path: &Path) -> Result<File, ScheduleError> {
    loop {
        let mut options = File::options();
        refuse_link(path)?;
        // It is not truncated: nothing has changed until the name is looked at again.
        let file = options.read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(FileError::at(path, "create"))?;
        lock(&file, path)?;
        let own = file.metadata().map_err(FileError::at(path, "measure"))?;
        refuse_link(path)?;
        match fs::symlink_metadata(path) {
            Ok(named) if (named.dev(), named.ino()) == (own.dev(), own.ino()) => return Ok(file),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(FileError::at(path, "measure")(error).into());
            }
            _ => {}
        }
    }
}

/// Fails for a link, and for a file that has another name too.
fn refuse_link(path: &Path) -> Result<(), ScheduleError> {
    let is_link = |found: &fs::Metadata| found.is_symlink() || found.nlink() > 1;
    if !fs::symlink_metadata(path).is_ok_and(|found| is_link(&found)) {
        return Ok(());
    }
    let (expected, found) =
        ("no file, or an unfinished schedule", "a link to another file; remove it");
    Err(ScheduleError::format(path, "the name is taken", expected, found))
}

/// Locks a file for this run. A lock is waited for a moment: a process that starts another one has,
/// until that runs, its locks twice. A file system without locks has to do without.
fn lock(file: &File, path: &Path) -> Result<(), ScheduleError> {
    let end = Instant::now() + LOCK_PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < end => {
                thread::sleep(LOCK_PATIENCE / 50);
            }
            Err(TryLockError::WouldBlock) => {
                return Err(ScheduleError::Busy { path: path.to_owned() });
            }
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                return Ok(());
            }
            Err(TryLockError::Error(error)) => {
                return Err(FileError::at(path, "lock")(error).into());
            }
        }
    }
}

impl Partial {
    /// Opens the partial file of the schedule at `path`, or creates it. One of another run is
    /// emptied.
    pub(super) fn open(
        path: &Path,
        spec: &ScheduleSpec,
        n_nodes: u32,
    ) -> Result<Self, ScheduleError> {
        let mut name = OsString::from(path);
        name.push(".partial");
        let partial = PathBuf::from(name);
        let file = open_locked(&partial)?;
        let (header, header_crc) = header::encode(spec, n_nodes);
        let mut growing = Self {
            path: partial,
            file,
            header_crc,
            shape: Shape::of(spec, n_nodes),
            left_bytes: 0,
            synced_bytes: 0,
            batches_of: vec![0; spec.workers as usize],
            offsets: vec![HEADER_BYTES as u64],
            footer: Footer::default(),
            digest: blake3::Hasher::new(),
        };
        growing.digest.update(&header);
        growing.begin(&header)?;
        Ok(growing)
    }

    /// Keeps what is there if it begins with `header`, and empties the file of another run.
    ///
    /// Fails for a file that is no schedule: it belongs to another user.
    fn begin(&mut self, header: &[u8; HEADER_BYTES]) -> Result<(), ScheduleError> {
        let n_bytes = self.file.metadata().map_err(FileError::at(&self.path, "measure"))?.len();
        let mut found = [0; HEADER_BYTES];
        let n_found = n_bytes.min(HEADER_BYTES as u64) as usize;
        self.read_at(&mut found[..n_found], 0)?;
        let magic = &found[..n_found.min(header::MAGIC.len())];
        // A crash before the first sync may leave a part of the header, or zeros, and no more.
        let is_torn = n_bytes <= HEADER_BYTES as u64 && found.iter().all(|&byte| byte == 0);
        let is_ours = header::MAGIC.starts_with(magic) || is_torn;
        if !is_ours {
            let expected = "no file, or an unfinished schedule";
            let found = "another file; move it away, or give another name";
            return Err(ScheduleError::format(&self.path, "the name is taken", expected, found));
        }
        if found == *header {
            self.left_bytes = n_bytes;
            return Ok(());
        }
        self.file.set_len(0).map_err(FileError::at(&self.path, "empty"))?;
        self.write_at(header, 0)?;
        Ok(self.file.sync_data().map_err(FileError::at(&self.path, "sync"))?)
    }

    pub(super) fn header_crc(&self) -> u32 {
        self.header_crc
    }

    /// Batches that are in the file.
    pub(super) fn n_batches(&self) -> u64 {
        self.footer.n_batches
    }

    /// Takes the next block that a run before has left, if it is sound and holds the batch of
    /// `place` and `roots`. Otherwise all that follows is given up, and false comes back.
    pub(super) fn take_up(
        &mut self,
        place: Place,
        roots: &[NodeId],
    ) -> Result<bool, ScheduleError> {
        let start = self.end();
        if self.left_bytes <= start {
            return Ok(false);
        }
        if let Some(block) = self.left_block(start, place, roots)? {
            self.account(place, &block);
            return Ok(true);
        }
        self.file.set_len(start).map_err(FileError::at(&self.path, "shorten"))?;
        self.left_bytes = 0;
        Ok(false)
    }

    /// Returns the block that starts at `start`, if a sound one is there.
    fn left_block(
        &self,
        start: u64,
        place: Place,
        roots: &[NodeId],
    ) -> Result<Option<Encoded>, ScheduleError> {
        let left_bytes = self.left_bytes - start;
        let mut frame = [0; FRAME_BYTES];
        if left_bytes < FRAME_BYTES as u64 {
            return Ok(None);
        }
        self.read_at(&mut frame, start)?;
        let n_bytes = block::len_of(&frame);
        if n_bytes as u64 > left_bytes {
            return Ok(None);
        }
        // No more than the file really has.
        let mut bytes = vec![0; n_bytes];
        self.read_at(&mut bytes, start)?;
        let found = block::decode_with_digest(&bytes, place, self.header_crc, &self.shape);
        Ok(found.ok().filter(|(batch, _)| is_of(batch.roots(), roots)).map(|(batch, digest)| {
            let n_ids = batch.nodes.len() as u32;
            Encoded { bytes, n_ids, digest }
        }))
    }

    /// Appends the block of `place`.
    pub(super) fn push(&mut self, place: Place, block: &Encoded) -> Result<(), ScheduleError> {
        self.write_at(&block.bytes, self.end())?;
        self.account(place, block);
        if self.end() - self.synced_bytes >= SYNC_BYTES {
            self.file.sync_data().map_err(FileError::at(&self.path, "sync"))?;
            self.synced_bytes = self.end();
        }
        Ok(())
    }

    fn account(&mut self, place: Place, block: &Encoded) {
        self.offsets.push(self.end() + block.bytes.len() as u64);
        self.digest.update(&block.digest);
        self.footer.n_batches += 1;
        self.footer.n_ids += u64::from(block.n_ids);
        self.footer.max_ids = self.footer.max_ids.max(block.n_ids);
        if place.epoch == 0 {
            self.batches_of[place.worker as usize] += 1;
        }
    }

    /// Seals the file, makes it durable, and returns it its name. Returns the footer and the size.
    pub(super) fn finish(mut self, path: &Path) -> Result<(Footer, u64), ScheduleError> {
        let index_at = self.offsets.pop().unwrap_or_default();
        let mut tail = Vec::with_capacity(4 * self.batches_of.len() + 8 * self.offsets.len());
        tail.extend(self.batches_of.iter().flat_map(|count| count.to_le_bytes()));
        tail.extend(self.offsets.iter().flat_map(|offset| offset.to_le_bytes()));
        self.footer.index_crc = crc_of(self.header_crc, &[&tail]);
        self.footer.digest = *self.digest.finalize().as_bytes();
        tail.extend(self.footer.encode(self.header_crc));
        // What a run before has left behind its last block would follow the footer.
        self.file.set_len(index_at).map_err(FileError::at(&self.path, "shorten"))?;
        self.write_at(&tail, index_at)?;
        self.file.sync_all().map_err(FileError::at(&self.path, "sync"))?;
        let named = fs::rename(&self.path, path).and_then(|()| sync_directory_of(path));
        named.map_err(FileError::at(path, "finish"))?;
        Ok((self.footer, index_at + tail.len() as u64))
    }

    /// Removes the file: no run will ever complete it.
    pub(super) fn remove(self) {
        // There is no receiver for the error, and the name shows the kind of the file.
        let _ = fs::remove_file(&self.path);
    }

    /// Returns where the next block goes.
    fn end(&self) -> u64 {
        self.offsets.last().copied().unwrap_or_default()
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> Result<(), ScheduleError> {
        Ok(self.file.read_exact_at(bytes, at).map_err(FileError::at(&self.path, "read"))?)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> Result<(), ScheduleError> {
        Ok(self.file.write_all_at(bytes, at).map_err(FileError::at(&self.path, "write"))?)
    }
}

/// Returns whether a batch with the distinct roots `found` is one of `roots`, which may repeat.
pub(super) fn is_of(found: &[NodeId], roots: &[NodeId]) -> bool {
    if found == roots {
        return true;
    }
    let mut seen = std::collections::HashSet::new();
    roots.iter().filter(|&&root| seen.insert(root)).eq(found)
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}
