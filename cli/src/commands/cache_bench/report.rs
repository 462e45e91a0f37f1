//! What was found: as JSON, as CSV, as tables.

use lodestore_cache::{PolicyKind, Trace};
use serde::Serialize;

use super::capacity::Capacity;
use super::contestants::{Contestant, Omitted};
use super::simulate::Outcome;
use crate::human;
use crate::table::Table;

/// What `--json` prints.
#[derive(Serialize)]
pub(super) struct BenchReport {
    pub(super) trace: TraceReport,
    pub(super) row_bytes: u64,
    /// Whether planned policies brought rows before they were missed.
    pub(super) ahead: bool,
    pub(super) threads: usize,
    pub(super) results: Vec<BenchResult>,
    pub(super) omitted: Vec<Omitted>,
    pub(super) seconds: f64,
    pub(super) peak_rss_bytes: u64,
}

/// What was replayed.
#[derive(Serialize)]
pub(super) struct TraceReport {
    pub(super) name: String,
    accesses: usize,
    batches: u32,
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
    /// What was asked for; `none` and `unbounded` do not care.
    pub(super) capacity_rows: u32,
    pub(super) capacity_bytes: u64,
    pub(super) accesses: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) hit_rate: f64,
    pub(super) optimum_hit_rate: f64,
    /// Rows moved beyond those of the optimum, for each access.
    pub(super) gap: f64,
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
    #[serde(skip)]
    pub(super) label: String,
    #[serde(skip)]
    pub(super) capacity: String,
}

impl TraceReport {
    pub(super) fn of(trace: &Trace, name: String) -> Self {
        Self {
            name,
            accesses: trace.n_ids(),
            batches: trace.n_batches(),
            epochs: trace.epochs().len(),
            distinct_rows: trace.n_distinct(),
            largest_batch: trace.longest_batch(),
            repeats: trace.n_repeats(),
        }
    }
}

impl BenchResult {
    /// Share of accesses that did not have a row moved: the hit rate, where rows come only when
    /// they are missed. No policy is above the optimum.
    pub(super) fn unmoved(&self) -> f64 {
        1.0 - share(self.moved_rows, self.accesses)
    }
}

/// All results: by capacity, then in the order of the contestants.
pub(super) fn results(
    contestants: &[Contestant],
    capacities: &[(Capacity, u32)],
    outcomes: &[Vec<Outcome>],
    row_bytes: u64,
) -> Vec<BenchResult> {
    let optimum = contestants.iter().position(|contestant| contestant.kind == PolicyKind::Oracle);
    let mut results = Vec::new();
    for (at, &(capacity, rows)) in capacities.iter().enumerate() {
        // It always competes.
        let best = optimum.map(|optimum| outcomes[optimum][at].stats).unwrap_or_default();
        for (contestant, outcomes) in contestants.iter().zip(outcomes) {
            let Outcome { stats, time } = outcomes[at];
            let accesses = stats.tier.hits + stats.tier.misses;
            let moved_rows = stats.moved_rows();
            results.push(BenchResult {
                policy: contestant.kind.name(),
                gamma: contestant.gamma,
                delta: contestant.delta,
                capacity_rows: rows,
                capacity_bytes: u64::from(rows).saturating_mul(row_bytes),
                accesses,
                hits: stats.tier.hits,
                misses: stats.tier.misses,
                hit_rate: share(stats.tier.hits, accesses),
                optimum_hit_rate: share(best.tier.hits, accesses),
                gap: share(moved_rows, accesses) - share(best.tier.misses, accesses),
                rows_ahead: stats.n_ahead,
                moved_rows,
                moved_bytes: moved_rows.saturating_mul(row_bytes),
                evictions: stats.tier.evictions,
                ns_per_access: time.as_secs_f64() * 1e9 / (accesses.max(1) as f64),
                bookkeeping_bytes: stats.bytes,
                knew: contestant.knew.clone(),
                label: contestant.label(),
                capacity: capacity.to_string(),
            });
        }
    }
    results
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Results as comma-separated values, with the keys of JSON as heads.
pub(super) fn csv(results: &[BenchResult]) -> String {
    let mut csv = "policy,gamma,delta,capacity_rows,capacity_bytes,accesses,hits,misses,hit_rate,\
                   optimum_hit_rate,gap,rows_ahead,moved_rows,moved_bytes,evictions,ns_per_access,\
                   bookkeeping_bytes\n"
        .to_owned();
    for result in results {
        let gamma = result.gamma.map_or_else(String::new, |gamma| gamma.to_string());
        let delta = result.delta.map_or_else(String::new, |delta| delta.to_string());
        csv += &format!(
            "{},{gamma},{delta},{},{},{},{},{},{:.6},{:.6},{:.6},{},{},{},{},{:.2},{}\n",
            result.policy,
            result.capacity_rows,
            result.capacity_bytes,
            result.accesses,
            result.hits,
            result.misses,
            result.hit_rate,
            result.optimum_hit_rate,
            result.gap,
            result.rows_ahead,
            result.moved_rows,
            result.moved_bytes,
            result.evictions,
            result.ns_per_access,
            result.bookkeeping_bytes,
        );
    }
    csv
}

/// One table per capacity.
pub(super) fn text(report: &BenchReport) -> String {
    let trace = &report.trace;
    let mut text = format!(
        "{}: {} accesses of {} rows in {} batches of at most {}; rows of {}",
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
    for of_capacity in report.results.chunk_by(|a, b| a.capacity_rows == b.capacity_rows) {
        text += &format!("\n\n{}", table(of_capacity));
    }
    text += "\n";
    let of_one_capacity = report.results.chunk_by(|a, b| a.capacity_rows == b.capacity_rows).next();
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
    let head = ["hits", "optimum", "gap", "moved", "evictions", "ns/access", "bookkeeping"];
    let first = format!("{capacity}: {} rows", human::count(rows.into()));
    let mut table = Table::new(std::iter::once(first.as_str()).chain(head));
    for result in results {
        table.row([
            result.label.clone(),
            human::percent(result.hit_rate),
            human::percent(result.optimum_hit_rate),
            human::percent(result.gap),
            human::bytes(result.moved_bytes),
            human::count(result.evictions),
            format!("{:.1}", result.ns_per_access),
            human::bytes(result.bookkeeping_bytes as u64),
        ]);
    }
    table.to_string()
}
