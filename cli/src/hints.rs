//! Hints for the usual refusals of the system.

/// Messages of the system, and the hint for each.
const HINTS: [(&str, &str); 5] = [
    ("No space left on device", "make room on that disk, or choose another, and try again"),
    ("Disk quota exceeded", "make room within the quota, or choose another disk, and try again"),
    ("Read-only file system", "mount it writable, or work on a copy of the graph"),
    ("Permission denied", "run as the owner of the graph, or change its permissions"),
    ("Too many open files", "raise the limit of open files (`ulimit -n`) and try again"),
];

/// Returns the hint for an error with this message, if it is one of the system's refusals.
///
/// By message, since RocksDB passes them on as text.
pub(crate) fn hint(message: &str) -> Option<&'static str> {
    HINTS.iter().find(|(refusal, _)| message.contains(refusal)).map(|&(_, hint)| hint)
}

#[cfg(test)]
mod tests {
    use std::io;

    use rustix::io::Errno;

    use super::*;

    #[test]
    fn the_system_speaks_as_expected() {
        let refusals = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::ACCESS, Errno::MFILE];
        for (errno, (_, expected)) in refusals.into_iter().zip(HINTS) {
            assert_eq!(hint(&io::Error::from(errno).to_string()), Some(expected));
        }
        assert_eq!(hint("damaged page 3"), None);
    }
}
