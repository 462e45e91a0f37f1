//! Room on the disk of a graph.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lodestore_graph::lock::IgnorePoison;
use rustix::fs::statvfs;
use serde::{Deserialize, Serialize};

/// Interval of looks at the disk.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A file system.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct DiskFigures {
    /// Its size.
    pub bytes: u64,
    /// Bytes that this process may still write.
    pub free_bytes: u64,
}

impl DiskFigures {
    fn read(dir: &Path) -> Option<Self> {
        let system = statvfs(dir).ok()?;
        let bytes = system.f_blocks.saturating_mul(system.f_frsize);
        let free_bytes = system.f_bavail.saturating_mul(system.f_frsize);
        Some(Self { bytes, free_bytes })
    }
}

/// Figures of a disk as last seen. A thread of their own looks, since a file system that hangs must
/// not hold up metrics and health checks.
pub(super) struct DiskWatch {
    last: Arc<Mutex<Option<DiskFigures>>>,
}

impl DiskWatch {
    /// Starts the thread, which ends once this is dropped. No figures come where it cannot start.
    pub(super) fn start(dir: PathBuf) -> Self {
        let last = Arc::new(Mutex::new(None));
        let seen = Arc::downgrade(&last);
        let look = move || {
            while let Some(last) = seen.upgrade() {
                let figures = DiskFigures::read(&dir);
                *last.lock().ignore_poison() = figures;
                drop(last);
                thread::sleep(LOOK_EVERY);
            }
        };
        let _ = thread::Builder::new().name("lode-disk".into()).spawn(look);
        Self { last }
    }

    pub(super) fn figures(&self) -> Option<DiskFigures> {
        *self.last.lock().ignore_poison()
    }
}
