//! `lode-lab load` and `lode-lab shape`: what load counts is what the servers did, and what it times
//! is what a client waits.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod link_emulation;

use std::path::PathBuf;
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lodestore_graph::npy::NpyType;
use rustix::process::Signal;
use serde_json::Value;

use testing::graph::Source;
use testing::http::get;
use testing::process::{Finished, Serving, command, finish, lode_line, signal};
use testing::write_npy;

const DEADLINE: Duration = Duration::from_secs(60);

struct Loaded {
    source: Source,
    graph: PathBuf,
}

impl Loaded {
    fn new() -> Self {
        let source = Source::random(900, 3000);
        let graph = source.import("graph", 2, "hash");
        Self { source, graph }
    }

    fn serve(&self, n_shards: u16) -> (Serving, String) {
        let socket = self.source.file("rows.sock");
        let args = format!("--shards {n_shards} --listen 127.0.0.1:0 --unix {}", socket.display());
        (Serving::start(&self.graph, &args), format!("unix:{}", socket.display()))
    }

    fn verify(&self) -> String {
        format!("--verify {}", self.graph.display())
    }
}

fn load(address: &str, more: &str) -> Finished {
    lode_line(&format!("load --json --connect {address} {more}"))
}

fn number(report: &Value, path: &str) -> f64 {
    let found = report.pointer(path).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("no number at {path} in {report}"))
}

fn assert_no_errors(report: &Value) {
    assert_eq!(report["errors"].as_object().map(serde_json::Map::len), Some(0), "{report}");
}

#[test]
fn rows_are_those_of_the_graph_over_every_socket_shard_window_and_kind() {
    let loaded = Loaded::new();
    for n_shards in [1, 2] {
        let (server, unix) = loaded.serve(n_shards);
        for (address, more) in [
            (&server.address, "--connections 1 --rows 1"),
            (&server.address, "--connections 3 --window 4 --rows 700 --vector-share 0.5"),
            (&unix, "--connections 4 --threads 2 --rows 37 --ids zipf:1.1 --vector-share 1"),
            (&unix, "--connections 2 --rows 20 --ids sequential --tensor wide"),
        ] {
            let times = "--duration 0.4 --warm-up 0.1";
            let verify = loaded.verify();
            let report = load(address, &format!("{more} {times} {verify}")).succeeded().json();
            assert_no_errors(&report);
            assert_eq!(report["wrong_rows"], 0);
            let rows = number(&report, "/rows");
            assert!(rows > 0.0 && number(&report, "/verified_rows") >= rows, "{report}");
            let n_kinds = report["kinds"].as_object().unwrap().len();
            assert_eq!(n_kinds, 1 + usize::from(more.contains("0.5")), "{report}");
            for kind in report["kinds"].as_object().unwrap().values() {
                let at = |name| number(&kind["latency"], name);
                assert!(at("/p50") > 0.0 && at("/p50") <= at("/p99"), "{report}");
                assert!(at("/p999") <= at("/max") * 1.001, "{report}");
            }
            assert!(number(&report, "/generator_cpu") > 0.0, "{report}");
        }
        server.stop();
    }
}

#[test]
fn the_counts_are_those_of_the_server() {
    let loaded = Loaded::new();
    let (server, _) = loaded.serve(1);
    // Measured from the start to the end: only what was in flight then is the server's alone.
    let more = "--connections 2 --rows 10 --duration 0.5 --warm-up 0";
    let report = load(&server.address, more).succeeded().json();
    let stat = lode_line(&format!("stat --json {}", server.address)).succeeded().json();
    let served = number(&stat, "/shards/0/rows");
    let rows = number(&report, "/rows");
    assert!((rows..=rows + 20.0).contains(&served), "{served} served, {rows} counted");
    assert_eq!(rows, 10.0 * number(&report, "/requests"));
    assert_eq!(number(&report, "/bytes"), 52.0 * rows);
    server.stop();
}

#[test]
fn other_rows_than_those_of_the_graph_are_wrong() {
    let loaded = Loaded::new();
    let mut other = Source::random(900, 3000);
    other.feat[500][0] = -1.0;
    let file = other.file("feat.npy");
    write_npy(&file, NpyType::F32, &[900, 13], &other.feat);
    let graph = other.import("graph", 2, "hash");
    let (server, _) = loaded.serve(1);
    let more = format!(
        "--rows 300 --ids sequential --duration 0.3 --warm-up 0 --verify {}",
        graph.display()
    );
    let finished = load(&server.address, &more);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let report = finished.json();
    let (wrong, all) = (number(&report, "/wrong_rows"), number(&report, "/verified_rows"));
    assert!(wrong >= 1.0 && wrong <= all / 899.0 + 2.0, "one row of 900 is wrong: {report}");
    assert!(report["first_wrong"].is_u64(), "{report}");
    let wide = loaded.source.file("feat.npy");
    write_npy(&wide, NpyType::F32, &[900, 2], &[[0f32; 2]; 900]);
    let graph = loaded.source.import("narrow", 2, "hash");
    let more = format!("--duration 0.3 --verify {}", graph.display());
    load(&server.address, &more).failed(1, &["`feat`", "8 bytes", "52 bytes"]);
    server.stop();
}

#[test]
fn an_open_loop_starts_as_many_requests_as_configured() {
    let loaded = Loaded::new();
    let (server, _) = loaded.serve(1);
    for (arrivals, off) in [("fixed", 1.0), ("poisson", 120.0)] {
        let more = format!(
            "--connections 8 --window 4 --rows 5 --rate 500 --arrivals {arrivals} --duration 1 --warm-up 0.2"
        );
        let report = load(&server.address, &more).succeeded().json();
        assert!((number(&report, "/due") - 500.0).abs() <= off, "{report}");
        let timed = number(&report, "/kinds/sync/latency/count");
        assert_eq!(timed, number(&report, "/due"), "each that was due is timed: {report}");
        assert_no_errors(&report);
    }
    server.stop();
}

/// Starts a load, and returns once the server has sent some hundred rows of it.
fn start_load(address: &str, more: &str) -> Child {
    let sent = || {
        let stat = lode_line(&format!("stat --json {address}")).succeeded().json();
        stat["shards"].as_array().unwrap().iter().map(|shard| number(shard, "/rows")).sum::<f64>()
    };
    let before = sent();
    let line = format!("load --json --connect {address} --rows 5 --warm-up 0 {more}");
    let running = command(line.split_whitespace()).spawn().unwrap();
    let end = Instant::now() + DEADLINE;
    while sent() < before + 200.0 {
        assert!(Instant::now() < end, "the load does not begin");
        sleep(Duration::from_millis(5));
    }
    running
}

/// Returns the 90th percentile under a load during which the server stalls for half of the time.
fn p90_with_a_stall(address: &str, server: &Serving, more: &str) -> f64 {
    let running = start_load(address, &format!("--connections 4 --duration 3 {more}"));
    signal(&server.child, Signal::STOP);
    sleep(Duration::from_millis(1500));
    signal(&server.child, Signal::CONT);
    let report = finish(running, DEADLINE).succeeded().json();
    assert_no_errors(&report);
    assert!(number(&report, "/kinds/sync/latency/max") > 1.2, "{report}");
    number(&report, "/kinds/sync/latency/p90")
}

#[test]
fn a_server_that_stalls_is_charged_for_all_that_was_due_meanwhile() {
    let loaded = Loaded::new();
    let (server, _) = loaded.serve(1);
    let address = server.address.clone();
    let open = p90_with_a_stall(&address, &server, "--rate 300 --arrivals fixed");
    assert!(open > 0.4, "half of all requests were due during the stall: p90 {open}");
    let closed = p90_with_a_stall(&address, &server, "");
    assert!(closed < 0.2, "a closed loop sees it once for each connection: p90 {closed}");
    server.stop();
}

#[test]
fn a_server_that_hangs_for_good_has_failed_its_last_requests() {
    let loaded = Loaded::new();
    for more in ["", "--rate 300 --arrivals fixed"] {
        let (server, _) = loaded.serve(1);
        // The deadline passes long after the measured time.
        let more = format!("--connections 4 --duration 2 --deadline 3 {more}");
        let running = start_load(&server.address, &more);
        signal(&server.child, Signal::STOP);
        let report = finish(running, DEADLINE).json();
        assert_eq!(report["errors"]["late"], 4, "one for each connection: {report}");
        assert!(number(&report, "/kinds/sync/latency/max") > 3.0, "{report}");
        if let Some(due) = report["due"].as_f64().filter(|&due| due > 0.0) {
            assert_eq!(number(&report, "/kinds/sync/latency/count"), due, "{report}");
        }
        server.kill();
    }
}

#[test]
fn requests_that_were_due_and_could_not_be_sent_are_reported() {
    let loaded = Loaded::new();
    let (server, _) = loaded.serve(1);
    let more = "--connections 1 --rows 100 --rate 200000 --duration 0.5 --warm-up 0";
    let report = load(&server.address, more).succeeded().json();
    let (due, unsent) = (number(&report, "/due"), number(&report, "/unsent"));
    assert!((95_000.0..105_000.0).contains(&due), "{report}");
    assert!(unsent > 0.3 * due, "{report}");
    assert_eq!(number(&report, "/kinds/sync/latency/count"), due, "{report}");
    assert!(number(&report, "/kinds/sync/latency/p50") > 0.1, "{report}");
    server.stop();
}

#[test]
fn a_server_that_dies_is_counted_and_found_again() {
    let loaded = Loaded::new();
    for is_tcp in [false, true] {
        dies_and_is_found_again(&loaded, is_tcp);
    }
}

fn dies_and_is_found_again(loaded: &Loaded, is_tcp: bool) {
    let socket = loaded.source.file("mortal.sock");
    let args = if is_tcp {
        "--shards 2 --listen 127.0.0.1:0".to_owned()
    } else {
        format!("--shards 1 --unix {}", socket.display())
    };
    let server = Serving::start(&loaded.graph, &args);
    // Where it listens again; its shards have other ports then.
    let args = args.replace("127.0.0.1:0", &server.address);
    let address =
        if is_tcp { server.address.clone() } else { format!("unix:{}", socket.display()) };
    let more = format!("--connections 2 --duration 5 {}", loaded.verify());
    let running = start_load(&address, &more);
    server.kill();
    // Long enough for a connection that is refused.
    sleep(Duration::from_millis(600));
    let server = Serving::start(&loaded.graph, &args);
    let report = finish(running, DEADLINE).succeeded().json();
    let errors = report["errors"].as_object().unwrap();
    assert!(errors.contains_key("broken") && errors.contains_key("connect"), "{report}");
    assert!(errors.keys().all(|kind| kind == "broken" || kind == "connect"), "{report}");
    let stat = lode_line(&format!("stat --json {address}")).succeeded().json();
    assert!(number(&stat, "/shards/0/rows") > 0.0, "it was found again: {report}");
    server.stop();
}

#[test]
fn a_trace_says_which_rows_and_how_many() {
    let loaded = Loaded::new();
    let (server, _) = loaded.serve(1);
    let (ids, offsets) = (loaded.source.file("ids.npy"), loaded.source.file("offsets.npy"));
    write_npy(&ids, NpyType::U32, &[8], &[0u32, 899, 5, 6, 7, 8, 9, 1]);
    write_npy(&offsets, NpyType::I64, &[4], &[0i64, 2, 2, 7]);
    let trace = format!("--trace {} --offsets {}", ids.display(), offsets.display());
    let times = "--connections 1 --duration 0.3 --warm-up 0";
    let more = format!("{trace} {times} {}", loaded.verify());
    let report = load(&server.address, &more).succeeded().json();
    assert_eq!(report["ids"], "ids.npy");
    let (rows, requests) = (number(&report, "/rows"), number(&report, "/requests"));
    // Batches of 2, 5 and 1; the empty one is left out.
    assert!((rows - requests * 8.0 / 3.0).abs() <= 8.0, "{report}");

    write_npy(&ids, NpyType::U32, &[1], &[900u32]);
    let more = format!("--trace {} {times}", ids.display());
    load(&server.address, &more).failed(1, &["ids.npy", "id 900", "below 900"]);
    server.stop();
}

#[test]
fn the_chart_is_xml_with_a_curve_for_each_kind() {
    let loaded = Loaded::new();
    let (server, _) = loaded.serve(1);
    let svg = loaded.source.file("l.svg");
    let more =
        format!("--rows 10 --vector-share 0.5 --duration 0.4 --warm-up 0 --svg {}", svg.display());
    load(&server.address, &more).succeeded();
    let text = std::fs::read_to_string(&svg).unwrap();
    let document = roxmltree::Document::parse(&text).unwrap();
    let words: Vec<&str> = document.descendants().filter_map(|node| node.text()).collect();
    for word in ["sync", "vector", "percentile", "99 %"] {
        assert!(words.iter().any(|text| text.trim() == word), "no `{word}` in {words:?}");
    }
    let text = lode_line(&format!("load --connect {} --duration 0.2 --warm-up 0", server.address))
        .succeeded()
        .stdout;
    for part in ["rows/s", "p99.9", "send delay", "errors: none", "generator at"] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    server.stop();
}

#[test]
fn impossible_settings_are_refused_before_anything_is_opened() {
    for (more, told) in [
        ("--rate 0", "rate must be above 0"),
        ("--rate 10 --arrivals often", "arrivals"),
        ("--arrivals fixed", "--rate"),
        ("--connections 0", "connections must be 1 to"),
        ("--threads 9", "threads must be 1 to 4"),
        ("--vector-share 2", "vector-share must be 0 to 1"),
        ("--ids zipf", "zipf:S"),
        ("--ids zipf:-1", "zipf exponent"),
        ("--ids uniform --trace x.npy", "--trace"),
        ("--duration ten", "seconds, such as 2.5"),
        ("--duration 0", "duration"),
    ] {
        lode_line(&format!("load --connect 127.0.0.1:1 {more}")).failed(2, &[told]);
    }
    lode_line("load --connect 127.0.0.1:1").failed(1, &["127.0.0.1:1", "running"]);
}

#[test]
fn rows_over_a_unix_socket_come_through_memory_and_that_of_a_killed_client_comes_back() {
    let loaded = Loaded::new();
    let socket = loaded.source.file("rows.sock");
    let args = format!("--shards 2 --metrics 127.0.0.1:0 --unix {}", socket.display());
    let server = Serving::start(&loaded.graph, &args);
    let unix = format!("unix:{}", socket.display());
    let figure = |name: &str| {
        let text = get(&server.metrics, "/metrics").body;
        let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum::<f64>()
    };
    let wait_until = |what: &str, is_so: &dyn Fn() -> bool| {
        let end = Instant::now() + DEADLINE;
        while !is_so() {
            assert!(Instant::now() < end, "not in time: {what}");
            sleep(Duration::from_millis(20));
        }
    };
    // More than one chunk to a slot of each shard, and requests that have to stand in the socket.
    let wide = "--connections 3 --rows 900 --tensor wide --duration 0.5 --warm-up 0";
    for (window, are_shared) in [(2, false), (1, true)] {
        let more = format!("{wide} --window {window} {}", loaded.verify());
        let names = ["lodestore_shared_bytes_total", "lodestore_sent_bytes_total"];
        let before = names.map(figure);
        let report = load(&unix, &more).succeeded().json();
        assert_no_errors(&report);
        assert_eq!(report["wrong_rows"], 0);
        assert!(number(&report, "/rows") > 0.0);
        let [shared, sent] = [0, 1].map(|at| figure(names[at]) - before[at]);
        assert_eq!(shared > 0.5 * sent, are_shared, "{shared} of {sent} bytes");
    }
    wait_until("who has ended has no memory", &|| figure("lodestore_shared_memory_bytes") == 0.0);
    let line = format!("load --connect {unix} {wide} --duration 60");
    let mut dying = command(line.replace("--duration 0.5", "").split_whitespace()).spawn().unwrap();
    let before = figure("lodestore_shared_bytes_total");
    wait_until("it maps memory", &|| figure("lodestore_shared_memory_bytes") >= 6.0 * 1048576.0);
    wait_until("rows come there", &|| figure("lodestore_shared_bytes_total") > before);
    dying.kill().unwrap();
    dying.wait().unwrap();
    wait_until("it comes back", &|| figure("lodestore_shared_memory_bytes") == 0.0);
    wait_until("so does all else", &|| figure("lodestore_connections") == 0.0);
    server.stop();
}
