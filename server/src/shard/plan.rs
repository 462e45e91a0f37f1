//! Parameters of a shard, and reports of its start. Shards and their rows both import this module,
//! so that neither depends on the other.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, mpsc};

use lodestore_cache::{MemoryBudget, PolicyKind};

use crate::auth::AuthHandle;
use crate::blocking::BlockingPools;
use crate::compactor::Runs;
use crate::mailbox::Mailbox;
use crate::metrics::Observed;
use crate::partitions::Partitions;
use crate::preload::Preload;
use crate::stats::Counters;
use crate::volatile::Volatile;

/// Parameters that a shard needs to start.
#[derive(Clone)]
pub(crate) struct ShardPlan {
    /// Open partitions of the server.
    pub(crate) partitions: Arc<Partitions>,
    /// Counters by shard.
    pub(crate) counters: Arc<[Counters]>,
    /// TCP port of each shard.
    pub(crate) shard_ports: Arc<[u16]>,
    /// Threads for blocking calls of the store.
    pub(crate) threads: Arc<BlockingPools>,
    /// Requested compactions.
    pub(crate) runs: Arc<Runs>,
    /// Number of shards that may still send requests; mailboxes stay open until it is 0.
    pub(crate) busy: Arc<AtomicUsize>,
    /// Bytes of this shard's tier for each tensor, and the budget that all tiers draw from.
    pub(crate) tier_bytes: Arc<[usize]>,
    pub(crate) memory_budget: MemoryBudget,
    /// Bytes of this shard that clients of this machine may map.
    pub(crate) shared_bytes: u64,
    pub(crate) policy: PolicyKind,
    /// Credentials that clients must present.
    pub(crate) auth: Arc<AuthHandle>,
    /// Phase and heartbeats of the server, for metrics.
    pub(crate) observed: Arc<Observed>,
    /// Rules of what is preloaded after the start.
    pub(crate) preload: Arc<Preload>,
    /// Volatile rows of all shards.
    pub(crate) volatile: Arc<Volatile>,
}

/// Channel on which a shard reports its start.
pub(crate) type Started = mpsc::Sender<Step>;

/// Outcome of a shard's start.
pub(crate) enum Step {
    /// The shard serves: its number and its mailbox.
    Up(usize, Mailbox),
    /// The shard failed to start, with the reason.
    Failed(String),
}
