//! Ports, sockets, signals and the environment of a server.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;

use crate::operations::Watched;
use testing::graph::Source;
use testing::process::{Serving, command, finish, lode_line, signal, wait};
use testing::wire::PlainConnection;

/// Returns a port with a free one after it, below those that the system hands out meanwhile.
fn two_free_ports() -> u16 {
    let start = 20_000 + (std::process::id() % 10_000) as u16;
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut ports = start..u16::MAX;
    ports.find(|&first| is_free(first) && is_free(first + 1)).expect("some are free")
}

#[test]
fn shards_listen_on_the_configured_ports() {
    let source = Source::random(60, 100);
    let graph = source.import("graph", 1, "hash");
    let base = two_free_ports();
    let args = format!("--listen 127.0.0.1:0 --shards 2 --shard-port-base {base}");
    let server = Serving::start(&graph, &args);
    let description = PlainConnection::open(&server.address).describe();
    assert_eq!(description.shard_ports, [base, base + 1]);
    lode_line(&format!("stat {}", server.address)).succeeded();
    server.stop();
    let args = "--listen 127.0.0.1:0 --shards 2 --shard-port-base 65535";
    lode_line(&format!("serve {} {args}", graph.display())).failed(1, &["65535"]);
}

#[test]
fn a_unix_socket_is_for_the_users_of_its_mode() {
    let source = Source::random(60, 100);
    let graph = source.import("graph", 1, "hash");
    let socket = source.file("rows.sock");
    for (more, expected) in [("", 0o600), ("--unix-mode 660", 0o660)] {
        let args = format!("--unix {} --shards 1 {more}", socket.display());
        let server = Serving::start(&graph, &args);
        for path in [socket.clone(), source.file("rows.sock.0")] {
            let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, expected, "{}", path.display());
        }
        lode_line(&format!("stat unix:{}", socket.display())).succeeded();
        server.stop();
    }
    lode_line("serve nowhere --unix-mode 999").failed(2, &["in octal"]);
    lode_line("serve nowhere --unix-mode 460").failed(2, &["owner", "460"]);
}

#[test]
fn a_terminal_that_closes_stops_a_server_as_a_service_manager_does() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    if u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 != 0 {
        // Under `nohup` the server outlives a terminal, as it should.
        return;
    }
    let mut watched = Watched::start("--shards 1");
    signal(&watched.server.child, Signal::HUP);
    assert_eq!(wait(&mut watched.server.child, Duration::from_secs(20)), Some(0));
}

#[test]
fn a_server_that_still_opens_its_graph_ends_immediately() {
    let source = Source::random(60, 100);
    let graph = source.import("graph", 1, "hash");
    // It has no writer: opening it takes for ever.
    std::fs::remove_file(graph.join("graph.toml")).unwrap();
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, graph.join("graph.toml"), FileType::Fifo, mode, 0).unwrap();
    let line = format!("serve {} --listen 127.0.0.1:0 --log-level info", graph.display());
    let child = command(line.split_whitespace()).spawn().unwrap();
    // Its handlers are there when its event threads are.
    let tasks = format!("/proc/{}/task", child.id());
    let end = Instant::now() + Duration::from_secs(10);
    while std::fs::read_dir(&tasks).unwrap().count() < 3 {
        assert!(Instant::now() < end, "it does not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(&child, Signal::TERM);
    let ended = finish(child, Duration::from_secs(10)).succeeded();
    assert!(ended.stderr.contains("before it had started"), "{ended:?}");
}

#[test]
fn an_invalid_level_of_the_log_is_refused() {
    for line in ["serve nowhere", "inspect nowhere"] {
        let mut command = command(line.split_whitespace());
        let child = command.env("LODE_LOG", "loud").spawn().unwrap();
        finish(child, Duration::from_secs(20)).failed(2, &["LODE_LOG=loud", "no level"]);
    }
}

#[test]
fn top_looks_names_up() {
    let watched = Watched::start("--shards 1");
    let port = watched.server.metrics.rsplit(':').next().unwrap();
    lode_line(&format!("top --once localhost:{port}")).succeeded();
    lode_line("top --once unix:/nowhere").failed(2, &["HOST:PORT"]);
    watched.server.stop();
}
