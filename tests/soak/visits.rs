//! Clients that come at the wrong time, or leave without a word.

use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lodestore_client::{Client, RowSource};
use lodestore_graph::{NodeId, PartId};
use rustix::process::Signal;

use crate::clients::Habit;
use crate::cluster::{N_PARTS, N_SERVERS};
use crate::faults::{Faults, Scene};
use crate::monitor::CALL_OF_TEST;
use crate::{DEADLINE, DEADLINE_SHORT};
use testing::process::{command, finish, signal};

/// Longest time until a client maps memory of a server.
const SHARED_MAX: Duration = Duration::from_secs(3);

impl Faults {
    /// Connects a client while a server is down: it receives the rows of the others immediately. It
    /// is refused those of that server, and receives them when it is back.
    pub(crate) fn come_while_down(&mut self, scene: &mut Scene<'_>) -> bool {
        let (cluster, clients) = (&mut *scene.cluster, scene.clients);
        let at = self.draw_victim();
        let map = [cluster.near(), cluster.far()][self.below(2) as usize].clone();
        let habit = |deadline| Habit::new(CALL_OF_TEST, &map, deadline, None);
        let (patient, hasty) = (habit(DEADLINE), habit(DEADLINE_SHORT));
        cluster.take_out(at).kill();
        let client = clients.connect(&patient).expect("others are there");
        let pull = |client: &Client, habit: &Habit, parts: &[u16]| {
            let ids = parts.iter().flat_map(|&part| client.book().range(PartId(part)));
            let ids: Vec<NodeId> = ids.map(NodeId).collect();
            clients.pull(client, habit, &ids)
        };
        let is_served = |&part: &u16| (0..N_SERVERS).any(|it| it != at && cluster.owns(it, part));
        let (served, lost): (Vec<u16>, Vec<u16>) = (0..N_PARTS).partition(is_served);
        assert!(pull(&client, &patient, &served), "others have these rows");
        // This client may fail to connect in its time: links may be slow.
        if let Some(client) = clients.connect(&hasty).filter(|_| !lost.is_empty()) {
            assert!(!pull(&client, &hasty, &lost), "no server has these rows");
        }
        cluster.start_server(at);
        assert!(pull(&client, &patient, &[served, lost].concat()), "all have all rows again");
        true
    }

    /// Kills a process that pulls by shared memory, while it has some; returns whether it had.
    pub(crate) fn kill_client(&mut self, scene: &mut Scene<'_>) -> bool {
        let sockets = (0..N_SERVERS).map(|at| format!("--connect {}", scene.cluster.socket(at)));
        let line = format!(
            "load {} --rows 6000 --connections 3 --duration 60 --deadline 60",
            sockets.collect::<Vec<_>>().join(" ")
        );
        let mut child = command(line.split_whitespace()).spawn().unwrap();
        let end = Instant::now() + SHARED_MAX;
        while !maps_rows(&child) && Instant::now() < end {
            sleep(Duration::from_millis(10));
        }
        self.sleep(300);
        let runs = child.try_wait().unwrap().is_none();
        assert!(runs, "`lode {line}` has ended by itself: {:?}", finish(child, SHARED_MAX));
        // It takes no more of what comes; then it is gone.
        signal(&child, Signal::STOP);
        let has_shared = maps_rows(&child);
        self.sleep(600);
        child.kill().unwrap();
        child.wait().unwrap();
        has_shared
    }
}

/// Returns whether a process has memory where a server puts rows, and such where one keeps them.
fn maps_rows(child: &Child) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
    maps.contains("/memfd:lodestore-rows") && maps.contains("/memfd:lodestore-tier")
}
