//! Peers of the metrics port that send nonsense, are slow, or come in numbers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::operations::Watched;
use testing::http::{exchange, get, take_answer};
use testing::process::lode_line;

#[test]
fn an_invalid_request_is_refused_with_the_reason() {
    let watched = Watched::start("");
    let at = &watched.server.metrics;
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100_000));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(1000));
    for (request, status) in [
        (&b"LODESTOR\x01\0\0\0\0\0\0\0"[..], 400),
        (b"\xff\xfe\xfd\r\n\r\n", 400),
        (b"GET / HTTP/7.0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA b\r\n\r\n", 400),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"OPTIONS * HTTP/1.1\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nContent-Length: 9\r\n\r\n123456789", 413),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        (long.as_bytes(), 431),
        (many.as_bytes(), 431),
        (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"GET http://elsewhere/metrics HTTP/1.1\r\n\r\n", 404),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n", 200),
    ] {
        let answer = exchange(at, request).unwrap_or_else(|| panic!("no {status}"));
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.head.contains("X-Content-Type-Options: nosniff"), "{answer:?}");
    }
    watched.server.stop();
}

#[test]
fn the_page_of_another_site_cannot_ask_under_a_name_of_its_own() {
    let watched = Watched::start("");
    let at = &watched.server.metrics;
    for (host, status) in [
        ("localhost", 200),
        ("LocalHost:9171", 200),
        ("127.0.0.1", 200),
        (at.as_str(), 200),
        ("[::1]:9171", 200),
        ("evil.example", 421),
        ("evil.example:9171", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("[::1].evil.example", 421),
        ("", 421),
        ("localhost\r\nHost: evil.example", 421),
    ] {
        for path in ["/metrics", "/status.json", "/"] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            let answer = exchange(at, request.as_bytes()).unwrap();
            assert_eq!(answer.status, status, "{host:?}: {answer:?}");
            let is_refusal = answer.body.starts_with("name this machine");
            assert_eq!(is_refusal, status == 421, "{answer:?}");
        }
    }
    watched.server.stop();
}

#[test]
fn an_open_port_that_others_reach_answers_under_numbers_and_configured_names() {
    let watched = Watched::with_metrics("0.0.0.0:0 --metrics-insecure --metrics-host rows.lan");
    let at = watched.server.metrics.replace("0.0.0.0", "127.0.0.1");
    for (host, status) in
        [(at.as_str(), 200), ("10.0.0.5:9171", 200), ("rows.lan:9171", 200), ("evil.example", 421)]
    {
        let request = format!("GET /status.json HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(exchange(&at, request.as_bytes()).unwrap().status, status, "{host}");
    }
    watched.server.stop();
}

#[test]
fn a_lack_of_descriptors_floods_no_log_and_ends_no_port() {
    let watched = Watched::start("--shards 1");
    let (at, address) = (&watched.server.metrics, &watched.server.address);
    let pid = Pid::from_child(&watched.server.child);
    let allow = |n| {
        let limit = Rlimit { current: Some(n), ..getrlimit(Resource::Nofile) };
        prlimit(Some(pid), Resource::Nofile, limit).unwrap();
    };
    // Below what is open nothing more can be: accept fails. Poll itself refuses more than that.
    let mut waiting = Vec::new();
    for n_files in [10, 0] {
        allow(n_files);
        waiting.extend([at, address].map(|at| TcpStream::connect(at).unwrap()));
        std::thread::sleep(Duration::from_millis(700));
    }
    allow(1024);
    assert_eq!(get(at, "/healthz").status, 200);
    lode_line(&format!("stat {address}")).succeeded();
    drop(waiting);
    let log = watched.server.stop_and_take_log();
    for fault in ["accept failed", "poll failed"] {
        let told = log.lines().filter(|line| line.contains(fault)).count();
        // Two ports, one line a second each.
        assert!((1..=6).contains(&told), "`{fault}` {told} times: {log}");
    }
}

#[test]
fn peers_that_dawdle_keep_no_other_out_and_are_cut_off() {
    let watched = Watched::start("");
    let at = &watched.server.metrics;
    let start = Instant::now();
    let mut slow: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(at).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ").unwrap();
            stream
        })
        .collect();
    for _ in 0..10 {
        let asked = Instant::now();
        assert_eq!(get(at, "/healthz").status, 200);
        // Slow ones have 5 s.
        assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    }
    // The last of them are still open, until their time is over.
    let last = slow.last_mut().unwrap();
    last.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
    assert_eq!(last.read(&mut [0; 1]).unwrap_or(0), 0, "no answer to half a request");
    let cut_off = start.elapsed();
    assert!((3..12).contains(&cut_off.as_secs()), "{cut_off:?}");
    watched.server.stop();
}

#[test]
fn a_peer_that_does_not_read_is_cut_off_and_one_byte_at_a_time_is_read() {
    let watched = Watched::start("--preload none");
    let at = &watched.server.metrics;
    let idle: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = TcpStream::connect(at).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            stream
        })
        .collect();
    let mut stream = TcpStream::connect(at).unwrap();
    for byte in b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n" {
        stream.write_all(&[*byte]).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    let answer = take_answer(&mut stream).unwrap();
    assert_eq!((answer.status, answer.body.as_str()), (200, "ready\n"));
    drop(idle);
    watched.server.stop();
}

#[test]
fn connections_leave_nothing_behind() {
    let watched = Watched::start("");
    let at = &watched.server.metrics;
    let open = || {
        let figures: serde_json::Value =
            serde_json::from_str(&get(at, "/status.json").body).unwrap();
        figures["process"]["open_fds"].as_u64().unwrap()
    };
    let before = open();
    for i in 0..500 {
        let mut stream = TcpStream::connect(at).unwrap();
        if i % 2 == 0 {
            stream.write_all(b"GET /met").unwrap();
        }
    }
    assert_eq!(get(at, "/readyz").status, 200);
    let end = Instant::now() + Duration::from_secs(10);
    while open() > before + 2 {
        assert!(Instant::now() < end, "{} files open, {before} before", open());
        std::thread::sleep(Duration::from_millis(50));
    }
    watched.server.stop();
}

#[test]
fn an_address_that_others_can_reach_needs_to_be_meant() {
    lode_line("serve nowhere --metrics 0.0.0.0:0").failed(2, &["0.0.0.0:0", "--metrics-insecure"]);
    let watched = Watched::start("");
    let line = format!(
        "serve {} --listen 127.0.0.1:0 --metrics {}",
        watched.graph.display(),
        watched.server.metrics
    );
    lode_line(&line).failed(1, &[&watched.server.metrics, "in use"]);
    watched.server.stop();
}
