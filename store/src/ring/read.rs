//! One read, and what to do about what it gave.

use std::io;
use std::ops::Range;

use rustix::io::Errno;
use thiserror::Error;

use super::{MAX_READ_BYTES, Outcome, Region};
use crate::limits::PAGE_BYTES;

/// How often a read is repeated that the system puts off or interrupts.
const MAX_PUT_OFF: u8 = 16;

/// How often a read is repeated that the device fails.
const MAX_DEVICE_ERRORS: u8 = 1;

/// A read of whole pages of a file into memory that it owns.
#[derive(Debug)]
pub(crate) struct Read {
    /// The caller's mark.
    pub(crate) tag: u32,
    region: Region,
    offset_bytes: u64,
    progress: Progress,
}

/// How far a read has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes to read: whole pages, not 0.
    pub(crate) len_bytes: usize,
    /// Bytes read: whole pages.
    pub(crate) done_bytes: usize,
    n_put_off: u8,
    n_device_errors: u8,
}

/// Next step for a read that came back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// All bytes are there.
    Done,
    /// Push it again: it continues where it stopped.
    Again,
    /// Give up.
    Fail(ReadFault),
}

/// Why a read was given up.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum ReadFault {
    /// The system's reason.
    #[error("{0}")]
    System(Errno),
    /// The file ends before the read does.
    #[error("the file was cut after it was opened; restore it")]
    Cut,
    /// The system says that it read more than was asked for.
    #[error("the system claims more bytes than were asked for")]
    Overrun,
}

impl Read {
    /// Returns a read of a whole region from `offset_bytes` on.
    pub(crate) fn new(region: Region, offset_bytes: u64, tag: u32) -> Self {
        let progress = Progress::new(region.len_bytes());
        Self { tag, region, offset_bytes, progress }
    }

    /// Returns where in the file to continue, and which part of the region comes next.
    pub(crate) fn rest(&self) -> (u64, Range<usize>) {
        let start = self.progress.done_bytes;
        (self.offset_bytes + start as u64, start..start + self.progress.ask_bytes())
    }

    /// Notes what came back.
    pub(crate) fn advance(&mut self, outcome: Outcome) -> Step {
        self.progress.advance(outcome)
    }

    /// Returns the first byte in the file that is missing.
    pub(crate) fn missing_from_bytes(&self) -> u64 {
        self.offset_bytes + self.progress.done_bytes as u64
    }

    /// Returns the memory.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the memory, for its reader.
    pub(crate) fn region_mut(&mut self) -> &mut Region {
        &mut self.region
    }

    /// Returns the memory, to be given back.
    pub(crate) fn into_region(self) -> Region {
        self.region
    }
}

impl Progress {
    pub(crate) fn new(len_bytes: usize) -> Self {
        Self { len_bytes, done_bytes: 0, n_put_off: 0, n_device_errors: 0 }
    }

    /// Returns the bytes to ask for next.
    pub(crate) fn ask_bytes(&self) -> usize {
        (self.len_bytes - self.done_bytes).min(MAX_READ_BYTES)
    }

    /// Notes what the system gave for [`Progress::ask_bytes`].
    ///
    /// A short read continues after its last whole page, as direct reads must. One without a whole
    /// page has met the end of the file.
    pub(crate) fn advance(&mut self, outcome: Outcome) -> Step {
        match outcome {
            Ok(n) if n > self.ask_bytes() => Step::Fail(ReadFault::Overrun),
            Ok(n) if n < PAGE_BYTES as usize => Step::Fail(ReadFault::Cut),
            Ok(n) => {
                self.done_bytes += n - n % PAGE_BYTES as usize;
                if self.done_bytes == self.len_bytes { Step::Done } else { Step::Again }
            }
            Err(errno) => self.retry(errno),
        }
    }

    fn retry(&mut self, errno: Errno) -> Step {
        let (n_retries, limit) = match errno {
            Errno::AGAIN | Errno::INTR | Errno::BUSY | Errno::CANCELED => {
                (&mut self.n_put_off, MAX_PUT_OFF)
            }
            Errno::IO => (&mut self.n_device_errors, MAX_DEVICE_ERRORS),
            _ => return Step::Fail(ReadFault::System(errno)),
        };
        if *n_retries == limit {
            return Step::Fail(ReadFault::System(errno));
        }
        *n_retries += 1;
        Step::Again
    }
}

impl From<ReadFault> for io::Error {
    fn from(fault: ReadFault) -> Self {
        match fault {
            ReadFault::System(errno) => errno.into(),
            ReadFault::Cut => Self::new(io::ErrorKind::UnexpectedEof, fault.to_string()),
            ReadFault::Overrun => Self::new(io::ErrorKind::InvalidData, fault.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: usize = PAGE_BYTES as usize;
    const PUT_OFF: [Errno; 4] = [Errno::AGAIN, Errno::INTR, Errno::BUSY, Errno::CANCELED];

    fn at(done_pages: usize, n_pages: usize) -> Progress {
        Progress { done_bytes: done_pages * PAGE, ..Progress::new(n_pages * PAGE) }
    }

    #[test]
    fn every_count_of_bytes_from_every_state_is_right() {
        for n_pages in 1..6 {
            for done_pages in 0..n_pages {
                let before = at(done_pages, n_pages);
                for n in 0..=(n_pages - done_pages) * PAGE + 2 {
                    let mut after = before;
                    let left = (n_pages - done_pages) * PAGE;
                    let expected = match n {
                        n if n > left => Step::Fail(ReadFault::Overrun),
                        n if n == left => Step::Done,
                        n if n >= PAGE => Step::Again,
                        _ => Step::Fail(ReadFault::Cut),
                    };
                    assert_eq!(after.advance(Ok(n)), expected, "{n} bytes at {before:?}");
                    assert!(after.done_bytes.is_multiple_of(PAGE));
                    assert!(after.done_bytes <= before.done_bytes + n, "only what was read counts");
                    assert_eq!(after.done_bytes == after.len_bytes, expected == Step::Done);
                    if expected == Step::Again {
                        assert!(after.done_bytes > before.done_bytes, "no step without progress");
                    }
                }
            }
        }
    }

    #[test]
    fn every_errno_is_a_retry_with_a_bound_or_a_failure() {
        for raw in 1..4096 {
            let errno = Errno::from_raw_os_error(raw);
            let limit = match errno {
                errno if PUT_OFF.contains(&errno) => MAX_PUT_OFF,
                Errno::IO => MAX_DEVICE_ERRORS,
                _ => 0,
            };
            let mut progress = at(1, 2);
            for _ in 0..limit {
                assert_eq!(progress.advance(Err(errno)), Step::Again, "{errno}");
                assert_eq!(progress.done_bytes, PAGE);
            }
            let refused = progress.advance(Err(errno));
            assert_eq!(refused, Step::Fail(ReadFault::System(errno)));
        }
    }

    #[test]
    fn long_reads_are_asked_for_in_pieces() {
        let mut progress = Progress::new(2 * MAX_READ_BYTES + PAGE);
        assert_eq!(progress.ask_bytes(), MAX_READ_BYTES);
        assert_eq!(progress.advance(Ok(MAX_READ_BYTES + 1)), Step::Fail(ReadFault::Overrun));
        assert_eq!(progress.advance(Ok(MAX_READ_BYTES)), Step::Again);
        assert_eq!(progress.advance(Ok(MAX_READ_BYTES)), Step::Again);
        assert_eq!(progress.ask_bytes(), PAGE);
        assert_eq!(progress.advance(Ok(PAGE)), Step::Done);
    }

    /// Returns what a disk may answer: a share of what was asked for, or an error.
    fn answers() -> impl Strategy<Value = Vec<Result<f64, Errno>>> {
        let errno = prop::sample::select(vec![Errno::AGAIN, Errno::INTR, Errno::IO, Errno::NOMEM]);
        let answer = prop_oneof![9 => (0.0..=1.0f64).prop_map(Ok), 1 => errno.prop_map(Err)];
        prop::collection::vec(answer, 0..80)
    }

    proptest! {
        #[test]
        fn any_run_of_answers_ends_with_all_bytes_or_a_failure(
            n_pages in 1usize..700,
            answers in answers(),
        ) {
            let mut progress = Progress::new(n_pages * PAGE);
            let mut have = vec![false; n_pages];
            for answer in answers.into_iter().chain(std::iter::repeat(Ok(1.0))) {
                let (from, ask) = (progress.done_bytes, progress.ask_bytes());
                prop_assert!(ask > 0 && ask <= MAX_READ_BYTES);
                let outcome = answer.map(|share| (ask as f64 * share) as usize);
                if let Ok(n) = outcome {
                    have[from / PAGE..(from + n) / PAGE].fill(true);
                }
                match progress.advance(outcome) {
                    Step::Again => {}
                    Step::Done => {
                        prop_assert!(have.iter().all(|&have| have), "a page was never read");
                        return Ok(());
                    }
                    Step::Fail(_) => return Ok(()),
                }
            }
            prop_assert!(false, "endless answers end the loop");
        }
    }
}
