//! Tiers of equal slots of bytes, the policies that fill them, and hot sets chosen ahead of time.
//!
//! This crate knows ids and rows of bytes. It does not know graphs, disk formats, the network or
//! the time of day: the owner of a tier brings the rows that it misses.
//!
//! A [`Tier`] keeps rows, a [`SharedTier`] does so for several threads, and a [`Replay`] compares
//! policies on a trace. `examples/` has programs for each.
//!
//! ```
//! use lodestore_cache::{PolicyKind, Tier};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut tier = Tier::new(16 << 10, 4, 1000, PolicyKind::S3Fifo)?;
//! let (ids, mut rows, mut misses) = ([7, 4], [0; 8], Vec::new());
//! tier.lookup(&ids, &mut rows, &mut misses);
//! assert_eq!(misses, [0, 1], "positions to fetch, then to offer by `admit`");
//! # Ok(())
//! # }
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

mod aged;
mod arena;
pub mod bypass;
mod capacity;
pub mod device;
pub mod directory;
pub mod double_buffer;
mod ghosts;
pub mod hot_set;
pub mod huge_vec;
mod index;
pub mod memory_budget;
pub mod policy;
mod queues;
#[cfg(test)]
mod reference_model;
pub mod replay;
pub mod shared;
pub mod slots;
mod sync;
pub mod tier;
pub mod trace;
pub mod two_level;
pub mod versioned;
pub mod volatile;
pub mod volatile_store;

pub use capacity::TierSpec;
pub use device::DeviceTier;
pub use directory::Directory;
pub use memory_budget::MemoryBudget;
pub use policy::{PolicyKind, PolicySpec};
pub use replay::Replay;
pub use shared::SharedTier;
pub use tier::Tier;
pub use trace::Trace;
pub use two_level::TwoLevelTier;
pub use volatile_store::VolatileStore;
