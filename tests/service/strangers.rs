//! Strangers that come faster than they can be let in, whether or not they are answered.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_client::{Client, ClientConfig, Security};
use lodestore_schema::hello::hello;
use lodestore_schema::limits::HELLO_BYTES;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::tls::first_flight;
use crate::{metric, wait_until};
use testing::authority::Authority;
use testing::graph::Source;
use testing::process::Serving;

/// Connections of one shard that may be about to be let in.
const ENTERING_MAX: f64 = 256.0;

/// Addresses of the strangers; all other clients on this machine have another.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Connections that come at a fixed rate, whatever becomes of those before.
struct Flood {
    to: SocketAddrV4,
    from: Ipv4Addr,
    per_second: u32,
    /// Bytes that each sends before it falls silent.
    words: Vec<u8>,
}

impl Flood {
    /// Connects until it is over; a few hundred are kept open at this end.
    fn run(&self, is_over: &AtomicBool) {
        let (start, mut n_begun, mut open) = (Instant::now(), 0, VecDeque::new());
        while !is_over.load(Ordering::Relaxed) {
            let due = (start.elapsed().as_secs_f64() * f64::from(self.per_second)) as u64;
            // A slow machine does not make up all that it has missed together.
            for _ in n_begun..due.min(n_begun + 50) {
                open.extend(self.connect());
            }
            n_begun = due;
            while open.len() > 400 {
                open.pop_front();
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn connect(&self) -> Option<TcpStream> {
        let (flags, stream) = (SocketFlags::CLOEXEC, SocketType::STREAM);
        let socket = rustix::net::socket_with(AddressFamily::INET, stream, flags, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrV4::new(self.from, 0)).unwrap();
        rustix::net::connect(&socket, &self.to).ok()?;
        let mut stream = TcpStream::from(socket);
        // It may be closed already.
        let _ = stream.write_all(&self.words);
        Some(stream)
    }
}

/// The most connections and descriptors that a server has had.
#[derive(Default)]
struct Most {
    connections: f64,
    descriptors: usize,
}

impl Most {
    fn look(&mut self, server: &Serving) {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap();
        self.descriptors = self.descriptors.max(descriptors.count());
        self.connections = self.connections.max(metric(server, "lodestore_connections"));
    }

    /// Checks the numbers. Some connections that were ended are still to be put away, others wait
    /// for their shard.
    fn check(&self) {
        println!("at most {} connections, {} descriptors", self.connections, self.descriptors);
        assert!(self.connections <= 2.0 * ENTERING_MAX, "{} connections", self.connections);
        assert!(self.descriptors < 2200, "{} descriptors", self.descriptors);
    }
}

/// Returns whether a client is let in that sends its hello `later`.
fn gets_in(address: &str, later: Duration) -> bool {
    let enter = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        thread::sleep(later);
        stream.write_all(&hello())?;
        stream.read_exact(&mut [0; HELLO_BYTES])?;
        let mut frame = Vec::new();
        lodestore_schema::Request::new(lodestore_schema::RequestBody::Stat)
            .append_to(0, &mut frame);
        stream.write_all(&frame)?;
        stream.read_exact(&mut [0; 16])
    };
    enter().is_ok()
}

#[test]
fn silent_strangers_keep_no_slow_client_out() {
    let source = Source::random(60, 60);
    let graph = source.import("graph", 1, "hash");
    let server = Serving::start(&graph, "--listen 127.0.0.1:0 --metrics 127.0.0.1:0 --shards 1");
    let to = server.address.parse().unwrap();
    let (step, mut most) = (Duration::from_millis(50), Most::default());
    for from in [ELSEWHERE, Ipv4Addr::LOCALHOST] {
        let flood = Flood { to, from, per_second: 2000, words: Vec::new() };
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| flood.run(&is_over));
            wait_until("the door is full", || {
                metric(&server, "lodestore_connections_evicted_total") > 500.0
            });
            if from == ELSEWHERE {
                let n_in = (0..20).filter(|_| gets_in(&server.address, step)).count();
                println!("{n_in} of 20 let in beside strangers from elsewhere");
                assert!(n_in >= 18, "{n_in} of 20 beside strangers from elsewhere");
            } else {
                // A client that shares an address with them shares their luck.
                wait_until("one gets in", || gets_in(&server.address, step));
            }
            most.look(&server);
            is_over.store(true, Ordering::Relaxed);
        });
        wait_until("they are gone", || metric(&server, "lodestore_connections") == 0.0);
    }
    most.check();
    server.stop();
}

#[test]
fn strangers_that_begin_tls_and_wait_are_bounded_and_keep_no_client_out() {
    let source = Source::random(60, 60);
    let graph = source.import("graph", 1, "hash");
    let ours = Authority::new(source.dir.path(), "ours");
    let files = ours.sign(source.dir.path(), "server", &["127.0.0.1"]);
    let args = format!("--listen 127.0.0.1:0 --metrics 127.0.0.1:0 --shards 1 {files}");
    let server = Serving::start(&graph, &args);
    let security = Security::default().with_tls(&ours.cert, None).unwrap();
    let config = ClientConfig { security, ..ClientConfig::default() };
    let words = first_flight(&ours.trusted());
    let (to, per_second) = (server.address.parse().unwrap(), 1000);
    let flood = Flood { to, from: ELSEWHERE, per_second, words };
    let (is_over, mut most) = (AtomicBool::new(false), Most::default());
    thread::scope(|scope| {
        scope.spawn(|| flood.run(&is_over));
        let n_come = || metric(&server, "lodestore_connections_total");
        // Ten times as many as there is room for.
        wait_until("many have come", || {
            most.look(&server);
            n_come() > 10.0 * ENTERING_MAX
        });
        let mut n_in = 0;
        for _ in 0..3 {
            let start = Instant::now();
            let client = Client::connect(&[&server.address], config.clone());
            println!("after {:?}: {:?}", start.elapsed(), client.as_ref().err());
            n_in += usize::from(client.is_ok());
            most.look(&server);
        }
        assert!(n_in > 0, "no stranger was admitted");
        is_over.store(true, Ordering::Relaxed);
    });
    most.check();
    let n_evicted = metric(&server, "lodestore_connections_evicted_total");
    assert!(n_evicted > 5.0 * ENTERING_MAX, "{n_evicted} had to go");
    server.stop();
}
