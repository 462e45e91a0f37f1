//! The request to a running server to stop.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;

/// Returns the end of a pipe that becomes readable on a signal to stop, or at the end of stdin
/// where that is wanted. A second signal ends the process immediately.
///
/// # Errors
/// The system refuses a pipe or a handler of signals.
pub fn stop_signal(exit_with_stdin: bool) -> Result<std::io::PipeReader> {
    let (reader, writer) = std::io::pipe().context("cannot open a pipe")?;
    let asked_before = Arc::new(AtomicBool::new(false));
    let signals = [SIGINT, SIGTERM].into_iter().chain((!ignores_hangup()).then_some(SIGHUP));
    for signal in signals {
        // In this order: the first signal finds the flag down, and puts it up.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&asked_before))?;
        flag::register(signal, Arc::clone(&asked_before))?;
        pipe::register(signal, writer.try_clone()?)?;
    }
    if exit_with_stdin {
        thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            // Only the main thread's wait reads it, and it is gone only when the process is.
            let _ = std::io::Write::write_all(&mut &writer, b".");
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
pub fn wait_for_stop(mut stop: std::io::PipeReader) -> Result<()> {
    std::io::Read::read_exact(&mut stop, &mut [0]).context("cannot wait for signals")
}
