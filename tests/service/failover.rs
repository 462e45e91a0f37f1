//! Servers that keep silent, trickle, die, move, and come back.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_client::{Client, ClientConfig, ClientError};
use lodestore_graph::NodeId;
use lodestore_schema::limits::{HELLO_BYTES, PREFIX_BYTES};
use lodestore_schema::{Prefix, Reply, Request, RequestBody, WireVersions};
use rustix::process::Signal;

use crate::Truth;
use testing::Numbers;
use testing::graph::Source;
use testing::process::{Serving, command, finish, lode_line, signal};
use testing::wire::PlainConnection;

fn connect(addresses: &[&str], deadline: Duration) -> Client {
    Client::connect(addresses, ClientConfig { deadline, ..ClientConfig::default() }).unwrap()
}

fn all_nodes(source: &Source) -> Vec<NodeId> {
    (0..source.n_nodes).map(NodeId).collect()
}

/// Pulls, and compares.
fn pull(client: &Client, truth: &Truth<'_>, ids: &[NodeId]) -> Result<Duration, ClientError> {
    let (start, expected) = (Instant::now(), truth.rows("feat", ids));
    let mut out = vec![0xEE; expected.len()];
    client.sync_pull("feat", ids, &mut out)?;
    assert!(out == expected, "wrong rows");
    Ok(start.elapsed())
}

#[test]
fn a_server_that_keeps_silent_costs_a_fraction_of_the_deadline_when_another_has_its_rows() {
    let source = Source::random(3000, 3000);
    let graph = source.import("graph", 2, "hash");
    let servers =
        [1, 2].map(|n| Serving::start(&graph, &format!("--listen 127.0.0.1:0 --shards {n}")));
    let client = connect(&[&servers[0].address, &servers[1].address], Duration::from_secs(30));
    let (truth, ids) = (Truth::new(&source, &client), all_nodes(&source));
    for silent in [0, 1, 0] {
        for _ in 0..5 {
            pull(&client, &truth, &ids).unwrap();
        }
        signal(&servers[silent].child, Signal::STOP);
        for _ in 0..20 {
            let took = pull(&client, &truth, &ids).unwrap();
            assert!(took < Duration::from_secs(10), "{took:?}");
        }
        signal(&servers[silent].child, Signal::CONT);
    }
    servers.into_iter().for_each(Serving::stop);
}

#[test]
fn a_server_that_trickles_does_not_stretch_the_deadline_and_another_is_asked() {
    let source = Source::random(3000, 3000);
    let graph = source.import("graph", 1, "hash");
    let servers = [(); 2].map(|()| Serving::start(&graph, "--listen 127.0.0.1:0 --shards 1"));
    // 156 kB of rows take a minute and more.
    let line = format!("shape {} --at 127.0.0.2 --rate 20kbit --json", servers[0].address);
    let slow = Serving::start_command(&line);
    let ids = all_nodes(&source);
    let truth = Truth::new(&source, &connect(&[&servers[1].address], Duration::from_secs(30)));
    let deadline = Duration::from_secs(3);
    let alone = connect(&[&slow.address], deadline);
    let start = Instant::now();
    let error = pull(&alone, &truth, &ids).unwrap_err();
    assert!(matches!(error, ClientError::Deadline { .. }), "{error}");
    assert!(start.elapsed() < 3 * deadline, "{:?}", start.elapsed());
    // Another link: the first one is full of answers without a reader.
    drop(slow);
    let slow = Serving::start_command(&line);
    let both = connect(&[&slow.address, &servers[1].address], Duration::from_secs(30));
    for _ in 0..5 {
        let took = pull(&both, &truth, &ids).unwrap();
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
    drop(slow);
    servers.into_iter().for_each(Serving::stop);
}

#[test]
fn a_partition_that_has_gone_to_another_server_is_found_there() {
    let source = Source::random(1000, 1000);
    let graph = source.import("graph", 2, "range");
    let first = Serving::start(&graph, "--listen 127.0.0.1:0 --shards 2 --parts 0,1");
    let second = Serving::start(&graph, "--listen 127.0.0.1:0 --shards 1 --parts 1");
    let address = first.address.clone();
    let client = connect(&[&address, &second.address], Duration::from_secs(20));
    let (truth, ids) = (Truth::new(&source, &client), all_nodes(&source));
    pull(&client, &truth, &ids).unwrap();
    first.kill();
    let first = Serving::start(&graph, &format!("--listen {address} --shards 3 --parts 0"));
    pull(&client, &truth, &ids).unwrap();
    first.stop();
    second.stop();
}

#[test]
fn servers_killed_under_load_give_no_wrong_row_no_hang_and_no_error_while_one_lives() {
    let source = Source::random(2000, 4000);
    let graph = source.import("graph", 2, "hash");
    let serve = |address: &str, n| {
        Serving::start(&graph, &format!("--listen {address} --shards {n} --memory 100KiB"))
    };
    let mut servers = [1, 2].map(|n| Some(serve("127.0.0.1:0", n)));
    let addresses = servers.each_ref().map(|server| server.as_ref().unwrap().address.clone());
    let deadline = Duration::from_secs(20);
    let client = connect(&[&addresses[0], &addresses[1]], deadline);
    let truth = Truth::new(&source, &client);
    let n_rounds = if crate::is_long() { 40 } else { 6 };
    let seconds = n_rounds as f64 * 0.8;
    let load = format!(
        "load --json --connect {} --connect {} --rows 100 --connections 4 --warm-up 0 --duration \
         {seconds} --verify {}",
        addresses[0],
        addresses[1],
        graph.display()
    );
    let load = command(load.split_whitespace()).spawn().unwrap();
    // It does not begin without its servers.
    thread::sleep(Duration::from_millis(600));
    let (is_over, n_pulls) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for seed in 0..3 {
            let (client, truth, is_over, n_pulls) = (&client, &truth, &is_over, &n_pulls);
            scope.spawn(move || {
                let mut numbers = Numbers(seed);
                while !is_over.load(Ordering::Relaxed) {
                    let n = 1 + numbers.below(500);
                    let ids: Vec<NodeId> = (0..n).map(|_| NodeId(numbers.below(2000))).collect();
                    let start = Instant::now();
                    let pulled = pull(client, truth, &ids);
                    assert!(pulled.is_ok(), "after {:?}: {pulled:?}", start.elapsed());
                    assert!(start.elapsed() < 2 * deadline);
                    n_pulls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..n_rounds {
            let victim = round % 2;
            servers[victim].take().unwrap().kill();
            thread::sleep(Duration::from_millis(150));
            // Back with another number of shards, on other ports.
            servers[victim] = Some(serve(&addresses[victim], 1 + (round / 2) % 3));
            thread::sleep(Duration::from_millis(450));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(n_pulls.load(Ordering::Relaxed) > 10 * n_rounds as u64, "{n_pulls:?} pulls");
    let report = finish(load, Duration::from_secs(120)).succeeded().json();
    assert_eq!(report["wrong_rows"], 0, "{report}");
    assert!(report["requests"].as_u64().unwrap() > 100, "{report}");
    for kind in report["errors"].as_object().unwrap().keys() {
        assert!(["broken", "connect"].contains(&kind.as_str()), "{report}");
    }
    for server in servers.into_iter().flatten() {
        server.stop();
    }
}

#[test]
fn a_load_finds_a_server_again_that_comes_back_with_other_shards() {
    let source = Source::random(900, 3000);
    let graph = source.import("graph", 2, "hash");
    let server = Serving::start(&graph, "--listen 127.0.0.1:0 --shards 2");
    let address = server.address.clone();
    let line = format!(
        "load --json --connect {address} --connections 3 --window 2 --rows 20 --tensor wide --warm-up 0 --duration 4 \
         --verify {}",
        graph.display()
    );
    let load = command(line.split_whitespace()).spawn().unwrap();
    thread::sleep(Duration::from_millis(800));
    server.kill();
    let server = Serving::start(&graph, &format!("--listen {address} --shards 3"));
    let report = finish(load, Duration::from_secs(60)).succeeded().json();
    assert_eq!(report["wrong_rows"], 0, "{report}");
    let stat = lode_line(&format!("stat --json {address}")).succeeded().json();
    let rows = |shard: usize| stat["shards"][shard]["rows"].as_u64().unwrap();
    assert!((0..3).all(|shard| rows(shard) > 0), "all three were asked: {stat} {report}");
    server.stop();
}

/// Returns a server that describes itself as `real` does and ends every connection that asks for
/// rows; returns its address, and counts these.
fn all_talk(real: &str, n_asked: &Arc<AtomicU64>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (real, n_asked) = (real.to_owned(), Arc::clone(n_asked));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut theirs) = (stream.unwrap(), [0; HELLO_BYTES]);
            stream.read_exact(&mut theirs).unwrap();
            stream.write_all(&WireVersions::SPOKEN.answer(&theirs).0.unwrap()).unwrap();
            let mut prefix = [0; PREFIX_BYTES];
            if stream.read_exact(&mut prefix).is_err() {
                continue;
            }
            let mut head = vec![0; Prefix::of_request(prefix).unwrap().head_bytes];
            stream.read_exact(&mut head).unwrap();
            if Request::decode(&head).unwrap().body != RequestBody::Describe {
                n_asked.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let mut description = PlainConnection::open(&real).describe();
            description.shard_ports = vec![address.port(); usize::from(description.n_shards)];
            let mut frame = Vec::new();
            Reply::Description(description).append_to(0, &mut frame);
            stream.write_all(&frame).unwrap();
        }
    });
    address.to_string()
}

#[test]
fn a_server_that_only_describes_itself_is_left_alone() {
    let source = Source::random(500, 500);
    let graph = source.import("graph", 1, "hash");
    let server = Serving::start(&graph, "--listen 127.0.0.1:0 --shards 1");
    let n_asked = Arc::new(AtomicU64::new(0));
    let talker = all_talk(&server.address, &n_asked);
    let client = connect(&[&talker, &server.address], Duration::from_secs(20));
    let (truth, ids) = (Truth::new(&source, &client), all_nodes(&source));
    let start = Instant::now();
    for _ in 0..200 {
        pull(&client, &truth, &ids).unwrap();
    }
    // It rests for 250 ms, and twice as long after every failure.
    let most = 4 + start.elapsed().as_secs();
    let found = n_asked.load(Ordering::Relaxed);
    assert!((1..=most).contains(&found), "{found} of 200 pulls asked it");
    server.stop();
}

#[test]
fn rows_that_another_has_are_had_there_though_the_silent_server_has_more() {
    let source = Source::random(1000, 1000);
    let graph = source.import("graph", 2, "range");
    let both = Serving::start(&graph, "--listen 127.0.0.1:0 --shards 1");
    let one = Serving::start(&graph, "--listen 127.0.0.1:0 --shards 1 --parts 1");
    let deadline = Duration::from_secs(30);
    let bounds = PlainConnection::open(&both.address).describe().bounds;
    let ids: Vec<NodeId> = (bounds[1]..bounds[2]).map(NodeId).collect();
    let truth = Truth::new(&source, &connect(&[&both.address], deadline));
    for _ in 0..3 {
        // The first that is named is asked first.
        let client = connect(&[&both.address, &one.address], deadline);
        signal(&both.child, Signal::STOP);
        let took = pull(&client, &truth, &ids).unwrap();
        assert!(took < Duration::from_secs(15), "{took:?}");
        signal(&both.child, Signal::CONT);
    }
    both.stop();
    one.stop();
}

#[test]
fn another_graph_at_the_same_address_is_neither_committed_nor_compacted() {
    let (source, others) = (Source::random(60, 100), Source::random(70, 100));
    let (graph, other) = (source.import("graph", 1, "hash"), others.import("graph", 1, "hash"));
    let server = Serving::start(&graph, "--listen 127.0.0.1:0 --writable --insecure --shards 1");
    let address = server.address.clone();
    let client = connect(&[&address], Duration::from_secs(10));
    assert_eq!(client.commit().unwrap(), 2);
    server.kill();
    let server =
        Serving::start(&other, &format!("--listen {address} --writable --insecure --shards 1"));
    let error = client.commit().unwrap_err();
    assert!(matches!(error, ClientError::GraphsDiffer { .. }), "{error}");
    let error = client.compact().unwrap_err();
    assert!(matches!(error, ClientError::GraphsDiffer { .. }), "{error}");
    assert_eq!(PlainConnection::open(&address).describe().version, 1);
    server.stop();
}

#[test]
fn a_server_that_is_down_at_the_start_is_done_without_where_another_has_its_rows_and_joins_later() {
    let source = Source::random(1000, 1000);
    let graph = source.import("graph", 2, "range");
    let serve = |at: &str, parts| {
        Serving::start(&graph, &format!("--listen {at} --shards 1 --parts {parts}"))
    };
    let (both, late) = (serve("127.0.0.1:0", "0,1"), serve("127.0.0.1:0", "1"));
    let (address, late_address) = (both.address.clone(), late.address.clone());
    late.kill();
    let config = ClientConfig { deadline: Duration::from_secs(20), ..ClientConfig::default() };
    let start = Instant::now();
    let client = Client::connect(&[&late_address, &address], config.clone()).unwrap();
    let (truth, ids) = (Truth::new(&source, &client), all_nodes(&source));
    pull(&client, &truth, &ids).unwrap();
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    // A writer needs every replica, and a sum over all counters needs all.
    for error in [client.commit().err().unwrap(), client.stats().err().unwrap()] {
        let is_named = matches!(&error, ClientError::Unreachable { addresses }
            if *addresses == late_address);
        assert!(is_named, "{error}");
    }
    let put = client.put_rows("label", &[NodeId(0)], &[0; 8]).err().unwrap();
    assert!(matches!(put, ClientError::Unreachable { .. }), "{put}");
    // Rows that only the one that is down has.
    both.kill();
    let both = serve(&address, "0");
    let error = Client::connect(&[&late_address, &address], config.clone()).err().unwrap();
    assert!(
        matches!(&error, ClientError::Connect { address, .. }
        if address.to_string() == late_address),
        "{error}"
    );
    // It comes, and has what the other has no more. Both clients wait: the one that finds that out
    // and the one that knows it.
    let late = thread::scope(|scope| {
        scope.spawn(|| pull(&client, &truth, &ids).unwrap());
        thread::sleep(Duration::from_millis(1500));
        scope.spawn(|| pull(&client, &truth, &ids).unwrap());
        thread::sleep(Duration::from_millis(500));
        serve(&late_address, "1")
    });
    pull(&client, &truth, &ids).unwrap();
    assert_eq!(client.stats().unwrap().len(), 2);
    both.stop();
    late.stop();
}

#[test]
fn a_server_that_is_silent_at_the_start_takes_seconds_and_not_the_deadline() {
    let source = Source::random(200, 200);
    let graph = source.import("graph", 1, "hash");
    let servers = [(); 2].map(|()| Serving::start(&graph, "--listen 127.0.0.1:0 --shards 1"));
    let addresses = servers.each_ref().map(|server| server.address.clone());
    signal(&servers[0].child, Signal::STOP);
    let config = ClientConfig { deadline: Duration::from_secs(30), ..ClientConfig::default() };
    let start = Instant::now();
    let client = Client::connect(&addresses, config).unwrap();
    let truth = Truth::new(&source, &client);
    pull(&client, &truth, &all_nodes(&source)).unwrap();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    signal(&servers[0].child, Signal::CONT);
    servers.into_iter().for_each(Serving::stop);
}

/// Tests that fail where other programs slow the machine.
mod timing {
    use super::*;

    #[test]
    #[ignore = "measures time: ./x test runs it by itself"]
    fn a_server_that_stalls_for_a_moment_is_not_waited_for() {
        let source = Source::random(1000, 1000);
        let graph = source.import("graph", 2, "hash");
        let args = "--listen 127.0.0.1:0 --metrics 127.0.0.1:0 --shards 2";
        let servers = [(); 2].map(|()| Serving::start(&graph, args));
        let addresses = servers.each_ref().map(|server| server.address.clone());
        let ids: Vec<NodeId> = (0..50).map(NodeId).collect();
        // The slowest pull of each time that the server that is asked stalls; the middle of these.
        let slowest = |hedged_share| {
            let deadline = Duration::from_secs(30);
            let config = ClientConfig { deadline, hedged_share, ..ClientConfig::default() };
            let client = Client::connect(&addresses, config).unwrap();
            let truth = Truth::new(&source, &client);
            let pulls = |n| (0..n).map(|_| pull(&client, &truth, &ids).unwrap()).max().unwrap();
            let mut slowest = Vec::new();
            for _ in 0..9 {
                // A server that lost a hedge, or kept silent, has rested by then.
                thread::sleep(Duration::from_millis(300));
                pulls(100);
                let sent = || crate::metric(&servers[0], "lodestore_sent_rows_total");
                let before = sent();
                pulls(1);
                let asked = &servers[usize::from(sent() == before)].child;
                signal(asked, Signal::STOP);
                slowest.push(thread::scope(|scope| {
                    scope.spawn(|| {
                        thread::sleep(Duration::from_millis(120));
                        signal(asked, Signal::CONT);
                    });
                    pulls(20)
                }));
            }
            slowest.sort();
            slowest[4]
        };
        let (with, without) = (slowest(0.05), slowest(0.0));
        println!("{with:?} with a hedge, {without:?} without");
        assert!(without > Duration::from_millis(80), "{without:?}");
        assert!(with < Duration::from_millis(40), "{with:?}");
        servers.into_iter().for_each(Serving::stop);
    }
}
