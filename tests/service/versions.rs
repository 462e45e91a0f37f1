//! Peers of other versions of the wire, and what a client shows to a server that it does not know
//! yet.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use lodestore_client::{Client, ClientConfig, ClientError, Security};
use lodestore_graph::NodeId;
use lodestore_schema::hello::{hello, plain_hello};
use lodestore_schema::limits::{HELLO_BYTES, WIRE_VERSION};
use lodestore_schema::request::PullKind;
use lodestore_schema::{Token, WireError, WireVersions};

use crate::{metric, wait_until};
use testing::graph::Source;
use testing::process::{Serving, lode_line};
use testing::wire::PlainConnection;

/// The hello of version 3, recorded: a peer of it takes these bytes and no others.
const HELLO_3: [u8; HELLO_BYTES] = *b"LODESTOR\x03\0\0\0\0\0\0\0";

/// Returns the hello of a client that is older than everything that a server speaks.
fn old_hello() -> [u8; HELLO_BYTES] {
    plain_hello(1)
}

/// Sends a hello, and returns everything that comes until the end.
fn answers_to(server: &Serving, hello: &[u8; HELLO_BYTES]) -> Vec<u8> {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(hello).unwrap();
    let mut answers = Vec::new();
    let _ = stream.read_to_end(&mut answers);
    answers
}

#[test]
fn clients_without_a_version_in_common_get_the_servers_and_are_ended() {
    let source = Source::random(60, 60);
    let graph = source.import("graph", 1, "hash");
    let server = Serving::start(&graph, "--listen 127.0.0.1:0 --metrics 127.0.0.1:0 --shards 1");
    let newer = WireVersions { oldest: WIRE_VERSION + 1, newest: WIRE_VERSION + 2 };
    for (hello, found) in
        [(old_hello(), WireVersions { oldest: 1, newest: 1 }), (newer.hello(), newer)]
    {
        let answer = answers_to(&server, &hello);
        let answer: [u8; HELLO_BYTES] = answer.try_into().expect("a hello, and then the end");
        // The bytes that a client of version 1 or 2 looks at.
        assert_eq!(answer[8..10], WIRE_VERSION.to_le_bytes());
        let refused = WireError::Version { found: WireVersions::SPOKEN, ours: found };
        assert_eq!(found.check_answer(&answer), Err(refused));
    }
    wait_until("they are counted", || metric(&server, "lodestore_connections_broken_total") == 2.0);
    lode_line(&format!("stat {}", server.address)).succeeded();
    server.stop();
}

#[test]
fn a_server_of_the_first_version_is_named_as_such_and_gets_no_token() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let old = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // Time in which a client could send more than its hello.
        thread::sleep(Duration::from_millis(200));
        stream.write_all(&old_hello()).unwrap();
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        heard
    });
    let token = Token::new(b"s3cret-s3cret-s3cret-0").unwrap();
    let security = Security::default().with_token(token);
    let error = Client::connect(&[&address], ClientConfig { security, ..ClientConfig::default() });
    let error = error.err().expect("it speaks another version");
    let found = WireVersions { oldest: 1, newest: 1 };
    assert!(
        matches!(&error, ClientError::Wire { source: WireError::Version { found: it, .. }, .. } if *it == found),
        "{error}"
    );
    assert!(error.to_string().contains("upgrade the older"), "{error}");
    assert_eq!(old.join().unwrap(), hello(), "nothing but the hello");
}

#[test]
fn a_client_of_the_last_version_is_served_by_this_one() {
    let source = Source::random(60, 60);
    let graph = source.import("graph", 2, "hash");
    let server = Serving::start(&graph, "--listen 127.0.0.1:0 --metrics 127.0.0.1:0 --shards 2");
    let client = Client::connect(&[&server.address], ClientConfig::default()).unwrap();
    let (ids, row_bytes) = (
        (0..60).map(NodeId).collect::<Vec<_>>(),
        client.tensor("feat").unwrap().info().row_bytes(),
    );
    let mut expected = vec![0; ids.len() * row_bytes];
    client.sync_pull("feat", &ids, &mut expected).unwrap();

    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(&HELLO_3).unwrap();
    let mut theirs = [0; HELLO_BYTES];
    stream.read_exact(&mut theirs).unwrap();
    assert_eq!(theirs, HELLO_3, "it would take nothing else");
    let mut old = PlainConnection { stream };
    let tensors = old.describe().tensors;
    let position = tensors.iter().position(|tensor| tensor.name == "feat").unwrap();
    assert_eq!(old.pull(position as u16, PullKind::Sync, &ids, row_bytes), expected);
    assert_eq!(old.pull(position as u16, PullKind::Vector, &ids, row_bytes), expected);
    assert_eq!(metric(&server, "lodestore_connections_broken_total"), 0.0);
    server.stop();
}

/// Returns a server of version 3 by its hello; what follows is that of a server behind `socket`,
/// which a client reaches no other way. Counts connections that it has ended, and those that it has
/// served.
fn last_version(socket: &Path) -> (String, Arc<[AtomicU64; 2]>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, socket) = (listener.local_addr().unwrap().to_string(), socket.to_owned());
    let counts: Arc<[AtomicU64; 2]> = Arc::default();
    let counted = Arc::clone(&counts);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut theirs) = (stream.unwrap(), [0; HELLO_BYTES]);
            stream.write_all(&HELLO_3).unwrap();
            stream.read_exact(&mut theirs).unwrap();
            let is_known = theirs == HELLO_3;
            counted[usize::from(is_known)].fetch_add(1, Ordering::Relaxed);
            if !is_known {
                continue;
            }
            let mut inner = UnixStream::connect(&socket).unwrap();
            inner.write_all(&HELLO_3).unwrap();
            inner.read_exact(&mut theirs).unwrap();
            let (mut from, mut to) = (inner.try_clone().unwrap(), stream.try_clone().unwrap());
            thread::spawn(move || io::copy(&mut stream, &mut inner));
            thread::spawn(move || io::copy(&mut from, &mut to));
        }
    });
    (address, counts)
}

#[test]
fn a_client_of_this_version_is_served_by_the_last_one() {
    let source = Source::random(60, 60);
    let graph = source.import("graph", 1, "hash");
    let socket = source.file("rows.sock");
    // Without ports of its own, so that clients have but the address that they are given.
    let server = Serving::start(&graph, &format!("--unix {} --shards 1", socket.display()));
    let (address, counts) = last_version(&socket);
    let token = Token::new(b"s3cret-s3cret-s3cret-0").unwrap();
    let security = Security::default().with_token(token);
    let config = ClientConfig { security, ..ClientConfig::default() };
    let client = Client::connect(&[&address], config).unwrap();
    let direct = format!("unix:{}", socket.display());
    let direct = Client::connect(&[&direct], ClientConfig::default()).unwrap();
    let ids: Vec<_> = (0..60).map(NodeId).collect();
    let row_bytes = client.tensor("feat").unwrap().info().row_bytes();
    let (mut found, mut expected) =
        (vec![0; ids.len() * row_bytes], vec![1; ids.len() * row_bytes]);
    client.sync_pull("feat", &ids, &mut found).unwrap();
    direct.sync_pull("feat", &ids, &mut expected).unwrap();
    assert!(found == expected);
    let [n_ended, n_served] = [0, 1].map(|at| counts[at].load(Ordering::Relaxed));
    assert!(n_served > 0 && n_ended == n_served, "{n_ended} for {n_served}: one for each");
    server.stop();
}
