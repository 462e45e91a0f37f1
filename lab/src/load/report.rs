//! Output of `lode-lab load`.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use lodestore_client::PullKind;
use lodestore_client::load::{LoadConfig, Pace, Spacing, Tally};
use serde::Serialize;

use super::ids::IdChoice;
use lode_cli::human;
use lode_cli::table::Table;

/// Output of `--json`: times in seconds, sizes in bytes, over the measured time.
#[derive(Serialize)]
pub(super) struct LoadReport {
    pub(super) connect: Vec<String>,
    tensor: String,
    ids: String,
    connections: usize,
    window: usize,
    threads: usize,
    /// For an open loop: requests per second, and `poisson` or `fixed`.
    rate: Option<f64>,
    arrivals: Option<&'static str>,
    seconds: f64,
    pub(super) requests: u64,
    rows: u64,
    bytes: u64,
    requests_per_s: f64,
    rows_per_s: f64,
    bytes_per_s: f64,
    /// Kinds that were asked for: `sync`, `vector`.
    pub(super) kinds: BTreeMap<&'static str, KindReport>,
    /// Failed requests by what went wrong.
    errors: BTreeMap<&'static str, u64>,
    /// Requests of an open loop whose start lay in the measured time, and those never sent.
    due: u64,
    unsent: u64,
    /// From when a request was to start to when it was sent.
    send_delay: LatencyReport,
    /// Rows compared, those that were wrong, and the node of the first.
    verified_rows: u64,
    pub(super) wrong_rows: u64,
    first_wrong: Option<u32>,
    /// Processor seconds of the generator per second: near `threads` it was the limit.
    generator_cpu: f64,
}

#[derive(Serialize)]
pub(super) struct KindReport {
    requests: u64,
    rows: u64,
    bytes: u64,
    rows_per_s: f64,
    latency: LatencyReport,
}

#[derive(Serialize)]
struct LatencyReport {
    /// Requests that were timed.
    count: u64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl LoadReport {
    /// Returns the measurements, on one line. Addresses may hold anything; what XML cannot is left
    /// out.
    pub(super) fn title(&self) -> String {
        let title = format!("{} from {}, {} ids", self.tensor, self.connect.join(", "), self.ids);
        title.chars().filter(|c| !c.is_control()).collect()
    }

    pub(super) fn new(
        connect: &[String],
        choice: &IdChoice,
        config: &LoadConfig,
        tally: &Tally,
    ) -> Self {
        let (rate, arrivals) = match config.pace {
            Pace::Closed => (None, None),
            Pace::Open { rate, spacing: Spacing::Poisson } => (Some(rate), Some("poisson")),
            Pace::Open { rate, spacing: Spacing::Fixed } => (Some(rate), Some("fixed")),
        };
        let seconds = tally.seconds();
        let both = || [PullKind::Sync, PullKind::Vector].map(|kind| tally.of(kind)).into_iter();
        let requests = both().map(|kind| kind.requests).sum();
        let (rows, bytes) = (both().map(|k| k.rows).sum(), both().map(|k| k.bytes).sum());
        let per_s = |n: u64| n as f64 / seconds;
        Self {
            connect: connect.to_vec(),
            tensor: config.tensor.clone(),
            ids: choice.name(),
            connections: config.connections,
            window: config.window,
            threads: config.threads,
            rate,
            arrivals,
            seconds,
            requests,
            rows,
            bytes,
            requests_per_s: per_s(requests),
            rows_per_s: per_s(rows),
            bytes_per_s: per_s(bytes),
            kinds: kinds(config, tally),
            errors: tally.errors.iter().map(|&(error, n)| (error.name(), n)).collect(),
            due: tally.due,
            unsent: tally.unsent,
            send_delay: LatencyReport::new(&tally.send_delay_ns),
            verified_rows: tally.verified_rows,
            wrong_rows: tally.wrong_rows,
            first_wrong: tally.first_wrong.map(|node| node.0),
            generator_cpu: tally.cpu.as_secs_f64() / seconds,
        }
    }
}

fn kinds(config: &LoadConfig, tally: &Tally) -> BTreeMap<&'static str, KindReport> {
    let kinds = [
        ("sync", PullKind::Sync, config.vector_share < 1.0),
        ("vector", PullKind::Vector, config.vector_share > 0.0),
    ];
    let report = |kind| {
        let tally_of = tally.of(kind);
        KindReport {
            requests: tally_of.requests,
            rows: tally_of.rows,
            bytes: tally_of.bytes,
            rows_per_s: tally_of.rows as f64 / tally.seconds(),
            latency: LatencyReport::new(&tally_of.latency_ns),
        }
    };
    kinds.into_iter().filter(|kind| kind.2).map(|(name, kind, _)| (name, report(kind))).collect()
}

impl LatencyReport {
    fn new(ns: &Histogram<u64>) -> Self {
        let at = |quantile| ns.value_at_quantile(quantile) as f64 / 1e9;
        Self {
            count: ns.len(),
            mean: ns.mean() / 1e9,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: ns.max() as f64 / 1e9,
        }
    }
}

pub(super) fn text(report: &LoadReport) -> String {
    let pace = match (report.rate, report.arrivals) {
        (Some(rate), Some(arrivals)) => format!("{rate} requests/s, {arrivals} arrivals"),
        _ => "as fast as answered".to_owned(),
    };
    let mut text = format!(
        "{}: `{}`, {} ids, {} of window {}, {pace}, {}\n\n",
        report.connect.join(", "),
        report.tensor,
        report.ids,
        human::counted(report.connections as u64, "connection"),
        report.window,
        human::seconds(report.seconds),
    );
    let mut table = Table::new(["", "requests", "rows/s", "p50", "p90", "p99", "p99.9", "max"]);
    let mut row = |name: &str, requests: u64, rows_per_s: Option<f64>, of: &LatencyReport| {
        let rows = rows_per_s.map_or_else(String::new, |rows| human::count(rows as u64));
        let times = [of.p50, of.p90, of.p99, of.p999, of.max].map(human::seconds);
        table.row([name.to_owned(), human::count(requests), rows].into_iter().chain(times));
    };
    for (name, kind) in &report.kinds {
        row(name, kind.requests, Some(kind.rows_per_s), &kind.latency);
    }
    row("send delay", report.send_delay.count, None, &report.send_delay);
    text += &format!("{table}\n\n");
    text += &format!(
        "  {} requests/s, {} rows/s, {}/s; generator at {} of {}\n",
        human::count(report.requests_per_s as u64),
        human::count(report.rows_per_s as u64),
        human::bytes_f64(report.bytes_per_s),
        human::percent(report.generator_cpu),
        human::counted(report.threads as u64, "core"),
    );
    let errors: Vec<String> =
        report.errors.iter().map(|(name, n)| format!("{} {name}", human::count(*n))).collect();
    let errors = if errors.is_empty() { "none".to_owned() } else { errors.join(", ") };
    text += &format!("  errors: {errors}");
    if report.unsent > 0 {
        text += &format!(
            "\n  {} of {} requests that were due were never sent; they count with the time that \
             they had waited",
            human::count(report.unsent),
            human::count(report.due)
        );
    }
    if report.verified_rows > 0 {
        text += &format!("\n  {} rows compared, ", human::count(report.verified_rows));
        text += &match report.first_wrong {
            None => "all right".to_owned(),
            Some(node) => format!("{} WRONG, first node {node}", human::count(report.wrong_rows)),
        };
    }
    text
}
