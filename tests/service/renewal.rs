//! Tokens and certificates that are replaced while a server runs.

use std::path::Path;
use std::thread;
use std::time::Duration;

use lodestore_client::security::Token;
use lodestore_client::{Client, ClientConfig, Security};
use lodestore_graph::NodeId;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::wait_until;
use testing::authority::Authority;
use testing::graph::Source;
use testing::http::exchange;
use testing::process::{Finished, Serving, lode_line};
use testing::write_file;

/// More than the time between two looks at the files.
const LOOKED: Duration = Duration::from_secs(5);

fn pull(client: &Client) {
    client.sync_pull("label", &[NodeId(0)], &mut [0; 8]).unwrap();
}

/// Puts a file in the place of another.
fn replace(path: &Path, text: &str) {
    let next = path.with_extension("next");
    write_file(&next, text, 0o600);
    std::fs::rename(next, path).unwrap();
}

#[test]
fn a_certificate_that_is_replaced_is_shown_to_new_connections_and_a_broken_one_is_not() {
    let source = Source::random(60, 100);
    let graph = source.import("graph", 1, "hash");
    let (before, after) =
        (Authority::new(source.dir.path(), "before"), Authority::new(source.dir.path(), "after"));
    let files = before.sign(source.dir.path(), "server", &["127.0.0.1"]);
    let server = Serving::start(&graph, &format!("--listen 127.0.0.1:0 --shards 1 {files}"));
    let stat = |authority: &Authority| {
        lode_line(&format!("stat --deadline 5 {} {}", server.address, authority.trusted()))
    };
    let security = Security::default().with_tls(&before.cert, None).unwrap();
    let config = ClientConfig { security, ..ClientConfig::default() };
    let client = Client::connect(&[&server.address], config).unwrap();
    pull(&client);
    stat(&after).failed(1, &["certificate"]);
    // Another key and certificate under the same names.
    after.sign(source.dir.path(), "server", &["127.0.0.1"]);
    wait_until("the new one is shown", || stat(&after).code == Some(0));
    stat(&before).failed(1, &["certificate"]);
    // It is in already.
    pull(&client);
    let key = source.file("server.key");
    let whole = std::fs::read_to_string(&key).unwrap();
    for broken in ["nothing", &whole[..whole.len() / 2]] {
        replace(&key, broken);
        thread::sleep(LOOKED);
        stat(&after).succeeded();
    }
    std::fs::remove_file(&key).unwrap();
    thread::sleep(LOOKED);
    stat(&after).succeeded();
    before.sign(source.dir.path(), "server", &["127.0.0.1"]);
    wait_until("the first authority's again", || stat(&before).code == Some(0));
    let log = server.stop_and_take_log();
    for reason in ["no private key", "no END line", "cannot open"] {
        let is_it = |line: &str| line.contains("cannot be used") && line.contains(reason);
        assert!(log.lines().any(is_it), "{reason}: {log}");
    }
    assert!(log.contains("are reloaded"), "by default too: {log}");
    assert!(log.contains("server.key") && !log.contains("PRIVATE KEY"), "{log}");
}

#[test]
fn a_token_that_is_replaced_admits_no_client_any_more() {
    let source = Source::random(60, 100);
    let graph = source.import("graph", 1, "hash");
    let [served, old, new] = ["served", "old", "new"].map(|name| source.file(name));
    let (first, second) = ("first-first-first-first", "second-second-second");
    write_file(&served, first, 0o600);
    write_file(&old, first, 0o600);
    write_file(&new, second, 0o600);
    let args = format!(
        "--listen 127.0.0.1:0 --metrics 0.0.0.0:0 --shards 1 --token-file {}",
        served.display()
    );
    let server = Serving::start(&graph, &args);
    let metrics = server.metrics.replace("0.0.0.0", "127.0.0.1");
    let scrape = |token: &str| {
        let head = format!("GET /metrics HTTP/1.1\r\nHost: {metrics}\r\n");
        let request = format!("{head}Authorization: Bearer {token}\r\n\r\n");
        exchange(&metrics, request.as_bytes()).unwrap().status
    };
    let stat = |token: &Path| -> Finished {
        lode_line(&format!("stat {} --token-file {}", server.address, token.display()))
    };
    let security = Security::default().with_token(Token::new(first.as_bytes()).unwrap());
    let config = ClientConfig { security, ..ClientConfig::default() };
    let client = Client::connect(&[&server.address], config).unwrap();
    pull(&client);
    stat(&old).succeeded();
    stat(&new).failed(1, &["--token-file"]);
    assert_eq!([scrape(first), scrape(second)], [200, 401]);
    // For a while both are taken; a client with that file shows the first.
    replace(&served, &format!("{second}\n{first}\n"));
    wait_until("the new token is one", || stat(&new).code == Some(0));
    stat(&old).succeeded();
    stat(&served).succeeded();
    assert_eq!([scrape(first), scrape(second)], [200, 200]);
    replace(&served, second);
    wait_until("the old token is nobody's", || stat(&old).code == Some(1));
    stat(&old).failed(1, &["--token-file"]);
    stat(&new).succeeded();
    assert_eq!([scrape(first), scrape(second)], [401, 200]);
    pull(&client);
    // One that others may read is none, and the one before continues.
    write_file(&served, first, 0o644);
    thread::sleep(LOOKED);
    stat(&old).failed(1, &["--token-file"]);
    stat(&new).succeeded();
    let log = server.stop_and_take_log();
    assert!(log.contains("mode 644") && !log.contains("first-first"), "{log}");
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_refused_without_waiting() {
    let source = Source::random(60, 100);
    let graph = source.import("graph", 1, "hash");
    let ours = Authority::new(source.dir.path(), "ours");
    let files = ours.sign(source.dir.path(), "server", &["127.0.0.1"]);
    let [token, key] = ["token", "server.key"].map(|name| source.file(name));
    write_file(&token, "first-first-first-first", 0o600);
    let (shown, trusted) = (token.display(), ours.trusted());
    let args = format!("--listen 127.0.0.1:0 --shards 1 {files} --token-file {shown}");
    let server = Serving::start(&graph, &args);
    let kept = source.file("kept");
    std::fs::copy(&token, &kept).unwrap();
    for path in [&key, &token] {
        let whole = std::fs::read_to_string(path).unwrap();
        std::fs::remove_file(path).unwrap();
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        thread::sleep(LOOKED);
        let stat = format!("stat {} {trusted} --token-file {}", server.address, kept.display());
        lode_line(&stat).succeeded();
        if path == &key {
            replace(path, &whole);
        }
    }
    let log = server.stop_and_take_log();
    for path in [&key, &token] {
        let reason = format!("{}: not a regular file", path.display());
        let is_it = |line: &str| line.contains("cannot be used") && line.contains(&reason);
        assert!(log.lines().any(is_it), "{reason}: {log}");
    }
}
