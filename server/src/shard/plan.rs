//! Parameters of a shard, and reports of its start. Shards and their rows import them from here, so
//! that neither needs the other.

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
    /// Partitions of the server, open.
    pub(crate) partitions: Arc<Partitions>,
    /// Counters of each shard.
    pub(crate) counters: Arc<[Counters]>,
    /// TCP port of each shard.
    pub(crate) shard_ports: Arc<[u16]>,
    /// Threads for calls of the store that block.
    pub(crate) threads: Arc<BlockingPools>,
    /// Compactions that were asked for.
    pub(crate) runs: Arc<Runs>,
    /// Shards that still have connections; none closes its mailbox before it is 0.
    pub(crate) busy: Arc<AtomicUsize>,
    /// Bytes of this shard's tier for each tensor, and the budget that all tiers take theirs from.
    pub(crate) tier_bytes: Arc<[usize]>,
    pub(crate) memory_budget: MemoryBudget,
    /// Bytes of this shard that clients of this machine may map.
    pub(crate) shared_bytes: u64,
    /// Policy of the tiers.
    pub(crate) policy: PolicyKind,
    /// Credentials that clients must show.
    pub(crate) auth: Arc<AuthHandle>,
    /// The counter by which it shows that it is alive.
    pub(crate) observed: Arc<Observed>,
    /// Which rows are loaded after the start.
    pub(crate) preload: Arc<Preload>,
    /// Rows in memory alone, of all shards.
    pub(crate) volatile: Arc<Volatile>,
}

/// Where a shard reports how far it is.
pub(crate) type Started = mpsc::Sender<Step>;

/// State of a shard that starts.
pub(crate) enum Step {
    /// It serves: its number and its mailbox.
    Up(usize, Mailbox),
    /// It goes no further.
    Failed(String),
}
