//! Strangers that know the handshake, and get it wrong: hellos, tokens, handshakes of TLS.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use lodestore_client::{Client, ClientConfig, Security};
use lodestore_schema::hello::hello;
use lodestore_schema::limits::{HELLO_BYTES, PREFIX_BYTES};
use lodestore_schema::request::PullKind;
use lodestore_schema::{Request, RequestBody, Token};

use crate::fuzz::pull_honestly;
use crate::tls::first_flight;
use crate::{Truth, broken, is_long, metric, rss_bytes, wait_until};
use testing::Numbers;
use testing::authority::Authority;
use testing::graph::Source;
use testing::process::Serving;
use testing::write_file;

const SECRET: &[u8] = b"s3cret-s3cret-s3cret-0";
const N_THREADS: u64 = 3;

/// A server and what one must show it.
struct Door {
    server: Serving,
    security: Security,
    /// First bytes of an admissible client; under TLS only the start of its handshake.
    greeting: Vec<u8>,
}

fn with_token() -> Request {
    let token = Token::new(SECRET).unwrap();
    Request::new(RequestBody::Authenticate { token })
}

fn doors(source: &Source) -> [Door; 2] {
    let graph = source.import("graph", 2, "hash");
    let token = source.file("token");
    write_file(&token, std::str::from_utf8(SECRET).unwrap(), 0o600);
    let ours = Authority::new(source.dir.path(), "ours");
    let files = ours.sign(source.dir.path(), "server", &["127.0.0.1"]);
    let serve = |more: &str| {
        let token = token.display();
        let args = format!("--listen 127.0.0.1:0 --metrics 127.0.0.1:0 --shards 2 {more}");
        Serving::start(&graph, &format!("{args} --token-file {token}"))
    };
    let security = Security::default().with_token(Token::new(SECRET).unwrap());
    let mut greeting = hello().to_vec();
    with_token().append_to(0, &mut greeting);
    let plain = Door { server: serve(""), security: security.clone(), greeting };
    let security = security.with_tls(&ours.cert, None).unwrap();
    let greeting = first_flight(&ours.trusted());
    [plain, Door { server: serve(&files), security, greeting }]
}

#[test]
fn liars_at_the_door_do_no_harm() {
    let n_liars: u64 = if is_long() { 200_000 } else { 3_000 };
    let source = Source::random(400, 1000);
    for Door { server, security, greeting } in doors(&source) {
        let config = ClientConfig { security, ..ClientConfig::default() };
        let client = Client::connect(&[&server.address], config).unwrap();
        let truth = Truth::new(&source, &client);
        let (n_done, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        let before = rss_bytes(server.child.id());
        thread::scope(|scope| {
            let liars: Vec<_> = (0..N_THREADS)
                .map(|seed| {
                    let (address, greeting, n_done) = (&server.address, &greeting, &n_done);
                    scope.spawn(move || {
                        let mut numbers = Numbers(seed);
                        while n_done.fetch_add(1, Ordering::Relaxed) < n_liars {
                            lie(address, greeting, &mut numbers);
                        }
                    })
                })
                .collect();
            let honest = scope.spawn(|| {
                let (mut numbers, mut n_pulls) = (Numbers(7), 0);
                while !is_over.load(Ordering::Relaxed) {
                    pull_honestly(&client, &truth, &mut numbers);
                    n_pulls += 1;
                }
                n_pulls
            });
            liars.into_iter().for_each(|liar| liar.join().unwrap());
            is_over.store(true, Ordering::Relaxed);
            assert!(honest.join().unwrap() > 10, "who is in is served meanwhile");
        });
        drop(client);
        wait_until("connections are closed", || metric(&server, "lodestore_connections") == 0.0);
        assert_eq!(broken(&server, "panic"), 0.0);
        let n_noticed: f64 =
            ["wire", "tls", "unauthenticated"].iter().map(|reason| broken(&server, reason)).sum();
        assert!(n_noticed > n_liars as f64 / 10.0, "{n_noticed} of {n_liars}");
        let grown = rss_bytes(server.child.id()).saturating_sub(before);
        assert!(grown < 48 << 20, "{grown} bytes for strangers");
        server.stop();
    }
}

/// Makes a connection with a greeting that is wrong somewhere, or is followed by what does not
/// belong.
fn lie(address: &str, greeting: &[u8], numbers: &mut Numbers) {
    let mut bytes = greeting.to_vec();
    let len = bytes.len() as u32;
    match numbers.below(8) {
        // Bits.
        0 | 1 => {
            for _ in 0..=numbers.below(4) {
                bytes[numbers.below(len) as usize] ^= 1 << numbers.below(8);
            }
        }
        // Cut off anywhere.
        2 => bytes.truncate(numbers.below(len) as usize),
        // A part of it once more.
        3 => bytes.extend_from_within(numbers.below(len) as usize..),
        // Another token, or another request in its place.
        4 if bytes.len() > HELLO_BYTES + PREFIX_BYTES => {
            bytes.truncate(HELLO_BYTES);
            let letters: Vec<u8> =
                (0..16 + numbers.below(112)).map(|_| b'a' + numbers.below(26) as u8).collect();
            let body = match numbers.below(3) {
                0 => RequestBody::Stat,
                1 => RequestBody::Pull { tensor: 0, kind: PullKind::Sync },
                _ => RequestBody::Authenticate { token: Token::new(&letters).unwrap() },
            };
            Request::new(body).append_to(numbers.below(3) as usize, &mut bytes);
        }
        // Records of TLS of every kind, with any length.
        4 | 5 => {
            for _ in 0..=numbers.below(3) {
                let n_said = numbers.next() as u16 >> numbers.below(16);
                bytes.extend([0x14 + numbers.below(5) as u8, 3, numbers.below(5) as u8]);
                bytes.extend(n_said.to_be_bytes());
                let n_sent = u32::from(n_said).min(numbers.below(2000));
                bytes.extend((0..n_sent).map(|_| numbers.next() as u8));
            }
        }
        // A word of it that says how long something is.
        6 => {
            let at = numbers.below(len - 4) as usize;
            let word = [u32::MAX, 1 << 31, 0, numbers.next() as u32][numbers.below(4) as usize];
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        _ => bytes.extend((0..numbers.below(300)).map(|_| numbers.next() as u8)),
    }
    let Ok(mut stream) = TcpStream::connect(address) else { return };
    let patience = Duration::from_millis(1 + u64::from(numbers.below(10)));
    stream.set_read_timeout(Some(patience)).unwrap();
    let _ = stream.write_all(&bytes);
    // Some wait for an answer, some leave immediately.
    if numbers.below(3) > 0 {
        while matches!(stream.read(&mut [0; 4096]), Ok(1..)) {}
    }
}
