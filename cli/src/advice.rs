//! Advice for the usual refusals of the system.

/// Messages of the system, and the advice for each.
const ADVICE: [(&str, &str); 5] = [
    ("No space left on device", "make room on that disk, or choose another, and try again"),
    ("Disk quota exceeded", "make room within the quota, or choose another disk, and try again"),
    ("Read-only file system", "mount it writable, or work on a copy of the graph"),
    ("Permission denied", "run as the owner of the graph, or change its permissions"),
    ("Too many open files", "raise the limit of open files (`ulimit -n`) and try again"),
];

/// Returns the advice after an error with this message, if it is one of the system's refusals.
///
/// By message, since RocksDB passes them on as text.
pub(crate) fn advice(message: &str) -> Option<&'static str> {
    ADVICE.iter().find(|(refusal, _)| message.contains(refusal)).map(|&(_, advice)| advice)
}

#[cfg(test)]
mod tests {
    use std::io;

    use rustix::io::Errno;

    use super::*;

    #[test]
    fn the_system_speaks_as_expected() {
        let refusals = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::ACCESS, Errno::MFILE];
        for (errno, (_, expected)) in refusals.into_iter().zip(ADVICE) {
            assert_eq!(advice(&io::Error::from(errno).to_string()), Some(expected));
        }
        assert_eq!(advice("damaged page 3"), None);
    }
}
