//! What Linux' `/proc` reports of this process: its anonymous memory and what it read from disk.

use std::fs;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Interval at which anonymous memory is looked at.
const INTERVAL: Duration = Duration::from_millis(20);

/// The most anonymous memory that was seen.
static PEAK_BYTES: AtomicU64 = AtomicU64::new(0);

/// Returns the most anonymous bytes that this process had in memory at once since the first call of
/// this function or of [`forget_peak_memory`]; 0 where the system does not tell. Pages of mapped
/// files do not count: the system takes them back without a write.
///
/// A thread looks every 20 ms, since the system notes no such peak; what is shorter may be missed.
#[must_use]
pub fn peak_anonymous_bytes() -> u64 {
    watch_memory();
    look()
}

/// Begins a new peak, so that each of several runs in one process reports its own.
pub fn forget_peak_memory() {
    PEAK_BYTES.store(0, Ordering::Relaxed);
    watch_memory();
}

/// Starts the thread that looks at the memory, once.
pub fn watch_memory() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let watch = || {
            loop {
                look();
                thread::sleep(INTERVAL);
            }
        };
        // Without the thread the peak is the largest of the moments at which it was asked for.
        let _ = thread::Builder::new().name("memory-peak".to_owned()).spawn(watch);
    });
}

/// Returns the anonymous bytes in memory.
pub(crate) fn anonymous_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    figure(&status, "RssAnon:").map_or(0, |kib| kib * 1024)
}

/// Returns the bytes that this process has read from disk, those read ahead for it too; `None` where
/// the system does not tell. What was in the page cache does not count.
#[must_use]
pub fn disk_read_bytes() -> Option<u64> {
    figure(&fs::read_to_string("/proc/self/io").ok()?, "read_bytes:")
}

/// Looks at the memory, and returns the peak.
fn look() -> u64 {
    let now = anonymous_bytes();
    PEAK_BYTES.fetch_max(now, Ordering::Relaxed).max(now)
}

/// Returns the number behind a name in a file of `/proc`.
fn figure(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_counts_what_was_allocated_and_freed() {
        watch_memory();
        let before = anonymous_bytes();
        let block = vec![1u8; 256 << 20];
        assert_eq!(peak_anonymous_bytes().saturating_sub(before) >> 27, 2, "256 MiB");
        drop(block);
        assert!(peak_anonymous_bytes() >= before + (255 << 20));
    }

    #[test]
    fn figures_have_names_and_units() {
        let text = "Name:\tlode\nRssAnon:\t    1200 kB\nrchar: 7\nread_bytes: 4096\n";
        assert_eq!(figure(text, "RssAnon:"), Some(1200));
        assert_eq!(figure(text, "read_bytes:"), Some(4096));
        assert_eq!(figure(text, "write_bytes:"), None);
    }
}
