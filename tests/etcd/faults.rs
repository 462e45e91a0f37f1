//! etcd that is away, servers that stall, and forged keys.

use std::thread;
use std::time::{Duration, Instant};

use lodestore_client::ClientError;
use rustix::process::Signal;

use crate::engine::Engine;
use crate::{N_NODES, begin, check, client, eventually, serve};
use testing::process::{lode_line, signal};
use testing::workload::{Workload, known_graph};

#[test]
fn servers_and_clients_wait_for_an_etcd_that_is_not_there_yet() {
    let Some(mut engine) = Engine::prepared() else { return };
    let dir = tempfile::tempdir().unwrap();
    let graph = known_graph(dir.path(), N_NODES, 3);
    let server = serve(&engine, &graph, "");
    let direct = lodestore_client::ClientConfig::default();
    check(&lodestore_client::Client::connect(&[&server.address], direct).unwrap());
    let start = Instant::now();
    let error = client(&engine, Duration::from_secs(1)).err().unwrap();
    assert!(matches!(error, ClientError::Map { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let (map, deadline) = (engine.map(), Duration::from_secs(20));
    let waiting = thread::spawn(move || {
        let config = lodestore_client::ClientConfig { deadline, ..Default::default() };
        lodestore_client::Client::connect(&[map], config)
    });
    thread::sleep(Duration::from_millis(300));
    assert!(!waiting.is_finished(), "it waits for etcd");
    engine.run();
    check(&waiting.join().unwrap().unwrap());
    eventually("the server registers", || engine.servers().len() == 1);
    check(&client(&engine, Duration::from_secs(10)).unwrap());
    let log = server.stop_and_take_log();
    assert!(log.contains("not registered in etcd"), "{log}");
    assert_eq!(log.matches("not registered").count(), 1, "it is logged once: {log}");
}

#[test]
fn an_etcd_that_goes_and_comes_back_affects_no_client_that_knows_the_servers() {
    let Some((mut engine, _dir, graph)) = begin() else { return };
    let server = serve(&engine, &graph, "");
    let (load, client) =
        (Workload::new(N_NODES), client(&engine, Duration::from_secs(10)).unwrap());
    load.check_all(&client);
    engine.kill();
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        load.check_all(&client);
        thread::sleep(Duration::from_millis(20));
    }
    engine.run();
    eventually("it is in the map again", || engine.servers().len() == 1);
    load.check_all(&client);
    server.stop();
    assert!(engine.servers().is_empty());
}

#[test]
fn a_server_that_stalls_loses_its_lease_and_is_found_again_when_it_continues() {
    let Some((engine, _dir, graph)) = begin() else { return };
    let (still, other) = (serve(&engine, &graph, ""), serve(&engine, &graph, ""));
    eventually("both are registered", || engine.servers().len() == 2);
    let client = client(&engine, Duration::from_secs(10)).unwrap();
    check(&client);
    signal(&still.child, Signal::STOP);
    let stopped = Instant::now();
    while engine.servers().len() == 2 {
        check(&client);
        assert!(stopped.elapsed() < Duration::from_secs(20), "a lease lasts for 6 s");
    }
    check(&client);
    signal(&still.child, Signal::CONT);
    eventually("it registers again", || engine.servers().len() == 2);
    other.stop();
    check(&client);
    still.stop();
}

#[test]
fn forged_or_nonsense_keys_harm_no_client() {
    let Some((engine, dir, graph)) = begin() else { return };
    let server = serve(&engine, &graph, "");
    eventually("it is registered", || engine.servers().len() == 1);
    let early = client(&engine, Duration::from_secs(10)).unwrap();
    let entry = |address: &str| {
        format!(r#"{{"address":"{address}","parts":[0,1,2],"version":9,"busy":0}}"#).into_bytes()
    };
    engine.put("", b"");
    engine.put("nonsense", b"\xff\xfe{{{");
    engine.put("deep", &b"[".repeat(50_000));
    engine.put("long", &vec![b'x'; 1 << 20]);
    engine.put("path", &entry("map:/etc/passwd"));
    engine.put("gone", &entry("127.0.0.1:1"));
    // A port with a listener that is no server of ours.
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    engine.put("stranger", &entry(&stranger.local_addr().unwrap().to_string()));
    for client in [&early, &client(&engine, Duration::from_secs(10)).unwrap()] {
        check(client);
    }
    // A server of another graph does not register here, and one that says so is left out.
    let other_dir = dir.path().join("other");
    std::fs::create_dir(&other_dir).unwrap();
    let other = serve(&engine, &known_graph(&other_dir, N_NODES, 3), "");
    let foreign = format!(
        r#"{{"address":"{}","parts":[0,1,2],"version":9,"busy":0,"graph":"{}"}}"#,
        other.address,
        "0".repeat(32)
    );
    engine.put("foreign", foreign.as_bytes());
    thread::sleep(Duration::from_secs(2));
    assert_eq!(engine.servers().iter().filter(|it| it["address"] == other.address).count(), 1);
    check(&early);
    check(&client(&engine, Duration::from_secs(3)).unwrap());
    let told = other.stop_and_take_log();
    assert!(told.contains("belongs to graph") && told.contains("test/graph"), "{told}");
    let ids = dir.path().join("ids.npy");
    testing::write_npy(&ids, lodestore_graph::npy::NpyType::U32, &[1], &[5u32]);
    let (map, ids, out) = (engine.map(), ids.display(), dir.path().join("out.npy"));
    lode_line(&format!("gather --connect {map} --tensor feat --ids {ids} --out {}", out.display()))
        .succeeded();
    server.stop();
}
