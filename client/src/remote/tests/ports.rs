//! Shards whose own ports cannot be reached.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};

use super::{MS, pull};
use crate::fake_server::FakeServer;
use crate::remote::{Client, ClientConfig};
use crate::source::PullKind;

/// Returns a server whose shard announces this port, but does not listen there.
fn behind(port: u16) -> FakeServer {
    FakeServer::start_as(&[0, 1], |description| description.shard_ports = vec![port])
}

fn connect(servers: &[&FakeServer]) -> Client {
    // One attempt: an unreachable port is no failure of a pull.
    connect_trying(servers, 1)
}

fn connect_trying(servers: &[&FakeServer], attempts: u32) -> Client {
    let addresses: Vec<&str> = servers.iter().map(|server| server.address.as_str()).collect();
    let config = ClientConfig { deadline: MS(20_000), attempts, ..ClientConfig::default() };
    Client::connect(&addresses, config).unwrap()
}

/// Returns how long a pull over a new connection takes.
fn took(client: &Client) -> Duration {
    (0..client.view().addresses().count()).for_each(|server| client.view().forget(server));
    pull(client, PullKind::Sync).unwrap().1
}

/// Returns a port that refuses every connection. No other process gets it while its socket is open.
fn refusing() -> (SocketAddr, OwnedFd) {
    let bound = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&bound, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    (SocketAddr::try_from(getsockname(&bound).unwrap()).unwrap(), bound)
}

/// Returns a port whose queue is full, so that connections get no reply, and the sockets that keep
/// the queue full.
fn swallowing() -> (u16, Vec<TcpStream>, OwnedFd) {
    let (at, listener) = refusing();
    listen(&listener, 0).unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&at, MS(100)) {
        waiting.push(stream);
        assert!(waiting.len() < 100, "its queue has an end");
    }
    (at.port(), waiting, listener)
}

#[test]
fn a_shard_whose_port_is_refused_is_asked_by_the_common_port() {
    let (at, _bound) = refusing();
    let server = behind(at.port());
    let client = connect(&[&server]);
    let all = [(); 3].map(|()| took(&client));
    assert!(all.iter().all(|&took| took < MS(1000)), "{all:?}");
    assert_eq!(server.n_pulls(), 3);
}

#[test]
fn a_port_that_never_replies_is_waited_for_once() {
    let (port, _waiting, _listener) = swallowing();
    let server = behind(port);
    let client = connect(&[&server]);
    let first = took(&client);
    assert!((1400..4000).contains(&first.as_millis()), "{first:?}");
    // The finding stays when servers are asked again.
    let view = client.view();
    let renewed =
        client.view().with_servers(view.servers().map(|(a, d)| (a.clone(), d.clone())).collect());
    *client.view.write().unwrap() = renewed.unwrap();
    let second = took(&client);
    assert!(second < MS(1000), "{second:?}");
    // Another client probes again.
    let other = took(&connect(&[&server]));
    assert!((1400..4000).contains(&other.as_millis()), "{other:?}");
}

#[test]
fn a_server_with_alternatives_is_asked_by_its_common_port_too() {
    let (port, _waiting, _listener) = swallowing();
    let servers = [behind(port), behind(port)];
    // On a busy machine the time limit of such a server may pass before it is asked at all.
    let client = connect_trying(&[&servers[0], &servers[1]], 3);
    let first = took(&client);
    assert!((400..6000).contains(&first.as_millis()), "{first:?}");
    assert_eq!(servers[0].n_pulls() + servers[1].n_pulls(), 1);
}

#[test]
fn shards_that_moved_to_other_ports_do_not_count_as_unreachable() {
    let server = FakeServer::start(&[0, 1]);
    let client = connect(&[&server]);
    let view = client.view();
    let mut servers: Vec<_> = view.servers().map(|(a, d)| (a.clone(), d.clone())).collect();
    // As before the server restarted.
    let (at, _bound) = refusing();
    servers[0].1.shard_ports = vec![at.port()];
    let before = view.with_servers(servers).unwrap();
    let error = before.open(0, Instant::now() + MS(5000)).err().unwrap().to_string();
    assert!(error.contains("refused"), "{error}");
}

#[test]
fn shards_of_a_server_that_restarted_with_the_same_ports_do_not_count_as_unreachable() {
    let (at, _bound) = refusing();
    let server = behind(at.port());
    let client = connect(&[&server]);
    let view = client.view();
    let mut servers: Vec<_> = view.servers().map(|(a, d)| (a.clone(), d.clone())).collect();
    // As before the server restarted.
    servers[0].1.instance += 1;
    let before = view.with_servers(servers).unwrap();
    let error = before.open(0, Instant::now() + MS(5000)).err().unwrap().to_string();
    assert!(error.contains("refused"), "{error}");
}

#[test]
fn a_port_that_fails_once_does_not_count_as_unreachable() {
    let (at, bound) = refusing();
    let server = behind(at.port());
    let client = connect(&[&server]);
    // The shard starts to listen before the server confirms the port.
    server.delay_hello(MS(1500));
    let begins = thread::spawn(move || {
        thread::sleep(MS(200));
        listen(&bound, 16).unwrap();
        FakeServer::start_at(TcpListener::from(bound), &[0, 1], |_| {})
    });
    let first = took(&client);
    assert!(first >= MS(1400), "the server was asked: {first:?}");
    let shard = begins.join().unwrap();
    server.delay_hello(MS(0));
    took(&client);
    assert_eq!((shard.n_pulls(), server.n_pulls()), (2, 0));
}

#[test]
fn of_several_threads_that_reach_no_shard_one_probes() {
    let (port, _waiting, _listener) = swallowing();
    let server = behind(port);
    let client = connect(&[&server]);
    let n_asked = server.n_described();
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| took(&client));
        }
    });
    assert_eq!((server.n_pulls(), server.n_described() - n_asked), (6, 1));
}
