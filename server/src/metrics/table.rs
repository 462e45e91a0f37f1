//! Every metric: its name, its meaning, and the source of its figures. A test compares this table
//! with `docs/metrics.md`.

use super::figures::{LatencyFigures, ServerFigures, ShardFigures};

pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) source: MetricSource,
}

/// Source of a metric's figures, which implies its type and labels.
pub(super) enum MetricSource {
    /// One figure; absent before the graph is open.
    Gauge(fn(&ServerFigures) -> f64),
    Counter(fn(&ServerFigures) -> f64),
    /// One figure per shard.
    ShardGauge(fn(&ShardFigures) -> f64),
    ShardCounter(fn(&ShardFigures) -> f64),
    /// One figure per value of a label.
    LabelledGauge(&'static str, fn(&ServerFigures) -> Vec<(String, f64)>),
    LabelledCounter(&'static str, fn(&ServerFigures) -> Vec<(String, f64)>),
    /// A histogram over all shards.
    Histogram(fn(&ServerFigures) -> &LatencyFigures),
    /// Latencies by kind of request.
    KindHistogram,
}

impl MetricSource {
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Gauge(_) | Self::ShardGauge(_) | Self::LabelledGauge(..) => "gauge",
            Self::Counter(_) | Self::ShardCounter(_) | Self::LabelledCounter(..) => "counter",
            Self::Histogram(_) | Self::KindHistogram => "histogram",
        }
    }

    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Gauge(_) | Self::Counter(_) | Self::Histogram(_) => "",
            Self::ShardGauge(_) | Self::ShardCounter(_) => "shard",
            Self::LabelledGauge(label, _) | Self::LabelledCounter(label, _) => label,
            Self::KindHistogram => "kind",
        }
    }
}

use MetricSource::{
    Counter, Gauge, Histogram, KindHistogram, LabelledCounter, LabelledGauge, ShardCounter,
    ShardGauge,
};

const fn metric(name: &'static str, source: MetricSource, help: &'static str) -> Metric {
    Metric { name, help, source }
}

pub(super) const METRICS: &[Metric] = &[
    metric(
        "lodestore_build_info",
        LabelledGauge("version", |f| vec![(f.program.clone(), 1.0)]),
        "1; the label has the program's version and revision, as `lode --version` prints them",
    ),
    metric(
        "lodestore_ready",
        Gauge(|f| one_if(f.ready)),
        "1 while the server accepts requests and every shard responds",
    ),
    metric("lodestore_partitions", Gauge(|f| f.parts.len() as f64), "partitions served"),
    metric(
        "lodestore_requests_total",
        LabelledCounter("kind", |f| by(&f.kinds, |kind| kind.begun as f64)),
        "requests received",
    ),
    metric(
        "lodestore_requests_in_progress",
        LabelledGauge("kind", |f| by(&f.kinds, |kind| kind.in_progress as f64)),
        "requests received and not answered yet: the depth of the queues",
    ),
    metric(
        "lodestore_request_seconds",
        KindHistogram,
        "time from the sending of a request, by the client's timestamp, to the last byte of its reply; failures included",
    ),
    metric(
        "lodestore_failures_total",
        LabelledCounter("code", |f| by(&f.failures, |&n| n as f64)),
        "requests that failed",
    ),
    metric("lodestore_sent_rows_total", ShardCounter(|s| s.rows as f64), "rows sent"),
    metric(
        "lodestore_tensor_sent_rows_total",
        LabelledCounter("tensor", |f| by(&f.tensor_rows, |&n| n as f64)),
        "rows sent, by tensor of the graph",
    ),
    metric("lodestore_sent_bytes_total", ShardCounter(|s| s.bytes as f64), "bytes of rows sent"),
    metric(
        "lodestore_shared_bytes_total",
        ShardCounter(|s| s.shared_bytes as f64),
        "bytes of rows sent through memory shared with clients of the same machine; the rest went through sockets",
    ),
    metric(
        "lodestore_shared_memory_bytes",
        ShardGauge(|s| s.shared_memory_bytes as f64),
        "bytes of the rings shared with such clients; leased tiers are not counted",
    ),
    metric(
        "lodestore_forwarded_rows_total",
        ShardCounter(|s| s.forwarded_rows as f64),
        "rows fetched from another shard, for clients that are not shard-aware",
    ),
    metric("lodestore_pushes_total", ShardCounter(|s| s.pushes as f64), "pushes acknowledged"),
    metric(
        "lodestore_pushed_rows_total",
        ShardCounter(|s| s.pushed_rows as f64),
        "rows of acknowledged pushes",
    ),
    metric("lodestore_connections", ShardGauge(|s| s.connections as f64), "open connections"),
    metric(
        "lodestore_connections_total",
        ShardCounter(|s| s.connections_taken as f64),
        "connections accepted",
    ),
    metric(
        "lodestore_connections_refused_total",
        ShardCounter(|s| s.connections_refused as f64),
        "connections refused because too many were open",
    ),
    metric(
        "lodestore_connections_dropped_total",
        Counter(|f| f.connections_dropped as f64),
        "connections closed on arrival, because the mailbox of their shard was full",
    ),
    metric(
        "lodestore_connections_evicted_total",
        ShardCounter(|s| s.connections_evicted as f64),
        "connections evicted during the handshake, because too many were in it",
    ),
    metric(
        "lodestore_connections_idle_closed_total",
        ShardCounter(|s| s.connections_idle_closed as f64),
        "connections closed because they were idle when a new one needed their slot",
    ),
    metric(
        "lodestore_connections_broken_total",
        LabelledCounter("reason", |f| by(&f.connections_broken, |&n| n as f64)),
        "connections closed by anything but the client between two requests",
    ),
    metric(
        "lodestore_in_flight_bytes",
        ShardGauge(|s| s.in_flight_bytes as f64),
        "bytes of ids and rows that requests hold",
    ),
    metric(
        "lodestore_in_flight_limit_bytes",
        ShardGauge(|s| s.in_flight_bytes_limit as f64),
        "limit on these bytes; a request beyond it fails as `overloaded`",
    ),
    metric(
        "lodestore_store_calls_waiting",
        LabelledGauge("crew", |f| by(&f.store_calls_waiting, |&n| n as f64)),
        "calls that wait for a thread of the store: pins, puts and commits",
    ),
    metric(
        "lodestore_shard_busy_seconds_total",
        ShardCounter(|s| s.busy_seconds),
        "time in which the shard was not idle",
    ),
    metric(
        "lodestore_shard_delay_seconds",
        Histogram(|f| &f.shard_delay),
        "delay until a shard notices an event, sampled ten times a second per shard",
    ),
    metric(
        "lodestore_shard_beat_age_seconds",
        ShardGauge(|s| s.beat_age_seconds),
        "seconds since the shard last published its gauges, which it does ten times a second",
    ),
    metric(
        "lodestore_tier_hits_total",
        ShardCounter(|s| s.tier_hits as f64),
        "rows found in the host tier",
    ),
    metric(
        "lodestore_tier_misses_total",
        ShardCounter(|s| s.tier_misses as f64),
        "lookups that missed the host tier",
    ),
    metric(
        "lodestore_tier_evictions_total",
        ShardCounter(|s| s.tier_evictions as f64),
        "rows evicted",
    ),
    metric("lodestore_tier_rows", ShardGauge(|s| s.tier_rows as f64), "rows in the host tier"),
    metric(
        "lodestore_tier_used_bytes",
        ShardGauge(|s| s.tier_used_bytes as f64),
        "bytes of rows in the host tier",
    ),
    metric(
        "lodestore_tier_limit_bytes",
        ShardGauge(|s| s.tier_bytes as f64),
        "maximum bytes of the host tier, bookkeeping included",
    ),
    metric(
        "lodestore_disk_reads_total",
        ShardCounter(|s| s.disk_reads as f64),
        "extents read from disk",
    ),
    metric(
        "lodestore_disk_read_bytes_total",
        ShardCounter(|s| s.disk_read_bytes as f64),
        "bytes read from disk, whole pages",
    ),
    metric(
        "lodestore_disk_joined_rows_total",
        ShardCounter(|s| s.joined_rows as f64),
        "rows read in the extent of another row",
    ),
    metric(
        "lodestore_disk_reads_in_flight",
        ShardGauge(|s| s.disk_reads_in_flight as f64),
        "reads in flight",
    ),
    metric(
        "lodestore_disk_reads_in_flight_bytes",
        ShardGauge(|s| s.disk_reads_in_flight_bytes as f64),
        "bytes of the buffers of reads in flight",
    ),
    metric(
        "lodestore_pulls_waiting_for_disk",
        ShardGauge(|s| s.pulls_waiting_for_disk as f64),
        "pulls that wait for the budget of disk reads",
    ),
    metric(
        "lodestore_delta_rows_read_total",
        ShardCounter(|s| s.delta_rows as f64),
        "rows read from deltas",
    ),
    metric(
        "lodestore_preloaded_bytes",
        ShardGauge(|s| s.preloaded_bytes as f64),
        "bytes of rows preloaded into the tier so far",
    ),
    metric(
        "lodestore_preload_bytes",
        ShardGauge(|s| s.preload_bytes as f64),
        "bytes of rows to preload in all",
    ),
    metric(
        "lodestore_volatile_tensors",
        Gauge(|f| f.volatile_tensors as f64),
        "declared volatile tensors",
    ),
    metric(
        "lodestore_volatile_bytes",
        Gauge(|f| f.volatile_bytes as f64),
        "maximum bytes of volatile tensors, part of the memory of all tiers",
    ),
    metric(
        "lodestore_volatile_published_rows_total",
        ShardCounter(|s| s.published_rows as f64),
        "volatile rows published",
    ),
    metric(
        "lodestore_volatile_pulled_rows_total",
        ShardCounter(|s| s.volatile_rows as f64),
        "volatile rows sent",
    ),
    metric(
        "lodestore_volatile_lacking_rows_total",
        ShardCounter(|s| s.lacking_rows as f64),
        "volatile rows that a pull requested and that lacked the stamp in time",
    ),
    metric(
        "lodestore_volatile_pulls_waiting",
        ShardGauge(|s| s.volatile_pulls_waiting as f64),
        "pulls that wait for the stamps of volatile rows",
    ),
    metric(
        "lodestore_delta_rows",
        Gauge(|f| f.updates.committed_rows as f64),
        "rows of all deltas, each row counted once",
    ),
    metric(
        "lodestore_pending_rows",
        Gauge(|f| f.updates.pending_rows as f64),
        "rows put since the start and not committed",
    ),
    metric(
        "lodestore_published_version",
        LabelledGauge("part", |f| by(&f.updates.published, |part| part.version.into())),
        "the newest published version of a partition in a bucket; 0 before the first",
    ),
    metric(
        "lodestore_unpublished_versions",
        LabelledGauge("part", |f| by(&f.updates.published, |part| part.waiting.into())),
        "versions of a partition committed and not published yet",
    ),
    metric(
        "lodestore_version",
        Gauge(|f| f.updates.version.into()),
        "the newest committed version",
    ),
    metric(
        "lodestore_follower",
        Gauge(|f| one_if(f.updates.follower)),
        "1 if the server follows a writer or a bucket, else 0",
    ),
    metric(
        "lodestore_follow_newest_version",
        LabelledGauge("part", |f| by(&f.updates.following, |part| part.newest.into())),
        "the newest version of a followed partition at its source at the last poll; 0 before the first",
    ),
    metric(
        "lodestore_follow_behind_versions",
        LabelledGauge("part", |f| by(&f.updates.following, |part| part.behind.into())),
        "versions of a followed partition at its source that are not served here",
    ),
    metric(
        "lodestore_follow_look_age_seconds",
        LabelledGauge("part", |f| by(&f.updates.following, |part| part.look_age_seconds)),
        "time since the last successful poll of a followed partition's source",
    ),
    metric(
        "lodestore_follow_failing",
        LabelledGauge("part", |f| by(&f.updates.following, |part| one_if(!part.fault.is_empty()))),
        "1 while a followed partition cannot be fetched; `/readyz` and the log say why",
    ),
    metric(
        "lodestore_oldest_version",
        Gauge(|f| f.updates.oldest_version.into()),
        "the oldest readable version",
    ),
    metric(
        "lodestore_writable",
        Gauge(|f| one_if(f.updates.writable)),
        "1 if the server accepts updates; 0 while a partition rejects them after a failed write",
    ),
    metric(
        "lodestore_compactions_total",
        Counter(|f| f.updates.compactions_ended as f64),
        "compactions finished, failed ones included",
    ),
    metric(
        "lodestore_compactions_waiting",
        Gauge(|f| f.updates.compactions_asked.saturating_sub(f.updates.compactions_ended) as f64),
        "compactions that run or wait",
    ),
    metric(
        "lodestore_compaction_failed",
        Gauge(|f| one_if(!f.updates.compaction_failure.is_empty())),
        "1 if the last compaction failed; the log says why",
    ),
    metric(
        "lodestore_disk_bytes",
        Gauge(|f| f.disk.map_or(f64::NAN, |disk| disk.bytes as f64)),
        "size of the file system of the graph's folder",
    ),
    metric(
        "lodestore_disk_free_bytes",
        Gauge(|f| f.disk.map_or(f64::NAN, |disk| disk.free_bytes as f64)),
        "bytes of that file system that the server can still write",
    ),
    metric(
        "lodestore_uptime_seconds",
        Gauge(|f| f.uptime_seconds),
        "time since the server started",
    ),
    metric(
        "process_start_time_seconds",
        Gauge(|f| f.started_unix_seconds),
        "start time of the server, since 1970 UTC",
    ),
    metric(
        "process_resident_memory_bytes",
        Gauge(|f| f.process.resident_bytes as f64),
        "resident memory",
    ),
    metric(
        "process_resident_memory_peak_bytes",
        Gauge(|f| f.process.peak_resident_bytes as f64),
        "peak resident memory",
    ),
    metric(
        "process_cpu_seconds_total",
        Counter(|f| f.process.cpu_seconds),
        "processor time, user and system",
    ),
    metric("process_threads", Gauge(|f| f.process.threads as f64), "threads"),
    metric("process_open_fds", Gauge(|f| f.process.open_fds as f64), "open files and sockets"),
    metric(
        "process_max_fds",
        Gauge(|f| f.process.max_fds as f64),
        "limit on open files and sockets",
    ),
];

fn one_if(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

fn by<T>(
    of: &std::collections::BTreeMap<String, T>,
    figure: impl Fn(&T) -> f64,
) -> Vec<(String, f64)> {
    of.iter().map(|(name, value)| (name.clone(), figure(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the table of all metrics in Markdown.
    fn metrics_table() -> String {
        let mut text = "| metric | type | label | meaning |\n|---|---|---|---|\n".to_owned();
        for Metric { name, help, source } in METRICS {
            let label = match source.label() {
                "" => String::new(),
                label => format!("`{label}`"),
            };
            text += &format!("| `{name}` | {} | {label} | {help} |\n", source.type_name());
        }
        text
    }

    /// The message of a failure has the table that the page should contain.
    #[test]
    fn the_page_has_every_metric_and_no_other() {
        let page = include_str!("../../../docs/metrics.md");
        let table = metrics_table();
        assert!(page.contains(&table), "docs/metrics.md should contain:\n{table}");
        let is_metric =
            |line: &&str| line.starts_with("| `lodestore_") || line.starts_with("| `process_");
        let n_rows = page.lines().filter(is_metric).count();
        assert_eq!(n_rows, METRICS.len(), "docs/metrics.md has rows of no metric");
    }

    #[test]
    fn names_follow_the_conventions_of_prometheus() {
        let mut names: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
        for metric in METRICS {
            let is_total = metric.name.ends_with("_total");
            assert_eq!(is_total, metric.source.type_name() == "counter", "{}", metric.name);
            let is_plain = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(metric.name.chars().all(is_plain), "{}", metric.name);
            assert!(!metric.help.contains(['\n', '\\', '|']), "{}", metric.name);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), METRICS.len());
    }
}
