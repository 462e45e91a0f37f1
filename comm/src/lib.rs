//! Collective communication among the ranks of a run: threads, processes of one machine, MPI jobs.
//!
//! This crate knows ranks, messages of bytes, and sums of f32. It does not know models, workers,
//! strategies, or where rows come from. Each engine moves messages between pairs of ranks; every
//! collective is written once over that, so all engines give the same bits. A
//! [`Group`](group::Group) adds a status to each exchange, so all ranks learn of failures and of
//! the end of the run at the same point.
//!
//! ```
//! use std::thread;
//! use std::time::Duration;
//!
//! use lodestore_comm::collective::{Collective, Term};
//! use lodestore_comm::tag::Payload;
//! use lodestore_comm::threads::ThreadCollective;
//!
//! let ranks = ThreadCollective::group(2, Duration::from_secs(60));
//! let threads = ranks.into_iter().map(|mut rank| {
//!     thread::spawn(move || {
//!         let term = Term { order: rank.rank(), values: vec![1.0, 2.0, 3.0] };
//!         rank.reduce_ordered(Payload::Gradients, vec![term], 3).unwrap()
//!     })
//! });
//! for thread in threads.collect::<Vec<_>>() {
//!     assert_eq!(thread.join().unwrap(), [2.0, 4.0, 6.0]);
//! }
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

pub mod collective;
pub mod error;
pub mod group;
mod header;
pub mod limits;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod sockets;
pub mod tag;
pub mod threads;
pub mod traffic;
