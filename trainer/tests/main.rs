//! Runs of the trainer on small graphs in memory.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod full;
mod measuring;
mod metrics;
mod observing;
mod options;
mod planted;
mod resuming;
mod sdt;
mod sparse_rows;
mod strategies;
