//! Report of a comparison: as JSON, as CSV, as tables.

use lodestore_cache::replay::{ReplayStats, TierSizes};
use lodestore_cache::{PolicyKind, Trace};
use serde::Serialize;

use super::capacity::Capacities;
use super::contestants::{Contestant, Omitted};
use super::simulate::{Lane, Outcome};
use crate::candidates::RuleReport;
use crate::flags::inclusion_name;
use crate::human;
use crate::table::Table;

/// Output of `--json`.
#[derive(Serialize)]
pub(super) struct BenchReport {
    pub(super) trace: TraceReport,
    pub(super) row_bytes: u64,
    /// Those of `decay` and `degree`.
    pub(super) rules: Option<RuleReport>,
    /// Whether planned policies brought rows before they were missed.
    pub(super) ahead: bool,
    pub(super) threads: usize,
    /// Batches between two points of `over_time`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) batches_per_point: Option<u32>,
    pub(super) results: Vec<BenchResult>,
    /// The γ and Δ of `decay` that move the fewest rows, by capacity.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) best: Vec<BestDecay>,
    pub(super) omitted: Vec<Omitted>,
    pub(super) seconds: f64,
    pub(super) peak_anonymous_bytes: u64,
}

/// The replayed trace.
#[derive(Serialize)]
pub(super) struct TraceReport {
    pub(super) name: String,
    /// All of several workers, whose caches are each their own; batches are those of the worker
    /// with most.
    workers: usize,
    accesses: usize,
    pub(super) batches: u32,
    epochs: usize,
    pub(super) distinct_rows: u32,
    largest_batch: usize,
    /// Positions left out because their batch had the row already.
    repeats: u64,
}

/// One policy at one capacity.
#[derive(Clone, Serialize)]
pub(super) struct BenchResult {
    pub(super) policy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gamma: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) delta: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) priority: Option<&'static str>,
    /// The requested capacity, of both tiers if there are two; `none` and `unbounded` do not depend
    /// on it.
    pub(super) capacity_rows: u32,
    #[serde(flatten)]
    pub(super) levels: Option<LevelsResult>,
    pub(super) capacity_bytes: u64,
    pub(super) accesses: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) hit_rate: f64,
    pub(super) optimum_hit_rate: f64,
    /// Rows moved beyond those of the optimum, for each access; none of `unbounded`, which has
    /// slots that the optimum has not.
    pub(super) gap: Option<f64>,
    /// Rows brought ahead of their first miss.
    pub(super) rows_ahead: u64,
    /// Rows that came from below: missed or brought ahead.
    pub(super) moved_rows: u64,
    pub(super) moved_bytes: u64,
    pub(super) evictions: u64,
    pub(super) ns_per_access: f64,
    pub(super) bookkeeping_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) knew: Option<String>,
    /// Hit rate of the batches between two points; null where they ask for nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) over_time: Vec<Option<f64>>,
    #[serde(skip)]
    pub(super) label: String,
    /// Which of the capacities, from 0.
    #[serde(skip)]
    pub(super) at: usize,
    /// Whether it is a point of a chart over capacities: two tiers are not, beside single ones.
    #[serde(skip)]
    pub(super) is_drawn: bool,
    /// The requested capacity, in words.
    pub(super) capacity: String,
}

/// Counters of each of two tiers.
#[derive(Clone, Serialize)]
pub(super) struct LevelsResult {
    inclusion: &'static str,
    devices: u16,
    device_rows: u32,
    host_rows: u32,
    device_hits: u64,
    host_hits: u64,
    /// Rows that went from the host to the device, and back.
    promotions: u64,
    demotions: u64,
}

impl TraceReport {
    pub(super) fn of(lanes: &[Lane]) -> Self {
        let traces = || lanes.iter().map(|lane| &lane.loaded.trace);
        Self {
            name: lanes.first().map_or_else(String::new, |lane| lane.loaded.name.clone()),
            workers: lanes.len(),
            accesses: traces().map(Trace::n_ids).sum(),
            batches: traces().map(Trace::n_batches).max().unwrap_or(0),
            epochs: traces().map(|trace| trace.epochs().len()).max().unwrap_or(0),
            distinct_rows: traces().map(Trace::n_distinct).sum(),
            largest_batch: traces().map(Trace::longest_batch).max().unwrap_or(0),
            repeats: traces().map(Trace::n_repeats).sum(),
        }
    }
}

impl BenchResult {
    /// Returns the share of accesses that did not have a row moved. It is the hit rate, where rows
    /// come only when they are missed. No policy is above the optimum.
    pub(super) fn unmoved(&self) -> f64 {
        1.0 - share(self.moved_rows, self.accesses)
    }
}

impl LevelsResult {
    fn csv(&self) -> String {
        let Self { inclusion, devices, device_rows, host_rows, device_hits, .. } = self;
        let Self { host_hits, promotions, demotions, .. } = self;
        format!(
            "{inclusion},{devices},{device_rows},{host_rows},{device_hits},{host_hits},\
             {promotions},{demotions}"
        )
    }
}

/// Returns all results: by capacity, then in the order of the contestants.
pub(super) fn results(
    contestants: &[Contestant],
    capacities: &[(Capacities, TierSizes)],
    outcomes: &[Vec<Outcome>],
    row_bytes: u64,
) -> Vec<BenchResult> {
    let optimum = contestants.iter().position(|contestant| contestant.kind == PolicyKind::Oracle);
    let all_are_two = capacities.iter().all(|(_, sizes)| sizes.is_two());
    let mut results = Vec::new();
    for (at, &(capacity, sizes)) in capacities.iter().enumerate() {
        let rows = sizes.rows();
        // It always competes.
        let best = optimum.map(|optimum| outcomes[optimum][at].stats).unwrap_or_default();
        for (contestant, outcomes) in contestants.iter().zip(outcomes) {
            let Outcome { stats, ref over_time, time } = outcomes[at];
            let rate = |&[hits, accesses]: &[u64; 2]| (accesses > 0).then(|| share(hits, accesses));
            let accesses = stats.tier.hits + stats.tier.misses;
            let moved_rows = stats.moved_rows();
            results.push(BenchResult {
                policy: contestant.kind.name(),
                gamma: contestant.gamma,
                delta: contestant.delta,
                priority: contestant.priority,
                capacity_rows: rows,
                capacity_bytes: u64::from(rows).saturating_mul(row_bytes),
                accesses,
                hits: stats.tier.hits,
                misses: stats.tier.misses,
                hit_rate: share(stats.tier.hits, accesses),
                optimum_hit_rate: share(best.tier.hits, accesses),
                gap: (contestant.kind != PolicyKind::Unbounded)
                    .then(|| share(moved_rows, accesses) - share(best.tier.misses, accesses)),
                rows_ahead: stats.n_ahead,
                moved_rows,
                moved_bytes: moved_rows.saturating_mul(row_bytes),
                evictions: stats.tier.evictions,
                ns_per_access: time.as_secs_f64() * 1e9 / (accesses.max(1) as f64),
                bookkeeping_bytes: stats.bytes,
                levels: levels(sizes, &stats),
                knew: contestant.knew.clone(),
                over_time: over_time.iter().map(rate).collect(),
                at,
                is_drawn: !sizes.is_two() || all_are_two,
                label: contestant.label(),
                capacity: capacity.to_string(),
            });
        }
    }
    results
}

fn levels(sizes: TierSizes, stats: &ReplayStats) -> Option<LevelsResult> {
    let levels = stats.levels?;
    let TierSizes::Two { n_devices, device_rows, host_rows, inclusion } = sizes else {
        return None;
    };
    Some(LevelsResult {
        inclusion: inclusion_name(inclusion),
        devices: n_devices,
        device_rows,
        host_rows,
        device_hits: levels.device.hits,
        host_hits: levels.host.hits,
        promotions: levels.promotions,
        demotions: levels.demotions,
    })
}

pub(super) fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Returns the results as comma-separated values, with the keys of JSON as heads.
pub(super) fn csv(results: &[BenchResult]) -> String {
    let mut csv = "policy,gamma,delta,priority,capacity_rows,capacity_bytes,accesses,hits,misses,hit_rate,\
                   optimum_hit_rate,gap,rows_ahead,moved_rows,moved_bytes,evictions,ns_per_access,\
                   bookkeeping_bytes,inclusion,devices,device_rows,host_rows,device_hits,host_hits,promotions,\
                   demotions\n"
        .to_owned();
    for result in results {
        let gamma = result.gamma.map_or_else(String::new, |gamma| gamma.to_string());
        let delta = result.delta.map_or_else(String::new, |delta| delta.to_string());
        let gap = result.gap.map_or_else(String::new, |gap| format!("{gap:.6}"));
        csv += &format!(
            "{},{gamma},{delta},{},{},{},{},{},{},{:.6},{:.6},{gap},{},{},{},{},{:.2},{},{}\n",
            result.policy,
            result.priority.unwrap_or_default(),
            result.capacity_rows,
            result.capacity_bytes,
            result.accesses,
            result.hits,
            result.misses,
            result.hit_rate,
            result.optimum_hit_rate,
            result.rows_ahead,
            result.moved_rows,
            result.moved_bytes,
            result.evictions,
            result.ns_per_access,
            result.bookkeeping_bytes,
            result.levels.as_ref().map_or_else(|| ",,,,,,,".to_owned(), LevelsResult::csv),
        );
    }
    csv
}

/// Returns the report as text, one table per capacity.
pub(super) fn text(report: &BenchReport) -> String {
    let trace = &report.trace;
    let of_workers = match trace.workers {
        1 => String::new(),
        n => format!(", {n} workers, each with a cache of its own"),
    };
    let mut text = format!(
        "{}{of_workers}: {} accesses of {} rows in {} batches of at most {}; rows of {}",
        trace.name,
        human::count(trace.accesses as u64),
        human::count(trace.distinct_rows.into()),
        human::count(trace.batches.into()),
        human::count(trace.largest_batch as u64),
        human::bytes(report.row_bytes),
    );
    if trace.repeats > 0 {
        let repeats = human::count(trace.repeats);
        text += &format!("\n{repeats} repeats of a row in a batch count once");
    }
    for of_capacity in report.results.chunk_by(|a, b| a.at == b.at) {
        text += &format!("\n\n{}", table(of_capacity));
    }
    if !report.best.is_empty() {
        text += &format!("\n\n{}", table_of_best(&report.best));
    }
    text += "\n";
    let of_one_capacity = report.results.chunk_by(|a, b| a.at == b.at).next();
    let mut told: Vec<_> = of_one_capacity.into_iter().flatten().filter_map(known).collect();
    told.dedup();
    for (policy, knew) in told {
        text += &format!("\n  {policy} knew {knew}");
    }
    for omitted in &report.omitted {
        text += &format!("\n  {} was left out: it {}", omitted.policy, omitted.reason);
    }
    text
}

fn known(result: &BenchResult) -> Option<(&'static str, &str)> {
    Some((result.policy, result.knew.as_deref()?))
}

fn table(results: &[BenchResult]) -> String {
    let capacity = results.first().map_or("", |result| result.capacity.as_str());
    let rows = results.first().map_or(0, |result| result.capacity_rows);
    let first = format!("{capacity}: {} rows", human::count(rows.into()));
    let has_levels = results.iter().any(|result| result.levels.is_some());
    let on_device = if has_levels { &["on device", "moved up"][..] } else { &[] };
    let heads = [first.as_str(), "hits"].into_iter().chain(on_device.iter().copied());
    let rest = ["optimum", "gap", "moved", "evictions", "ns/access", "bookkeeping"];
    let mut table = Table::new(heads.chain(rest));
    for result in results {
        let mut cells = vec![result.label.clone(), human::percent(result.hit_rate)];
        if has_levels {
            let levels = result.levels.as_ref();
            let hits = levels.map(|levels| share(levels.device_hits, result.accesses));
            cells.push(hits.map_or_else(String::new, human::percent));
            cells.push(levels.map_or_else(String::new, |levels| human::count(levels.promotions)));
        }
        cells.extend([
            human::percent(result.optimum_hit_rate),
            result.gap.map_or_else(|| "-".to_owned(), human::percent),
            human::bytes(result.moved_bytes),
            human::count(result.evictions),
            format!("{:.1}", result.ns_per_access),
            human::bytes(result.bookkeeping_bytes as u64),
        ]);
        table.row(cells);
    }
    table.to_string()
}

/// The γ and Δ of `decay` that move the fewest rows at one capacity, beside prefetch without
/// eviction (MassiveGNN, Table IV).
#[derive(Clone, Debug, Serialize)]
pub(super) struct BestDecay {
    capacity: String,
    gamma: Option<f64>,
    delta: Option<u32>,
    #[serde(flatten)]
    moved: Moved,
    /// `degree`, if it competes.
    #[serde(skip_serializing_if = "Option::is_none")]
    without_eviction: Option<Moved>,
}

/// Hits and moves of a policy.
#[derive(Clone, Copy, Debug, Serialize)]
struct Moved {
    hit_rate: f64,
    moved_rows: u64,
    moved_bytes: u64,
    /// For each row that would move without a cache.
    moved_share: f64,
}

impl Moved {
    fn of(result: &BenchResult) -> Self {
        let &BenchResult { hit_rate, moved_rows, moved_bytes, .. } = result;
        Self { hit_rate, moved_rows, moved_bytes, moved_share: 1.0 - result.unmoved() }
    }
}

/// Returns the best of each capacity, where `decay` has more than one γ or Δ.
pub(super) fn best_decay(results: &[BenchResult]) -> Vec<BestDecay> {
    let of_capacity = results.chunk_by(|a, b| a.at == b.at);
    of_capacity.filter_map(best_of).collect()
}

fn best_of(results: &[BenchResult]) -> Option<BestDecay> {
    let of = |kind: PolicyKind| results.iter().filter(move |result| result.policy == kind.name());
    if of(PolicyKind::Decay).count() < 2 {
        return None;
    }
    let best = of(PolicyKind::Decay).min_by_key(|result| result.moved_rows)?;
    Some(BestDecay {
        capacity: best.capacity.clone(),
        gamma: best.gamma,
        delta: best.delta,
        moved: Moved::of(best),
        without_eviction: of(PolicyKind::Degree).next().map(Moved::of),
    })
}

/// Returns a table with one line per capacity.
fn table_of_best(best: &[BestDecay]) -> String {
    let heads = ["fewest rows moved", "gamma", "delta", "hits", "moved", "bytes"];
    let mut table = Table::new(heads.into_iter().chain(["kept: hits", "moved", "bytes"]));
    for BestDecay { capacity, gamma, delta, moved, without_eviction } in best {
        let mut cells = vec![capacity.clone()];
        cells.push(gamma.map_or_else(String::new, |gamma| gamma.to_string()));
        cells.push(delta.map_or_else(String::new, |delta| delta.to_string()));
        for moved in [Some(moved), without_eviction.as_ref()] {
            match moved {
                Some(moved) => cells.extend([
                    human::percent(moved.hit_rate),
                    human::percent(moved.moved_share),
                    human::bytes(moved.moved_bytes),
                ]),
                None => cells.extend(["-", "-", "-"].map(str::to_owned)),
            }
        }
        table.row(cells);
    }
    table.to_string()
}
