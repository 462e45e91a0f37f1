//! Clients that come at the wrong time, or leave without a word.

use std::thread::sleep;
use std::time::{Duration, Instant};

use lodestore_client::{Client, ClientConfig, RowSource};
use lodestore_graph::{NodeId, PartId};
use rustix::process::Signal;

use crate::DEADLINE;
use crate::cluster::{Cluster, N_PARTS, STEADY};
use crate::ending::metric;
use crate::faults::{Faults, Scene};
use crate::support::process::{command, signal};

/// Of a client that asks for rows that nobody serves.
const IMPATIENT: Duration = Duration::from_millis(500);
/// Longest time until a client maps memory of a server.
const SHARED_MAX: Duration = Duration::from_secs(3);

impl Faults {
    /// A client that connects while a server is down has the rows of the others at once, is told that
    /// those of that server are not to be had, and has them as soon as it is back.
    pub(crate) fn come_while_down(&mut self, scene: &mut Scene<'_>) -> bool {
        let cluster = &mut *scene.cluster;
        let at = self.draw_victim();
        let maps = [cluster.near(), cluster.far()];
        let map = &maps[self.below(2) as usize];
        cluster.servers[at].take().unwrap().kill();
        let patient = client(map, DEADLINE);
        let ids = |parts: &[u16]| -> Vec<NodeId> {
            parts.iter().flat_map(|&part| patient.book().range(PartId(part))).map(NodeId).collect()
        };
        let served: Vec<u16> =
            (0..N_PARTS).filter(|&part| is_served_without(cluster, at, part)).collect();
        let lost: Vec<u16> = (0..N_PARTS).filter(|part| !served.contains(part)).collect();
        scene.load.check(&patient, &ids(&served));
        if !lost.is_empty() {
            let error = scene.load.try_pull(&client(&cluster.near(), IMPATIENT), &ids(&lost));
            scene.told.note(&error.expect_err("nobody has these rows"));
        }
        cluster.start_server(at);
        scene.load.check(&patient, &ids(&[served, lost].concat()));
        true
    }

    /// Kills a process that pulls by shared memory, while rows stand there for it; gives whether they
    /// did.
    pub(crate) fn kill_client(&mut self, scene: &mut Scene<'_>) -> bool {
        let cluster = &*scene.cluster;
        let shared = || -> f64 {
            let servers = cluster.servers.iter().flatten();
            servers.map(|server| metric(server, "lodestore_shared_memory_bytes")).sum()
        };
        let before = shared();
        let sockets = (0..=STEADY).map(|at| format!("--connect {}", cluster.socket(at)));
        let line = format!(
            "load {} --rows 6000 --connections 3 --duration 60 --deadline 60",
            sockets.collect::<Vec<_>>().join(" ")
        );
        let mut child = command(line.split_whitespace()).spawn().unwrap();
        let end = Instant::now() + SHARED_MAX;
        let has_shared = loop {
            if shared() > before || Instant::now() > end {
                break Instant::now() <= end;
            }
            sleep(Duration::from_millis(10));
        };
        self.sleep(300);
        // It takes no more of what comes; then it is gone.
        signal(&child, Signal::STOP);
        self.sleep(600);
        child.kill().unwrap();
        child.wait().unwrap();
        has_shared
    }
}

fn client(map: &str, deadline: Duration) -> Client {
    let config = ClientConfig { deadline, ..ClientConfig::default() };
    Client::connect(&[map], config).unwrap()
}

fn is_served_without(cluster: &Cluster, down: usize, part: u16) -> bool {
    (0..cluster.servers.len()).any(|at| at != down && cluster.owns(at, part))
}
