//! Faults, gathered by many threads into one order.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard};

use lodestore_graph::PartId;
use lodestore_graph::lock::IgnorePoison;

use super::{Damage, VerifyReport};
use crate::error::StoreError;
use crate::error_origin::ErrorOrigin;

/// More faults of one file than this are counted, not listed.
pub const MAX_DAMAGES_PER_FILE: usize = 1000;

/// Place of a file in the report.
pub(super) type FileOrder = u64;

/// Place of `graph.toml`; other files come after it.
pub(super) const META_ORDER: FileOrder = 0;

/// Faults and figures. The lock is taken only where something is wrong.
#[derive(Debug, Default)]
pub(super) struct Findings {
    files: Mutex<BTreeMap<FileOrder, FileFindings>>,
    unknown: Mutex<Vec<String>>,
    later: Mutex<Vec<String>>,
    /// Partitions that are not here.
    absent: Mutex<Vec<u16>>,
    /// The first thing that the system refused to show, which is no damage.
    refused: Mutex<Option<(FileOrder, StoreError)>>,
    pub(super) pages: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// The faults of a file: those that come first in it, and how many there are.
#[derive(Debug, Default)]
struct FileFindings {
    /// By page, faults of no page first; then by reason.
    faults: BTreeMap<(Option<u64>, String), String>,
    n_faults: u64,
}

impl Findings {
    /// Adds a fault of the file at place `order` of the report.
    pub(super) fn add(&self, order: FileOrder, file: &Path, page: Option<u64>, reason: String) {
        let mut files = self.files();
        let found = files.entry(order).or_default();
        found.n_faults += 1;
        found.faults.insert((page, reason), file.display().to_string());
        // Whichever thread comes first, the same faults stay: those that come first in the file.
        if found.faults.len() > MAX_DAMAGES_PER_FILE {
            found.faults.pop_last();
        }
    }

    /// Adds an error under the file that it is about, or under `place`.
    pub(super) fn add_error(
        &self,
        order: FileOrder,
        place: &Path,
        page: Option<u64>,
        error: StoreError,
    ) {
        self.add(order, error.file().unwrap_or(place), page, error.to_string());
        if error.origin() == ErrorOrigin::System {
            let mut refused = self.refused.lock().ignore_poison();
            if refused.as_ref().is_none_or(|(first, _)| order < *first) {
                *refused = Some((order, error));
            }
        }
    }

    /// Returns the report, or the error of the first file that the system refused to show.
    pub(super) fn into_result(mut self) -> Result<VerifyReport, StoreError> {
        let refused = self.refused.get_mut().ignore_poison().take();
        refused.map_or_else(|| Ok(self.into_report()), |(_, error)| Err(error))
    }

    pub(super) fn add_unknown(&self, path: &Path) {
        let mut unknown = self.unknown.lock().ignore_poison();
        unknown.push(path.display().to_string());
    }

    pub(super) fn add_later(&self, path: &Path) {
        self.later.lock().ignore_poison().push(path.display().to_string());
    }

    pub(super) fn add_absent(&self, part: PartId) {
        self.absent.lock().ignore_poison().push(part.0);
    }

    pub(super) fn into_report(self) -> VerifyReport {
        let mut damaged = Vec::new();
        for found in std::mem::take(&mut *self.files()).into_values() {
            let more = found.n_faults - found.faults.len() as u64;
            let file = found.faults.values().next_back().cloned().unwrap_or_default();
            let faults = found.faults.into_iter();
            damaged.extend(faults.map(|((page, reason), file)| Damage { file, page, reason }));
            if more > 0 {
                damaged.push(Damage { file, page: None, reason: format!("{more} more faults") });
            }
        }
        let mut unknown = self.unknown.into_inner().ignore_poison();
        unknown.sort();
        let mut later = self.later.into_inner().ignore_poison();
        later.sort();
        let mut absent = self.absent.into_inner().ignore_poison();
        absent.sort_unstable();
        VerifyReport {
            ok: damaged.is_empty() && absent.is_empty(),
            pages: self.pages.into_inner(),
            bytes: self.bytes.into_inner(),
            damaged,
            absent,
            unknown,
            later,
        }
    }

    /// Locks the files. A fault is added whole or, in a panic, not at all.
    fn files(&self) -> MutexGuard<'_, BTreeMap<FileOrder, FileFindings>> {
        self.files.lock().ignore_poison()
    }
}
