//! Volatile tensors of `lode serve`: declared by flags and files, gone when the server dies.

use std::time::Duration;

use lodestore_client::volatile::{STAMP_MAX, StampWanted, VolatilePulled, VolatileSource};
use lodestore_client::{Client, ClientConfig, ClientError};
use lodestore_graph::NodeId;

use crate::{metric, wait_until};
use testing::graph::Source;
use testing::process::{Serving, lode_line};
use testing::write_file;

const ROW_BYTES: usize = 12;

fn connect(address: &str) -> Client {
    let config = ClientConfig { deadline: Duration::from_secs(4), ..ClientConfig::default() };
    Client::connect(&[address], config).unwrap()
}

fn pull(client: &Client, ids: &[NodeId], min_stamp: u32) -> Result<VolatilePulled, ClientError> {
    let mut out = vec![0; ids.len() * ROW_BYTES];
    client.pull_volatile("h1", ids, StampWanted::now(min_stamp), &mut out)
}

#[test]
fn rows_of_a_server_that_is_killed_are_gone_and_its_publisher_learns_of_it() {
    let source = Source::random(60, 100);
    let graph = source.import("graph", 2, "hash");
    let args =
        "--listen 127.0.0.1:0 --metrics 127.0.0.1:0 --shards 2 --insecure --volatile h1:3xf32";
    let server = Serving::start(&graph, args);
    let (client, reader) = (connect(&server.address), connect(&server.address));
    let ids: Vec<NodeId> = (0..60).map(NodeId).collect();
    let rows = vec![7; ids.len() * ROW_BYTES];
    let mut publisher = client.publisher();
    publisher.claim("h1", &[0..60]).unwrap();
    publisher.publish("h1", &ids, &rows, 5).unwrap();
    assert!(pull(&reader, &ids, 5).unwrap().is_whole());
    assert_eq!(pull(&reader, &ids[..3], STAMP_MAX).unwrap().lacking(), [0, 1, 2]);
    let figure = |name: &str| metric(&server, &format!("lodestore_volatile_{name}"));
    assert_eq!((figure("tensors"), figure("bytes")), (1.0, 60.0 * (16.0 + 16.0)));
    assert_eq!((figure("published_rows_total"), figure("pulled_rows_total")), (60.0, 60.0));
    assert_eq!(figure("lacking_rows_total"), 3.0);
    let stat = lode_line(&format!("stat {}", server.address)).succeeded().stdout;
    assert!(stat.contains("1 volatile tensor in") && stat.contains("lacking: 3"), "{stat}");
    let json = lode_line(&format!("stat --json {}", server.address)).succeeded().json();
    assert_eq!((&json["volatile_tensors"], &json["volatile_bytes"]), (&1.into(), &1920.into()));
    // A pull that waits is seen, and ends with its client.
    std::thread::scope(|scope| {
        let ids = &ids;
        let waiting = scope.spawn(|| {
            let mut out = [0; ROW_BYTES];
            let wanted = StampWanted { min_stamp: 6, wait: Duration::from_secs(2) };
            reader.pull_volatile("h1", &ids[..1], wanted, &mut out).unwrap()
        });
        wait_until("a pull waits", || figure("pulls_waiting") == 1.0);
        publisher.publish("h1", &ids[..1], &rows[..ROW_BYTES], 6).unwrap();
        assert!(waiting.join().unwrap().is_whole());
    });
    let address = server.address.clone();
    server.kill();
    let gone = publisher.publish("h1", &ids, &rows, 7).unwrap_err();
    assert!(matches!(gone, ClientError::Unavailable { .. }), "{gone}");
    let gone = publisher.claim("h1", &[0..60]).unwrap_err();
    assert!(matches!(gone, ClientError::Away { .. }), "{gone}");
    assert!(pull(&reader, &ids, 0).is_err());
    // In its place another begins without a row.
    let again = args.replace("127.0.0.1:0 --metrics", &format!("{address} --metrics"));
    let server = Serving::start(&graph, &again);
    let lost = publisher.publish("h1", &ids, &rows, 7).unwrap_err();
    assert!(matches!(lost, ClientError::NotClaimed { .. }), "{lost}");
    assert_eq!(pull(&reader, &ids, 0).unwrap().lacking().len(), 60);
    publisher.claim("h1", &[0..60]).unwrap();
    publisher.publish("h1", &ids, &rows, 1).unwrap();
    assert!(pull(&reader, &ids, 1).unwrap().is_whole());
    drop(publisher);
    server.stop();
}

#[test]
fn what_cannot_be_declared_is_said_before_anything_is_served() {
    let source = Source::random(60, 100);
    let graph = source.import("graph", 2, "hash");
    let serve = |more: &str| lode_line(&format!("serve {} {more}", graph.display()));
    for text in ["h1", "h1:0xf32", "h1:3xf31", "h/1:3xf32", "h1:3xf32/0", "h1:999999xf64"] {
        serve(&format!("--listen 127.0.0.1:0 --insecure --volatile {text}"))
            .failed(2, &["NAME:WIDTHxDTYPE"]);
    }
    // Over TCP the publisher must be known, as a client that puts must.
    serve("--listen 127.0.0.1:0 --volatile h1:3xf32").failed(2, &["--token-file", "--unix"]);
    let socket = source.file("rows.sock");
    let unix = format!("--unix {}", socket.display());
    serve(&format!("{unix} --volatile h1:3xf32 --memory 1000"))
        .failed(1, &["takes 1920 bytes", "1000", "give more memory"]);
    serve(&format!("{unix} --volatile h1:3xf32 --volatile h1:4xf32"))
        .failed(1, &["3xf32", "4xf32"]);
    serve(&format!("{unix} --volatile feat:3xf32")).failed(1, &["the name of a stored tensor"]);
    let config = source.file("serve.toml");
    write_file(&config, "volatile = [\"h1:3xf32/20\"]\n", 0o644);
    let server = Serving::start(&graph, &format!("{unix} --config {}", config.display()));
    let client = connect(&format!("unix:{}", socket.display()));
    assert_eq!(client.volatile("h1").unwrap().range_rows, 20);
    server.stop();
}
