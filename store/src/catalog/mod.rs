//! The catalog of a partition: its version, which files hold which tensor, and the rows that were
//! put and are not committed yet.
//!
//! A RocksDB. Keys and values (integers little-endian, but for those in keys, which are big-endian
//! so that they sort):
//!
//! ```text
//! identity                    format u32 | graph uuid 16 | partition u32
//! version                     committed version u32
//! segment/NAME/VERSION        format u32 | segment uuid 16 | rows u32 | bytes of a row u32
//!                             | digest 32 | file name
//! delta/NAME/VERSION          first version u32 | as segment/NAME/VERSION
//! prepared/NAME/VERSION       as delta/NAME/VERSION: written by a commit that is not published yet
//! new/NAME/VERSION            as segment/NAME/VERSION, of a tensor that graph.toml may not list
//!                             yet
//! prepared                    the version that a commit has prepared u32 | the commit 16; absent
//!                             without one; of older releases without the commit
//! overlay/NAME/VERSION ROW    the bytes of a row that was put for a version
//! put/VERSION ID              empty: the put of this number 16 was for the version; removed two
//!                             versions later
//! commit/VERSION              the id 16 of the commit that made the version; kept for the last
//!                             2^20 versions, absent for an import's
//! changed                     a version u32 | the partitions that had rows of its commit, among
//!                             those of the process that made it, as a portable roaring bitmap
//! joined                      the version u32 at which the partition came into this folder
//! lost/NAME/VERSION           as segment/NAME/VERSION: the record that the segment had before
//!                             repair declared rows of it lost
//! losses                      what a repair that built or changed this catalog could not keep, as
//!                             text, until a repair has ended and reported it
//! holders                     written by older releases with several writers of a partition; not
//!                             read
//! graph                       the text of graph.toml; absent in catalogs of older releases
//! ```
//!
//! At version V a tensor's layers are the segment of the newest record up to V, and over it the
//! later deltas up to V. Rows that were put are pending. Their version is the one after the
//! committed one, or after the prepared one where there is one.
//!
//! Every write is synced before it returns. Opening for reading takes no lock and creates no file,
//! so that it works on read-only mounts and from several processes concurrently.

mod commits;
mod health;
mod keys;
mod mend;
mod pairs;
mod rows;
mod segments;
mod tensors;

use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodestore_graph::PartId;
use uuid::Uuid;

pub(crate) use commits::ChangedParts;
pub(crate) use mend::{TensorDelta, TensorRecord};
pub(crate) use pairs::Pair;
pub use segments::SegmentRecord;
pub(crate) use segments::{DeltaRecord, Fields};

use crate::error::StoreError;
use crate::error_origin::ErrorOrigin;
use crate::file_system::{Access, Change, FileSystem, Guard, HardLinks, KeyValues};
use crate::new_file::check_moves;
use health::Health;

/// Newest catalog format that this release writes and reads.
pub const CATALOG_FORMAT_VERSION: u32 = 3;

/// The open catalog of one partition.
#[derive(Debug)]
pub struct Catalog {
    dir: PathBuf,
    pairs: Box<dyn KeyValues>,
    health: Health,
    /// The lock of its partition, released after the pairs are closed.
    guard: Option<Arc<Guard>>,
}

impl Catalog {
    /// Creates the catalog of partition `part` in `dir`, which must not hold one; it keeps
    /// `graph_text`, that of `graph.toml`.
    pub fn create(
        fs: &dyn FileSystem,
        dir: &Path,
        graph: Uuid,
        part: PartId,
        graph_text: &str,
    ) -> Result<Self, StoreError> {
        let pairs = fs.key_values(dir, Access::Create).map_err(failed(dir))?;
        let health = Health::new(fs);
        let catalog = Self { dir: dir.to_owned(), pairs, health, guard: None };
        catalog.write(&[
            identity_change(graph, part.0.into()),
            Change::Put(keys::GRAPH_COPY.to_vec(), graph_text.as_bytes().to_vec()),
        ])?;
        Ok(catalog)
    }

    /// Opens the catalog in `dir` for reading and checks that it is partition `part` of `graph`.
    pub fn open_read_only(
        fs: &dyn FileSystem,
        dir: &Path,
        graph: Uuid,
        part: PartId,
    ) -> Result<Self, StoreError> {
        let catalog = Self::open_unchecked(fs, dir, Access::Read)?;
        catalog.check_identity(graph, part)?;
        Ok(catalog)
    }

    /// Opens the catalog in `dir` for writing and checks that it is partition `part` of `graph`.
    ///
    /// Fails with [`StoreError::Locked`] while anybody else has it open for writing.
    pub fn open_for_writing(
        fs: &dyn FileSystem,
        dir: &Path,
        graph: Uuid,
        part: PartId,
    ) -> Result<Self, StoreError> {
        let guard = lock_partition(fs, dir.parent().unwrap_or(dir))?;
        let catalog = Self::open_unchecked(fs, dir, Access::Write)?;
        catalog.check_identity(graph, part)?;
        Ok(Self { guard: Some(Arc::new(guard)), ..catalog })
    }

    /// Opens the catalog in `dir`, whoever's it is.
    pub(crate) fn open_unchecked(
        fs: &dyn FileSystem,
        dir: &Path,
        access: Access,
    ) -> Result<Self, StoreError> {
        let pairs = fs.key_values(dir, access).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock if access == Access::Write => {
                StoreError::Locked { dir: dir.to_owned() }
            }
            ErrorKind::Deadlock => StoreError::Forked { dir: dir.to_owned() },
            _ => match HardLinks::of(&error) {
                Some(HardLinks { file, n_links }) => {
                    StoreError::HardLinked { file: file.clone(), n_links: *n_links }
                }
                None => failed(dir)(error),
            },
        })?;
        Ok(Self { dir: dir.to_owned(), pairs, health: Health::new(fs), guard: None })
    }

    /// Records the segments of `version` by tensor and makes it the current one: all of it or
    /// nothing, and durable when it returns.
    pub fn commit_version<'a>(
        &self,
        version: u32,
        segments: impl IntoIterator<Item = (&'a str, &'a SegmentRecord)>,
    ) -> Result<(), StoreError> {
        let put = |(tensor, record): (&str, &SegmentRecord)| {
            keys::put(keys::SEGMENTS, tensor, version, record.to_bytes())
        };
        let records = segments.into_iter().map(put);
        let version = Change::Put(keys::VERSION.to_vec(), version.to_le_bytes().to_vec());
        self.write(&records.chain([version]).collect::<Vec<_>>())
    }

    /// Returns its copy of the text of `graph.toml`, for the case that the file is lost. Returns
    /// `None` in a catalog of a release that kept none.
    pub(crate) fn graph_copy(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.get(keys::GRAPH_COPY)
    }

    /// Returns the committed version.
    pub fn current_version(&self) -> Result<u32, StoreError> {
        let bytes = self.get(keys::VERSION)?.unwrap_or_default();
        let bytes = <[u8; 4]>::try_from(bytes.as_slice())
            .map_err(|_| broken(&self.dir, "no current version".to_owned()))?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Returns the lock of its partition, where it is open for writing; it may outlast the catalog.
    pub(crate) fn guard(&self) -> Option<Arc<Guard>> {
        self.guard.clone()
    }

    /// Returns the folder of the catalog.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Checks that it is the catalog of partition `part` of `graph`.
    pub(crate) fn check_identity(&self, graph: Uuid, part: PartId) -> Result<(), StoreError> {
        let expected = (graph, u32::from(part.0));
        let found = self.identity()?;
        if expected == found {
            return Ok(());
        }
        Err(StoreError::Misplaced {
            file: self.dir.clone(),
            field: "catalog of",
            expected: format!("graph {} partition {}", expected.0, expected.1),
            found: format!("graph {} partition {}", found.0, found.1),
        })
    }

    /// Returns the graph and partition that it says it is of.
    pub(crate) fn identity(&self) -> Result<(Uuid, u32), StoreError> {
        let bytes = self.get(keys::IDENTITY)?.unwrap_or_default();
        let mut fields = Fields(&bytes);
        let (Ok(format), Ok(found_graph), Ok(found_part)) =
            (fields.u32(), fields.take::<16>(), fields.u32())
        else {
            return Err(broken(&self.dir, "no identity".to_owned()));
        };
        if format > CATALOG_FORMAT_VERSION {
            let (file, supported) = (self.dir.clone(), CATALOG_FORMAT_VERSION);
            return Err(StoreError::NewerFormat { file, found: format, supported });
        }
        Ok((Uuid::from_bytes(found_graph), found_part))
    }

    /// Returns the change that makes the catalog one of the newest format, which older releases
    /// refuse: they know no deltas.
    fn format_change(&self) -> Result<Change, StoreError> {
        let (graph, part) = self.identity()?;
        Ok(identity_change(graph, part))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.pairs.get(key).map_err(failed(&self.dir))
    }

    /// Passes the pairs whose key starts with `prefix` to `each`, ascending, until it fails.
    fn scan(
        &self,
        prefix: &[u8],
        mut each: impl FnMut(&[u8], &[u8]) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.scan_from(prefix, |key, value| match key.starts_with(prefix) {
            true => each(key, value).map(ControlFlow::Continue),
            false => Ok(ControlFlow::Break(())),
        })
    }

    /// Passes the pairs from `key` on to `each`, ascending, until it breaks or fails.
    fn scan_from(
        &self,
        key: &[u8],
        mut each: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, StoreError>,
    ) -> Result<(), StoreError> {
        let mut outcome = Ok(());
        let mut pair = |key: &[u8], value: &[u8]| {
            each(key, value).unwrap_or_else(|error| {
                outcome = Err(error);
                ControlFlow::Break(())
            })
        };
        self.pairs.scan_from(key, &mut pair).map_err(failed(&self.dir))?;
        outcome
    }
}

/// Returns the change that makes a catalog one of a partition, in the newest format.
fn identity_change(graph: Uuid, part: u32) -> Change {
    let format = CATALOG_FORMAT_VERSION.to_le_bytes();
    let identity = [&format[..], graph.as_bytes(), &part.to_le_bytes()].concat();
    Change::Put(keys::IDENTITY.to_vec(), identity)
}

/// Locks the folder of a partition against other writers and repairs: RocksDB's own lock is only as
/// good as the catalog.
///
/// Fails with [`StoreError::Locked`] while another process holds it, and with
/// [`StoreError::Unsuited`] on a file system that lacks locks or moves of files.
pub(crate) fn lock_partition(fs: &dyn FileSystem, dir: &Path) -> Result<Guard, StoreError> {
    let guard = lock_folder(fs, dir)?;
    check_moves(fs, dir)?;
    Ok(guard)
}

/// Locks the folder of a partition, or that of a graph.
///
/// Fails with [`StoreError::Locked`] while another process holds it.
pub(crate) fn lock_folder(fs: &dyn FileSystem, dir: &Path) -> Result<Guard, StoreError> {
    fs.lock(dir).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => StoreError::Locked { dir: dir.to_owned() },
        ErrorKind::Unsupported => {
            StoreError::Unsuited { dir: dir.to_owned(), reason: error.to_string() }
        }
        _ => StoreError::io(dir, "lock")(error),
    })
}

fn failed(dir: &Path) -> impl FnOnce(std::io::Error) -> StoreError {
    let dir = dir.to_owned();
    move |error| {
        let (origin, reason) = (ErrorOrigin::of(&error), error.to_string());
        StoreError::Catalog { dir, reason, origin }
    }
}

fn broken(dir: &Path, reason: String) -> StoreError {
    StoreError::Catalog { dir: dir.to_owned(), reason, origin: ErrorOrigin::Damage }
}

#[cfg(test)]
mod tests;
