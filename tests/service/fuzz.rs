//! A live server and clients that know the wire and break it: heads, lengths, ids, order, half
//! frames, garbage. The seeds are always the same.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_client::{Client, ClientConfig};
use lodestore_graph::NodeId;
use lodestore_schema::limits::PREFIX_BYTES;
use lodestore_schema::{PullKind, Request, RequestBody, Token, hello};

use crate::support::Numbers;
use crate::support::graph::{Source, WIDE};
use crate::support::process::Serving;
use crate::{Truth, broken, is_long, metric, rss_bytes, wait_until};

const N_NODES: u32 = 400;
const N_THREADS: u64 = 4;
/// The tensor that liars may put rows into; the others are compared.
const SPOILT: u16 = 1;

#[test]
fn liars_do_a_live_server_no_harm() {
    let n_messages: u64 = if is_long() { 1_000_000 } else { 20_000 };
    let source = Source::random(N_NODES, 1000);
    let graph = source.import("graph", 2, "hash");
    let args = "--listen 127.0.0.1:0 --metrics 127.0.0.1:0 --shards 2 --memory 1MiB --writable";
    let server = Serving::start(&graph, args);
    let config = ClientConfig { deadline: Duration::from_secs(30), ..ClientConfig::default() };
    let client = Client::connect(&[&server.address], config).unwrap();
    let truth = Truth::new(&source, &client);
    let (n_sent, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let rss_early = thread::scope(|scope| {
        let liars: Vec<_> = (0..N_THREADS)
            .map(|seed| {
                let (address, n_sent) = (server.address.as_str(), &n_sent);
                scope.spawn(move || {
                    let mut liar = Liar::new(address, seed);
                    while n_sent.load(Ordering::Relaxed) < n_messages {
                        n_sent.fetch_add(liar.connection(), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let honest = scope.spawn(|| {
            let (mut numbers, mut n_pulls) = (Numbers(99), 0u64);
            while !is_over.load(Ordering::Relaxed) {
                pull_honestly(&client, &truth, &mut numbers);
                n_pulls += 1;
            }
            n_pulls
        });
        wait_until("the first messages", || n_sent.load(Ordering::Relaxed) > 10_000);
        let rss_early = rss_bytes(server.child.id());
        for liar in liars {
            liar.join().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(honest.join().unwrap() > 10, "others are served meanwhile");
        rss_early
    });
    drop(client);
    wait_until("connections are closed", || metric(&server, "lodestore_connections") == 0.0);
    wait_until("requests are over", || metric(&server, "lodestore_in_flight_bytes") == 0.0);
    let rss = rss_bytes(server.child.id());
    println!(
        "{} messages; {rss_early} bytes of memory early, {rss} at the end",
        n_sent.into_inner()
    );
    assert!(rss < rss_early + (64 << 20), "{rss_early} bytes early, {rss} at the end");
    let client = Client::connect(&[&server.address], ClientConfig::default()).unwrap();
    pull_honestly(&client, &truth, &mut Numbers(1));
    // A panic that was caught ends its connection; any other would stand in the log.
    assert_eq!(broken(&server, "panic"), 0.0);
    assert!(broken(&server, "wire") > 0.0, "lies are noticed");
    server.stop();
}

pub(crate) fn pull_honestly(client: &Client, truth: &Truth<'_>, numbers: &mut Numbers) {
    let tensor = ["feat", "label"][numbers.below(2) as usize];
    let ids: Vec<NodeId> =
        (0..=numbers.below(300)).map(|_| NodeId(numbers.below(N_NODES))).collect();
    let expected = truth.rows(tensor, &ids);
    let mut out = vec![0; expected.len()];
    client.sync_pull(tensor, &ids, &mut out).unwrap();
    assert!(out == expected, "wrong rows of {tensor}");
}

/// One that knows the wire.
struct Liar {
    address: String,
    numbers: Numbers,
    /// Left open, in the midst of something.
    half_open: Vec<TcpStream>,
}

impl Liar {
    fn new(address: &str, seed: u64) -> Self {
        Self { address: address.to_owned(), numbers: Numbers(seed), half_open: Vec::new() }
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.numbers.below(n) == 0
    }

    /// A whole connection; gives the messages of which at least a part was sent.
    fn connection(&mut self) -> u64 {
        let Ok(mut stream) = TcpStream::connect(&self.address) else { return 0 };
        stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(1 + u64::from(self.numbers.below(20)))))
            .unwrap();
        let mut bytes = Vec::new();
        match self.numbers.below(40) {
            0 => bytes.extend((0..self.numbers.below(64)).map(|_| self.numbers.next() as u8)),
            1 => bytes.extend(&hello()[..self.numbers.below(16) as usize]),
            2 => bytes.extend([hello(), hello()].concat()),
            _ => bytes.extend(hello()),
        }
        let n_messages = u64::from(1 + self.numbers.below(60));
        for _ in 0..n_messages {
            self.message(&mut bytes);
        }
        // Cut off anywhere.
        if self.one_in(4) {
            bytes.truncate(self.numbers.below(bytes.len() as u32 + 1) as usize);
        }
        let sent = stream.write_all(&bytes);
        // Some read, some leave at once, some stay.
        let (until, mut answer) = (Instant::now() + Duration::from_millis(50), [0; 16 << 10]);
        if sent.is_ok() && !self.one_in(3) {
            while matches!(stream.read(&mut answer), Ok(1..)) && Instant::now() < until {}
        }
        if self.one_in(20) {
            self.half_open.push(stream);
        }
        if self.half_open.len() > 30 {
            self.half_open.clear();
        }
        n_messages
    }

    /// Appends a frame with something wrong in it, or nothing.
    fn message(&mut self, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        let (body, n_ids) = self.body();
        let n = |i: u32| Duration::from_millis(u64::from(i));
        let request = Request {
            deadline: self.one_in(3).then(|| n(self.numbers.below(2000))),
            sent: n(if self.one_in(8) { u32::MAX } else { self.numbers.below(1000) }),
            graph: if self.one_in(20) { self.numbers.next() } else { 0 },
            version: if self.one_in(20) { self.numbers.below(9) } else { 0 },
            body,
        };
        let rows = match body {
            RequestBody::Push { .. } => n_ids * WIDE,
            _ => 0,
        };
        let body_bytes = n_ids * size_of::<NodeId>() + rows;
        let lie = if self.one_in(30) { self.numbers.below(5 << 20) as usize } else { body_bytes };
        request.append_to(lie.min(4 << 20), bytes);
        let head_end = bytes.len();
        let is_far = self.one_in(10);
        for _ in 0..n_ids {
            let id = if is_far { self.numbers.next() as u32 } else { self.numbers.below(N_NODES) };
            bytes.extend(id.to_le_bytes());
        }
        bytes.resize(bytes.len() + rows, 0x5a);
        match self.numbers.below(12) {
            // Bits of prefix and head.
            0 => {
                for _ in 0..=self.numbers.below(3) {
                    let at = start + self.numbers.below((head_end - start) as u32) as usize;
                    bytes[at] ^= 1 << self.numbers.below(8);
                }
            }
            // A word of the head that is what pointers and lists lie with.
            1 if head_end > start + PREFIX_BYTES + 8 => {
                let words = (head_end - start - PREFIX_BYTES) / 8;
                let at = start + PREFIX_BYTES + 8 * self.numbers.below(words as u32) as usize;
                let word = [u64::MAX, 0, 1 << 63, 0x1_0000_0001, self.numbers.next() << 20];
                let word = word[self.numbers.below(5) as usize];
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            // Bytes that nobody announced, or that are missing.
            2 => bytes.extend((0..self.numbers.below(9)).map(|_| self.numbers.next() as u8)),
            3 => bytes
                .truncate(bytes.len() - (self.numbers.below(9) as usize).min(bytes.len() - start)),
            // The frame before once more.
            4 => bytes.extend_from_within(start..),
            _ => {}
        }
    }

    /// What to ask, and with how many ids.
    fn body(&mut self) -> (RequestBody, usize) {
        let numbers = &mut self.numbers;
        let kind = [PullKind::Sync, PullKind::Vector][numbers.below(2) as usize];
        let tensor = numbers.below(5) as u16;
        match numbers.below(100) {
            0..20 => (RequestBody::Describe, 0),
            20..30 => (RequestBody::Stat, 0),
            30..32 => {
                let n_rows = numbers.below(3);
                (RequestBody::Push { tensor: SPOILT, n_rows, generation: 0 }, n_rows as usize)
            }
            32 => (RequestBody::Commit { version: numbers.below(8) }, 0),
            33 => (RequestBody::Compact, 0),
            34 => (RequestBody::Commit { version: numbers.next() as u32 }, 0),
            35..38 => {
                let token = Token::new(&[b'a' + numbers.below(20) as u8; 16]).unwrap();
                (RequestBody::Authenticate { token }, 0)
            }
            38 => (RequestBody::Share, 0),
            39 => (RequestBody::Taken, 0),
            40..42 => (RequestBody::Pull { tensor, kind }, 3000),
            _ => (RequestBody::Pull { tensor, kind }, numbers.below(50) as usize),
        }
    }
}
