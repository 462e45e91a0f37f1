//! The catalog of a partition: which segment holds which tensor at which version.
//!
//! A small RocksDB. Keys and values (integers little-endian, but for the version in a key, which
//! is big-endian so that versions sort):
//!
//! ```text
//! identity                    format u32 | graph uuid 16 | partition u32
//! version                     current version u32
//! segment/NAME/VERSION        format u32 | segment uuid 16 | rows u32 | bytes of a row u32
//!                             | digest 32 | file name
//! ```
//!
//! Every write is synced before it returns. Opening for reading takes no lock and creates no file,
//! so that it works on read-only mounts and from several processes at once.

use std::path::{Path, PathBuf};

use lodestore_graph::PartId;
use rocksdb::{DB, InfoLogger, LogLevel, Options, WriteOptions};
use uuid::Uuid;

use crate::error::StoreError;
use crate::segment::SegmentDigest;

/// Newest catalog format that this release writes and reads.
pub const CATALOG_FORMAT_VERSION: u32 = 1;

const IDENTITY_KEY: &[u8] = b"identity";
const VERSION_KEY: &[u8] = b"version";

/// The open catalog of one partition.
#[derive(Debug)]
pub struct Catalog {
    dir: PathBuf,
    db: DB,
}

/// A segment as the catalog knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentRecord {
    /// Uuid in the segment's header.
    pub segment: Uuid,
    /// Number of rows.
    pub n_rows: u32,
    /// Bytes of one row.
    pub row_bytes: u32,
    /// BLAKE3 of the segment's page checksum table.
    pub digest: SegmentDigest,
    /// Name of the file in the partition's folder.
    pub file: String,
}

impl Catalog {
    /// Creates the catalog of partition `part` in `dir`, which must not hold one.
    pub fn create(dir: &Path, graph: Uuid, part: PartId) -> Result<Self, StoreError> {
        let mut options = options();
        options.create_if_missing(true);
        options.set_error_if_exists(true);
        let db = DB::open(&options, dir).map_err(failed(dir))?;
        let catalog = Self { dir: dir.to_owned(), db };
        let mut identity = CATALOG_FORMAT_VERSION.to_le_bytes().to_vec();
        identity.extend_from_slice(graph.as_bytes());
        identity.extend_from_slice(&u32::from(part.0).to_le_bytes());
        catalog.put(IDENTITY_KEY, &identity)?;
        Ok(catalog)
    }

    /// Opens the catalog in `dir` for reading and checks that it is partition `part` of `graph`.
    pub fn open_read_only(dir: &Path, graph: Uuid, part: PartId) -> Result<Self, StoreError> {
        if !dir.join("CURRENT").is_file() {
            return Err(broken(dir, "there is none (no file CURRENT)".to_owned()));
        }
        let db = DB::open_for_read_only(&options(), dir, false).map_err(failed(dir))?;
        let catalog = Self { dir: dir.to_owned(), db };
        catalog.check_identity(graph, part)?;
        Ok(catalog)
    }

    /// Notes that `record` holds `tensor` at `version`; durable when it returns.
    pub fn record_segment(
        &self,
        tensor: &str,
        version: u32,
        record: &SegmentRecord,
    ) -> Result<(), StoreError> {
        self.put(&segment_key(tensor, version), &record.to_bytes())
    }

    /// The segment that holds `tensor` at `version`, if there is one.
    pub fn segment(&self, tensor: &str, version: u32) -> Result<Option<SegmentRecord>, StoreError> {
        let Some(bytes) = self.get(&segment_key(tensor, version))? else { return Ok(None) };
        let record = SegmentRecord::from_bytes(&bytes).map_err(|reason| {
            broken(&self.dir, format!("record of `{tensor}` version {version}: {reason}"))
        })?;
        Ok(Some(record))
    }

    /// Makes `version` the current one; durable when it returns.
    pub fn set_current_version(&self, version: u32) -> Result<(), StoreError> {
        self.put(VERSION_KEY, &version.to_le_bytes())
    }

    /// The version that readers see.
    pub fn current_version(&self) -> Result<u32, StoreError> {
        let bytes = self.get(VERSION_KEY)?.unwrap_or_default();
        let bytes = <[u8; 4]>::try_from(bytes.as_slice())
            .map_err(|_| broken(&self.dir, "no current version".to_owned()))?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Moves what is in the log into tables, so that a reader has nothing to replay.
    pub fn flush(&self) -> Result<(), StoreError> {
        self.db.flush().map_err(failed(&self.dir))
    }

    fn check_identity(&self, graph: Uuid, part: PartId) -> Result<(), StoreError> {
        let bytes = self.get(IDENTITY_KEY)?.unwrap_or_default();
        let mut fields = Fields { bytes: &bytes };
        let (Ok(format), Ok(found_graph), Ok(found_part)) =
            (fields.u32(), fields.take::<16>(), fields.u32())
        else {
            return Err(broken(&self.dir, "no identity".to_owned()));
        };
        if format > CATALOG_FORMAT_VERSION {
            let (file, supported) = (self.dir.clone(), CATALOG_FORMAT_VERSION);
            return Err(StoreError::NewerFormat { file, found: format, supported });
        }
        let expected = (graph, u32::from(part.0));
        let found = (Uuid::from_bytes(found_graph), found_part);
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

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        self.db.put_opt(key, value, &synced).map_err(failed(&self.dir))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.db.get(key).map_err(failed(&self.dir))
    }
}

impl SegmentRecord {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = CATALOG_FORMAT_VERSION.to_le_bytes().to_vec();
        bytes.extend_from_slice(self.segment.as_bytes());
        bytes.extend_from_slice(&self.n_rows.to_le_bytes());
        bytes.extend_from_slice(&self.row_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.digest);
        bytes.extend_from_slice(self.file.as_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let mut fields = Fields { bytes };
        let format = fields.u32()?;
        if format > CATALOG_FORMAT_VERSION {
            return Err(format!("format {format}, this release reads {CATALOG_FORMAT_VERSION}"));
        }
        let segment = Uuid::from_bytes(fields.take()?);
        let (n_rows, row_bytes, digest) = (fields.u32()?, fields.u32()?, fields.take()?);
        let file = std::str::from_utf8(fields.bytes).map_err(|_| "file name is not UTF-8")?;
        // A name from a file never becomes a path that leads out of the partition's folder.
        if file.is_empty() || file.starts_with('.') || file.contains(['/', '\0']) {
            return Err(format!("{file:?} is not a plain file name"));
        }
        Ok(Self { segment, n_rows, row_bytes, digest, file: file.to_owned() })
    }
}

/// What is left of a record.
struct Fields<'a> {
    bytes: &'a [u8],
}

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (&field, rest) = self.bytes.split_first_chunk().ok_or("it is too short")?;
        self.bytes = rest;
        Ok(field)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.take().map(u32::from_le_bytes)
    }
}

fn segment_key(tensor: &str, version: u32) -> Vec<u8> {
    [b"segment/", tensor.as_bytes(), b"/", &version.to_be_bytes()].concat()
}

fn options() -> Options {
    let mut options = Options::default();
    options.set_paranoid_checks(true);
    // A logger of our own keeps RocksDB from writing LOG files, also when it only reads.
    options.set_info_logger(InfoLogger::new_callback_logger(LogLevel::Warn, |_, line| {
        tracing::warn!(target: "rocksdb", "{}", line.trim_end());
    }));
    options
}

fn failed(dir: &Path) -> impl FnOnce(rocksdb::Error) -> StoreError {
    let dir = dir.to_owned();
    move |error| StoreError::Catalog { dir, reason: error.into_string() }
}

fn broken(dir: &Path, reason: String) -> StoreError {
    StoreError::Catalog { dir: dir.to_owned(), reason }
}

#[cfg(test)]
mod tests;
