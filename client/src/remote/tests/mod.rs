//! Pulls from servers of which some are slow.

mod away;
mod histories;
mod ports;
mod timing;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use lodestore_graph::NodeId;
use lodestore_schema::limits::ROWS_PER_PUSH_MAX;
use lodestore_schema::reply::Description;

use super::{Client, ClientConfig};
use crate::error::ClientError;
use crate::fake_server::{FakeServer, PART_NODES, ROW_BYTES};
use crate::source::{PullKind, PullStats, RowSource};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn connect(servers: &[&FakeServer], hedged_share: f64) -> Client {
    let addresses: Vec<&str> = servers.iter().map(|server| server.address.as_str()).collect();
    let config = ClientConfig { deadline: MS(20_000), hedged_share, ..ClientConfig::default() };
    Client::connect(&addresses, config).unwrap()
}

/// Pulls rows of both partitions, and checks them.
fn pull(client: &Client, kind: PullKind) -> Result<(PullStats, Duration), ClientError> {
    let ids: Vec<NodeId> = (0..2 * PART_NODES).step_by(7).map(NodeId).collect();
    let mut out = vec![0xEE; ids.len() * ROW_BYTES];
    let start = Instant::now();
    let stats = client.pull("x", &ids, &mut out, kind)?;
    assert_eq!(bytemuck::cast_slice::<NodeId, u8>(&ids), out);
    Ok((stats, start.elapsed()))
}

#[test]
fn rows_of_a_second_attempt_come_to_their_places() {
    let (broken, well) = (FakeServer::start(&[0]), FakeServer::start(&[1]));
    let spare = FakeServer::start(&[0, 1]);
    let client = connect(&[&broken, &well, &spare], 0.0);
    client.view().routes.health(2).answered(MS(10_000), Instant::now());
    broken.breaks(true);
    let ids: Vec<NodeId> = (0..2 * PART_NODES).step_by(5).map(NodeId).collect();
    for place in [0, 2] {
        let at: Vec<u32> = (0..ids.len() as u32).map(|i| 3 * i + place).collect();
        let mut out = vec![0xEE; 3 * ids.len() * ROW_BYTES];
        let kind = PullKind::Sync;
        let stats = client.pull_at("x", &ids, &at, &mut out, kind, &mut || ()).unwrap();
        assert_eq!(stats.rows, ids.len() as u64);
        for (rows, id) in out.chunks_exact(3 * ROW_BYTES).zip(&ids) {
            let mut expected = [0xEE; 3 * ROW_BYTES];
            let first = place as usize * ROW_BYTES;
            expected[first..first + ROW_BYTES].copy_from_slice(&id.0.to_le_bytes());
            assert_eq!(rows, expected);
        }
    }
    assert!(spare.n_pulls() > 0);
}

/// Returns an address without a listener.
fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn a_stranger_at_the_address_of_an_absent_server_does_not_disturb_pulls() {
    let (server, absent) = (FakeServer::start(&[0, 1]), nobody());
    let config = ClientConfig { deadline: MS(10_000), ..ClientConfig::default() };
    let client = Client::connect(&[&server.address, &absent.to_string()], config).unwrap();
    let stranger = TcpListener::bind(absent).unwrap();
    let asked = std::thread::spawn(move || {
        let (mut stream, _) = stranger.accept().unwrap();
        stream.write_all(&[0xEE; 64]).unwrap();
        // Until the client closes the connection.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    server.breaks(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            asked.join().unwrap();
            server.breaks(false);
        });
        pull(&client, PullKind::Sync).unwrap();
    });
}

#[test]
fn a_server_that_is_silent_at_first_is_asked_again_though_another_is_down() {
    let (server, silent, down) = (FakeServer::start(&[0]), FakeServer::start(&[1]), nobody());
    silent.delay_hello(MS(60_000));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(MS(1000));
            silent.delay_hello(MS(0));
        });
        let config = ClientConfig { deadline: MS(20_000), ..ClientConfig::default() };
        let addresses = [&down.to_string(), &silent.address, &server.address];
        pull(&Client::connect(&addresses, config).unwrap(), PullKind::Sync).unwrap();
    });
}

#[test]
fn servers_of_the_previous_and_of_this_wire_version_serve_one_client() {
    let servers = [FakeServer::start(&[0]), FakeServer::start(&[1])];
    for old in 0..2 {
        servers[old].is_plain(true);
        let client = connect(&[&servers[0], &servers[1]], 0.05);
        pull(&client, PullKind::Sync).unwrap();
        // Upgraded, and downgraded again: open connections continue, new ones agree on the other
        // version.
        servers[old].is_plain(false);
        pull(&client, PullKind::Vector).unwrap();
        pull(&connect(&[&servers[0], &servers[1]], 0.0), PullKind::Sync).unwrap();
    }
    assert_eq!(servers.map(|server| server.n_pulls()), [6, 6]);
}

#[test]
fn a_refusal_that_arrives_with_the_hello_is_read_and_retried() {
    let server = FakeServer::start(&[0, 1]);
    let config = ClientConfig { deadline: MS(10_000), attempts: 1, ..ClientConfig::default() };
    let client = Client::connect(&[&server.address], config).unwrap();
    server.refuses(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(MS(200));
            server.refuses(false);
        });
        // A connection that only closes would use up the single attempt.
        let (stats, took) = pull(&client, PullKind::Sync).unwrap();
        assert_eq!((stats.requests, server.n_pulls()), (1, 1));
        assert!((200..5000).contains(&took.as_millis()), "{took:?}");
    });
}

/// Returns a client that knows the latencies of two servers with the same rows, and these servers,
/// the preferred one first.
fn two_known(hedged_share: f64) -> (Client, [FakeServer; 2]) {
    let mut servers = [(); 2].map(|()| FakeServer::start(&[0, 1]));
    let client = connect(&[&servers[0], &servers[1]], hedged_share);
    for _ in 0..60 {
        pull(&client, PullKind::Sync).unwrap();
    }
    let before = servers[0].n_pulls();
    pull(&client, PullKind::Sync).unwrap();
    if servers[0].n_pulls() == before {
        servers.swap(0, 1);
    }
    (client, servers)
}

/// The first server would reply with wrong rows, in the middle of its hedge's reply.
#[test]
fn the_loser_of_a_hedge_is_dropped_at_the_first_row_of_the_winner_and_leaves_no_byte() {
    let ids: Vec<NodeId> = (0..2 * PART_NODES).map(NodeId).collect();
    for attempt in 1.. {
        let (client, servers) = two_known(0.05);
        let [first, hedge] = &servers;
        first.delay(MS(60));
        first.falsifies(true);
        // Shorter than the silence after which another server is asked.
        hedge.pause(MS(130));
        let counts = || servers.each_ref().map(|it| (it.n_pulls(), it.n_given_up()));
        let (before, mut out) = (counts(), vec![0xEE; ids.len() * ROW_BYTES]);
        let stats = client.pull("x", &ids, &mut out, PullKind::Sync).unwrap();
        // The loser notices the closed connection when it would reply.
        let end = Instant::now() + MS(3000);
        while counts().map(|it| it.1) == before.map(|it| it.1) && Instant::now() < end {
            std::thread::sleep(MS(5));
        }
        let [of_first, of_rival] = [0, 1].map(|at| {
            let (now, before) = (counts()[at], before[at]);
            (now.0 - before.0, now.1 - before.1)
        });
        // On a busy machine the hedge may be asked first, not at all, or too late: then tries
        // again.
        let is_as_meant = stats.hedges == 1 && (of_first.0, of_rival) == (1, (1, 0));
        if !is_as_meant && attempt < 12 {
            continue;
        }
        assert_eq!((stats.hedges, stats.requests), (1, 1));
        assert_eq!((of_first, of_rival), ((1, 1), (1, 0)), "pulls, and those given up");
        assert_eq!(bytemuck::cast_slice::<NodeId, u8>(&ids), out);
        return;
    }
}

#[test]
fn a_hedge_goes_to_a_server_that_has_every_partition_of_the_request() {
    for attempt in 1.. {
        // The server without the second partition would be the faster hedge.
        let servers = [&[0u16, 1][..], &[0], &[0, 1]].map(FakeServer::start);
        let client = connect(&[&servers[0], &servers[1], &servers[2]], 1.0);
        let (view, now) = (client.view(), Instant::now());
        for (server, usual) in [(0, MS(2)), (1, MS(10)), (2, MS(40))] {
            (0..200).for_each(|_| view.routes.health(server).answered(usual, now));
            (0..200).for_each(|_| view.routes.health(server).began(usual));
        }
        servers[0].delay(MS(400));
        let (stats, took) = pull(&client, PullKind::Sync).unwrap();
        // On a busy machine the hedge may be too late, and the pull is repeated: then tries again.
        if (stats.hedges, stats.requests) != (1, 1) && attempt < 12 {
            continue;
        }
        assert_eq!((stats.hedges, stats.requests), (1, 1), "{took:?}");
        assert_eq!(servers.map(|server| server.n_pulls()), [1, 0, 1]);
        return;
    }
}

#[test]
fn rows_that_are_not_those_of_the_request_are_refused() {
    for skew in [[1, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1], [0, 3, 3], [5, 0, 0]] {
        let server = FakeServer::start(&[0, 1]);
        let client = connect(&[&server], 0.0);
        server.skew(skew);
        let error = pull(&client, PullKind::Sync).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, ClientError::Wire { .. }), "{skew:?}: {text}");
        assert!(text.contains("expected from 0 on, at most 29"), "{skew:?}: {text}");
    }
}

#[test]
fn the_version_of_a_put_is_the_highest_that_a_server_reports() {
    for versions in [[7, 3], [3, 7], [5, 5]] {
        let servers = [0, 1].map(|part| FakeServer::start_as(&[part], |it| it.writable = true));
        for (server, version) in servers.iter().zip(versions) {
            server.takes_pushes(version);
        }
        let ids: Vec<NodeId> = (0..2 * PART_NODES).map(NodeId).collect();
        let rows: &[u8] = bytemuck::cast_slice(&ids);
        let client = connect(&[&servers[0], &servers[1]], 0.0);
        let stats = client.put_rows("x", &ids, rows).unwrap();
        assert_eq!((stats.requests, stats.version), (2, versions[0].max(versions[1])));
    }
}

#[test]
fn a_put_whose_pieces_were_lost_is_sent_from_its_first_piece_on() {
    let server = FakeServer::start_as(&[0, 1], |it| it.writable = true);
    server.takes_pushes(7);
    server.loses_pieces(2);
    // Two pieces for one partition.
    let n_rows = ROWS_PER_PUSH_MAX as u32 + 1;
    let ids: Vec<NodeId> = (0..n_rows).map(|at| NodeId(at % PART_NODES)).collect();
    let stats = connect(&[&server], 0.0).put_rows("x", &ids, bytemuck::cast_slice(&ids)).unwrap();
    // The first piece is acknowledged three times, the second once.
    assert_eq!((stats.requests, stats.version), (4, 7));
}

/// A reply relies on ascending positions in its bucket; the positions of the two failed shards
/// alternate.
#[test]
fn rows_of_two_failed_shards_arrive_in_place_from_another_server() {
    let striped = |it: &mut Description| {
        (it.n_shards, it.shard_ports) = (2, vec![it.shard_ports[0]; 2]);
        it.tensors[0].stripe_rows = 1;
    };
    let (first, other) = (FakeServer::start_as(&[0, 1], striped), FakeServer::start(&[0, 1]));
    let client = connect(&[&first, &other], 0.0);
    first.breaks(true);
    let (stats, _) = pull(&client, PullKind::Sync).unwrap();
    assert_eq!((first.n_pulls(), other.n_pulls(), stats.requests), (2, 1, 1));
}

#[test]
fn hedges_shorten_the_slowest_of_one_hundred_pulls() {
    let slowest_of_100 = |hedged_share| {
        let (client, servers) = two_known(hedged_share);
        servers.iter().for_each(|server| server.is_slow(33, MS(60)));
        let pulls = (0..600).map(|_| pull(&client, PullKind::Sync).unwrap().1);
        let mut times: Vec<Duration> = pulls.collect();
        times.sort();
        times[594]
    };
    let without = slowest_of_100(0.0);
    // Other processes use the machine too.
    let with = (0..4).map(|_| slowest_of_100(0.05)).find(|&time| time < MS(30));
    println!("99 of 100 within {with:?} with a hedge, {without:?} without");
    assert!(without >= MS(60), "{without:?}");
    assert!(with.is_some(), "never below 30 ms");
}
