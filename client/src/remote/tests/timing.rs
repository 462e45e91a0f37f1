//! Pulls whose time shows what the client did: these tests fail where other programs slow the
//! machine.

use std::time::{Duration, Instant};

use lodestore_schema::reply::Description;

use super::{MS, connect, pull, two_known};
use crate::fake_server::FakeServer;
use crate::remote::{Client, ClientConfig};
use crate::source::{PullKind, PullStats};

/// Runs up to `n` attempts until one succeeds: other processes use the machine too.
fn once_of(n: usize, attempt: impl Fn() -> Result<(), String>) {
    let mut last = Ok(());
    for _ in 0..n {
        last = attempt();
        if last.is_ok() {
            return;
        }
    }
    panic!("{last:?}");
}

/// Pulls from two known servers after `prepare`, which receives the preferred server and the other.
/// On a busy machine they may be swapped, or no token may be left: then tries again.
fn pull_known(
    (hedged_share, kind): (f64, PullKind),
    prepare: impl Fn(&FakeServer, &FakeServer),
) -> (PullStats, Duration, [FakeServer; 2]) {
    let may_be_hedged = hedged_share > 0.0 && kind == PullKind::Sync;
    let mut attempts = 0;
    loop {
        let (client, servers) = two_known(hedged_share);
        prepare(&servers[0], &servers[1]);
        let before = servers[0].n_pulls();
        let (stats, took) = pull(&client, kind).unwrap();
        attempts += 1;
        let is_as_told = servers[0].n_pulls() > before && may_be_hedged == (stats.hedges > 0);
        if is_as_told || attempts == 8 {
            return (stats, took, servers);
        }
    }
}

#[test]
#[ignore = "measures time: ./x test runs it by itself"]
fn a_reply_that_has_arrived_is_neither_late_nor_slow_because_another_server_is() {
    let (slow, fast) = (FakeServer::start(&[0]), FakeServer::start(&[1]));
    let spare = FakeServer::start(&[0, 1]);
    slow.delay(MS(500));
    let client = connect(&[&slow, &fast, &spare], 0.05);
    let view = client.view();
    for (server, usual) in [(0, MS(500)), (1, MS(1)), (2, MS(10_000))] {
        view.routes.health(server).answered(usual, Instant::now());
    }
    // The fast server would be given up after 200 ms of silence.
    let (stats, took) = pull(&client, PullKind::Vector).unwrap();
    assert!((500..1500).contains(&took.as_millis()), "{took:?}");
    assert_eq!((stats.requests, spare.n_pulls()), (2, 0), "no server is asked again");
    let usual = view.routes.health(1).usual().unwrap();
    assert!(usual < MS(50), "the fast one takes {usual:?}");
}

#[test]
#[ignore = "measures time: ./x test runs it by itself"]
fn a_reply_that_arrives_while_another_connection_opens_is_not_late() {
    let (fast, coy) = (FakeServer::start(&[0]), FakeServer::start(&[1]));
    let spare = FakeServer::start(&[0, 1]);
    let client = connect(&[&fast, &coy, &spare], 0.05);
    coy.delay_hello(MS(500));
    let view = client.view();
    for (server, usual) in [(0, MS(1)), (1, MS(1000)), (2, MS(10_000))] {
        view.routes.health(server).answered(usual, Instant::now());
    }
    let (stats, took) = pull(&client, PullKind::Sync).unwrap();
    assert!((500..1500).contains(&took.as_millis()), "{took:?}");
    assert_eq!((stats.requests, spare.n_pulls()), (2, 0), "no server is asked again");
    let usual = view.routes.health(0).usual().unwrap();
    assert!(usual < MS(50), "the fast one takes {usual:?}");
}

#[test]
#[ignore = "measures time: ./x test runs it by itself"]
fn a_reply_that_keeps_arriving_is_not_given_up_however_long_it_takes() {
    once_of(5, || {
        let (slow, spare) = (FakeServer::start(&[0, 1]), FakeServer::start(&[0, 1]));
        let client = connect(&[&slow, &spare], 0.0);
        let (view, now) = (client.view(), Instant::now());
        // A silence of half a second is too long.
        view.routes.health(0).answered(MS(50), now);
        view.routes.health(1).answered(MS(10_000), now);
        slow.delay(MS(380));
        slow.pause(MS(380));
        let (stats, took) = pull(&client, PullKind::Vector).map_err(|error| error.to_string())?;
        let is_so = stats.requests == 1 && spare.n_pulls() == 0;
        is_so.then_some(()).ok_or_else(|| format!("{stats:?} after {took:?}"))
    });
}

#[test]
#[ignore = "measures time: ./x test runs it by itself"]
fn a_hedge_that_is_slow_to_connect_delays_no_request_and_does_not_count() {
    once_of(5, || {
        let (first, coy) = (FakeServer::start(&[0, 1]), FakeServer::start(&[0, 1]));
        let client = connect(&[&first, &coy], 0.05);
        let (view, now) = (client.view(), Instant::now());
        view.routes.health(0).answered(MS(1), now);
        view.routes.health(1).answered(MS(10), now);
        (0..20).for_each(|_| view.routes.health(0).began(MS(1)));
        first.delay(MS(100));
        coy.delay_hello(MS(5000));
        let (stats, took) = pull(&client, PullKind::Sync).unwrap();
        let is_resting = view.routes.health(1).is_resting(Instant::now());
        let is_so = (100..180).contains(&took.as_millis()) && is_resting && stats.hedges == 0;
        is_so.then_some(()).ok_or_else(|| format!("{took:?} {is_resting} {stats:?}"))
    });
}

#[test]
#[ignore = "measures time: ./x test runs it by itself"]
fn a_connection_that_takes_too_long_is_not_the_deadline_of_the_pull() {
    once_of(5, || {
        let (coy, other) = (FakeServer::start(&[0, 1]), FakeServer::start(&[0, 1]));
        let config = ClientConfig { deadline: MS(190), ..ClientConfig::default() };
        let client = Client::connect(&[&coy.address, &other.address], config).unwrap();
        let (view, now) = (client.view(), Instant::now());
        view.routes.health(0).answered(MS(1), now);
        view.routes.health(1).answered(MS(2), now);
        coy.delay_hello(MS(5000));
        let (stats, _) = pull(&client, PullKind::Vector).map_err(|error| error.to_string())?;
        assert_eq!((stats.requests, coy.n_pulls(), other.n_pulls()), (1, 0, 1));
        Ok(())
    });
}

#[test]
#[ignore = "measures time: ./x test runs it by itself"]
fn a_server_that_stalls_loses_the_hedge_and_its_request_is_cancelled() {
    for (hedged_share, kind) in
        [(0.05, PullKind::Sync), (0.0, PullKind::Sync), (0.05, PullKind::Vector)]
    {
        let stall = |first: &FakeServer, _: &FakeServer| first.delay(MS(600));
        let (stats, took, [stalled, other]) = pull_known((hedged_share, kind), stall);
        let is_hedged = hedged_share > 0.0 && kind == PullKind::Sync;
        assert_eq!(stats.hedges, u64::from(is_hedged));
        assert_eq!(stats.requests, 1);
        // Without a hedge, another server is asked after 200 ms of silence.
        assert_eq!(took < MS(150), is_hedged, "{took:?}");
        let end = Instant::now() + MS(5000);
        while stalled.n_given_up() == 0 {
            assert!(Instant::now() < end, "the client has not closed the connection");
            std::thread::sleep(MS(5));
        }
        assert!(other.n_pulls() > 0);
    }
}

#[test]
#[ignore = "measures time: ./x test runs it by itself"]
fn a_failed_hedge_leaves_the_first_request_and_a_failed_first_request_its_hedge() {
    let hedged = (0.05, PullKind::Sync);
    let (stats, took, _) = pull_known(hedged, |first, hedge| {
        first.delay(MS(100));
        hedge.breaks(true);
    });
    assert_eq!((stats.hedges, stats.requests), (1, 1));
    assert!(took >= MS(100), "{took:?}");
    let (stats, took, _) = pull_known(hedged, |first, hedge| {
        first.delay(MS(30));
        first.breaks(true);
        hedge.delay(MS(90));
    });
    assert_eq!((stats.hedges, stats.requests), (1, 1));
    assert!((90..180).contains(&took.as_millis()), "{took:?}");
}

#[test]
#[ignore = "measures time: ./x test runs it by itself"]
fn servers_are_connected_to_concurrently() {
    once_of(5, || {
        let servers = [FakeServer::start(&[0]), FakeServer::start(&[1])];
        let config = ClientConfig { deadline: MS(20_000), ..ClientConfig::default() };
        let client = Client::connect(&[&servers[0].address, &servers[1].address], config).unwrap();
        servers.iter().for_each(|server| server.delay_hello(MS(400)));
        let (stats, took) = pull(&client, PullKind::Sync).unwrap();
        assert_eq!(stats.requests, 2);
        (took < MS(700)).then_some(()).ok_or_else(|| format!("one after the other: {took:?}"))
    });
}

#[test]
#[ignore = "measures time: ./x test runs it by itself"]
fn a_silent_server_is_waited_for_once_though_the_others_are_asked_twice() {
    once_of(3, || {
        let writable = |description: &mut Description| description.writable = true;
        let servers = [(); 3].map(|()| FakeServer::start_as(&[0, 1], writable));
        servers[2].delay_hello(MS(60_000));
        let config = ClientConfig { deadline: MS(20_000), ..ClientConfig::default() };
        let addresses = [&servers[0].address, &servers[1].address, &servers[2].address];
        let start = Instant::now();
        pull(&Client::connect(&addresses, config).unwrap(), PullKind::Sync).unwrap();
        let took = start.elapsed();
        (took < MS(3500)).then_some(()).ok_or_else(|| format!("it was asked twice: {took:?}"))
    });
}
