//! Ctrl-C, a request to end, and one to a server to stop. Unfinished output goes away with the
//! process, and a run that can end in good order is asked to.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lodestore_graph::lock::IgnorePoison;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::{self, pipe, signal_name};
use thiserror::Error;

/// Folders that must not outlive an interrupted process.
static HALF_MADE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static WATCHER: Once = Once::new();
/// Flag that a part of the program ends the run on request.
static IS_HEEDED: AtomicBool = AtomicBool::new(false);
/// The signal that asked for the end; 0: none.
static ASKED: AtomicI32 = AtomicI32::new(0);

/// Removes a folder if the process is interrupted while this lives.
pub struct RemovedOnInterrupt {
    dir: PathBuf,
}

/// A signal within this of the first is the same request. `timeout` signals the child and then its
/// group, and a terminal's signal may come beside that of a supervisor.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// While this lives the first signal asks for the end, and only one more than `SAME_REQUEST`
/// later ends the process immediately.
pub struct SignalGuard(());

/// A run has ended since a signal asked for that.
#[derive(Clone, Copy, Debug, Error)]
#[error("ended by {}", signal_name(*.0).unwrap_or("a signal"))]
pub struct Interrupted(i32);

impl Interrupted {
    /// Returns the exit code that a shell reports for a process that died of the signal.
    pub fn exit_code(self) -> u8 {
        u8::try_from(128 + self.0).unwrap_or(u8::MAX)
    }
}

impl SignalGuard {
    /// Heeds signals from now on.
    pub fn start() -> std::io::Result<Self> {
        watch()?;
        IS_HEEDED.store(true, Ordering::SeqCst);
        Ok(Self(()))
    }

    /// Fails once a signal has asked for the end.
    pub fn check(&self) -> Result<(), Interrupted> {
        match ASKED.load(Ordering::SeqCst) {
            0 => Ok(()),
            signal => Err(Interrupted(signal)),
        }
    }
}

impl Drop for SignalGuard {
    fn drop(&mut self) {
        IS_HEEDED.store(false, Ordering::SeqCst);
    }
}

impl RemovedOnInterrupt {
    /// Watches over `dir`, which the caller removes itself on every other way out.
    pub fn watch(dir: impl Into<PathBuf>) -> std::io::Result<Self> {
        watch()?;
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

/// Starts the thread that signals go to, once.
fn watch() -> std::io::Result<()> {
    let mut signals = None;
    WATCHER.call_once(|| signals = Some(Signals::new([SIGINT, SIGTERM])));
    if let Some(signals) = signals {
        let mut signals = signals?;
        std::thread::spawn(move || {
            let mut asked_at: Option<Instant> = None;
            for signal in signals.forever() {
                match asked_at {
                    // The run may have ended since, and be reporting.
                    Some(at) if at.elapsed() < SAME_REQUEST => {}
                    None if IS_HEEDED.load(Ordering::SeqCst) => {
                        ASKED.store(signal, Ordering::SeqCst);
                        asked_at = Some(Instant::now());
                    }
                    _ => give_up(signal),
                }
            }
        });
    }
    Ok(())
}

fn give_up(signal: i32) -> ! {
    for dir in &*half_made() {
        // The threads that fill it still run, so a file may appear in a folder just emptied.
        let gone = (0..100).any(|_| std::fs::remove_dir_all(dir).is_ok() || !dir.exists());
        if !gone {
            eprintln!("cannot remove {}", dir.display());
        }
    }
    // Without the destructors of `exit`: other threads still use what RocksDB's would take away,
    // and that ends in an abort.
    low_level::exit(Interrupted(signal).exit_code().into())
}

/// Holds a list of paths, which no panic leaves half-changed.
fn half_made() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    HALF_MADE.lock().ignore_poison()
}

/// Meaning of the end of stdin for a running server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndOfStdin {
    Ignored,
    /// The server stops.
    Stops,
}

/// Returns the end of a pipe that becomes readable on a signal to stop, or at the end of stdin
/// where that stops. A second signal ends the process immediately.
///
/// # Errors
/// The system refuses a pipe or a handler of signals.
pub fn stop_signal(end_of_stdin: EndOfStdin) -> Result<io::PipeReader> {
    let (reader, writer) = io::pipe().context("cannot open a pipe")?;
    let asked_before = Arc::new(AtomicBool::new(false));
    let signals = [SIGINT, SIGTERM].into_iter().chain((!ignores_hangup()).then_some(SIGHUP));
    for signal in signals {
        // In this order: the first signal finds the flag down, and puts it up.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&asked_before))?;
        flag::register(signal, Arc::clone(&asked_before))?;
        pipe::register(signal, writer.try_clone()?)?;
    }
    if end_of_stdin == EndOfStdin::Stops {
        thread::spawn(move || {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            // Only the main thread's wait reads it, and it is gone only when the process is.
            let _ = io::Write::write_all(&mut &writer, b".");
        });
    }
    Ok(reader)
}

/// Returns whether the parent wants this process to outlive a terminal, as `nohup` does.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 << (SIGHUP - 1) != 0)
}

/// Waits until the pipe of [`stop_signal`] becomes readable.
///
/// # Errors
/// The pipe cannot be read.
pub fn wait_for_stop(mut stop: io::PipeReader) -> Result<()> {
    io::Read::read_exact(&mut stop, &mut [0]).context("cannot wait for signals")
}
