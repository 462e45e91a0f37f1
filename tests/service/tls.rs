//! TLS, of the server alone and of both sides.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_client::{Client, ClientConfig, Security};
use lodestore_graph::NodeId;

use crate::{metric, wait_until};
use testing::authority::Authority;
use testing::graph::Source;
use testing::process::{Serving, command, lode_line};
use testing::write_file;

#[test]
fn rows_come_under_tls_from_servers_whose_certificate_is_right_and_from_no_other() {
    let source = Source::random(900, 3000);
    let graph = source.import("graph", 2, "hash");
    let (ours, theirs) =
        (Authority::new(source.dir.path(), "ours"), Authority::new(source.dir.path(), "theirs"));
    let server_files = ours.sign(source.dir.path(), "server", &["localhost", "127.0.0.1"]);
    let server = Serving::start(&graph, &format!("--listen 127.0.0.1:0 --shards 2 {server_files}"));
    let port = server.address.rsplit(':').next().unwrap();
    let verify = format!("--verify {} --duration 0.4 --warm-up 0", graph.display());
    for host in ["127.0.0.1", "localhost"] {
        let load = format!("load --json --connect {host}:{port} {}", ours.trusted());
        for more in ["--rows 300 --window 3", "--rows 9 --tensor wide", "--rows 900 --tensor wide"]
        {
            let report = lode_line(&format!("{load} {more} {verify}")).succeeded().json();
            assert_eq!(report["wrong_rows"], 0);
            assert_eq!(report["errors"].as_object().unwrap().len(), 0, "{report}");
        }
    }
    let stat = format!("stat --deadline 5 {}", server.address);
    lode_line(&format!("{stat} {}", ours.trusted())).succeeded();
    lode_line(&format!("{stat} {}", theirs.trusted()))
        .failed(1, &["TLS handshake failed", "certificate"]);
    lode_line(&stat).failed(1, &[&server.address]);
    server.stop();
    // A certificate for another name, and no TLS at all.
    let elsewhere = ours.sign(source.dir.path(), "elsewhere", &["elsewhere.lan"]);
    let server = Serving::start(&graph, &format!("--listen 127.0.0.1:0 {elsewhere}"));
    let stat = format!("stat --deadline 5 {} {}", server.address, ours.trusted());
    lode_line(&stat).failed(1, &["TLS handshake failed", "not valid for name"]);
    server.stop();
    let server = Serving::start(&graph, "--listen 127.0.0.1:0");
    let stat = format!("stat --deadline 5 {} {}", server.address, ours.trusted());
    lode_line(&stat).failed(1, &["TLS handshake failed"]);
    server.stop();
}

#[test]
fn a_server_may_want_certificates_of_its_clients() {
    let source = Source::random(60, 100);
    let graph = source.import("graph", 1, "hash");
    let (ours, theirs) =
        (Authority::new(source.dir.path(), "ours"), Authority::new(source.dir.path(), "theirs"));
    let server_files = ours.sign(source.dir.path(), "server", &["127.0.0.1"]);
    let args =
        format!("--listen 127.0.0.1:0 {server_files} --tls-client-ca {}", ours.cert.display());
    let server = Serving::start(&graph, &args);
    let stat = format!("stat --deadline 5 {} {}", server.address, ours.trusted());
    let friend = ours.sign(source.dir.path(), "friend", &["friend"]);
    lode_line(&format!("{stat} {friend}")).succeeded();
    lode_line(&stat).failed(1, &[&server.address]);
    let stranger = theirs.sign(source.dir.path(), "stranger", &["stranger"]);
    lode_line(&format!("{stat} {stranger}")).failed(1, &[&server.address]);
    server.stop();
    write_file(&source.file("server.key"), "", 0o644);
    lode_line(&format!("serve {} {args}", graph.display())).failed(1, &["server.key", "mode 644"]);
    write_file(&source.file("server.key"), "nothing", 0o600);
    lode_line(&format!("serve {} {args}", graph.display())).failed(1, &["server.key", "PEM"]);
}

/// The commands of `docs/operations.md` as they stand there, where openssl is installed.
#[test]
fn the_documented_certificates_are_taken() {
    let guide = include_str!("../../docs/operations.md");
    let lines = guide.lines().filter_map(|line| line.strip_prefix("$ "));
    let recipe: Vec<&str> = lines
        .filter(|line| line.starts_with("openssl req") || line.starts_with("openssl x509"))
        .collect();
    assert_eq!(recipe.len(), 5, "{recipe:?}");
    let san = guide.lines().find(|line| line.starts_with("$ printf 'subjectAltName")).unwrap();
    let san = san[2..].replace("IP:10.0.0.5", "IP:127.0.0.1");
    let source = Source::random(60, 100);
    let usage = &guide.lines().find(|line| line.starts_with("$ printf 'extendedKey")).unwrap()[2..];
    let first_version = recipe[4].replace("-extfile use ", "").replace("c.pem", "v1.pem");
    let script =
        [recipe[0], recipe[1], &san, recipe[2], recipe[3], usage, recipe[4], &first_version]
            .join("\n");
    let mut bash = std::process::Command::new("bash");
    bash.args(["-ec", &script]).current_dir(source.dir.path());
    if std::process::Command::new("openssl").arg("version").output().is_err() {
        eprintln!("SKIPPED: no openssl; `apt-get install openssl` brings it");
        return;
    }
    let made = bash.output().unwrap();
    assert!(made.status.success(), "{script}: {made:?}");
    let graph = source.import("graph", 1, "hash");
    let file = |name: &str| source.file(name).display().to_string();
    let serve = |cert: &str, key: &str| {
        let files = format!("--tls-cert {} --tls-key {}", file(cert), file(key));
        Serving::start(&graph, &format!("--listen 127.0.0.1:0 {files}"))
    };
    let stat = |server: &Serving| {
        lode_line(&format!("stat --deadline 5 {} --tls-ca {}", server.address, file("ca.pem")))
    };
    let server = serve("s.pem", "s.key");
    stat(&server).succeeded();
    server.stop();
    // The client's, and one without extensions.
    let files = format!("--tls-cert {} --tls-key {}", file("s.pem"), file("s.key"));
    let wants = format!("--listen 127.0.0.1:0 {files} --tls-client-ca {}", file("ca.pem"));
    let server = Serving::start(&graph, &wants);
    let line = format!("stat --deadline 5 {} --tls-ca {}", server.address, file("ca.pem"));
    let shown =
        |cert: &str| format!("{line} --tls-cert {} --tls-key {}", file(cert), file("c.key"));
    lode_line(&shown("c.pem")).succeeded();
    lode_line(&shown("v1.pem")).failed(1, &["v1.pem", "X.509 version 1", "extensions"]);
    lode_line(&line).failed(1, &["requires a certificate of its clients", "--tls-cert"]);
    server.stop();
    let server = serve("ca.pem", "ca.key");
    stat(&server).failed(1, &["TLS handshake failed", "certificate of an authority"]);
    server.stop();
}

/// Returns a server of one shard that speaks TLS and serves its metrics, and its certificate
/// authority.
fn served_with_metrics(source: &Source) -> (Authority, Serving) {
    let graph = source.import("graph", 1, "hash");
    let ours = Authority::new(source.dir.path(), "ours");
    let files = ours.sign(source.dir.path(), "server", &["127.0.0.1"]);
    let args = format!("--listen 127.0.0.1:0 --metrics 127.0.0.1:0 --shards 1 {files}");
    (ours, Serving::start(&graph, &args))
}

#[test]
fn who_leaves_between_requests_is_not_a_broken_connection() {
    let source = Source::random(60, 100);
    let (ours, server) = served_with_metrics(&source);
    let connect = format!("{} {}", server.address, ours.trusted());
    for _ in 0..3 {
        lode_line(&format!("stat {connect}")).succeeded();
    }
    // One that dies says no farewell; it asks twice a second and is idle meanwhile.
    let line =
        format!("load --connect {connect} --connections 1 --rate 2 --duration 60 --warm-up 0");
    let mut dying = command(line.split_whitespace()).spawn().unwrap();
    wait_until("it is there", || metric(&server, "lodestore_connections") >= 1.0);
    wait_until("it has asked", || metric(&server, "lodestore_sent_rows_total") > 0.0);
    thread::sleep(Duration::from_millis(100));
    dying.kill().unwrap();
    dying.wait().unwrap();
    wait_until("all have left", || metric(&server, "lodestore_connections") == 0.0);
    assert_eq!(metric(&server, "lodestore_connections_broken_total"), 0.0);
    server.stop();
}

/// Returns the first bytes of a client that wants to speak TLS.
pub(crate) fn first_flight(trusted: &str) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let line = format!("stat --deadline 5 {} {trusted}", listener.local_addr().unwrap());
    let mut client = command(line.split_whitespace()).spawn().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut bytes = vec![0; 4096];
    let mut n_bytes = 0;
    // A record of five bytes and as many more as it says.
    while n_bytes < 5 || n_bytes < 5 + usize::from(u16::from_be_bytes([bytes[3], bytes[4]])) {
        n_bytes += stream.read(&mut bytes[n_bytes..]).unwrap();
    }
    client.kill().unwrap();
    client.wait().unwrap();
    bytes.truncate(n_bytes);
    bytes
}

#[test]
fn strangers_that_begin_handshakes_without_end_do_not_slow_those_who_are_in() {
    let source = Source::random(60, 100);
    let (ours, server) = served_with_metrics(&source);
    let security = Security::default().with_tls(&ours.cert, None).unwrap();
    let config = ClientConfig { security, ..ClientConfig::default() };
    let client = Client::connect(&[&server.address], config.clone()).unwrap();
    // The 99th percentile of pulls.
    let pull = || {
        let (mut row, mut times, start) = ([0; 8], Vec::new(), Instant::now());
        while start.elapsed() < Duration::from_secs(1) {
            let before = Instant::now();
            client.sync_pull("label", &[NodeId(0)], &mut row).unwrap();
            times.push(before.elapsed());
        }
        times.sort();
        println!("{} pulls, the middle one in {:?}", times.len(), times[times.len() / 2]);
        times[times.len() * 99 / 100]
    };
    pull();
    let alone = pull();
    let (hello, is_over) = (first_flight(&ours.trusted()), AtomicBool::new(false));
    let beside = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let open: Vec<_> =
                    (0..50).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
                for mut stream in &open {
                    let _ = stream.write_all(&hello);
                }
                // Until all of them are answered.
                for mut stream in &open {
                    let _ = stream.read(&mut [0; 1]);
                }
            }
        });
        thread::sleep(Duration::from_millis(200));
        // The best of three: what else runs on the machine slows one of them, strangers slow all.
        let beside = (0..3).map(|_| pull()).min().unwrap();
        // Nor do they keep others out.
        let start = Instant::now();
        Client::connect(&[&server.address], config)
            .unwrap()
            .sync_pull("label", &[NodeId(0)], &mut [0; 8])
            .unwrap();
        let took = start.elapsed();
        println!("let in after {took:?}");
        assert!(took < Duration::from_secs(15), "{took:?}");
        is_over.store(true, Ordering::Relaxed);
        beside
    });
    let n_taken = metric(&server, "lodestore_connections_total");
    println!("{alone:?} alone, {beside:?} beside {n_taken} handshakes");
    assert!(n_taken > 100.0, "{n_taken} strangers");
    assert!(beside < 15 * alone.max(Duration::from_micros(200)), "{alone:?} alone, {beside:?}");
    server.stop();
}
