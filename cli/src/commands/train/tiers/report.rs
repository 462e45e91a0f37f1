//! Counters of tiers.

use lodestore_cache::PolicyKind;
use lodestore_cache::directory::TierStats;
use lodestore_cache::two_level::TwoLevelStats;
use serde::Serialize;

use super::Tiers;
use crate::candidates::RuleReport;
use crate::flags::inclusion_name;

/// Counters of the tiers.
#[derive(Clone, Debug, Serialize)]
pub struct TierReport {
    /// `device` or `buffer`, one for each worker, or `host`, one for all of them.
    pub tier: &'static str,
    /// Device of its rows: `host`, or the name of the device.
    pub device: String,
    pub policy: &'static str,
    /// For a device over a host tier: `inclusive` or `exclusive`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub levels: Option<&'static str>,
    /// That fit; of one worker, the one with most.
    pub rows: u64,
    pub hits: u64,
    pub misses: u64,
    pub hit_rate: f64,
    pub evictions: u64,
    /// Part of the misses: the row was there, but older than --max-age.
    pub stale: u64,
    /// Look-ups that went past the tier while too few hit; neither hits nor misses.
    pub bypassed: u64,
    /// Rows that went from the host to a device.
    pub promotions: u64,
    /// Rows that a device released and the host took.
    pub demotions: u64,
    /// Rows that all workers pulled before the first batch; the first epoch counts them too.
    pub filled_rows: u64,
    /// Counters of buffers.
    #[serde(flatten)]
    pub(crate) rules: Option<RuleReport>,
}

impl Tiers {
    /// Returns the counters of the tiers, the devices' first.
    pub(in super::super) fn report(&self) -> Vec<TierReport> {
        let mut reports = Vec::new();
        if let (Some(first), Some(choice)) = (self.devices.first(), &self.device) {
            let all: Vec<TwoLevelStats> =
                self.devices.iter().map(|device| device.stats()).collect();
            let rows = self.devices.iter().map(|device| device.n_slots().into()).max();
            let sum = sum(all.iter().map(|levels| levels.device));
            let levels = self.host.as_ref().map(|_| inclusion_name(self.choice.inclusion));
            let rows = rows.unwrap_or_default();
            reports.push(TierReport {
                levels,
                promotions: all.iter().map(|levels| levels.promotions).sum(),
                demotions: all.iter().map(|levels| levels.demotions).sum(),
                ..TierReport::of("device", first.device(), choice.policy, rows, sum)
            });
        }
        if let Some(first) = self.buffers.first() {
            let sum = sum(self.buffers.iter().map(|buffer| buffer.stats()));
            let evicts = self.rules.as_ref().is_some_and(|rules| rules.replace.is_some());
            let policy = if evicts { PolicyKind::Decay } else { PolicyKind::Degree };
            let rows = first.n_slots().into();
            let report = TierReport::of("buffer", "host".to_owned(), policy, rows, sum);
            let (filled_rows, rules) = (self.filled_rows, self.rules.clone());
            reports.push(TierReport { filled_rows, rules, ..report });
        }
        if let Some((host, policy)) = &self.host {
            let (rows, stats) = (host.n_slots().into(), host.stats());
            reports.push(TierReport::of("host", "host".to_owned(), *policy, rows, stats));
        }
        reports
    }
}

/// Returns the sum of the counts of all workers.
fn sum(all: impl Iterator<Item = TierStats>) -> TierStats {
    all.fold(TierStats::default(), |sum, stats| TierStats {
        hits: sum.hits + stats.hits,
        misses: sum.misses + stats.misses,
        evictions: sum.evictions + stats.evictions,
        stale: sum.stale + stats.stale,
        bypassed: sum.bypassed + stats.bypassed,
        ..sum
    })
}

impl TierReport {
    /// Returns the counters that add up over processes.
    pub(in super::super) fn figures(&self) -> [u64; 9] {
        let Self { rows, hits, misses, stale, bypassed, evictions, .. } = *self;
        let Self { promotions, demotions, filled_rows, .. } = *self;
        [rows, hits, misses, stale, bypassed, evictions, promotions, demotions, filled_rows]
    }

    /// Takes the sums of these figures over processes; rows are those of one worker still, but for
    /// the host's tiers.
    pub(in super::super) fn set(&mut self, sums: [u64; 9]) {
        let [rows, hits, misses, stale, bypassed, evictions, promotions, demotions, filled_rows] =
            sums;
        *self = Self {
            rows: if self.tier == "host" { rows } else { self.rows },
            hits,
            misses,
            hit_rate: hits as f64 / (hits + misses).max(1) as f64,
            evictions,
            stale,
            bypassed,
            promotions,
            demotions,
            filled_rows,
            ..self.clone()
        };
    }

    fn of(
        tier: &'static str,
        device: String,
        policy: PolicyKind,
        rows: u64,
        stats: TierStats,
    ) -> Self {
        let TierStats { hits, misses, evictions, stale, bypassed, .. } = stats;
        Self {
            tier,
            device,
            policy: policy.name(),
            levels: None,
            rows,
            hits,
            misses,
            hit_rate: hits as f64 / (hits + misses).max(1) as f64,
            evictions,
            stale,
            bypassed,
            promotions: 0,
            demotions: 0,
            filled_rows: 0,
            rules: None,
        }
    }
}
