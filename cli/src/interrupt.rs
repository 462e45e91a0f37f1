//! Ctrl-C while a folder is being made: the half-made folder goes away with the process.

use std::path::PathBuf;
use std::sync::{Mutex, Once, PoisonError};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Folders that must not outlive an interrupted process.
static HALF_MADE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static WATCHER: Once = Once::new();

/// Removes a folder if the process is interrupted while this lives.
pub(crate) struct RemovedOnInterrupt {
    dir: PathBuf,
}

impl RemovedOnInterrupt {
    /// Watches over `dir`, which the caller removes itself on every other way out.
    pub(crate) fn watch(dir: impl Into<PathBuf>) -> std::io::Result<Self> {
        let mut signals = None;
        WATCHER.call_once(|| signals = Some(Signals::new([SIGINT, SIGTERM])));
        if let Some(signals) = signals {
            let mut signals = signals?;
            std::thread::spawn(move || {
                if let Some(signal) = signals.forever().next() {
                    give_up(signal);
                }
            });
        }
        let dir = dir.into();
        half_made().push(dir.clone());
        Ok(Self { dir })
    }
}

impl Drop for RemovedOnInterrupt {
    fn drop(&mut self) {
        half_made().retain(|dir| *dir != self.dir);
    }
}

fn give_up(signal: i32) -> ! {
    for dir in &*half_made() {
        // The threads that fill it still run, so a file may appear in a folder just emptied.
        let gone = (0..100).any(|_| std::fs::remove_dir_all(dir).is_ok() || !dir.exists());
        if !gone {
            eprintln!("lode: cannot remove {}", dir.display());
        }
    }
    // As a shell reports a process that died of the signal.
    std::process::exit(128 + signal)
}

/// Holds a list of paths, which no panic leaves half-changed.
fn half_made() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    HALF_MADE.lock().unwrap_or_else(PoisonError::into_inner)
}
