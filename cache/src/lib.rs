//! Tiers of equal slots of bytes, the policies that fill them, and hot sets chosen ahead of time.
//!
//! This crate knows ids and rows of bytes. It does not know graphs, disk formats, the network or
//! the time of day: whoever owns a tier brings the rows that it misses.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

mod arena;
mod directory;
mod double_buffer;
mod ghosts;
mod hot_set;
mod index;
mod links;
mod pages;
mod policy;
mod replay;
mod slots;
mod tier;
mod trace;
mod versioned;

pub use arena::ArenaError;
pub use directory::{Directory, DirectoryError, Placement, TierStats};
pub use double_buffer::DoubleBuffer;
pub use hot_set::{HotSet, HotSetError};
pub use index::NO_SLOT;
pub use policy::{
    Candidate, DecaySpec, NEVER, NeedsPlan, PolicyKind, PolicySpec, Scoreboard, UnknownPolicy,
    next_uses, rank_by_degree, rank_by_frequency,
};
pub use replay::{Replay, ReplayStats, Telling};
pub use slots::PinTicket;
pub use tier::Tier;
pub use trace::{RecordError, RecordFormat, Trace, TraceBuilder, TraceError, read_records};
pub use versioned::{Torn, VersionedRows};
