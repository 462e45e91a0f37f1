//! The trainer's way to rows: sources, batch loading, the steady cache and the prefetcher.
//!
//! This crate does not know what is trained, how rows lie on disk, or which policy is best. It
//! turns node ids into bytes of rows, from wherever they are, and accounts for what moved.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

pub mod load;

mod address;
mod budget;
mod buffer;
mod cluster;
mod connection;
mod embedded;
mod error;
#[cfg(test)]
mod fake_server;
mod follow;
mod gather_queue;
mod halo_buffer;
mod health;
mod inbox;
mod load_stats;
mod loader;
mod map;
mod memory;
mod moving;
mod on_device;
mod pem;
mod planned;
mod prefetch;
mod remote;
mod route;
mod scatter;
mod scheduled;
mod security;
mod socket;
mod source;
mod steady;
mod tail;
#[cfg(test)]
mod testing;
mod tiered;
mod volatile;

pub use address::Address;
pub use budget::RowBudget;
pub use buffer::RowBuffer;
#[cfg(feature = "etcd")]
pub use cluster::{Registration, ServerEntry};
pub use embedded::EmbeddedSource;
pub use error::ClientError;
pub use follow::{FollowPlan, Follower, is_refused};
pub use gather_queue::{GatherQueue, GatherResult, GatheredRows, QueueBounds, Ticket};
pub use halo_buffer::HaloBuffer;
pub use load_stats::LoadStats;
pub use loader::{BatchLoader, Kept};
pub use lodestore_schema::{
    BadToken, FailureCode, ServerStats, ShardStats, Token, UpdateStats, VolatileStats,
};
pub use memory::MemorySource;
pub use moving::{MovePlan, MoveStats, PartMove};
pub use on_device::DeviceSource;
pub use planned::{PlannedTier, Turn};
pub use prefetch::{
    BatchRows, BatchSource, Met, PrefetchStats, Prefetcher, PreparedBatch, TakeRows, Window,
};
pub use remote::{Client, ClientConfig, CommitOutcome, CompactionRun, PutStats};
pub use scheduled::{IterationConfig, IterationStats, Retention, ScheduledBatch, ScheduledBatches};
pub use security::Security;
pub use source::{PullKind, PullStats, RowSource, TensorInfo, TierRows};
pub use steady::{ChooseHotSet, SteadyCache, SteadyStats};
pub use tiered::{TieredSource, TieredTensors};
pub use volatile::{
    DeviceVolatile, EmbeddedVolatile, NO_STAMP, STAMP_MAX, Stamp, StampWanted, TieredVolatile,
    VolatileInfo, VolatilePublisher, VolatilePulled, VolatileSource,
};

/// The README's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
