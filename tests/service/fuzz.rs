//! A live server and clients that know the wire and break it: heads, lengths, ids, order, half
//! frames, garbage. They use TCP, and a Unix socket with memory to share. The seeds are always the
//! same.
//!
//! A forged message ends its connection, so later ones are never read. So each comes after a run of
//! messages that can be read. The server reports itself how many were read.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_client::{Client, ClientConfig};
use lodestore_graph::NodeId;
use lodestore_schema::hello::hello;
use lodestore_schema::limits::PREFIX_BYTES;
use lodestore_schema::name::Name;
use lodestore_schema::request::{
    CommitStep, CopyStep, Declare, FollowStep, Publish, PullKind, PullVolatile, Push,
};
use lodestore_schema::versions::{PartVersion, VersionTag};
use lodestore_schema::{Request, RequestBody, Token, Versions};

use crate::{Truth, broken, is_long, metric, rss_bytes, wait_until};
use testing::Numbers;
use testing::graph::{Source, WIDE};
use testing::process::Serving;

const N_NODES: u32 = 400;
const N_THREADS: u64 = 4;
/// The tensor that liars may put rows into; the others are compared.
const SPOILT: u16 = 1;

#[test]
fn liars_do_a_live_server_no_harm() {
    let n_messages: u64 = if is_long() { 1_000_000 } else { 20_000 };
    let source = Source::random(N_NODES, 1000);
    let graph = source.import("graph", 2, "hash");
    let unix = source.file("rows.sock");
    let args = format!(
        "--listen 127.0.0.1:0 --unix {} --metrics 127.0.0.1:0 --shards 2 --memory 64MiB --writable --insecure \
         --volatile h1:1xf32/9",
        unix.display()
    );
    let server = Serving::start(&graph, &args);
    let config = ClientConfig { deadline: Duration::from_secs(30), ..ClientConfig::default() };
    let client = Client::connect(&[&server.address], config).unwrap();
    let truth = Truth::new(&source, &client);
    let (n_sent, n_honest) = (AtomicU64::new(0), AtomicU64::new(0));
    let is_over = AtomicBool::new(false);
    // Each shard may have had a part of an honest pull.
    let n_read = || {
        let honest = 2 * n_honest.load(Ordering::Relaxed);
        let n_requests = metric(&server, "lodestore_requests_total") as u64;
        n_requests.saturating_sub(honest) + broken(&server, "wire") as u64
    };
    let rss_early = thread::scope(|scope| {
        let liars: Vec<_> = (0..N_THREADS)
            .map(|seed| {
                let (address, unix) = (server.address.as_str(), unix.clone());
                let (n_sent, is_over) = (&n_sent, &is_over);
                scope.spawn(move || {
                    let mut liar = Liar::new(address, unix, seed);
                    while !is_over.load(Ordering::Relaxed) {
                        n_sent.fetch_add(liar.connection(), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let honest = scope.spawn(|| {
            let mut numbers = Numbers(99);
            while !is_over.load(Ordering::Relaxed) {
                n_honest.fetch_add(1, Ordering::Relaxed);
                pull_honestly(&client, &truth, &mut numbers);
                thread::sleep(Duration::from_millis(2));
            }
        });
        let (mut rss_early, patience) =
            (None, Duration::from_secs(if is_long() { 900 } else { 90 }));
        let start = Instant::now();
        while n_read() < n_messages {
            if n_read() > n_messages / 2 {
                rss_early.get_or_insert_with(|| rss_bytes(server.child.id()));
            }
            assert!(start.elapsed() < patience, "{} of {n_messages} are read", n_read());
            thread::sleep(Duration::from_millis(50));
        }
        is_over.store(true, Ordering::Relaxed);
        for liar in liars {
            liar.join().unwrap();
        }
        honest.join().unwrap();
        rss_early.unwrap_or_else(|| rss_bytes(server.child.id()))
    });
    assert!(n_honest.load(Ordering::Relaxed) > 10, "others are served meanwhile");
    drop(client);
    wait_until("connections are closed", || metric(&server, "lodestore_connections") == 0.0);
    wait_until("requests are over", || metric(&server, "lodestore_in_flight_bytes") == 0.0);
    let rss = rss_bytes(server.child.id());
    let (n_sent, n_read) = (n_sent.load(Ordering::Relaxed), n_read());
    println!(
        "{n_sent} messages, {n_read} of them read; {rss_early} bytes of memory early, {rss} at the end"
    );
    assert!(n_read >= n_sent / 10, "{n_read} of {n_sent} messages were read");
    assert!(
        metric(&server, "lodestore_shared_bytes_total") > 0.0,
        "no client received rows in memory"
    );
    assert!(rss < rss_early + (64 << 20), "{rss_early} bytes early, {rss} at the end");
    let client = Client::connect(&[&server.address], ClientConfig::default()).unwrap();
    pull_honestly(&client, &truth, &mut Numbers(1));
    // A panic that was caught ends its connection; any other would stand in the log.
    assert_eq!(broken(&server, "panic"), 0.0);
    assert!(broken(&server, "wire") > 0.0, "forgeries are noticed");
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

/// Client that knows the wire and breaks it.
struct Liar {
    address: String,
    unix: PathBuf,
    numbers: Numbers,
    /// Left open, in the midst of something.
    half_open: Vec<File>,
}

impl Liar {
    fn new(address: &str, unix: PathBuf, seed: u64) -> Self {
        Self { address: address.to_owned(), unix, numbers: Numbers(seed), half_open: Vec::new() }
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.numbers.below(n) == 0
    }

    /// Returns a connection over either socket, whose reads and writes wait no longer than these.
    fn connect(&mut self, read: Duration, write: Duration) -> std::io::Result<(File, bool)> {
        let is_unix = self.one_in(3);
        let socket: OwnedFd = if is_unix {
            let stream = UnixStream::connect(&self.unix)?;
            stream.set_read_timeout(Some(read))?;
            stream.set_write_timeout(Some(write))?;
            stream.into()
        } else {
            let stream = TcpStream::connect(&self.address)?;
            stream.set_read_timeout(Some(read))?;
            stream.set_write_timeout(Some(write))?;
            stream.into()
        };
        Ok((socket.into(), is_unix))
    }

    /// Returns a whole connection; returns the messages that were sent.
    fn connection(&mut self) -> u64 {
        let patience = Duration::from_millis(10 + u64::from(self.numbers.below(20)));
        let Ok((mut stream, is_unix)) = self.connect(patience, Duration::from_millis(500)) else {
            return 0;
        };
        let mut bytes = Vec::new();
        match self.numbers.below(40) {
            0 => bytes.extend((0..self.numbers.below(64)).map(|_| self.numbers.next() as u8)),
            1 => bytes.extend(&hello()[..self.numbers.below(16) as usize]),
            2 => bytes.extend([hello(), hello()].concat()),
            _ => bytes.extend(hello()),
        }
        let n_true = self.numbers.below(40);
        for i in 0..n_true {
            if is_unix && i == n_true / 4 {
                Request::new(RequestBody::Share).append_to(0, &mut bytes);
                let tensor = self.numbers.below(5) as u16;
                Request::new(RequestBody::Lend { tensor }).append_to(0, &mut bytes);
            }
            self.message(&mut bytes, false);
        }
        self.message(&mut bytes, true);
        // Cut off anywhere.
        if self.one_in(16) {
            bytes.truncate(self.numbers.below(bytes.len() as u32 + 1) as usize);
        }
        let sent = stream.write_all(&bytes);
        // Most read until the end, some leave immediately, some stay.
        let (until, mut answer) = (Instant::now() + Duration::from_secs(2), [0; 16 << 10]);
        if sent.is_ok() && !self.one_in(12) {
            while matches!(stream.read(&mut answer), Ok(1..)) && Instant::now() < until {}
        }
        if self.one_in(20) {
            self.half_open.push(stream);
        }
        if self.half_open.len() > 30 {
            self.half_open.clear();
        }
        u64::from(n_true) + 1
    }

    /// Appends a frame: one that can be read, whether or not it can be done, or one with a forged
    /// end or kind.
    fn message(&mut self, bytes: &mut Vec<u8>, lies: bool) {
        let start = bytes.len();
        let (body, n_ids) = if lies { self.any_body() } else { self.body() };
        let n = |i: u32| Duration::from_millis(u64::from(i));
        let request = Request {
            deadline: self.one_in(3).then(|| n(self.numbers.below(2000))),
            sent: n(if self.one_in(8) { u32::MAX } else { self.numbers.below(1000) }),
            graph: if self.one_in(20) { self.numbers.next() } else { 0 },
            version: if self.one_in(20) { self.numbers.below(9) } else { 0 },
            floors: self.floors(),
            exactly: self.one_in(20),
            body,
        };
        let rows = match body {
            RequestBody::Push { .. } => n_ids * WIDE,
            RequestBody::Publish(_) => n_ids * size_of::<f32>(),
            _ => 0,
        };
        let body_bytes = n_ids * size_of::<NodeId>() + rows;
        let is_long = lies && self.one_in(8);
        let said = if is_long { self.numbers.below(5 << 20) as usize } else { body_bytes };
        request.append_to(said.min(4 << 20), bytes);
        let head_end = bytes.len();
        let is_far = self.one_in(10);
        for _ in 0..n_ids {
            let id = if is_far { self.numbers.next() as u32 } else { self.numbers.below(N_NODES) };
            bytes.extend(id.to_le_bytes());
        }
        bytes.resize(bytes.len() + rows, 0x5a);
        if lies {
            self.spoil(bytes, start, head_end);
        } else if self.one_in(12) {
            // The frame before once more.
            bytes.extend_from_within(start..);
        }
    }

    /// Makes something wrong with the frame from `start` on.
    fn spoil(&mut self, bytes: &mut Vec<u8>, start: usize, head_end: usize) {
        match self.numbers.below(5) {
            // Bits of prefix and head.
            0 | 1 => {
                for _ in 0..=self.numbers.below(3) {
                    let at = start + self.numbers.below((head_end - start) as u32) as usize;
                    bytes[at] ^= 1 << self.numbers.below(8);
                }
            }
            // A word of the head, where pointers and lists are.
            2 if head_end > start + PREFIX_BYTES + 8 => {
                let words = (head_end - start - PREFIX_BYTES) / 8;
                let at = start + PREFIX_BYTES + 8 * self.numbers.below(words as u32) as usize;
                let word = [u64::MAX, 0, 1 << 63, 0x1_0000_0001, self.numbers.next() << 20];
                let word = word[self.numbers.below(5) as usize];
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            // Bytes that were not announced, or that are missing.
            3 => bytes.extend((0..=self.numbers.below(9)).map(|_| self.numbers.next() as u8)),
            _ => bytes
                .truncate(bytes.len() - (self.numbers.below(9) as usize).min(bytes.len() - start)),
        }
    }

    /// Does as [`Self::body`], with requests that a server accepts once or in their place only.
    fn any_body(&mut self) -> (RequestBody, usize) {
        match self.numbers.below(8) {
            0 => {
                let token = Token::new(&[b'a' + self.numbers.below(20) as u8; 16]).unwrap();
                (RequestBody::Authenticate { token }, 0)
            }
            1 => (RequestBody::Taken, 0),
            _ => self.body(),
        }
    }

    /// Returns a step of copying a partition, in whatever order.
    fn copy_step(&mut self) -> CopyStep {
        match self.numbers.below(6) {
            0 => CopyStep::Open { id: u64::from(self.numbers.below(2)) * self.numbers.next() },
            1 => CopyStep::Pending,
            2 => CopyStep::Seal,
            3 => CopyStep::Release { to: None },
            4 => CopyStep::Adopt,
            _ => CopyStep::Expect { id: self.numbers.next() },
        }
    }

    fn floors(&mut self) -> Versions {
        if !self.one_in(10) {
            return Versions::default();
        }
        let above = (0..self.numbers.below(3) as u16)
            .map(|part| PartVersion { part, version: self.version_tag(4) });
        Versions { above: above.collect(), lowest: self.version_tag(3) }
    }

    /// Returns a version, which was mostly made by an unknown commit.
    fn version_tag(&mut self, end: u32) -> VersionTag {
        let tag = if self.one_in(10) { self.numbers.next() } else { 0 };
        VersionTag { number: self.numbers.below(end), tag }
    }

    /// Returns what to ask of volatile rows, and with how many ids.
    fn volatile(&mut self) -> (RequestBody, usize) {
        let numbers = &mut self.numbers;
        let name = Name::new(["h1", "h1", "h1", "h2"][numbers.below(4) as usize]).unwrap();
        let stamp = if numbers.below(9) == 0 { numbers.next() as u32 } else { numbers.below(5) };
        let n_ids = numbers.below(40) as usize;
        match numbers.below(8) {
            0 => {
                let dtype = Name::new(["f32", "i8", "x"][numbers.below(3) as usize]).unwrap();
                let (width, range_rows) = (numbers.below(3), numbers.below(3));
                (RequestBody::Declare(Declare { name, dtype, width, range_rows }), 0)
            }
            1 => (RequestBody::Volatile { tensor: name }, 0),
            2 | 3 => (RequestBody::Claim { tensor: name }, 2 * (n_ids / 8)),
            4 | 5 => {
                let n_rows = n_ids as u32;
                (RequestBody::Publish(Publish { name, n_rows, stamp }), n_ids)
            }
            _ => {
                let wait = Duration::from_millis(numbers.below(3).into());
                (RequestBody::PullVolatile(PullVolatile { name, min_stamp: stamp, wait }), n_ids)
            }
        }
    }

    /// Returns what to ask, and with how many ids.
    fn body(&mut self) -> (RequestBody, usize) {
        let numbers = &mut self.numbers;
        let kind = [PullKind::Sync, PullKind::Vector][numbers.below(2) as usize];
        let tensor = numbers.below(5) as u16;
        match numbers.below(100) {
            0..20 => (RequestBody::Describe, 0),
            20..30 => (RequestBody::Stat, 0),
            30..32 => {
                let n_rows = numbers.below(3);
                let put = Push {
                    tensor: SPOILT,
                    n_rows,
                    put: numbers.below(9).into(),
                    piece: numbers.below(3),
                    is_last: numbers.below(2) == 0,
                    total_rows: numbers.below(5),
                };
                (RequestBody::Push(put), n_rows as usize)
            }
            32 => (commit(numbers.below(8), numbers.below(2)), 0),
            33 => (RequestBody::Compact, 0),
            34 => (commit(numbers.next() as u32, 1), 0),
            35..40 => {
                let part = numbers.below(3) as u16;
                (RequestBody::Copy { part, step: self.copy_step() }, 0)
            }
            40 => (RequestBody::Share, 0),
            41 => {
                let (part, file) = (numbers.below(3) as u16, numbers.below(9) as u16);
                let offset = numbers.next();
                let version = VersionTag { number: file.into(), tag: offset };
                let steps = [
                    FollowStep::Manifest,
                    FollowStep::Read { file, offset },
                    FollowStep::Serves { version, instance: offset },
                ];
                (RequestBody::Follow { part, step: steps[numbers.below(3) as usize] }, 0)
            }
            42 => (RequestBody::Lend { tensor }, 0),
            43..45 => (RequestBody::Pull { tensor, kind }, 3000),
            45..57 => self.volatile(),
            _ => (RequestBody::Pull { tensor, kind }, numbers.below(50) as usize),
        }
    }
}

fn commit(version: u32, step: u32) -> RequestBody {
    let step = if step == 0 { CommitStep::Prepare } else { CommitStep::Publish };
    RequestBody::Commit { version, step, label: 0 }
}
