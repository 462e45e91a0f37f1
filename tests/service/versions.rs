//! Peers of another version of the wire, and what a client shows to whom it does not know yet.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use lodestore_client::{Client, ClientConfig, ClientError, Security};
use lodestore_schema::limits::{HELLO_BYTES, WIRE_VERSION};
use lodestore_schema::{Token, WireError, check_hello, hello};

use crate::support::graph::Source;
use crate::support::process::{Serving, lode_line};
use crate::{metric, wait_until};

/// The hello of the first version.
fn old_hello() -> [u8; HELLO_BYTES] {
    let mut bytes = hello();
    bytes[8..10].copy_from_slice(&1u16.to_le_bytes());
    bytes
}

#[test]
fn a_client_of_the_first_version_is_told_the_servers_and_ended() {
    let source = Source::random(60, 60);
    let graph = source.import("graph", 1, "hash");
    let server = Serving::start(&graph, "--listen 127.0.0.1:0 --metrics 127.0.0.1:0 --shards 1");
    let mut old = TcpStream::connect(&server.address).unwrap();
    old.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    old.write_all(&old_hello()).unwrap();
    let mut told = Vec::new();
    let _ = old.read_to_end(&mut told);
    // What such a client makes of it: "the peer speaks wire version 2".
    assert_eq!(told, hello(), "its hello, and then the end");
    assert_eq!(told[8..10], WIRE_VERSION.to_le_bytes());
    assert_eq!(check_hello(&old_hello()), Err(WireError::Version { found: 1 }));
    wait_until("it is counted", || metric(&server, "lodestore_connections_broken_total") == 1.0);
    lode_line(&format!("stat {}", server.address)).succeeded();
    server.stop();
}

#[test]
fn a_server_of_the_first_version_is_named_as_such_and_told_no_token() {
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
    assert!(
        matches!(error, ClientError::Wire { source: WireError::Version { found: 1 }, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("upgrade the older"), "{error}");
    assert_eq!(old.join().unwrap(), hello(), "nothing but the hello");
}
