//! Shards whose own ports cannot be reached.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};

use super::{MS, nobody, pull};
use crate::PullKind;
use crate::fake_server::FakeServer;
use crate::remote::{Client, ClientConfig};

/// A server whose shard tells of this port, where it does not listen.
fn behind(port: u16) -> FakeServer {
    FakeServer::start_as(&[0, 1], |description| description.shard_ports = vec![port])
}

fn connect(servers: &[&FakeServer]) -> Client {
    let addresses: Vec<&str> = servers.iter().map(|server| server.address.as_str()).collect();
    // One attempt: what is not reached is no failure of a pull.
    let config = ClientConfig { deadline: MS(20_000), attempts: 1, ..ClientConfig::default() };
    Client::connect(&addresses, config).unwrap()
}

/// How long a pull over a new connection takes.
fn took(client: &Client) -> Duration {
    (0..client.fleet().addresses().count()).for_each(|server| client.fleet().forget(server));
    pull(client, PullKind::Sync).unwrap().1
}

/// A port whose queue is full, so that whoever comes gets no answer at all, and what keeps it so.
fn swallowing() -> (u16, Vec<TcpStream>, impl Drop) {
    let listener = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&listener, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listen(&listener, 0).unwrap();
    let at = std::net::SocketAddr::try_from(getsockname(&listener).unwrap()).unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&at, MS(100)) {
        waiting.push(stream);
        assert!(waiting.len() < 100, "its queue has an end");
    }
    (at.port(), waiting, listener)
}

#[test]
fn a_shard_whose_port_is_refused_is_asked_by_the_common_port() {
    let server = behind(nobody().port());
    let client = connect(&[&server]);
    let all = [(); 3].map(|()| took(&client));
    assert!(all.iter().all(|&took| took < MS(1000)), "{all:?}");
    assert_eq!(server.n_pulls(), 3);
}

#[test]
fn a_port_that_swallows_whoever_comes_is_waited_for_once() {
    let (port, _waiting, _listener) = swallowing();
    let server = behind(port);
    let client = connect(&[&server]);
    let first = took(&client);
    assert!((1400..4000).contains(&first.as_millis()), "{first:?}");
    // What is known stays when servers are asked anew.
    let fleet = client.fleet();
    let anew = client.fleet().anew(fleet.servers().map(|(a, d)| (a.clone(), d.clone())).collect());
    *client.fleet.write().unwrap() = anew.unwrap();
    let second = took(&client);
    assert!(second < MS(1000), "{second:?}");
    // Another client tries again.
    let other = took(&connect(&[&server]));
    assert!((1400..4000).contains(&other.as_millis()), "{other:?}");
}

#[test]
fn a_server_that_others_could_stand_in_for_is_asked_by_its_common_port_too() {
    let (port, _waiting, _listener) = swallowing();
    let servers = [behind(port), behind(port)];
    let client = connect(&[&servers[0], &servers[1]]);
    let first = took(&client);
    assert!((400..2500).contains(&first.as_millis()), "{first:?}");
    assert_eq!(servers[0].n_pulls() + servers[1].n_pulls(), 1);
}

#[test]
fn a_server_whose_shards_have_moved_to_other_ports_is_not_taken_for_one_behind_a_wall() {
    let server = FakeServer::start(&[0, 1]);
    let client = connect(&[&server]);
    let fleet = client.fleet();
    let mut servers: Vec<_> = fleet.servers().map(|(a, d)| (a.clone(), d.clone())).collect();
    // As it was before it was started anew.
    servers[0].1.shard_ports = vec![nobody().port()];
    let before = fleet.anew(servers).unwrap();
    let error = before.open(0, Instant::now() + MS(5000)).err().unwrap().to_string();
    assert!(error.contains("refused"), "{error}");
}
