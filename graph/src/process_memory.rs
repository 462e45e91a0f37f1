//! Memory of this process, from Linux' `/proc`.

/// Returns the most bytes that this process ever had resident; 0 where the system does not tell.
#[must_use]
pub fn peak_rss_bytes() -> u64 {
    figure_bytes("VmHWM:")
}

/// Returns the bytes that this process has resident; 0 where the system does not report it.
pub(crate) fn rss_bytes() -> u64 {
    figure_bytes("VmRSS:")
}

/// Resets the high-water mark of resident memory to what is resident, where the system can. Each of
/// several runs in one process then reports its own peak.
pub fn forget_peak_rss() {
    // Without it peaks are those of the process; there is nothing else to do about it.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn figure_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().map_or(0, |kib| kib * 1024)
}
