//! Tiers of equal slots of bytes, the policies that fill them, and hot sets chosen ahead of time.
//!
//! This crate knows ids and rows of bytes. It does not know graphs, disk formats, the network or
//! the time of day: the owner of a tier brings the rows that it misses.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

mod arena;
mod bypass;
mod capacity;
mod device;
mod directory;
mod double_buffer;
mod ghosts;
mod governor;
mod hot_set;
mod index;
mod levels;
#[cfg(test)]
mod modelled;
mod pages;
mod policy;
mod queues;
mod replay;
mod shared;
mod slots;
mod stamped;
mod sync;
mod tier;
mod trace;
mod versioned;
mod volatile;
mod volatile_store;

pub use arena::ArenaError;
pub use bypass::BypassSettings;
pub use capacity::Room;
pub use device::{BatchTensor, Device, DeviceError, DeviceSettings, DeviceTier, GatherError};
pub use directory::{Directory, DirectoryError, Placement, TierStats};
pub use double_buffer::DoubleBuffer;
pub use governor::{Claim, Governor, Grant, OverBudget, shares};
pub use hot_set::{HotSet, HotSetError};
pub use index::NO_SLOT;
pub use levels::{Found, Inclusion, Levels, LevelsStats};
pub use policy::{
    Candidate, DecaySpec, NEVER, NeedsPlan, PolicyKind, PolicySpec, Replacement, Scoreboard,
    UnknownPolicy, next_uses, rank_by_degree, rank_by_frequency,
};
pub use replay::{Replay, ReplayError, ReplayStats, Telling, TierSizes};
pub use shared::{Passage, Removal, SharedSettings, SharedTier};
pub use slots::PinTicket;
pub use tier::{Decision, Tier};
pub use trace::{RecordError, RecordFormat, Trace, TraceBuilder, TraceError, read_records};
pub use versioned::{Torn, VersionedRows};
pub use volatile::{
    NO_STAMP, STAMP_MAX, Stamp, VolatileClaim, VolatileError, VolatilePlace, VolatilePublication,
    VolatileRows,
};
pub use volatile_store::{DeclareError, VolatileShape, VolatileStore, VolatileTensor};
