//! Errors of collectives.

use std::{io, time::Duration};

use thiserror::Error;

use crate::header::{HEADER_BYTES, decode_header, encode_header};

/// Reason for a failed collective. The ranks cannot communicate afterwards.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A process ended before the run did.
    #[error("process {rank} of the run is gone")]
    Gone {
        /// Its rank.
        rank: u32,
    },
    /// A process runs but sends no message in time: it hangs or is too slow.
    #[error(
        "process {rank} of the run is there and has not answered for {} s; if it only takes long, \
         allow more time", waited.as_secs()
    )]
    Silent {
        /// Its rank.
        rank: u32,
        /// The time without a message from it.
        waited: Duration,
    },
    /// A process calls another collective, or sends a message of another length.
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
    /// A message is longer than an engine can carry.
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

impl CollectiveError {
    /// Returns the error of an unexpected message from `rank`.
    pub fn out_of_step(rank: u32, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self::OutOfStep { rank, expected: expected.into(), found: found.into() }
    }

    /// Returns the message that passes on this fault of another rank, so that all ranks report the
    /// same rank: its number, and the milliseconds of its silence, 0 if its process ended. None for
    /// any other error.
    pub(crate) fn to_fault(&self) -> Option<[u8; HEADER_BYTES]> {
        match *self {
            Self::Gone { rank } => Some(encode_header(rank, 0)),
            Self::Silent { rank, waited } => {
                Some(encode_header(rank, waited.as_millis().max(1) as u64))
            }
            _ => None,
        }
    }

    /// Returns the fault in a message of [`Self::to_fault`].
    pub(crate) fn from_fault(bytes: [u8; HEADER_BYTES]) -> Self {
        match decode_header(bytes) {
            (rank, 0) => Self::Gone { rank },
            (rank, millis) => Self::Silent { rank, waited: Duration::from_millis(millis) },
        }
    }
}
