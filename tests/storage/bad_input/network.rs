//! Peers that die, send false data, or ask for nonsense.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_client::{Client, ClientConfig, ClientError};
use lodestore_graph::NodeId;
use lodestore_graph::npy::{NpyArray, NpyType};
use lodestore_schema::limits::{IDS_PER_PULL_MAX, REQUEST_BODY_BYTES_MAX};
use lodestore_schema::request::PullKind;
use lodestore_schema::{FailureCode, Prefix, Reply, RequestBody};

use testing::graph::{Source, WIDE};
use testing::process::{Serving, lode_line};
use testing::wire::PlainConnection;
use testing::write_npy;

const ANY_PORT: &str = "--listen 127.0.0.1:0 --shards 2";

#[test]
fn a_port_in_use_is_named() {
    let source = Source::random(20, 20);
    let graph = source.import("graph", 1, "hash");
    let server = Serving::start(&graph, ANY_PORT);
    lode_line(&format!("serve {} --listen {}", graph.display(), server.address))
        .failed(1, &[&server.address, "in use"]);
    let socket = source.file("lode.sock");
    let unix = format!("serve {} --unix {}", graph.display(), socket.display());
    std::fs::write(&socket, "a file").unwrap();
    lode_line(&unix).failed(1, &["lode.sock"]);
    assert_eq!(std::fs::read(&socket).unwrap(), b"a file");
    server.stop();
}

#[test]
fn a_server_that_holds_too_little_says_so() {
    let source = Source::random(40, 40);
    let graph = source.import("graph", 2, "range");
    lode_line(&format!("serve {} --parts 7", graph.display())).failed(1, &["partition 7"]);
    let server = Serving::start(&graph, &format!("{ANY_PORT} --parts 1"));
    write_npy(&source.file("ids.npy"), NpyType::U32, &[2], &[39u32, 0]);
    let (ids, out) = (source.file("ids.npy"), source.file("out.npy"));
    lode_line(&format!(
        "gather --connect {} --tensor feat --ids {} --out {}",
        server.address,
        ids.display(),
        out.display()
    ))
    .failed(1, &["partition 0"]);
    assert!(!out.exists());
    server.stop();
}

#[test]
fn settings_come_from_a_file_and_flags_go_before_them() {
    let source = Source::random(40, 40);
    let graph = source.import("graph", 2, "range");
    let file = source.file("serve.toml");
    let config = format!("--config {}", file.display());
    std::fs::write(&file, "listen = \"127.0.0.1:0\"\nparts = [1]\nmemory = \"1MiB\"\nshards = 2\n")
        .unwrap();
    for (more, n_shards) in [(config.clone(), 2), (format!("{config} --shards 1"), 1)] {
        let server = Serving::start(&graph, &more);
        let stat = lode_line(&format!("stat --json {}", server.address)).succeeded().json();
        assert_eq!(stat["shards"].as_array().unwrap().len(), n_shards, "{more}");
        let description = PlainConnection::open(&server.address).describe();
        assert_eq!(description.parts, [1], "{more}");
        server.stop();
    }
    std::fs::write(&file, "listen = \"127.0.0.1:0\"\ncolour = 1\n").unwrap();
    let line = format!("serve {} {config}", graph.display());
    lode_line(&line).failed(1, &["serve.toml", "unknown field `colour`"]);
    // The server warns of each setting in the file without an effect, and rejects such a flag.
    let vain = "listen = \"127.0.0.1:0\"\nunix-mode = \"660\"\nkeep-versions = 3\n";
    std::fs::write(&file, vain).unwrap();
    let log = Serving::start(&graph, &config).stop_and_take_log();
    for told in ["--unix-mode is for --unix", "--keep-versions is for --writable"] {
        assert!(log.contains("serve.toml") && log.contains(told), "{log}");
    }
    lode_line(&format!("{line} --keep-versions 3"))
        .failed(2, &["--keep-versions is for --writable"]);
    std::fs::write(&file, "listen = \"0.0.0.0:0\"\n").unwrap();
    lode_line(&line).failed(2, &["insecure"]);
    std::fs::remove_file(&file).unwrap();
    lode_line(&line).failed(1, &["serve.toml", "cannot open"]);
}

#[test]
fn ids_and_tensors_that_do_not_exist_are_named() {
    let source = Source::random(40, 40);
    let graph = source.import("graph", 2, "spring");
    let server = Serving::start(&graph, ANY_PORT);
    let (ids, out) = (source.file("ids.npy"), source.file("out.npy"));
    write_npy(&ids, NpyType::I64, &[3], &[0i64, 39, 40]);
    for from in [format!("--graph {}", graph.display()), format!("--connect {}", server.address)] {
        let gather = |tensor: &str| {
            let (ids, out) = (ids.display(), out.display());
            lode_line(&format!("gather {from} --tensor {tensor} --ids {ids} --out {out}"))
        };
        gather("feat").failed(1, &["ids.npy", "id 2 is 40", "below 40"]);
        gather("feet").failed(1, &["feet", "label"]);
        assert!(!out.exists());
    }
    // Past the client's own check, the server's.
    let mut connection = PlainConnection::open(&server.address);
    for (tensor, id) in [(0, 40), (0, u32::MAX), (99, 0)] {
        connection.ask(RequestBody::Pull { tensor, kind: PullKind::Sync }, &[NodeId(id)]);
        let (reply, _) = connection.answer();
        let Reply::Failure(failure) = reply else { panic!("{reply:?}") };
        assert_eq!(failure.code, FailureCode::NotFound, "{failure}");
    }
    assert_eq!(connection.describe().parts, [0, 1], "the connection continues");
    server.stop();
}

#[test]
fn an_empty_list_of_ids_returns_no_rows() {
    let source = Source::random(40, 40);
    let graph = source.import("graph", 2, "spring");
    let server = Serving::start(&graph, ANY_PORT);
    let (ids, out) = (source.file("ids.npy"), source.file("out.npy"));
    // As `numpy.array([])` has them.
    write_npy(&ids, NpyType::F64, &[0], &[0f64; 0]);
    for from in [format!("--graph {}", graph.display()), format!("--connect {}", server.address)] {
        let (ids, out) = (ids.display(), out.display());
        lode_line(&format!("gather {from} --tensor feat --ids {ids} --out {out}")).succeeded();
        let found = NpyArray::open(&source.file("out.npy")).unwrap();
        assert_eq!(found.shape(), [0, 13]);
    }
    let mut connection = PlainConnection::open(&server.address);
    connection.ask(RequestBody::Pull { tensor: 0, kind: PullKind::Sync }, &[]);
    let (reply, body) = connection.answer();
    assert!(matches!(reply, Reply::Rows { first_row: 0, n_rows: 0, .. }), "{reply:?}");
    assert!(body.is_empty());
    server.stop();
}

#[test]
fn a_stranger_on_the_socket_is_shown_out_and_others_continue() {
    let source = Source::random(40, 40);
    let graph = source.import("graph", 1, "hash");
    let server = Serving::start(&graph, ANY_PORT);
    let mut friend = PlainConnection::open(&server.address);

    let mut stranger = TcpStream::connect(&server.address).unwrap();
    stranger.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // A reset also shows it out.
    let _ = stranger.read_to_end(&mut answer);
    assert!(answer.len() <= 16, "nothing but a hello: {answer:?}");

    assert_eq!(friend.describe().bounds, [0, 40]);
    server.stop();

    // And the other way round: a client at a stranger's door.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        thread::sleep(Duration::from_secs(5));
    });
    lode_line(&format!("stat {address}"))
        .failed(1, &[&address.to_string(), "does not speak Lodestore", "HTTP/1.1"]);
    lode_line("stat 127.0.0.1:1").failed(1, &["127.0.0.1:1", "is the server running"]);
}

#[test]
fn a_silent_server_costs_no_more_than_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let start = Instant::now();
    lode_line(&format!("stat {address} --deadline 1")).failed(1, &["deadline"]);
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}

#[test]
fn oversized_requests_are_refused_and_others_continue() {
    let source = Source::random(40, 40);
    let graph = source.import("graph", 1, "hash");
    let server = Serving::start(&graph, ANY_PORT);
    let mut friend = PlainConnection::open(&server.address);
    for prefix in
        [[0xff; 8], too_large_prefix(), Prefix { head_bytes: 1024, body_bytes: 0 }.to_bytes()]
    {
        let mut connection = PlainConnection::open(&server.address);
        connection.stream.write_all(&prefix).unwrap();
        connection.stream.write_all(&[0x5a; 1024]).unwrap();
        let mut answer = Vec::new();
        let _ = connection.stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "closed, not answered: {} bytes", answer.len());
    }
    assert_eq!(friend.describe().bounds, [0, 40]);

    // Half an id.
    let body = RequestBody::Pull { tensor: 0, kind: PullKind::Sync };
    friend.ask_bytes(body, &[1, 2, 3, 4, 5]);
    let (reply, _) = friend.answer();
    let Reply::Failure(failure) = reply else { panic!("{reply:?}") };
    assert_eq!(failure.code, FailureCode::Invalid, "{failure}");
    assert_eq!(friend.describe().bounds, [0, 40]);

    // The library's client cuts lists that are too long for one request.
    let client = Client::connect(&[&server.address], ClientConfig::default()).unwrap();
    let ids: Vec<NodeId> = (0..IDS_PER_PULL_MAX as u32 + 5).map(|i| NodeId(i % 40)).collect();
    let external: Vec<u32> = ids.iter().map(|id| id.0).collect();
    let mut out = vec![0; ids.len() * 8];
    let stats = client.sync_pull("label", &ids, &mut out).unwrap();
    assert!(stats.requests >= 1 && stats.rows == ids.len() as u64, "{stats:?}");
    let rows = client_order(&client, &source, "label", &external);
    assert!(out == rows);
    server.stop();
}

fn too_large_prefix() -> [u8; 8] {
    Prefix { head_bytes: 8, body_bytes: REQUEST_BODY_BYTES_MAX + 1 }.to_bytes()
}

/// Returns the rows of a tensor for internal ids.
fn client_order(client: &Client, source: &Source, tensor: &str, ids: &[u32]) -> Vec<u8> {
    let all: Vec<NodeId> = (0..source.n_nodes).map(NodeId).collect();
    let mut external = vec![0i64; all.len()];
    client.sync_pull("external_id", &all, bytemuck::cast_slice_mut(&mut external)).unwrap();
    let external: Vec<u32> = ids.iter().map(|&id| external[id as usize] as u32).collect();
    source.rows(tensor, &external)
}

#[test]
fn a_server_killed_in_mid_pull_is_an_error_in_time_and_a_retry_works_when_it_is_back() {
    let source = Source::random(2000, 2000);
    let graph = source.import("graph", 1, "range");
    let server = Serving::start(&graph, &format!("{ANY_PORT} --memory 0"));
    let address = server.address.clone();
    let deadline = Duration::from_secs(3);
    let config = ClientConfig { deadline, ..ClientConfig::default() };
    let client = Client::connect(&[&address], config).unwrap();
    let ids: Vec<NodeId> = (0..source.n_nodes).map(NodeId).collect();
    let all: Vec<u32> = (0..source.n_nodes).collect();
    let expected = client_order(&client, &source, "wide", &all);
    let pulling = AtomicBool::new(false);

    thread::scope(|scope| {
        let puller = scope.spawn(|| {
            let mut out = vec![0; ids.len() * WIDE];
            loop {
                let start = Instant::now();
                let result = client.sync_pull("wide", &ids, &mut out);
                pulling.store(true, Ordering::Relaxed);
                match result {
                    Ok(_) => assert!(out == expected),
                    Err(error) => return (error, start.elapsed()),
                }
            }
        });
        while !pulling.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        server.kill();
        let (error, after) = puller.join().unwrap();
        let clear = matches!(
            error,
            ClientError::Away { .. }
                | ClientError::Unavailable { .. }
                | ClientError::Deadline { .. }
        );
        assert!(clear, "{error:?}");
        assert!(error.to_string().contains("127.0.0.1"), "{error}");
        assert!(after < deadline + Duration::from_secs(1), "{after:?}");
    });

    let port = address.rsplit(':').next().unwrap();
    let again = Serving::start(&graph, &format!("--listen 127.0.0.1:{port} --shards 2"));
    let mut out = vec![0; ids.len() * WIDE];
    client.sync_pull("wide", &ids, &mut out).unwrap();
    assert!(out == expected);
    again.stop();
}

#[test]
fn a_second_signal_ends_a_server_immediately() {
    use rustix::process::Signal;

    use testing::process::{signal, wait};
    let source = Source::random(20, 20);
    let graph = source.import("graph", 1, "hash");
    let mut server = Serving::start(&graph, ANY_PORT);
    signal(&server.child, Signal::INT);
    signal(&server.child, Signal::INT);
    let code = wait(&mut server.child, Duration::from_secs(10));
    // The first may have ended it before the second came.
    assert!(matches!(code, Some(0 | 130)), "{code:?}");
}
