//! Permissions: addresses, tokens, and clients without either.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lodestore_graph::npy::NpyType;
use lodestore_schema::hello::hello;
use lodestore_schema::limits::REQUEST_BODY_BYTES_MAX;
use lodestore_schema::{FailureCode, Prefix, Request, RequestBody, Token};

use crate::{metric, rss_bytes, wait_until};
use testing::graph::Source;
use testing::http::{exchange, get};
use testing::process::{Serving, lode_line};
use testing::wire::PlainConnection;
use testing::{write_file, write_npy};

const SECRET: &str = "s3cret-s3cret-s3cret-0";

/// A server that wants a token, on every kind of door.
struct Guarded {
    source: Source,
    graph: PathBuf,
    server: Serving,
    token: PathBuf,
    wrong: PathBuf,
}

impl Guarded {
    fn start(more: &str) -> Self {
        let source = Source::random(60, 100);
        let graph = source.import("graph", 2, "hash");
        let (token, wrong) = (source.file("token"), source.file("wrong"));
        write_file(&token, &format!("{SECRET}\n"), 0o600);
        write_file(&wrong, "another-another-another", 0o600);
        let unix = source.file("rows.sock");
        let args = format!(
            "--listen 127.0.0.1:0 --metrics 127.0.0.1:0 --shards 2 --writable --log-level debug \
             --unix {} --token-file {} {more}",
            unix.display(),
            token.display()
        );
        let server = Serving::start(&graph, &args);
        Self { source, graph, server, token, wrong }
    }
}

#[test]
fn every_command_shows_the_token_and_none_is_admitted_without() {
    let guarded = Guarded::start("");
    let Guarded { source, server, token, wrong, .. } = &guarded;
    let (ids, out, rows) =
        (source.file("ids.npy"), source.file("out.npy"), source.file("rows.npy"));
    write_npy(&ids, NpyType::U32, &[3], &[0u32, 7, 59]);
    write_npy(&rows, NpyType::I64, &[3], &[1i64, 2, 3]);
    let (ids, out, rows) = (ids.display(), out.display(), rows.display());
    let connect = format!("--connect {}", server.address);
    let commands = [
        format!("stat {}", server.address),
        format!("gather {connect} --tensor feat --ids {ids} --out {out}"),
        format!("put {connect} --tensor label --ids {ids} --rows {rows} --commit"),
        format!("compact {connect}"),
        format!("load {connect} --duration 0.2 --warm-up 0"),
    ];
    for command in &commands {
        lode_line(&format!("{command} --token-file {}", token.display())).succeeded();
        lode_line(command).failed(1, &["--token-file"]);
        lode_line(&format!("{command} --token-file {}", wrong.display()))
            .failed(1, &["--token-file"]);
    }
    // The socket's mode restricts which users may open it.
    let unix = format!("unix:{}", source.file("rows.sock").display());
    lode_line(&format!("stat {unix}")).succeeded();
    assert!(metric(server, "lodestore_connections_broken_total") >= 10.0);
    let log = guarded.server.stop_and_take_log();
    assert!(!log.contains("s3cret") && log.contains("connection ended"), "{log}");
}

#[test]
fn no_door_of_a_shard_is_open_either() {
    let guarded = Guarded::start("");
    let mut known = PlainConnection::open(&guarded.server.address);
    let token = Token::new(SECRET.as_bytes()).unwrap();
    known.send(&Request::new(RequestBody::Authenticate { token }), &[]);
    let ports = known.describe().shard_ports;
    assert_eq!(ports.len(), 2);
    // Again, which ends it.
    known.send(&Request::new(RequestBody::Authenticate { token }), &[]);
    assert_eq!(known.stream.read(&mut [0; 1]).unwrap(), 0);
    let other = Token::new(b"another-another-another").unwrap();
    for port in ports {
        for body in [RequestBody::Describe, RequestBody::Authenticate { token: other }] {
            let mut stranger = PlainConnection::open(&format!("127.0.0.1:{port}"));
            stranger.send(&Request::new(body), &[]);
            let failure = stranger.failure();
            assert_eq!(failure.code, FailureCode::Unauthenticated, "{failure}");
            assert_eq!(stranger.stream.read(&mut [0; 1]).unwrap(), 0, "and the end");
        }
    }
    guarded.server.stop();
}

#[test]
fn partitions_are_moved_and_counted_by_clients_with_the_admin_token() {
    let source = Source::random(60, 100);
    let graph = source.import("graph", 2, "hash");
    let (token, admin) = (source.file("token"), source.file("admin"));
    write_file(&token, SECRET, 0o600);
    write_file(&admin, "admin-admin-admin-admin", 0o600);
    let (unix, into) = (source.file("rows.sock"), source.file("copy"));
    let start = |more: &str| {
        let (unix, token) = (unix.display(), token.display());
        let args = format!(
            "--listen 127.0.0.1:0 --shards 2 --writable --local-parts --unix {unix} --token-file {token} {more}"
        );
        Serving::start(&graph, &args)
    };
    let server = start(&format!("--admin-token-file {}", admin.display()));
    let (at, unix, into) = (&server.address, unix.display(), into.display());
    let commands = [("transfer 0 --keep --into", format!("{into} --from"))];
    for (command, door) in &commands {
        let tell = |token: &PathBuf| {
            lode_line(&format!("{command} {door} {at} --token-file {}", token.display()))
        };
        tell(&token).failed(1, &["the admin token", "--admin-token-file"]);
        tell(&admin).succeeded();
        let _ = std::fs::remove_dir_all(source.file("copy"));
        lode_line(&format!("{command} {door} unix:{unix}")).succeeded();
        let _ = std::fs::remove_dir_all(source.file("copy"));
    }
    // It admits its bearer for rows too, and a client with the other token pulls as before.
    for token in [&token, &admin] {
        lode_line(&format!("stat {at} --token-file {}", token.display())).succeeded();
    }
    let told = server.stop_and_take_log();
    assert!(!told.contains("admin-admin"), "{told}");
    let both = format!("--token-file {0} --admin-token-file {0}", token.display());
    lode_line(&format!("serve nowhere --listen 127.0.0.1:0 {both}"))
        .failed(2, &["the same token", "--admin-token-file"]);
    // Without an admin token that is for those of this machine.
    let server = start("");
    let line = format!("transfer 0 --keep --into {into} --from {} --token-file", server.address);
    lode_line(&format!("{line} {}", token.display())).succeeded();
    server.stop();
}

#[test]
fn strangers_take_next_to_nothing_and_are_gone_soon() {
    let guarded = Guarded::start("");
    let (server, pid) = (&guarded.server, guarded.server.child.id());
    let stat = format!("stat {} --token-file {}", server.address, guarded.token.display());
    lode_line(&stat).succeeded();
    let before = rss_bytes(pid);
    // Frames that announce as much as may be, and never come.
    let announced = Prefix { head_bytes: 1024, body_bytes: REQUEST_BODY_BYTES_MAX }.to_bytes();
    let start = Instant::now();
    let mut strangers: Vec<TcpStream> = (0..400)
        .map(|i| {
            let mut stream = TcpStream::connect(&server.address).unwrap();
            // Some do not even say hello. One that is cut off already cannot be written to.
            if i % 4 > 0 {
                let _ = stream.write_all(&hello());
                let _ = stream.write_all(&announced[..2 * (i % 4 + 1)]);
            }
            stream
        })
        .collect();
    // Others get in meanwhile.
    lode_line(&stat).succeeded();
    let grown = rss_bytes(pid).saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes for strangers");
    for stranger in &mut strangers {
        stranger.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // Hellos, and then the end, orderly or not.
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    assert!(start.elapsed() < Duration::from_secs(18), "{:?}", start.elapsed());
    wait_until("connections are closed", || metric(server, "lodestore_connections") == 0.0);
    guarded.server.stop();
}

#[test]
fn a_server_that_takes_changes_over_tcp_needs_a_token_or_to_be_meant() {
    let source = Source::random(60, 100);
    let graph = source.import("graph", 2, "hash");
    let (socket, token) = (source.file("rows.sock"), source.file("token"));
    write_file(&token, SECRET, 0o600);
    let (socket, token) = (socket.display(), token.display());
    for more in [
        "--writable".to_owned(),
        "--local-parts".to_owned(),
        "--writable --listen [::1]:0".to_owned(),
        format!("--writable --listen 127.0.0.1:0 --unix {socket}"),
        // Neither restricts which clients put.
        format!("--writable --admin-token-file {token}"),
        "--writable --tls-cert x --tls-key x".to_owned(),
    ] {
        let line = format!("serve {} {more}", graph.display());
        lode_line(&line).failed(2, &["--token-file", "--unix", "--insecure"]);
    }
    let config = source.file("serve.toml");
    write_file(&config, "writable = true\nlisten = \"127.0.0.1:0\"\n", 0o644);
    lode_line(&format!("serve {} --config {}", graph.display(), config.display()))
        .failed(2, &["--token-file", "--unix", "--insecure"]);
    // A socket of one's own, a token, or the explicit flag suffices; and servers that only read
    // start as before.
    for more in [
        format!("--writable --unix {socket}"),
        format!("--writable --local-parts --listen 127.0.0.1:0 --token-file {token}"),
        "--writable --listen 127.0.0.1:0 --insecure".to_owned(),
        "--listen 127.0.0.1:0".to_owned(),
    ] {
        let server = Serving::start(&graph, &more);
        if more.contains("--unix") {
            let sockets = ["rows.sock", "rows.sock.0"].map(|name| source.file(name));
            for socket in sockets {
                let mode = socket.metadata().unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o600, "{}", socket.display());
            }
            lode_line(&format!("compact --connect unix:{socket}")).succeeded();
        }
        server.stop();
    }
}

#[test]
fn an_address_that_others_can_reach_needs_a_token_tls_or_to_be_meant() {
    let guarded = Guarded::start("");
    let (graph, token) = (guarded.graph.display(), guarded.token.display());
    lode_line("serve nowhere --listen 0.0.0.0:0")
        .failed(2, &["0.0.0.0:0", "--token-file", "--tls-cert", "--insecure"]);
    lode_line("serve nowhere --metrics 0.0.0.0:0").failed(2, &["0.0.0.0:0", "--token-file"]);
    lode_line("serve nowhere --tls-cert x").failed(2, &["--tls-key"]);
    // The token would cross in the clear there, which is what TLS is to prevent elsewhere.
    lode_line("serve nowhere --metrics 0.0.0.0:0 --token-file x --tls-cert x --tls-key x")
        .failed(2, &["0.0.0.0:0", "no TLS", "--metrics-insecure"]);
    // That metrics may be read is not that rows may.
    let meant = "--listen 0.0.0.0:0 --metrics 0.0.0.0:0 --metrics-insecure";
    lode_line(&format!("serve nowhere {meant}")).failed(2, &["0.0.0.0:0", "--insecure"]);
    let meant = "--listen 0.0.0.0:0 --metrics 0.0.0.0:0 --insecure";
    lode_line(&format!("serve nowhere {meant}")).failed(2, &["--metrics-insecure"]);
    guarded.server.stop();
    let open = format!("--listen 0.0.0.0:0 --metrics 0.0.0.0:0 --token-file {token}");
    let server = Serving::start(&guarded.graph, &open);
    let at = server.metrics.replace("0.0.0.0", "127.0.0.1");
    // The page is the same for all, and asks for the token itself.
    for path in ["/healthz", "/readyz", "/"] {
        assert_eq!(get(&at, path).status, 200);
    }
    for path in ["/metrics", "/status.json"] {
        assert_eq!(get(&at, path).status, 401);
        for (token, status) in [(SECRET, 200), ("another-another-another", 401)] {
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: {at}\r\nAuthorization: Bearer {token}\r\n\r\n"
            );
            assert_eq!(exchange(&at, request.as_bytes()).unwrap().status, status);
        }
    }
    lode_line(&format!("top --once {at}")).failed(1, &["--token-file"]);
    lode_line(&format!("top --once {at} --token-file {token}")).succeeded();
    server.stop();
    write_file(&guarded.token, SECRET, 0o640);
    lode_line(&format!("serve {graph} --listen 127.0.0.1:0 --token-file {token}"))
        .failed(1, &["mode 640", "chmod 600"]);
    lode_line(&format!("stat 127.0.0.1:1 --token-file {token}")).failed(1, &["mode 640"]);
}
