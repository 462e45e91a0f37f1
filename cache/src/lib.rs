//! Tiers of equal slots of bytes, the policies that fill them, and hot sets chosen ahead of time.
//!
//! This crate knows ids and rows of bytes. It does not know graphs, disk formats, the network or
//! the time of day: whoever owns a tier brings the rows that it misses.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

mod arena;
mod double_buffer;
mod hot_set;
mod index;
mod policy;
mod tier;

pub use arena::ArenaError;
pub use double_buffer::DoubleBuffer;
pub use hot_set::{HotSet, HotSetError};
pub use policy::{PolicyKind, UnknownPolicy};
pub use tier::{Tier, TierStats};
