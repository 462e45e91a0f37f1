//! Processes that train together: each gives words, and all get everybody's, in the order of ranks.
//!
//! That is all that a run in several processes asks of what joins them. Gradients are summed by each
//! process for itself, in the order of workers, so that every form gives the same bits.

mod map;
#[cfg(feature = "mpi")]
mod mpi;
mod shared;

use std::{io, time::Duration};

use thiserror::Error;

#[cfg(feature = "mpi")]
pub use mpi::MpiPeers;
pub use shared::{SharedMemory, SharedPeers};

/// What joins the processes of a run. Rank 0 leads: it alone measures accuracy, keeps checkpoints
/// and tells of the run.
pub trait Peers {
    /// This process, from 0.
    fn rank(&self) -> u32;

    /// Processes in all, at least 1.
    fn n_ranks(&self) -> u32;

    /// Processes on this machine, which share its cores.
    fn n_here(&self) -> u32;

    /// Gives `mine` to all, and fills `all` with what each gave, by rank. Every process calls this as
    /// often as the others, and waits for the last of them; lists may differ in length.
    ///
    /// After an error the run is over.
    fn exchange(&mut self, mine: &[u32], all: &mut Vec<Vec<u32>>) -> Result<(), PeerError>;
}

/// Why processes no longer train together.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PeerError {
    /// A process ended before the run did.
    #[error("process {rank} of the run is gone")]
    Gone {
        /// Its rank.
        rank: u32,
    },
    /// A process neither ends nor comes: it hangs, or is slower than it may be.
    #[error(
        "process {rank} of the run, which has worker {rank}, is there and has not answered for {} s; \
         if it only takes long, allow more (--peer-timeout)", waited.as_secs()
    )]
    Silent {
        /// Its rank, and its worker: whoever waits with a bound has one worker a process.
        rank: u32,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A process is not where the others are.
    #[error("process {rank} of the run is out of step: expected {expected}, found {found}")]
    OutOfStep {
        /// Its rank.
        rank: u32,
        /// What it should have given.
        expected: String,
        /// What it gave.
        found: String,
    },
    /// The memory that the processes share could not be had.
    #[error("cannot {action} the memory that the processes share")]
    Memory {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// More than one exchange can carry.
    #[error("an exchange of {found} words, at most {most} are possible")]
    TooLong {
        /// Words that were to be exchanged.
        found: u64,
        /// Most that can be.
        most: u64,
    },
}

/// A process that trains by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Peers for Alone {
    fn rank(&self) -> u32 {
        0
    }

    fn n_ranks(&self) -> u32 {
        1
    }

    fn n_here(&self) -> u32 {
        1
    }

    fn exchange(&mut self, mine: &[u32], all: &mut Vec<Vec<u32>>) -> Result<(), PeerError> {
        all.resize_with(1, Vec::new);
        all[0].clear();
        all[0].extend_from_slice(mine);
        Ok(())
    }
}
