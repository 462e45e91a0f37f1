//! A measured profile, kept with the graph: `device.toml`.
//!
//! It is a sealed text (`sealed_text.rs`) with the keys of [`StoredProfile`]. The file may be
//! missing or deleted: rows are read all the same, by plans for a usual disk.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::error::StoreError;
use crate::error_origin::ErrorOrigin;
use crate::file_system::FileSystem;
use crate::plan::DiskProfile;
use crate::probe::ProbeCell;
use crate::sealed_text::{format_version, read_text, seal_text, sealed_body};

/// Name of the file in the graph's folder.
pub const DEVICE_FILE: &str = "device.toml";

/// Newest format that this release writes and reads.
pub(crate) const FORMAT_VERSION: u32 = 2;

/// Longest file that is read.
const MAX_BYTES: u64 = 64 << 10;

/// Most cells of a table.
const MAX_CELLS: usize = 256;

/// A profile and how it came about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredProfile {
    format_version: u32,
    /// When it was measured, in seconds since 1970 UTC.
    pub measured_unix_s: u64,
    /// Whether the reads that were measured bypassed the page cache.
    pub direct: bool,
    /// Requests per second.
    pub iops: f64,
    /// Bytes per second.
    pub bandwidth_bytes_per_s: f64,
    /// The measurements that both were fitted to, by request size and depth; nothing from format 1.
    #[serde(default)]
    pub cells: Vec<ProbeCell>,
}

/// Why a `device.toml` cannot be used, or not be written.
#[derive(Debug, Error)]
#[error("{}: {reason}; measure again with `lode probe`", file.display())]
pub struct ProfileError {
    /// The file.
    pub file: PathBuf,
    /// The fault of it.
    pub reason: String,
    /// Whether that says something about the file.
    pub origin: ErrorOrigin,
    /// Its format, if only a later release reads it.
    pub newer_format: Option<u32>,
}

impl From<ProfileError> for StoreError {
    fn from(error: ProfileError) -> Self {
        Self::io(&error.file, "read")(io::Error::other(error.reason))
    }
}

impl StoredProfile {
    /// Returns a profile that was fitted to `cells`, measured at `measured_unix_s` by reads past
    /// the page cache.
    #[must_use]
    pub fn new(profile: DiskProfile, cells: Vec<ProbeCell>, measured_unix_s: u64) -> Self {
        let DiskProfile { iops, bandwidth_bytes_per_s } = profile;
        let (format_version, direct) = (FORMAT_VERSION, true);
        Self { format_version, measured_unix_s, direct, iops, bandwidth_bytes_per_s, cells }
    }

    /// Returns the profile.
    #[must_use]
    pub fn profile(&self) -> DiskProfile {
        let (iops, bandwidth_bytes_per_s) = (self.iops, self.bandwidth_bytes_per_s);
        DiskProfile { iops, bandwidth_bytes_per_s }
    }

    /// Reads the profile kept with the graph in `dir`; `None` where there is none.
    pub fn read(fs: &dyn FileSystem, dir: &Path) -> Result<Option<Self>, ProfileError> {
        let path = dir.join(DEVICE_FILE);
        let failed = |reason, origin| {
            let (file, newer_format) = (path.clone(), None);
            ProfileError { file, reason, origin, newer_format }
        };
        let text = match read_text(fs, &path, MAX_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| failed(error.to_string(), ErrorOrigin::of(&error)))?,
        };
        let newer_format = sealed_body(&text).ok().and_then(|body| format_version(body).ok());
        let newer_format = newer_format.filter(|format| *format > FORMAT_VERSION);
        let parsed = Self::parse(&text).map(Some);
        parsed
            .map_err(|reason| ProfileError { newer_format, ..failed(reason, ErrorOrigin::Damage) })
    }

    /// Keeps the profile with the graph in `dir`: the old file is there, or the new one is.
    pub fn write(&self, fs: &dyn FileSystem, dir: &Path) -> Result<(), ProfileError> {
        let path = dir.join(DEVICE_FILE);
        // Its own name for each writer: a second one at the same time must not mix with this one.
        let temporary = dir.join(format!(".{DEVICE_FILE}.{}", uuid::Uuid::new_v4()));
        let write = || -> io::Result<()> {
            let mut file = fs.create(&temporary)?;
            file.append(self.to_text()?.as_bytes())?;
            file.sync()?;
            fs.replace(&temporary, &path)?;
            fs.sync(dir)
        };
        write().map_err(|error| {
            // It may never have been created, or have been moved to its place.
            let _ = fs.remove_file(&temporary);
            let (file, reason) = (path.clone(), format!("cannot write: {error}"));
            ProfileError { file, reason, origin: ErrorOrigin::of(&error), newer_format: None }
        })
    }

    fn to_text(&self) -> io::Result<String> {
        Ok(seal_text(&toml::to_string(self).map_err(io::Error::other)?))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let body = sealed_body(text)?;
        let found = format_version(body).map_err(|error| error.to_string())?;
        if found > FORMAT_VERSION {
            return Err(format!("format version {found}, this release reads {FORMAT_VERSION}"));
        }
        let stored: Self = toml::from_str(body).map_err(|error| error.to_string())?;
        if !stored.profile().is_sensible() {
            let (iops, bandwidth) = (stored.iops, stored.bandwidth_bytes_per_s);
            return Err(format!("no device has {iops} IOPS and {bandwidth} bytes per second"));
        }
        if stored.cells.len() > MAX_CELLS || !stored.cells.iter().all(ProbeCell::is_sensible) {
            return Err(format!("expected at most {MAX_CELLS} cells of figures that a disk has"));
        }
        Ok(stored)
    }
}

impl DiskProfile {
    /// Returns the profile kept with the graph in `dir`, or else the default one. A file that
    /// cannot be used is warned of, once in a process.
    #[must_use]
    pub fn load(fs: &dyn FileSystem, dir: &Path) -> Self {
        match StoredProfile::read(fs, dir) {
            Ok(stored) => stored.map_or_else(Self::default, |stored| stored.profile()),
            Err(error) => {
                // No `Once`: in a child of a fork in the midst of it, it would never end.
                static HAS_WARNED: AtomicBool = AtomicBool::new(false);
                if !HAS_WARNED.swap(true, Ordering::Relaxed) {
                    tracing::warn!("{error}; reading as from a usual disk");
                }
                Self::default()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::file_system::Disk;

    fn stored() -> StoredProfile {
        let profile = DiskProfile { iops: 91_234.5, bandwidth_bytes_per_s: 1.3e9 };
        let cell = |depth| ProbeCell {
            request_bytes: 4096,
            depth,
            iops: 9e4,
            bytes_per_s: 3.7e8,
            p50_us: 80.0,
            p99_us: 200.5,
        };
        StoredProfile::new(profile, [1, 64].map(cell).to_vec(), 1_800_000_000)
    }

    /// Returns a changed text under a checksum that fits.
    fn sealed(change: impl FnOnce(&str) -> String) -> String {
        let text = stored().to_text().unwrap();
        seal_text(&change(text.split_once('\n').unwrap().1))
    }

    #[test]
    fn what_was_written_is_read_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(StoredProfile::read(&Disk, dir.path()).unwrap(), None);
        assert_eq!(DiskProfile::load(&Disk, dir.path()), DiskProfile::default());
        stored().write(&Disk, dir.path()).unwrap();
        assert_eq!(StoredProfile::read(&Disk, dir.path()).unwrap(), Some(stored()));
        let later = StoredProfile { measured_unix_s: 1_900_000_000, iops: 5.0, ..stored() };
        later.write(&Disk, dir.path()).unwrap();
        assert_eq!(DiskProfile::load(&Disk, dir.path()), later.profile());
        let names: Vec<_> =
            dir.path().read_dir().unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, [DEVICE_FILE], "no temporary file stays");
    }

    #[test]
    fn every_flipped_bit_and_every_cut_results_in_the_default() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DEVICE_FILE);
        let text = stored().to_text().unwrap().into_bytes();
        for bit in 0..text.len() * 8 {
            let mut damaged = text.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, damaged).unwrap();
            assert!(StoredProfile::read(&Disk, dir.path()).is_err(), "bit {bit}");
            assert_eq!(DiskProfile::load(&Disk, dir.path()), DiskProfile::default());
        }
        for length in 0..text.len() {
            fs::write(&path, &text[..length]).unwrap();
            assert!(StoredProfile::read(&Disk, dir.path()).is_err(), "length {length}");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(StoredProfile::read(&Disk, dir.path()).is_err());
    }

    #[test]
    fn sealed_nonsense_is_refused_by_name() {
        let refused = |from: &str, to: &str| {
            StoredProfile::parse(&sealed(|text| text.replace(from, to))).unwrap_err()
        };
        assert!(refused("direct", "colour = 1\ndirect").contains("colour"));
        assert!(refused("format_version = 2", "format_version = 3\nx = 1").contains("version 3"));
        for nonsense in ["0.0", "-1.0", "nan", "inf", "1e300", "\"many\""] {
            refused("91234.5", nonsense);
            refused("1300000000.0", nonsense);
        }
        refused("200.5", "nan");
        refused("depth = 64", "depth = -1");
        refused("direct = true", "");
        assert_eq!(StoredProfile::parse(&sealed(str::to_owned)), Ok(stored()));
    }

    #[test]
    fn format_1_had_no_cells() {
        let first = |text: &str| {
            let end = text.find("[[cells]]").unwrap();
            text[..end].replace("format_version = 2", "format_version = 1")
        };
        let read = StoredProfile::parse(&sealed(first)).unwrap();
        assert_eq!((read.profile(), read.cells.len()), (stored().profile(), 0));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let error = stored().write(&Disk, &dir.path().join("none")).unwrap_err();
        assert!(error.to_string().contains(DEVICE_FILE), "{error}");
    }
}
