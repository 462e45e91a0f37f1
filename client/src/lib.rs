//! The trainer's access to rows: sources, batch loading, the hot sets and the prefetcher.
//!
//! This crate does not know what is trained, the layout of rows on disk, or which policy is best.
//! It turns node ids into bytes of rows, from wherever they are, and accounts for what moved.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

pub mod load;

mod address;
mod budget;
mod buffer;
mod cluster;
mod connection;
mod error;
#[cfg(test)]
mod fake_server;
mod follow;
mod gather_queue;
mod halo_buffer;
mod health;
mod hot_set_cache;
mod latency_estimate;
mod load_stats;
mod loader;
mod oracle_tier;
mod pem;
mod prefetch;
mod read_buffer;
mod remote;
mod route;
mod scatter;
mod scheduled;
mod security;
mod shared_memory;
mod socket;
mod source;
#[cfg(test)]
mod testing;
mod transfer;
mod volatile;

pub use address::Address;
pub use budget::RowBudget;
pub use buffer::RowBuffer;
#[cfg(feature = "etcd")]
pub use cluster::{Registration, ServerEntry};
pub use error::ClientError;
pub use follow::{FollowPlan, Follower, is_refused};
pub use gather_queue::{GatherQueue, GatherResult, GatheredRows, QueueBounds, Ticket};
pub use halo_buffer::HaloBuffer;
pub use hot_set_cache::{ChooseHotSet, HotSetCache, HotSetStats};
pub use load_stats::LoadStats;
pub use loader::{BatchLoader, RowResidency};
pub use lodestore_schema::{
    BadToken, FailureCode, ServerStats, ShardStats, Token, UpdateStats, VolatileStats,
};
pub use oracle_tier::{BatchTicket, OracleTier};
pub use prefetch::{
    BatchReadiness, BatchRows, BatchSource, PrefetchStats, Prefetcher, PreparedBatch, TakeRows,
    Window,
};
pub use remote::{Client, ClientConfig, CommitOutcome, CompactionRun, PutStats};
pub use scheduled::{IterationConfig, IterationStats, Retention, ScheduledBatch, ScheduledBatches};
pub use security::Security;
pub use source::device::DeviceSource;
pub use source::embedded::EmbeddedSource;
pub use source::memory::MemorySource;
pub use source::tiered::{TieredSource, TieredTensors};
pub use source::{PullKind, PullStats, RowSource, TensorInfo, TierRows};
pub use transfer::{PartitionTransfer, TransferPlan, TransferStats};
pub use volatile::{
    DeviceVolatile, EmbeddedVolatile, NO_STAMP, STAMP_MAX, Stamp, StampWanted, TieredVolatile,
    VolatileInfo, VolatilePublisher, VolatilePulled, VolatileSource,
};

/// The README's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
