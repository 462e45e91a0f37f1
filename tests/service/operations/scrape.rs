//! Metrics say what the server did.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lodestore_graph::NodeId;
use lodestore_graph::npy::NpyType;
use lodestore_schema::request::PullKind;
use lodestore_schema::{Reply, RequestBody};

use crate::operations::Watched;
use testing::graph::WIDE;
use testing::http::get;
use testing::process::{command, finish, lode, lode_line};
use testing::wire::PlainConnection;
use testing::write_npy;

/// Samples by name and labels, checked as Prometheus would.
struct Scrape(BTreeMap<String, f64>);

impl Scrape {
    fn take(metrics: &str) -> Self {
        let answer = get(metrics, "/metrics");
        assert_eq!(answer.status, 200);
        let content_type = "Content-Type: text/plain; version=0.0.4; charset=utf-8";
        assert!(answer.head.contains(content_type), "{}", answer.head);
        let (mut samples, mut family) = (BTreeMap::new(), (String::new(), String::new()));
        for line in answer.body.lines() {
            if let Some(declared) = line.strip_prefix("# TYPE ") {
                let (name, kind) = declared.split_once(' ').unwrap();
                family = (name.to_owned(), kind.to_owned());
                continue;
            }
            if line.starts_with("# HELP ") {
                continue;
            }
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let name = sample.split('{').next().unwrap();
            let suffix = name.strip_prefix(&family.0).unwrap_or_else(|| panic!("{line}"));
            let is_histogram = family.1 == "histogram";
            let fits = if is_histogram {
                ["_bucket", "_sum", "_count"].contains(&suffix)
            } else {
                suffix.is_empty()
            };
            assert!(fits, "{line} under {family:?}");
            let is_new = samples.insert(sample.to_owned(), value.parse::<f64>().unwrap()).is_none();
            assert!(is_new, "{sample} occurs twice");
        }
        Self(samples)
    }

    fn get(&self, sample: &str) -> f64 {
        *self.0.get(sample).unwrap_or_else(|| panic!("no {sample} in {:#?}", self.0))
    }

    /// Returns the sum over all shards.
    fn sum(&self, name: &str) -> f64 {
        let prefix = format!("{name}{{shard=");
        self.0.iter().filter(|(sample, _)| sample.starts_with(&prefix)).map(|(_, n)| n).sum()
    }
}

fn tensor(connection: &mut PlainConnection, name: &str) -> u16 {
    let tensors = connection.describe().tensors;
    tensors.iter().position(|tensor| tensor.name == name).unwrap() as u16
}

/// Waits for figures that shards publish ten times a second.
fn until(metrics: &str, holds: impl Fn(&Scrape) -> bool) -> Scrape {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let scrape = Scrape::take(metrics);
        if holds(&scrape) {
            return scrape;
        }
        assert!(Instant::now() < end, "{:#?}", scrape.0);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn requests_rows_bytes_and_failures_are_counted_by_kind() {
    // Rows in memory are those that clients have asked for.
    let watched = Watched::start("--shards 2 --preload none");
    let metrics = &watched.server.metrics;
    let before = Scrape::take(metrics);
    assert_eq!(before.get("lodestore_requests_total{kind=\"sync_pull\"}"), 0.0);
    assert_eq!((before.get("lodestore_ready"), before.get("lodestore_partitions")), (1.0, 2.0));

    let mut connection = PlainConnection::open(&watched.server.address);
    let feat = tensor(&mut connection, "feat");
    let ids: Vec<NodeId> = (0..600).map(NodeId).collect();
    for _ in 0..3 {
        connection.pull(feat, PullKind::Sync, &ids, 52);
    }
    connection.pull(feat, PullKind::Vector, &ids[..10], 52);
    connection.ask(RequestBody::Pull { tensor: feat, kind: PullKind::Sync }, &[NodeId(600)]);
    let (reply, _) = connection.answer();
    assert!(matches!(reply, Reply::Failure(_)), "{reply:?}");
    // An answer is out before it is counted.
    let count = "lodestore_request_seconds_count{kind=\"sync_pull\"}";
    let is_told =
        |scrape: &Scrape| scrape.get(count) == 4.0 && scrape.sum("lodestore_tier_rows") == 600.0;
    let after = until(metrics, is_told);

    assert_eq!(after.get("lodestore_requests_total{kind=\"sync_pull\"}"), 4.0);
    assert_eq!(after.get("lodestore_requests_total{kind=\"vector_pull\"}"), 1.0);
    assert_eq!(after.get("lodestore_requests_total{kind=\"describe\"}"), 1.0);
    assert_eq!(after.get("lodestore_requests_in_progress{kind=\"sync_pull\"}"), 0.0);
    assert_eq!(after.get("lodestore_failures_total{code=\"not_found\"}"), 1.0);
    assert_eq!(after.get("lodestore_failures_total{code=\"internal\"}"), 0.0);
    assert_eq!(after.sum("lodestore_sent_rows_total"), 1810.0);
    assert_eq!(after.get("lodestore_tensor_sent_rows_total{tensor=\"feat\"}"), 1810.0);
    assert_eq!(after.sum("lodestore_sent_bytes_total"), 1810.0 * 52.0);
    assert_eq!(after.sum("lodestore_tier_misses_total"), 600.0, "each row is read once");
    assert_eq!(after.sum("lodestore_tier_hits_total"), 1210.0);
    assert_eq!(after.sum("lodestore_tier_used_bytes"), 600.0 * 52.0);
    assert_eq!(after.sum("lodestore_connections"), 1.0);
    let reads = after.sum("lodestore_disk_reads_total");
    assert_eq!(reads + after.sum("lodestore_disk_joined_rows_total"), 600.0);
    assert!(after.sum("lodestore_disk_read_bytes_total") >= 4096.0 * reads);
    assert_eq!(after.sum("lodestore_disk_reads_in_flight"), 0.0);
    assert_eq!(after.sum("lodestore_in_flight_bytes"), 0.0);
    assert!(after.get("process_resident_memory_bytes") > 1e6);
    let free = after.get("lodestore_disk_free_bytes");
    assert!(free > 1e6 && free <= after.get("lodestore_disk_bytes"), "{free}");
    let version = lode(["--version"]).succeeded().stdout;
    let version = version.trim().strip_prefix("lode ").unwrap();
    assert_eq!(after.get(&format!("lodestore_build_info{{version=\"{version}\"}}")), 1.0);
    assert!(after.get("process_open_fds") > 10.0);

    let bucket = |le: &str| {
        after.get(&format!("lodestore_request_seconds_bucket{{kind=\"sync_pull\",le=\"{le}\"}}"))
    };
    assert_eq!((bucket("+Inf"), bucket("67.108864")), (4.0, 4.0));
    assert!(bucket("0.000008") <= bucket("0.001024"));
    let sum = after.get("lodestore_request_seconds_sum{kind=\"sync_pull\"}");
    assert!(sum > 0.0 && sum < 60.0, "{sum}");
    drop(connection);
    until(metrics, |scrape| scrape.sum("lodestore_connections") == 0.0);
    watched.server.stop();
}

#[test]
fn puts_commits_and_evictions_are_seen() {
    let watched = Watched::start(
        "--shards 1 --writable --insecure --memory 200kB --keep-versions 1 --keep-for 0",
    );
    let metrics = &watched.server.metrics;
    let (ids, rows) = (watched.source.file("ids.npy"), watched.source.file("rows.npy"));
    write_npy(&ids, NpyType::U32, &[5], &[0u32, 1, 2, 3, 4]);
    write_npy(&rows, NpyType::F32, &[5, 13], &[[1f32; 13]; 5]);
    let put = |more: &str| {
        let (address, ids, rows) = (&watched.server.address, ids.display(), rows.display());
        let line =
            format!("put --connect {address} --tensor feat --ids {ids} --rows {rows} {more}");
        lode_line(&line).succeeded();
    };
    put("");
    let pending = Scrape::take(metrics);
    assert_eq!(pending.get("lodestore_pending_rows"), 5.0);
    assert_eq!((pending.get("lodestore_version"), pending.get("lodestore_writable")), (1.0, 1.0));
    assert_eq!(pending.sum("lodestore_pushed_rows_total"), 5.0);
    put("--commit");
    let committed = Scrape::take(metrics);
    assert_eq!(committed.get("lodestore_pending_rows"), 0.0);
    assert_eq!(committed.get("lodestore_delta_rows"), 5.0);
    assert_eq!(committed.get("lodestore_version"), 2.0);

    let mut connection = PlainConnection::open(&watched.server.address);
    let feat = tensor(&mut connection, "feat");
    let wide = tensor(&mut connection, "wide");
    let ids: Vec<NodeId> = (0..600).map(NodeId).collect();
    for _ in 0..3 {
        connection.pull(feat, PullKind::Sync, &ids, 52);
        connection.pull(wide, PullKind::Sync, &ids, WIDE);
    }
    let read = until(metrics, |scrape| scrape.sum("lodestore_tier_evictions_total") > 0.0);
    // Like other rows, those of deltas stay in memory where there is room.
    let of_deltas = read.sum("lodestore_delta_rows_read_total");
    assert!((5.0..=15.0).contains(&of_deltas), "{of_deltas} rows read from deltas");
    let used = read.sum("lodestore_tier_used_bytes");
    assert!(used > 0.0 && used <= 200_000.0, "{used}");
    lode_line(&format!("compact --connect {}", watched.server.address)).succeeded();
    let compacted = Scrape::take(metrics);
    assert_eq!(compacted.get("lodestore_compactions_total"), 1.0);
    assert_eq!(compacted.get("lodestore_delta_rows"), 0.0);
    watched.server.stop();
}

#[test]
fn a_scrape_waits_for_no_shard_and_no_shard_for_a_scrape() {
    let watched = Watched::start("--shards 1");
    let metrics = &watched.server.metrics;
    let args = format!(
        "load --json --connect {} --connections 4 --rows 300 --duration 2 --warm-up 0 --verify {}",
        watched.server.address,
        watched.graph.display()
    );
    let load = command(args.split_whitespace()).spawn().unwrap();
    let (mut n_scrapes, mut last) = (0, 0.0);
    let end = Instant::now() + Duration::from_secs(60);
    while n_scrapes <= 20 || last == 0.0 {
        assert!(Instant::now() < end, "{n_scrapes} scrapes, {last} rows");
        let rows = Scrape::take(metrics).sum("lodestore_sent_rows_total");
        assert!(rows >= last, "a counter went down from {last} to {rows}");
        last = rows;
        n_scrapes += 1;
    }
    let report = finish(load, Duration::from_secs(60)).succeeded().json();
    assert_eq!(report["errors"].as_object().unwrap().len(), 0, "{report}");
    let busy = Scrape::take(metrics).sum("lodestore_shard_busy_seconds_total");
    // Others may take the core meanwhile; an idle shard is busy for 0.02 s of two.
    assert!(busy > 0.05, "{busy} s busy under a load of 2 s");
    watched.server.stop();
}

/// Tests that fail where other programs slow the machine.
mod timing {
    use super::*;

    #[test]
    #[ignore = "measures time: ./x test runs it by itself"]
    fn an_idle_shard_is_not_busy() {
        let watched = Watched::start("--shards 2");
        let busy = |scrape: &Scrape| scrape.sum("lodestore_shard_busy_seconds_total");
        let before = Scrape::take(&watched.server.metrics);
        std::thread::sleep(Duration::from_secs(1));
        let after = Scrape::take(&watched.server.metrics);
        let seconds =
            after.get("lodestore_uptime_seconds") - before.get("lodestore_uptime_seconds");
        let share = (busy(&after) - busy(&before)) / 2.0 / seconds;
        assert!(share < 0.5, "two idle shards are busy for {share} of the time");
        assert!(after.sum("lodestore_shard_beat_age_seconds") < 5.0);
        watched.server.stop();
    }
}
