//! A server of which clients reach the common port alone, as through a forwarded port.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::thread;

use lodestore_client::Client;
use lodestore_graph::NodeId;
use lodestore_graph::npy::NpyType;

use crate::Truth;
use testing::graph::{Source, shuffled_ids};
use testing::process::{Serving, lode_line};
use testing::write_npy;

/// Returns an address of this machine without another listener, before `server`.
fn forward(server: &str) -> String {
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    let (at, server) = (listener.local_addr().unwrap().to_string(), server.to_owned());
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(&server).unwrap();
            let ways = [(&client, &server), (&server, &client)];
            for (from, to) in ways.map(|(a, b)| (a.try_clone().unwrap(), b.try_clone().unwrap())) {
                thread::spawn(move || {
                    let (mut from, mut to) = (from, to);
                    // However it ends, it does for both.
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    at
}

#[test]
fn clients_that_reach_the_common_port_alone_continue_through_it_and_say_so_once() {
    let source = Source::random(900, 3000);
    let graph = source.import("graph", 2, "hash");
    let server = Serving::start(&graph, "--listen 127.0.0.1:0 --shards 3 --writable --insecure");
    let at = forward(&server.address);
    let client = Client::connect(&[&at], Default::default()).unwrap();
    let truth = Truth::new(&source, &client);
    let ids: Vec<NodeId> = shuffled_ids(source.n_nodes).into_iter().map(NodeId).collect();
    let expected = truth.rows("feat", &ids);
    let mut found = vec![0xEE; expected.len()];
    client.sync_pull("feat", &ids, &mut found).unwrap();
    assert!(found == expected, "wrong rows");
    client.put_rows("label", &[NodeId(3), NodeId(800)], &[7; 16]).unwrap();
    client.commit().unwrap();
    let mut label = [0; 16];
    client.vector_pull("label", &[NodeId(3), NodeId(800)], &mut label).unwrap();
    assert_eq!(label, [7; 16]);
    let (ids, out) = (source.file("ids.npy"), source.file("out.npy"));
    let all: Vec<u32> = (0..source.n_nodes).collect();
    write_npy(&ids, NpyType::U32, &[all.len() as u64], &all);
    let (ids, out) = (ids.display(), out.display());
    let commands = [
        format!("gather --connect {at} --tensor feat --ids {ids} --out {out}"),
        format!("load --connect {at} --verify {} --duration 0.3 --warm-up 0", graph.display()),
    ];
    for command in commands {
        let ended = lode_line(&command).succeeded();
        assert_eq!(ended.stderr.matches("common port").count(), 1, "{}", ended.stderr);
    }
    let direct =
        format!("gather --connect {} --tensor feat --ids {ids} --out {out}", server.address);
    let ended = lode_line(&direct).succeeded();
    assert!(!ended.stderr.contains("common port"), "{}", ended.stderr);
    server.stop();
}

#[test]
fn where_the_common_socket_alone_is_shared_it_is_enough() {
    let source = Source::random(900, 3000);
    let graph = source.import("graph", 2, "hash");
    let socket = source.file("rows.sock");
    let server = Serving::start(&graph, &format!("--unix {} --shards 2", socket.display()));
    for shard in 0..2 {
        std::fs::remove_file(source.file(&format!("rows.sock.{shard}"))).unwrap();
    }
    let client = Client::connect(&[format!("unix:{}", socket.display())], Default::default());
    let client = client.unwrap();
    let (truth, ids) = (Truth::new(&source, &client), [NodeId(0), NodeId(899), NodeId(450)]);
    // By the socket, and through shared memory.
    for n_times in [1, 1000] {
        let ids = ids.repeat(n_times);
        let (expected, mut found) = (truth.rows("feat", &ids), vec![0xEE; n_times * 3 * 52]);
        client.sync_pull("feat", &ids, &mut found).unwrap();
        assert!(found == expected, "wrong rows");
    }
    server.stop();
}
