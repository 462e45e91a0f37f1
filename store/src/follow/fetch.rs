//! A file that a follower fetches. It is continued where an earlier try was cut off, and believed
//! only when all of it has been checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Manifest, ManifestTensor};
use crate::catalog::SegmentRecord;
use crate::checksum::PageChecksum;
use crate::error::StoreError;
use crate::file_system::{FileSystem, FileWriter};
use crate::graph::{Graph, check_digest};
use crate::layout::DATA_OFFSET;
use crate::limits::PAGE_BYTES;
use crate::new_file::{discard, temporary_of};
use crate::segment::{Segment, SegmentIdentity};
use crate::update::GraphHandle;
use crate::verify::read_back;

/// Bytes of an earlier try are copied in pieces of this size.
const COPY_BYTES: u64 = 1 << 20;

/// How all of a file is checked before it is given its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchCheck {
    /// It is read back, as the disk has it.
    ReadBack,
    /// Its pages are checked as they are appended, without a read of the disk. Row groups are not
    /// unpacked: the manifest's digest proves that they are the writer's. For a file that exists
    /// elsewhere: a page that the disk changes is found, as ever, when it is read.
    AsReceived,
}

/// A file of a manifest that is coming.
#[derive(Debug)]
pub struct FetchedFile {
    fs: Arc<dyn FileSystem>,
    path: PathBuf,
    temporary: PathBuf,
    identity: SegmentIdentity,
    record: SegmentRecord,
    file: Box<dyn FileWriter>,
    n_bytes: u64,
    /// Where it is checked as it is received.
    sums: Option<PageSums>,
}

/// Checksums of the pages of a segment, computed while its bytes come.
#[derive(Debug)]
struct PageSums {
    checksum: PageChecksum,
    /// One of each whole page of the file; those of header, tables and footer are not used.
    sums: Vec<u32>,
    /// That of the page that is not whole yet.
    partial: crc32fast::Hasher,
    /// Bytes of that page.
    n_partial: usize,
}

impl FetchedFile {
    /// Begins a file of a manifest in the folder of its partition, or continues it. Returns `None`
    /// where all of its `expected` bytes are there. A file that has its name stays until it is
    /// replaced.
    ///
    /// Nothing may have the file open under its name. An earlier try may have failed to sync what
    /// it left, and later syncs of the same data do not report that. So bytes that are continued
    /// are copied to a new file, and a file that is complete is given its name again.
    ///
    /// Fails for a name that the manifest does not have.
    pub fn begin(
        graph: &Graph,
        manifest: &Manifest,
        name: &str,
        expected: u64,
        check: FetchCheck,
    ) -> Result<Option<Self>, StoreError> {
        let (identity, record) = find(graph, manifest, name)?;
        let fs = Arc::clone(graph.file_system());
        let path = graph.part_dir(manifest.part).join(name);
        let temporary = temporary_of(&path);
        if fs.exists(&path) {
            // Its rows were checked and synced before it was given its name.
            let open = Segment::open(&*fs, &path, &identity);
            if open.and_then(|segment| check_digest(&segment, &record)).is_ok() {
                let renamed = fs.replace(&path, &temporary);
                renamed.map_err(StoreError::io(&temporary, "rename to"))?;
                give_name(&*fs, &temporary, &path)?;
                return Ok(None);
            }
        }
        let mut sums = (check == FetchCheck::AsReceived).then(|| PageSums::new(&identity));
        let (file, n_bytes) = begin_or_continue(&*fs, &temporary, expected, &mut sums)?;
        Ok(Some(Self { fs, path, temporary, identity, record, file, n_bytes, sums }))
    }

    /// Does as [`FetchedFile::begin`], in the folder of `live`; `None` also for a file that it
    /// serves. Fails for a manifest that does not follow what is there: its files may have the
    /// names of those that are served.
    pub fn begin_next(
        live: &GraphHandle,
        manifest: &Manifest,
        name: &str,
        expected: u64,
        check: FetchCheck,
    ) -> Result<Option<Self>, StoreError> {
        if live.serves_file_of(manifest, name)? {
            return Ok(None);
        }
        Self::begin(live.graph(), manifest, name, expected, check)
    }

    /// Returns the bytes that have come.
    #[must_use]
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Appends what has come next.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file.append(bytes).map_err(StoreError::io(&self.temporary, "write"))?;
        if let Some(sums) = &mut self.sums {
            sums.add(bytes);
        }
        self.n_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Syncs the file, checks all of it, and renames it.
    ///
    /// Files that are damaged or cannot be synced are removed, so that the next try starts from
    /// nothing. A later sync would not report what the system has dropped.
    pub fn finish(mut self) -> Result<(), StoreError> {
        let synced = self.file.sync().map_err(StoreError::io(&self.temporary, "sync"));
        if let Err(error) = synced.and_then(|()| self.check()) {
            let removed = self.fs.remove_file(&self.temporary);
            removed.map_err(StoreError::io(&self.temporary, "remove"))?;
            return Err(error);
        }
        give_name(&*self.fs, &self.temporary, &self.path)
    }

    fn check(&self) -> Result<(), StoreError> {
        let Some(sums) = &self.sums else {
            let segment = read_back(&*self.fs, &self.temporary, &self.identity)?;
            return check_digest(&segment, &self.record);
        };
        let segment = Segment::open(&*self.fs, &self.temporary, &self.identity)?;
        sums.check(&segment)?;
        check_digest(&segment, &self.record)
    }
}

impl PageSums {
    fn new(identity: &SegmentIdentity) -> Self {
        let checksum = PageChecksum::new(identity.segment);
        let partial = checksum.begin(0);
        Self { checksum, sums: Vec::new(), partial, n_partial: 0 }
    }

    /// Adds the bytes that follow.
    fn add(&mut self, mut bytes: &[u8]) {
        const PAGE: usize = PAGE_BYTES as usize;
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(bytes.len().min(PAGE - self.n_partial));
            self.partial.update(piece);
            self.n_partial += piece.len();
            if self.n_partial == PAGE {
                // Pages are counted from the first one after the header.
                let next = self.checksum.begin(self.sums.len() as u64);
                self.sums.push(std::mem::replace(&mut self.partial, next).finalize());
                self.n_partial = 0;
            }
            bytes = rest;
        }
    }

    /// Fails for the first page of rows that does not fit the segment's table.
    fn check(&self, segment: &Segment) -> Result<(), StoreError> {
        let of_rows = self.sums.get((DATA_OFFSET / PAGE_BYTES) as usize..).unwrap_or_default();
        for page in 0..segment.layout().n_pages() {
            // The file has the segment's length: each of its pages has come.
            segment.check_sum(page, of_rows.get(page as usize).copied().unwrap_or_default())?;
        }
        Ok(())
    }
}

/// Moves a synced file to its name, durably.
fn give_name(fs: &dyn FileSystem, temporary: &Path, path: &Path) -> Result<(), StoreError> {
    fs.replace(temporary, path).map_err(StoreError::io(path, "rename to"))?;
    let dir = path.parent().expect("a file of a partition is in its folder");
    fs.sync(dir).map_err(StoreError::io(dir, "sync")).inspect_err(|_| {
        // A loss of power may take the name, whatever is synced later: it is given again.
        discard(fs, path);
    })
}

/// Creates a file with the bytes of an earlier try, if there are at most `expected`; returns their
/// number.
fn begin_or_continue(
    fs: &dyn FileSystem,
    path: &Path,
    expected: u64,
    sums: &mut Option<PageSums>,
) -> Result<(Box<dyn FileWriter>, u64), StoreError> {
    let mut earlier = None;
    if fs.exists(path) {
        let len = fs.open(path).and_then(|file| Ok((file.len_bytes()?, file)));
        let (n_bytes, file) = len.map_err(StoreError::io(path, "read the length of"))?;
        earlier = (n_bytes <= expected).then_some((n_bytes, file));
        // The open file keeps its bytes.
        fs.remove_file(path).map_err(StoreError::io(path, "remove"))?;
    }
    let mut file = fs.create(path).map_err(StoreError::io(path, "create"))?;
    let Some((n_bytes, earlier)) = earlier else {
        return Ok((file, 0));
    };
    let mut piece = vec![0; n_bytes.min(COPY_BYTES) as usize];
    let mut at = 0;
    while at < n_bytes {
        let piece = &mut piece[..(n_bytes - at).min(COPY_BYTES) as usize];
        earlier.read_exact_at(piece, at).map_err(StoreError::io(path, "read"))?;
        file.append(piece).map_err(StoreError::io(path, "write"))?;
        if let Some(sums) = sums {
            sums.add(piece);
        }
        at += piece.len() as u64;
    }
    Ok((file, n_bytes))
}

/// Returns what a file of a manifest must be.
fn find(
    graph: &Graph,
    manifest: &Manifest,
    name: &str,
) -> Result<(SegmentIdentity, SegmentRecord), StoreError> {
    let part = manifest.part;
    for ManifestTensor { name: tensor, base: (version, base), deltas, .. } in &manifest.tensors {
        if base.file == name {
            let tensor = graph.tensor(tensor)?;
            let identity = graph.segment_identity(part, tensor, *version, base.segment);
            return Ok((identity, base.clone()));
        }
        if let Some(delta) = deltas.iter().find(|delta| delta.record.file == name) {
            let identity = graph.delta_identity(part, graph.tensor(tensor)?, delta);
            return Ok((identity, delta.record.clone()));
        }
    }
    let reason = format!("the writer has a file {name:?} that its manifest does not name");
    Err(StoreError::FollowRefused { part, reason })
}
