//! Why ranks no longer communicate.

use std::{io, time::Duration};

use thiserror::Error;

use super::tag::{HEADER_BYTES, header, parts_of};

/// Reason for a failed collective. The run is over.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A process ended before the run did.
    #[error("process {rank} of the run is gone")]
    Gone {
        /// Its rank.
        rank: u32,
    },
    /// A process exists and does not communicate: it hangs, or is slower than it may be.
    #[error(
        "process {rank} of the run is there and has not answered for {} s; if it only takes long, \
         allow more (--peer-timeout)", waited.as_secs()
    )]
    Silent {
        /// Its rank.
        rank: u32,
        /// The time without a message from it.
        waited: Duration,
    },
    /// A process does something else than this one.
    #[error(
        "process {rank} of the run is out of step: expected {expected}, found {found}; start all \
         processes from the same build and command line"
    )]
    OutOfStep {
        /// Its rank.
        rank: u32,
        /// The expected message.
        expected: String,
        /// The received message.
        found: String,
    },
    /// A message longer than an engine carries.
    #[error(
        "a message of {found} bytes between this process and process {rank}, at most {most} are \
         possible; train with smaller batches or a smaller model"
    )]
    TooLong {
        /// The rank at the other end.
        rank: u32,
        /// Bytes of the message.
        found: u64,
        /// The limit.
        most: u64,
    },
    /// The processes could not be connected.
    #[error("cannot {action} that connect the processes of the run: {source}")]
    Connect {
        /// The operation.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// The tag of a fault, which no message has.
pub(super) const FAULT: u32 = u32::MAX;
/// The tag of a notice, which no message has.
pub(super) const WAITING: u32 = u32::MAX - 1;

impl CollectiveError {
    /// Returns the error of a message from `rank` that is not the expected one.
    pub(crate) fn out_of_step(
        rank: u32,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self::OutOfStep { rank, expected: expected.into(), found: found.into() }
    }

    /// Fails unless `bytes` from `rank` are `n_bytes`.
    pub(crate) fn expect_bytes(rank: u32, bytes: &[u8], n_bytes: usize) -> Result<(), Self> {
        if bytes.len() == n_bytes {
            return Ok(());
        }
        Err(Self::out_of_step(rank, format!("{n_bytes} bytes"), format!("{} bytes", bytes.len())))
    }

    /// Returns the fault of another rank as it is passed on, so that all ranks name the same one.
    /// It has the rank, and the milliseconds it has been silent: 0 if it is gone.
    pub(super) fn to_fault(&self) -> Option<[u8; HEADER_BYTES]> {
        match *self {
            Self::Gone { rank } => Some(header(rank, 0)),
            Self::Silent { rank, waited } => Some(header(rank, waited.as_millis().max(1) as u64)),
            _ => None,
        }
    }

    /// Returns the fault that these bytes pass on.
    pub(super) fn from_fault(bytes: [u8; HEADER_BYTES]) -> Self {
        match parts_of(bytes) {
            (rank, 0) => Self::Gone { rank },
            (rank, millis) => Self::Silent { rank, waited: Duration::from_millis(millis) },
        }
    }
}

/// Returns how long `rank` waits for others. The leader waits for `timeout`; the others wait twice
/// as long, so that it is the leader that says which rank is silent.
pub(super) fn time_to_wait(rank: u32, timeout: Duration) -> Duration {
    if rank == 0 { timeout } else { timeout.saturating_mul(2) }
}
