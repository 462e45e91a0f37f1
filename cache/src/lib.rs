//! Tiers of equal slots of bytes, the policies that fill them, and hot sets chosen ahead of time.
//!
//! This crate knows ids and rows of bytes. It does not know graphs, disk formats, the network or
//! the time of day: the owner of a tier brings the rows that it misses.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

mod aged;
mod arena;
mod bypass;
mod capacity;
mod device;
mod directory;
mod double_buffer;
mod ghosts;
mod hot_set;
mod huge_vec;
mod index;
mod memory_budget;
mod policy;
mod queues;
#[cfg(test)]
mod reference_model;
mod replay;
mod shared;
mod slots;
mod sync;
mod tier;
mod trace;
mod two_level;
mod versioned;
mod volatile;
mod volatile_store;

pub use bypass::BypassSettings;
pub use capacity::TierSpec;
pub use device::{BatchTensor, Device, DeviceError, DeviceSettings, DeviceTier, GatherError};
pub use directory::{Directory, DirectoryError, Placement, TierStats};
pub use double_buffer::DoubleBuffer;
pub use hot_set::{HotSet, HotSetError};
pub use huge_vec::MemoryError;
pub use memory_budget::{MemoryBudget, MemoryRequest, OverBudget, Reservation, shares};
pub use policy::{
    Candidate, DecaySpec, NEVER, NeedsPlan, PolicyKind, PolicySpec, Replacement, Scoreboard,
    UnknownPolicy, next_uses, rank_by_degree, rank_by_frequency,
};
pub use replay::{Replay, ReplayError, ReplayInputs, ReplayStats, TierSizes};
pub use shared::{BatchAccess, Invalidation, SharedSettings, SharedTier};
pub use slots::{NO_SLOT, PinTicket};
pub use tier::{Decision, Tier};
pub use trace::{RecordError, RecordFormat, Trace, TraceBuilder, TraceError, read_records};
pub use two_level::{Found, Inclusion, TwoLevelStats, TwoLevelTier};
pub use versioned::{TornRead, VersionedRows};
pub use volatile::{
    NO_STAMP, STAMP_MAX, Stamp, VolatileClaim, VolatileError, VolatilePlace, VolatilePublication,
    VolatileRows,
};
pub use volatile_store::{DeclareError, VolatileShape, VolatileStore, VolatileTensor};
