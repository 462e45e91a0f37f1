//! Memory for remote rows that stay from batch to batch: on the host, for all workers; on the
//! device, for each.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Args;
use lodestore_cache::{
    Device, DeviceSettings, DeviceTier, Governor, Grant, PolicyKind, SharedTier, TierStats,
    rows_within,
};
use lodestore_client::{DeviceSource, HaloBuffer, RowSource, TieredSource};
use lodestore_store::available_memory_bytes;
use lodestore_trainer::Strategy;
use serde::Serialize;

use super::known::Known;
use crate::policies::{for_training, is_for_training};
use crate::size::parse_size;
use crate::usage::UsageError;

/// Flags of both tiers.
#[derive(Args, Clone, Debug)]
pub(super) struct TierArgs {
    /// ondemand: host memory for remote rows that stay from batch to batch, shared by all workers;
    /// `auto` for half of what is free.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = Room::parse)]
    tier: Room,
    /// ondemand: which of them stay: lru, fifo, clock, sieve, s3-fifo, tinylfu, degree (the highest
    /// in-degrees) or overlap (what most partitions need); tinylfu unless given. rapid: which rows a
    /// worker keeps: frequency (what an epoch uses most) or oracle (what is used soonest); frequency
    /// unless given.
    #[arg(long, value_name = "P")]
    pub(super) policy: Option<PolicyKind>,
    /// ondemand: memory of each worker's device for remote rows, before the host's. Without a CUDA
    /// device it is host memory too, and the report says so. `auto` for half of what is free.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = Room::parse)]
    device_tier: Room,
    /// ondemand: which rows stay there; as --policy.
    #[arg(long, value_name = "P")]
    device_policy: Option<PolicyKind>,
}

/// Bytes for rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Bytes(u64),
    /// Half of what is free when the tier is made, shared by the workers if each has one, as far as
    /// there are rows (CaPGNN, Algorithm 1, with the other half as its reserve).
    Auto,
}

/// Memory of both tiers and their policies; none without memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TierChoice {
    host: Option<(Room, PolicyKind)>,
    device: Option<(Room, PolicyKind)>,
}

/// The tiers of a run. Those in the host's memory, of any width, take it from one budget: what is
/// free when the run begins.
pub(super) struct Tiers {
    /// Nothing bounds them where nobody knows what is free.
    memory: Option<Governor>,
    taken: Vec<Grant>,
    host: Option<(Arc<TieredSource>, PolicyKind)>,
    devices: Vec<Arc<DeviceSource>>,
    pub(super) buffers: Vec<Arc<HaloBuffer>>,
    pub(super) has_eviction: bool,
    pub(super) filled_rows: u64,
    device: Option<DeviceChoice>,
}

/// What each worker's device has.
struct DeviceChoice {
    device: Device,
    is_host_memory: bool,
    n_rows: u32,
    policy: PolicyKind,
}

/// What the tiers did.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TierReport {
    /// `device` or `buffer`, one for each worker, or `host`, one for all of them.
    pub(crate) tier: &'static str,
    /// Where its rows lie: `host`, or the name of the device.
    pub(crate) device: String,
    pub(crate) policy: &'static str,
    pub(crate) rows: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) hit_rate: f64,
    pub(crate) evictions: u64,
    /// Rows that all workers pulled before the first batch; the first epoch counts them too.
    pub(crate) filled_rows: u64,
}

impl TierArgs {
    pub(super) fn check(&self, strategy: Strategy) -> Result<TierChoice, UsageError> {
        // Of `rapid` the flag is for hot sets.
        let policy = self.policy.filter(|_| strategy != Strategy::Rapid);
        Ok(TierChoice {
            host: tier(["--tier", "--policy"], self.tier, policy, strategy)?,
            device: tier(
                ["--device-tier", "--device-policy"],
                self.device_tier,
                self.device_policy,
                strategy,
            )?,
        })
    }
}

/// A tier by its two flags, `names`; none without memory.
fn tier(
    names: [&str; 2],
    room: Room,
    policy: Option<PolicyKind>,
    strategy: Strategy,
) -> Result<Option<(Room, PolicyKind)>, UsageError> {
    let [name, policy_name] = names;
    let told = match policy {
        Some(policy) if !is_for_training(policy) => format!(
            "{policy_name}: a tier of --strategy ondemand cannot follow `{policy}`; one of: {}",
            for_training()
        ),
        Some(_) if room == Room::NONE => format!("{policy_name} is for {name}; give its size"),
        _ if room != Room::NONE && strategy != Strategy::Ondemand => format!(
            "{name} is for --strategy ondemand; {strategy} keeps rows by its schedule, see --hot"
        ),
        _ if room == Room::NONE => return Ok(None),
        _ => return Ok(Some((room, policy.unwrap_or(PolicyKind::TinyLfu)))),
    };
    Err(UsageError::new(told))
}

impl Room {
    const NONE: Self = Self::Bytes(0);

    fn parse(text: &str) -> Result<Self, String> {
        if text == "auto" { Ok(Self::Auto) } else { parse_size(text).map(Self::Bytes) }
    }

    /// Bytes, where so many are free; none if nobody knows.
    fn bytes(self, free_bytes: Option<u64>) -> u64 {
        match self {
            Self::Bytes(n_bytes) => n_bytes,
            Self::Auto => free_bytes.unwrap_or_default() / 2,
        }
    }
}

impl Tiers {
    /// The host's tier before `remote`, if one is wanted, and what each device is to have.
    pub(super) fn new(
        choice: TierChoice,
        remote: &Arc<dyn RowSource>,
        tensor: &str,
        known: &Known<'_>,
    ) -> Result<Self> {
        let (row_bytes, n_nodes) = (remote.tensor(tensor)?.row_bytes(), remote.book().n_nodes());
        let mut tiers = Self::of(available_memory_bytes().map(|n_bytes| known.share(n_bytes)));
        if let Some((room, policy)) = choice.host {
            let n_bytes = match room {
                Room::Bytes(n_bytes) => known.share(n_bytes),
                Room::Auto => room.bytes(tiers.left_bytes()),
            };
            let n_bytes = usize::try_from(n_bytes).unwrap_or(usize::MAX);
            let spec = known.spec(policy, known.lone_worker())?;
            let tier = SharedTier::new(n_bytes, row_bytes, n_nodes, &spec)?;
            tiers.take(tier.bytes()).context("--tier")?;
            let host = Arc::new(TieredSource::new(Arc::clone(remote), tensor, tier)?);
            tiers.host = Some((host, policy));
        }
        if let Some((room, policy)) = choice.device {
            let device = Device::best();
            let free_bytes = device.free_bytes()?;
            let is_host_memory = free_bytes.is_none();
            let n_bytes = match room {
                Room::Bytes(n_bytes) => n_bytes,
                // A device is all processes' own; memory of the host is this one's share already.
                Room::Auto => {
                    let share = free_bytes.map(|n_bytes| known.share(n_bytes));
                    room.bytes(share.or(tiers.left_bytes())) / known.here.workers.len() as u64
                }
            };
            let n_rows = rows_within(n_bytes, 0, &[row_bytes as u64], n_nodes as usize);
            tiers.device = Some(DeviceChoice { device, is_host_memory, n_rows, policy });
        }
        Ok(tiers)
    }

    /// No tiers yet, and memory for them.
    fn of(free_bytes: Option<u64>) -> Self {
        Self {
            memory: free_bytes.map(Governor::new),
            taken: Vec::new(),
            host: None,
            devices: Vec::new(),
            buffers: Vec::new(),
            has_eviction: false,
            filled_rows: 0,
            device: None,
        }
    }

    /// Memory of the host that no tier has, in bytes.
    fn left_bytes(&self) -> Option<u64> {
        self.memory.as_ref().map(Governor::left_bytes)
    }

    /// A tier has bytes of the host's memory, of which it takes pages as it fills.
    pub(super) fn take(&mut self, n_bytes: usize) -> Result<()> {
        if let Some(memory) = &self.memory {
            self.taken.push(memory.grant(n_bytes as u64)?);
        }
        Ok(())
    }

    /// What a worker pulls from: its device's tier before the host's before `remote`.
    pub(super) fn of_worker(
        &mut self,
        worker: u32,
        remote: &Arc<dyn RowSource>,
        tensor: &str,
        known: &Known<'_>,
    ) -> Result<Arc<dyn RowSource>> {
        let below: Arc<dyn RowSource> = match &self.host {
            Some((host, _)) => Arc::clone(host) as _,
            None => Arc::clone(remote),
        };
        let Some(choice) = &self.device else { return Ok(below) };
        let DeviceChoice { device, is_host_memory, n_rows, policy } = choice;
        let (spec, n_nodes) = (known.spec(*policy, Some(worker))?, below.book().n_nodes());
        let row_bytes = below.tensor(tensor)?.row_bytes();
        let settings = DeviceSettings::default();
        let tier = DeviceTier::new(device, *n_rows, row_bytes, n_nodes, &spec, settings)?;
        if *is_host_memory {
            self.take(tier.bytes()).context("--device-tier, in the host's memory")?;
        }
        let source = Arc::new(DeviceSource::new(below, tensor, tier)?);
        self.devices.push(Arc::clone(&source));
        Ok(source)
    }

    /// What they did, the devices' first.
    pub(super) fn report(&self) -> Vec<TierReport> {
        let mut reports = Vec::new();
        if let (Some(first), Some(choice)) = (self.devices.first(), &self.device) {
            let sum = sum(self.devices.iter().map(|device| device.stats()));
            let rows = first.n_slots().into();
            reports.push(TierReport::of("device", first.device(), choice.policy, rows, sum));
        }
        if let Some(first) = self.buffers.first() {
            let sum = sum(self.buffers.iter().map(|buffer| buffer.stats()));
            let policy = if self.has_eviction { PolicyKind::Decay } else { PolicyKind::Degree };
            let rows = first.n_slots().into();
            let report = TierReport::of("buffer", "host".to_owned(), policy, rows, sum);
            reports.push(TierReport { filled_rows: self.filled_rows, ..report });
        }
        if let Some((host, policy)) = &self.host {
            let (rows, stats) = (host.tier().n_slots().into(), host.tier().stats());
            reports.push(TierReport::of("host", "host".to_owned(), *policy, rows, stats));
        }
        reports
    }
}

/// Hits, misses and evictions of all workers.
fn sum(all: impl Iterator<Item = TierStats>) -> TierStats {
    all.fold(TierStats::default(), |sum, stats| TierStats {
        hits: sum.hits + stats.hits,
        misses: sum.misses + stats.misses,
        evictions: sum.evictions + stats.evictions,
        ..sum
    })
}

impl TierReport {
    /// What adds up over processes.
    pub(super) fn figures(&self) -> [u64; 5] {
        [self.rows, self.hits, self.misses, self.evictions, self.filled_rows]
    }

    /// Takes the sums of these figures over processes; rows are those of one worker still, but for the
    /// host's tiers.
    pub(super) fn set(&mut self, [rows, hits, misses, evictions, filled_rows]: [u64; 5]) {
        let rows = if self.tier == "host" { rows } else { self.rows };
        let hit_rate = hits as f64 / (hits + misses).max(1) as f64;
        let sums = Self { rows, hits, misses, hit_rate, evictions, filled_rows, ..self.clone() };
        *self = sums;
    }

    fn of(
        tier: &'static str,
        device: String,
        policy: PolicyKind,
        rows: u64,
        stats: TierStats,
    ) -> Self {
        let TierStats { hits, misses, evictions, .. } = stats;
        let hit_rate = hits as f64 / (hits + misses).max(1) as f64;
        let (policy, filled_rows) = (policy.name(), 0);
        Self { tier, device, policy, rows, hits, misses, hit_rate, evictions, filled_rows }
    }
}
