//! Conditions after the faults are over. Everything acknowledged is on every replica, after a
//! restart of all too, in whole files, and no server keeps resources of clients that have left.

use std::thread::sleep;
use std::time::{Duration, Instant};

use lodestore_client::{Client, ClientConfig, RowSource};
use lodestore_graph::{NodeId, PartId};

use crate::cluster::{Cluster, N_PARTS, N_SERVERS, STEADY};
use testing::http::get;
use testing::process::{Serving, lode_line};
use testing::workload::Workload;

/// Longest time for a server to see that its clients have left.
const LEAVE_MAX: Duration = Duration::from_secs(20);

/// Findings when all was over.
pub(crate) struct Whole {
    pub(crate) version: u32,
    pub(crate) bytes: u64,
}

/// Returns a metric of a server, summed over its labels.
fn metric(server: &Serving, name: &str) -> f64 {
    let body = get(&server.metrics, "/metrics").body;
    let values = body.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with(['{', ' ']).then(|| rest.rsplit_once(' '))?
    });
    values.map(|(_, value)| value.parse::<f64>().unwrap()).sum()
}

fn check_compactions(server: &Serving) {
    let failed = metric(server, "lodestore_compaction_failed");
    assert!(failed == 0.0, "a compaction has failed at {}", server.address);
}

impl Cluster {
    /// Checks that a server has every acknowledged put to its partitions.
    pub(crate) fn check_server(&self, at: usize, load: &Workload) {
        let client = self.direct(at);
        for part in self.parts_of(at) {
            let ids = client.book().range(PartId(part)).map(NodeId).collect::<Vec<_>>();
            load.check(&client, &ids);
        }
    }

    /// Checks every server, the replicas too.
    fn check_each(&self, load: &Workload) {
        (0..N_SERVERS).for_each(|at| self.check_server(at, load));
    }

    /// Checks that no compaction has failed.
    pub(crate) fn check_compactions(&self) {
        self.servers.iter().flatten().for_each(check_compactions);
    }

    /// Takes a server out, to be killed or stopped: no compaction has failed, which cannot be asked
    /// for any more.
    pub(crate) fn take_out(&mut self, at: usize) -> Serving {
        let server = self.servers[at].take().unwrap();
        check_compactions(&server);
        server
    }

    /// Checks that no connection, no request and no shared memory is left of clients that have
    /// left, however they did. Some must have come by shared memory. Compactions have ended, and
    /// none has failed.
    pub(crate) fn check_idle(&self) {
        let end = Instant::now() + LEAVE_MAX;
        for server in self.servers.iter().flatten() {
            for name in [
                "lodestore_connections",
                "lodestore_in_flight_bytes",
                "lodestore_shared_memory_bytes",
                "lodestore_requests_in_progress",
                "lodestore_compactions_waiting",
            ] {
                while metric(server, name) > 0.0 {
                    assert!(Instant::now() < end, "{name} is {}", metric(server, name));
                    sleep(Duration::from_millis(20));
                }
            }
        }
        self.check_compactions();
        let steady = self.servers[STEADY].as_ref().unwrap();
        assert!(metric(steady, "lodestore_shared_bytes_total") > 0.0);
    }

    /// Checks rows as they are, after kill -9 of all, and after a clean end, and then files. Every
    /// server is at a version after `committed`, the same.
    pub(crate) fn end(mut self, load: &Workload, committed: u32) -> Whole {
        self.check_each(load);
        for at in 0..N_SERVERS {
            self.take_out(at).kill();
        }
        self.heal();
        self.check_each(load);
        let client = Client::connect(&[self.near()], ClientConfig::default()).unwrap();
        let version = load.commit(&client).unwrap();
        assert!(version > committed, "version {version}, and {committed} was committed before");
        drop(client);
        self.stop_all();
        self.heal();
        self.check_each(load);
        for server in self.servers.iter().flatten() {
            assert_eq!(
                metric(server, "lodestore_version"),
                f64::from(version),
                "{}",
                server.address
            );
        }
        self.stop_all();
        for part in 0..N_PARTS {
            let n_owners = (0..N_SERVERS).filter(|&at| self.owns(at, part)).count();
            assert_eq!(n_owners, 1, "owners of partition {part}");
        }
        let mut bytes = 0;
        for (at, folder) in self.folders.iter().enumerate() {
            let parts: Vec<String> = self.parts_of(at).iter().map(ToString::to_string).collect();
            let verify = format!("verify {} --parts {} --json", folder.display(), parts.join(","));
            bytes += lode_line(&verify).succeeded().json()["bytes"].as_u64().unwrap();
        }
        Whole { version, bytes }
    }

    fn stop_all(&mut self) {
        std::thread::scope(|scope| {
            for server in &mut self.servers {
                let server = server.take().unwrap();
                check_compactions(&server);
                scope.spawn(|| server.stop());
            }
        });
    }
}
