//! More than a server can do: it does as much as it can, and refuses the rest immediately.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use lodestore_schema::request::PullKind;
use lodestore_schema::{FailureCode, Request, RequestBody, Token};
use serde_json::Value;

use crate::rss_bytes;
use testing::graph::Source;
use testing::process::{Serving, lode_line};
use testing::wire::PlainConnection;

#[test]
fn one_connection_too_many_is_refused_with_a_hint_and_others_continue() {
    let source = Source::random(60, 60);
    let graph = source.import("graph", 1, "hash");
    let server = Serving::start(&graph, "--listen 127.0.0.1:0 --shards 1");
    let mut friends: Vec<_> = (0..256).map(|_| PlainConnection::open(&server.address)).collect();
    // The last of them have been let in when they are answered.
    for friend in &mut friends {
        friend.describe();
    }
    // However many come, each receives an answer, and immediately.
    let start = Instant::now();
    let mut refused: Vec<_> = (0..100).map(|_| PlainConnection::open(&server.address)).collect();
    for refused in &mut refused {
        let failure = refused.failure();
        assert_eq!(failure.code, FailureCode::Overloaded, "{failure}");
        assert!(!failure.retry_after.is_zero());
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    drop(refused);
    // No connection has been idle for long enough to go.
    friends.iter_mut().for_each(|friend| drop(friend.describe()));
    lode_line(&format!("stat --deadline 1 {}", server.address)).failed(1, &["256 connections"]);
    friends.truncate(250);
    crate::wait_until("there is room again", || {
        lode_line(&format!("stat --deadline 1 {}", server.address)).code == Some(0)
    });
    friends[0].describe();
    server.stop();
}

#[test]
fn a_reader_below_the_least_rate_is_cut_off() {
    if !crate::is_long() {
        // It takes its time.
        return;
    }
    let source = Source::random(2000, 2000);
    let graph = source.import("graph", 1, "hash");
    let server = Serving::start(&graph, "--listen 127.0.0.1:0 --metrics 127.0.0.1:0 --shards 1");
    let mut slow = PlainConnection::open(&server.address);
    let ids: Vec<_> = (0..262_144).map(|i| lodestore_graph::NodeId(i % 2000)).collect();
    // 1.2 GB of rows.
    let kind = lodestore_schema::request::PullKind::Sync;
    slow.ask(lodestore_schema::RequestBody::Pull { tensor: 1, kind }, &ids);
    let (start, mut n_bytes) = (Instant::now(), 0);
    let mut bytes = vec![0; 16 << 10];
    // 64 KiB a second; each chunk comes in time by itself.
    while let Ok(n @ 1..) = slow.stream.read(&mut bytes) {
        n_bytes += n;
        std::thread::sleep(Duration::from_millis(250));
        if crate::metric(&server, "lodestore_connections") == 0.0 {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{n_bytes} bytes taken");
    }
    assert_eq!(crate::broken(&server, "timeout"), 1.0);
    server.stop();
}

/// Sends bytes on a connection for as long as they are taken, and throws the answers away.
fn flood(address: &str, bytes: Vec<u8>) {
    let mut writer = PlainConnection::open(address).stream;
    let mut reader = writer.try_clone().unwrap();
    std::thread::spawn(move || while writer.write_all(&bytes).is_ok() {});
    std::thread::spawn(move || {
        let mut answers = vec![0; 1 << 20];
        while let Ok(1..) = reader.read(&mut answers) {}
    });
}

#[test]
fn who_never_stops_sending_keeps_no_shard_for_itself() {
    let source = Source::random(60, 60);
    let graph = source.import("graph", 1, "hash");
    let server = Serving::start(&graph, "--listen 127.0.0.1:0 --shards 1");
    let token = Token::new(b"nobody-asked-for-this-one").unwrap();
    let pull = RequestBody::Pull { tensor: 0, kind: PullKind::Sync };
    for body in [RequestBody::Authenticate { token }, RequestBody::Stat, pull] {
        let mut frames = Vec::new();
        (0..2000).for_each(|_| Request::new(body).append_to(0, &mut frames));
        (0..2).for_each(|_| flood(&server.address, frames.clone()));
        for _ in 0..3 {
            let start = Instant::now();
            PlainConnection::open(&server.address).describe();
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        }
    }
    let start = Instant::now();
    server.stop();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn strangers_at_the_door_do_not_take_the_places_inside() {
    let source = Source::random(60, 60);
    let graph = source.import("graph", 1, "hash");
    let server = Serving::start(&graph, "--listen 127.0.0.1:0 --shards 1");
    let mut friends: Vec<_> = (0..250).map(|_| PlainConnection::open(&server.address)).collect();
    for friend in &mut friends {
        friend.describe();
    }
    let strangers: Vec<_> =
        (0..40).map(|_| std::net::TcpStream::connect(&server.address).unwrap()).collect();
    friends.extend((0..6).map(|_| PlainConnection::open(&server.address)));
    // All: no connection has been idle for long enough to go.
    friends.iter_mut().for_each(|friend| drop(friend.describe()));
    let failure = PlainConnection::open(&server.address).failure();
    assert_eq!(failure.code, FailureCode::Overloaded, "{failure}");
    drop(strangers);
    server.stop();
}

#[test]
fn a_newcomer_to_a_full_shard_replaces_the_longest_idle_connection() {
    let source = Source::random(60, 60);
    let graph = source.import("graph", 1, "hash");
    let server = Serving::start(&graph, "--listen 127.0.0.1:0 --metrics 127.0.0.1:0 --shards 1");
    let mut friends: Vec<_> = (0..256).map(|_| PlainConnection::open(&server.address)).collect();
    for friend in &mut friends {
        friend.describe();
    }
    let has_gone = |friend: &mut PlainConnection| {
        friend.stream.set_nonblocking(true).unwrap();
        let gone = matches!(friend.stream.read(&mut [0]), Ok(0));
        friend.stream.set_nonblocking(false).unwrap();
        gone
    };
    // Idle for as long as keeps a place; all but one of them continue asking.
    let idlest = 77;
    for _ in 0..11 {
        std::thread::sleep(Duration::from_secs(1));
        for (number, friend) in friends.iter_mut().enumerate() {
            if number != idlest {
                friend.describe();
            }
        }
    }
    PlainConnection::open(&server.address).describe();
    assert!(has_gone(&mut friends[idlest]));
    assert_eq!(friends.iter_mut().filter_map(|friend| has_gone(friend).then_some(())).count(), 1);
    assert_eq!(crate::metric(&server, "lodestore_connections_idle_closed_total"), 1.0);
    server.stop();
}

/// Tests that fail where other programs slow the machine.
mod timing {
    use super::*;

    fn rows_per_second(report: &Value) -> f64 {
        report["rows"].as_f64().unwrap() / report["seconds"].as_f64().unwrap()
    }

    fn load(address: &str, more: &str) -> Value {
        let line = format!("load --json --connect {address} --rows 5000 --deadline 10 {more}");
        lode_line(&line).succeeded().json()
    }

    /// Sends four times as many requests as are answered at the peak, whatever becomes of those before.
    /// Returns the share of the peak that is answered, and how many were refused. Returns `None` if the
    /// generator could not keep up.
    fn at_four_times_the_peak(address: &str) -> Option<(f64, u64)> {
        let peak = load(address, "--connections 48 --duration 2 --warm-up 0.7");
        let per_second = 4.0 * rows_per_second(&peak) / 5000.0;
        let more =
            format!("--rate {per_second} --connections 250 --window 8 --duration 3 --warm-up 0.7");
        let report = load(address, &more);
        let errors = report["errors"].as_object().unwrap();
        let known = ["overloaded", "late", "deadline"];
        assert!(errors.keys().all(|kind| known.contains(&kind.as_str())), "{report}");
        // The loop is open only if the generator kept up.
        let due = report["due"].as_f64().unwrap() / report["seconds"].as_f64().unwrap();
        if due <= 0.8 * per_second {
            println!("{due} of {per_second} requests per second were due");
            return None;
        }
        let n_refused = errors.get("overloaded").and_then(Value::as_u64).unwrap_or(0);
        let share = rows_per_second(&report) / rows_per_second(&peak);
        println!(
            "{share} of the peak at four times of it ({per_second} requests/s), {n_refused} refused"
        );
        Some((share, n_refused))
    }

    #[test]
    #[ignore = "measures time: ./x test runs it by itself"]
    fn four_times_what_it_can_do_leaves_most_of_the_rows_and_the_memory_bounded() {
        let source = Source::random(20_000, 20_000);
        let graph = source.import("graph", 2, "hash");
        // Every row from the disk, so that requests wait inside: 250 of 336 KiB each take more than the
        // 64 MiB that there are.
        let args = "--listen 127.0.0.1:0 --metrics 127.0.0.1:0 --shards 1 --memory 0";
        let server = Serving::start(&graph, args);
        // The best of a few: others use the machine too, in one measurement more than in another.
        let floor = if crate::is_long() { 0.8 } else { 0.5 };
        let (mut best, mut n_refused) = (0f64, 0);
        for _ in 0..5 {
            let Some((share, refused)) = at_four_times_the_peak(&server.address) else { continue };
            (best, n_refused) = (best.max(share), n_refused + refused);
            if best >= floor && n_refused > 0 {
                break;
            }
        }
        assert!(n_refused > 0, "there was room for all of it");
        assert!(best >= floor, "goodput is {best} of the peak");
        // The bytes that requests hold, the buffers kept for the next, and a program with its
        // libraries.
        let rss = rss_bytes(server.child.id());
        assert!(rss < (64 + 32 + 150) << 20, "{rss} bytes");
        let in_flight = || crate::metric(&server, "lodestore_in_flight_bytes");
        crate::wait_until("all room is given back", || in_flight() == 0.0);
        server.stop();
    }
}
