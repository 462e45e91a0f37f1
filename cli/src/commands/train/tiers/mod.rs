//! Memory for remote rows that stay from batch to batch: on the host, for all workers; on the
//! device, for each.

mod report;

use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Args;
use lodestore_cache::bypass::BypassSettings;
use lodestore_cache::device::Device;
use lodestore_cache::memory_budget::Reservation;
use lodestore_cache::shared::SharedSettings;
use lodestore_cache::two_level::Inclusion;
use lodestore_cache::{
    DeviceTier, MemoryBudget, PolicyKind, PolicySpec, SharedTier, TierSpec, TwoLevelTier,
};
use lodestore_client::halo_buffer::HaloBuffer;
use lodestore_client::keep::policy_inputs::PolicyInputs;
use lodestore_client::source::device::DeviceSource;
use lodestore_client::{RowSource, TieredSource};
use lodestore_store::reader::available_memory_bytes;
use lodestore_trainer::Strategy;
use lodestore_trainer::config::Halo;

use super::local_workers::LocalWorkers;
use crate::candidates::RuleReport;
use crate::flags::{InclusionArg, parse_size};
use crate::usage::{UsageError, refuse_given};
pub use report::TierReport;

/// Pulls of a round of `--bypass` under `full`.
const FULL_ROUND_PULLS: u32 = 4;

/// Policies that a tier of a trainer without a schedule can follow.
const FOR_TRAINING: [PolicyKind; 8] = [
    PolicyKind::Lru,
    PolicyKind::Fifo,
    PolicyKind::Clock,
    PolicyKind::Sieve,
    PolicyKind::S3Fifo,
    PolicyKind::TinyLfu,
    PolicyKind::Degree,
    PolicyKind::Overlap,
];

/// Flags of both tiers.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Tiers of remote rows")]
pub(super) struct TierArgs {
    /// ondemand, full: host memory for remote rows that stay from batch to batch, shared by all
    /// workers. `auto` is for rows in half of the free memory, 25% for this share of the rows that
    /// could be requested. Under full it is for the features of halos; without it each partition
    /// keeps all of its own.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = TierSize::parse)]
    tier: TierSize,
    /// ondemand, full: which of them stay: lru, fifo, clock, sieve, s3-fifo, tinylfu, degree (the
    /// highest in-degrees) or overlap (what most partitions need). It is tinylfu unless given,
    /// under full overlap. Under rapid it is which rows a worker keeps: oracle (what is used
    /// soonest) or frequency (what an epoch uses most: RapidGNN's hot sets). There it is oracle
    /// unless given.
    #[arg(long, value_name = "P")]
    pub(super) policy: Option<PolicyKind>,
    /// ondemand, full: memory of each worker's device for remote rows, before the host's. The
    /// staging of rows on their way there is part of it, the batch that they are gathered into is
    /// not. Without a CUDA device it is host memory too, and the report says so. `auto` is as for
    /// --tier.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = TierSize::parse)]
    device_tier: TierSize,
    /// ondemand, full: which rows stay there; as --policy.
    #[arg(long, value_name = "P")]
    device_policy: Option<PolicyKind>,
    /// --device-tier over --tier: which rows both have, inclusive unless given. With `inclusive`
    /// both may have a row. With `exclusive` a row that moves up leaves the host, and one that a
    /// device releases comes down.
    #[arg(long, value_enum, value_name = "I")]
    levels: Option<InclusionArg>,
    /// Tiers: pull a row again when more than N batches of the fastest worker have passed since it
    /// was pulled. It is for servers that commit meanwhile (with --mixed-versions); 0 is for each batch
    /// again. Without it all rows are of one version.
    #[arg(long, value_name = "BATCHES")]
    max_age: Option<u32>,
    /// Tiers: go past a tier for some time when less than this share of its look-ups hits for long;
    /// 0 for never [default: 0.05].
    #[arg(long, value_name = "SHARE")]
    bypass: Option<f64>,
}

/// Bytes for rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TierSize {
    Bytes(u64),
    /// Memory of this share of the rows that could be requested.
    Share(f64),
    /// As much as there are rows for, of the memory that is free at the start, less a reserve of
    /// half (CaPGNN, Algorithm 1). Devices share it if they are one.
    Auto,
}

/// Memory of both tiers, their policies, and on what terms rows are used; none without memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct TierChoice {
    host: Option<(TierSize, PolicyKind)>,
    device: Option<(TierSize, PolicyKind)>,
    inclusion: Inclusion,
    settings: SharedSettings,
}

impl TierChoice {
    /// Returns a tier that keeps no row: each is pulled whenever it is needed.
    pub fn keeping_nothing() -> Self {
        Self { host: Some((TierSize::NONE, PolicyKind::None)), ..Self::default() }
    }

    /// Returns whether rows in a tier have an age, after which they are pulled again.
    pub(super) fn has_max_age(&self) -> bool {
        self.settings.max_age.is_some()
    }
}

/// The tiers of a run. Those in the host's memory, of any width, take it from one budget: what is
/// free when the run begins.
pub(super) struct Tiers {
    /// There is no bound where the free memory is unknown.
    memory: Option<MemoryBudget>,
    taken: Vec<Reservation>,
    choice: TierChoice,
    host: Option<(Arc<SharedTier>, PolicyKind)>,
    devices: Vec<Arc<DeviceSource>>,
    pub(super) buffers: Vec<Arc<HaloBuffer>>,
    /// Those of the buffers.
    pub(super) rules: Option<RuleReport>,
    pub(super) filled_rows: u64,
    device: Option<DeviceChoice>,
}

/// Memory of each worker's device.
struct DeviceChoice {
    device: Device,
    is_host_memory: bool,
    /// Memory for it; how many rows are wanted is each worker's own.
    size: TierSize,
    free_bytes: Option<u64>,
    row_bytes: usize,
    policy: PolicyKind,
}

impl TierArgs {
    pub(super) fn check(&self, strategy: &Strategy) -> Result<TierChoice, UsageError> {
        // Where rows come by a schedule, the flag is for the rows that are kept by it.
        let policy = self.policy.filter(|_| strategy.schedule().is_none());
        let is_full = matches!(strategy, Strategy::Full(_));
        let usual = if is_full { PolicyKind::Overlap } else { PolicyKind::TinyLfu };
        let tier = |names, size, policy| tier(names, size, policy, strategy);
        let host = tier(["--tier", "--policy"], self.tier, policy)?;
        let names = ["--device-tier", "--device-policy"];
        let device = tier(names, self.device_tier, self.device_policy)?;
        let [host, device] =
            [host, device].map(|of| of.map(|(size, policy)| (size, policy.unwrap_or(usual))));
        if self.levels.is_some() && (host.is_none() || device.is_none()) {
            return Err(UsageError::new("--levels is for --device-tier over --tier; give both"));
        }
        if host.is_none() && device.is_none() {
            let used = [("--max-age", self.max_age.is_some()), ("--bypass", self.bypass.is_some())];
            refuse_given(&used, "is for --tier and --device-tier; give one of them")?;
        }
        if is_full && self.max_age.is_some() {
            return Err(UsageError::new(
                "--max-age is not for --strategy full, whose features never change; --staleness is \
                 the age of rows of layers",
            ));
        }
        if host.is_some() || device.is_some() {
            refuse_tiers(strategy)?;
        }
        let inclusion = self.levels.map(Inclusion::from).unwrap_or_default();
        let mut bypass = bypass(self.bypass)?;
        if let Some(settings) = bypass.as_mut().filter(|_| is_full) {
            // A pull has what a partition needs in an epoch, not a batch.
            settings.round_batches = FULL_ROUND_PULLS;
        }
        let settings = SharedSettings { max_age: self.max_age, bypass };
        Ok(TierChoice { host, device, inclusion, settings })
    }
}

/// Fails under a strategy that pulls no rows through a tier.
fn refuse_tiers(strategy: &Strategy) -> Result<(), UsageError> {
    let found = match strategy {
        Strategy::Sdt(_) => "--strategy sdt, whose partitions are in memory",
        Strategy::Full(full) if full.halo == Halo::Zero => {
            "--halo zero, which pulls no rows of halos"
        }
        _ => return Ok(()),
    };
    Err(UsageError::new(format!("--tier and --device-tier are not for {found}")))
}

/// Returns when to go past a tier whose hit rate is below `share`.
fn bypass(share: Option<f64>) -> Result<Option<BypassSettings>, UsageError> {
    let usual = BypassSettings::default();
    match share {
        None => Ok(Some(usual)),
        Some(share) if (0.0..=1.0).contains(&share) => {
            Ok((share > 0.0).then_some(BypassSettings {
                leave_below: share,
                return_at: (2.0 * share).min(1.0),
                ..usual
            }))
        }
        Some(share) => Err(UsageError::new(format!("--bypass must be from 0 to 1, found {share}"))),
    }
}

/// Returns whether a trainer's tier can follow it.
fn is_for_training(kind: PolicyKind) -> bool {
    FOR_TRAINING.contains(&kind)
}

/// Returns the policies that a trainer's tier can follow, in words.
fn for_training() -> String {
    FOR_TRAINING.map(PolicyKind::name).join(", ")
}

/// Returns a tier by its two flags, `names`; none without memory.
fn tier(
    names: [&str; 2],
    size: TierSize,
    policy: Option<PolicyKind>,
    strategy: &Strategy,
) -> Result<Option<(TierSize, Option<PolicyKind>)>, UsageError> {
    let [name, policy_name] = names;
    let told = match policy {
        Some(policy) if !is_for_training(policy) => format!(
            "{policy_name}: a tier of --strategy ondemand cannot follow `{policy}`; one of: {}",
            for_training()
        ),
        Some(_) if size.is_none() => format!("{policy_name} is for {name}; give its size"),
        _ if !size.is_none() && matches!(strategy, Strategy::Massive(_)) => {
            format!("{name} is for --strategy ondemand; massive keeps rows in its --buffer")
        }
        _ if !size.is_none() && strategy.schedule().is_some() => format!(
            "{name} is for --strategy ondemand; rapid keeps rows by its schedule, see --hot"
        ),
        _ if size.is_none() => return Ok(None),
        _ => return Ok(Some((size, policy))),
    };
    Err(UsageError::new(told))
}

impl TierSize {
    const NONE: Self = Self::Bytes(0);

    fn is_none(self) -> bool {
        matches!(self, Self::NONE | Self::Share(0.0))
    }

    fn parse(text: &str) -> Result<Self, String> {
        match text.strip_suffix('%') {
            None if text == "auto" => Ok(Self::Auto),
            None => parse_size(text).map(Self::Bytes),
            Some(percent) => match percent.parse() {
                Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(Self::Share(percent / 100.0)),
                _ => Err(format!("`{text}` is no share of rows; write 0% to 100%")),
            },
        }
    }

    /// Returns the memory for rows of `row_bytes`, where this much is free; none if that is
    /// unknown.
    fn room(self, free_bytes: Option<u64>, row_bytes: usize, wanted_rows: u32) -> TierSpec {
        let row_bytes = row_bytes as u64;
        match self {
            Self::Bytes(free_bytes) => {
                TierSpec { free_bytes, reserve_bytes: 0, row_bytes, wanted_rows }
            }
            Self::Share(share) => {
                let wanted_rows = (f64::from(wanted_rows) * share).round() as u32;
                TierSpec { free_bytes: u64::MAX, reserve_bytes: 0, row_bytes, wanted_rows }
            }
            Self::Auto => {
                let free_bytes = free_bytes.unwrap_or_default();
                let reserve_bytes = free_bytes.div_ceil(2);
                TierSpec { free_bytes, reserve_bytes, row_bytes, wanted_rows }
            }
        }
    }
}

impl Tiers {
    /// Makes the host's tier, if one is wanted, and computes what each device is to have.
    pub(super) fn new(
        choice: TierChoice,
        remote: &Arc<dyn RowSource>,
        tensor: &str,
        known: &PolicyInputs<'_>,
        here: &LocalWorkers,
    ) -> Result<Self> {
        let (row_bytes, n_nodes) = (remote.tensor(tensor)?.row_bytes(), remote.book().n_nodes());
        let mut tiers = Self::of(choice, available_memory_bytes().map(|n| here.share(n)));
        if let Some((size, policy)) = choice.host {
            let size = match size {
                TierSize::Bytes(n_bytes) => TierSize::Bytes(here.share(n_bytes)),
                size => size,
            };
            let wanted_rows = known.n_wanted(&here.workers)?;
            let room = size.room(tiers.left_bytes(), row_bytes, wanted_rows);
            let spec = known.spec(policy, &here.workers)?;
            let tier = SharedTier::within(room, n_nodes, &spec, choice.settings)?;
            tiers.take(tier.bytes()).context("--tier")?;
            tiers.host = Some((Arc::new(tier), policy));
        }
        if let Some((size, policy)) = choice.device {
            let device = Device::best();
            let free_bytes = device.free_bytes()?;
            let is_host_memory = free_bytes.is_none();
            // A device is all processes' own; memory of the host is this one's share already.
            let free_bytes = free_bytes.map(|n_bytes| here.share(n_bytes)).or(tiers.left_bytes());
            let free_bytes = free_bytes.map(|n_bytes| n_bytes / here.workers.len() as u64);
            let device =
                DeviceChoice { device, is_host_memory, size, free_bytes, row_bytes, policy };
            tiers.device = Some(device);
        }
        Ok(tiers)
    }

    /// Returns no tiers yet, and memory for them.
    fn of(choice: TierChoice, free_bytes: Option<u64>) -> Self {
        Self {
            memory: free_bytes.map(MemoryBudget::new),
            taken: Vec::new(),
            choice,
            host: None,
            devices: Vec::new(),
            buffers: Vec::new(),
            rules: None,
            filled_rows: 0,
            device: None,
        }
    }

    /// Returns the memory of the host that no tier has, in bytes.
    fn left_bytes(&self) -> Option<u64> {
        self.memory.as_ref().map(MemoryBudget::left_bytes)
    }

    /// Takes bytes of the host's memory for a tier, which takes the pages as it fills.
    pub(super) fn take(&mut self, n_bytes: usize) -> Result<()> {
        if let Some(memory) = &self.memory {
            self.taken.push(memory.reserve(n_bytes as u64)?);
        }
        Ok(())
    }

    /// Returns the source of a worker's pulls: its device's tier over the host's before `remote`.
    pub(super) fn of_worker(
        &mut self,
        worker: u32,
        remote: &Arc<dyn RowSource>,
        tensor: &str,
        known: &PolicyInputs<'_>,
    ) -> Result<Arc<dyn RowSource>> {
        let host = self.host.as_ref().map(|(host, _)| Arc::clone(host));
        let remote = Arc::clone(remote);
        let Some(choice) = &self.device else {
            return Ok(match host {
                Some(host) => Arc::new(TieredSource::new(remote, tensor, host)?),
                None => remote,
            });
        };
        let spec = known.spec(choice.policy, &[worker])?;
        let tier = choice.tier(&remote, &spec, known.n_wanted(&[worker])?, self.choice.settings)?;
        if choice.is_host_memory {
            self.take(tier.bytes()).context("--device-tier, in the host's memory")?;
        }
        let mut levels = TwoLevelTier::new(tier).with_bypass(self.choice.settings.bypass);
        if let Some(host) = host {
            levels = levels.over(host, self.choice.inclusion);
        }
        let source = Arc::new(DeviceSource::new(remote, tensor, levels)?);
        self.devices.push(Arc::clone(&source));
        Ok(source)
    }
}

impl DeviceChoice {
    /// Returns a worker's tier, of which at most this many rows could be requested.
    fn tier(
        &self,
        remote: &Arc<dyn RowSource>,
        spec: &PolicySpec,
        wanted_rows: u32,
        SharedSettings { max_age, .. }: SharedSettings,
    ) -> Result<DeviceTier> {
        let room = self.size.room(self.free_bytes, self.row_bytes, wanted_rows);
        let n_nodes = remote.book().n_nodes();
        Ok(DeviceTier::within(&self.device, room, n_nodes, spec, max_age)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_takes_what_there_are_rows_for_in_half_of_what_is_free() {
        let auto = |free, wanted| TierSize::Auto.room(free, 100, wanted).rows();
        assert_eq!(auto(Some(10_001), 99), 50);
        assert_eq!(auto(Some(10_001), 20), 20, "no more than could be asked for");
        assert_eq!(auto(None, 20), 0, "the free memory is unknown");
        assert_eq!(TierSize::Bytes(999).room(Some(5), 100, 20).rows(), 9, "as given");
    }

    #[test]
    fn a_share_is_of_the_rows_that_could_be_asked_for() {
        let size = |text| TierSize::parse(text);
        assert_eq!(size("25%").unwrap().room(None, 100, 30).rows(), 8);
        assert_eq!(size("100%").unwrap().room(Some(5), 100, 30).rows(), 30);
        assert!(size("0%").unwrap().is_none() && size("0").unwrap().is_none());
        for text in ["-1%", "101%", "NaN%", "%", "1 %x"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_bypass_has_a_gap_between_leaving_and_coming_back() {
        let settings = bypass(Some(0.2)).unwrap().unwrap();
        assert!(settings.leave_below == 0.2 && settings.return_at == 0.4);
        assert_eq!(bypass(Some(0.0)).unwrap(), None);
        assert_eq!(bypass(None).unwrap(), Some(BypassSettings::default()));
        for share in [-0.1, 1.1, f64::NAN] {
            assert!(bypass(Some(share)).is_err());
        }
    }
}
