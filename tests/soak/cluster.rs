//! Three servers of one graph, of whose partitions one is on two of them, and a map in a file.

use std::path::PathBuf;
use std::time::Duration;

use lodestore_client::{Client, ClientConfig, MovePlan, RowSource};
use lodestore_graph::{NodeId, PartId};
use tempfile::TempDir;

use crate::DEADLINE;
use crate::support::process::Serving;
use crate::support::workload::{Workload, known_graph};

pub(crate) const N_SERVERS: usize = 3;
pub(crate) const N_PARTS: u16 = 5;
/// Held by two servers; the others by one.
pub(crate) const REPLICATED: u16 = 0;

pub(crate) struct Cluster {
    dir: TempDir,
    pub(crate) folders: [PathBuf; N_SERVERS],
    /// `None` for one that is down.
    pub(crate) servers: [Option<Serving>; N_SERVERS],
    addresses: [String; N_SERVERS],
}

/// What was found when all was over.
pub(crate) struct Whole {
    pub(crate) version: u32,
    pub(crate) bytes: u64,
}

impl Cluster {
    pub(crate) fn start(n_nodes: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let graph = known_graph(dir.path(), n_nodes, N_PARTS);
        let folders = [0, 1, 2].map(|at| dir.path().join(format!("server-{at}")));
        for (at, folder) in folders.iter().enumerate() {
            std::fs::create_dir(folder).unwrap();
            std::fs::copy(graph.join("graph.toml"), folder.join("graph.toml")).unwrap();
            for part in 0..N_PARTS {
                let holds = usize::from(part) % N_SERVERS == at || (part == REPLICATED && at == 1);
                if holds {
                    let name = format!("part-{part:03}");
                    copy_dir(&graph.join(&name), &folder.join(&name));
                }
            }
        }
        let addresses = [(); N_SERVERS].map(|()| "127.0.0.1:0".to_owned());
        let servers = [None, None, None];
        let mut this = Self { dir, folders, servers, addresses };
        (0..N_SERVERS).for_each(|at| this.start_server(at));
        this.write_map(&[0, 1, 2]);
        this
    }

    /// As clients are told of it.
    pub(crate) fn map(&self) -> String {
        format!("map:{}", self.dir.path().join("map").display())
    }

    /// Names the servers in this order.
    pub(crate) fn write_map(&self, order: &[usize]) {
        let lines: Vec<&str> = order.iter().map(|&at| self.addresses[at].as_str()).collect();
        let (new, map) = (self.dir.path().join("map.new"), self.dir.path().join("map"));
        std::fs::write(&new, lines.join("\n")).unwrap();
        std::fs::rename(new, map).unwrap();
    }

    pub(crate) fn start_server(&mut self, at: usize) {
        let more = format!(
            "--parts-here --writable --shards 1 --memory 1MiB --log-level error --listen {}",
            self.addresses[at]
        );
        let server = Serving::start(&self.folders[at], &more);
        self.addresses[at].clone_from(&server.address);
        self.servers[at] = Some(server);
    }

    /// Whether a server's folder owns a partition.
    pub(crate) fn owns(&self, at: usize, part: u16) -> bool {
        self.folders[at].join(format!("part-{part:03}")).exists()
    }

    /// A move of a partition between two servers that run.
    pub(crate) fn plan(&self, from: usize, part: u16, to: usize) -> MovePlan {
        let config = ClientConfig { deadline: DEADLINE, ..ClientConfig::default() };
        MovePlan {
            from: self.addresses[from].parse().unwrap(),
            part: PartId(part),
            into: self.folders[to].clone(),
            to: Some(self.addresses[to].parse().unwrap()),
            unserved: false,
            keep: false,
            config,
        }
    }

    /// A client that gives up soon.
    pub(crate) fn client(&self) -> Option<Client> {
        let config = ClientConfig { deadline: Duration::from_secs(3), ..ClientConfig::default() };
        Client::connect(&[self.map()], config).ok()
    }

    /// What operators remove: folders that were given up, once somebody has the partition.
    pub(crate) fn tidy(&self) {
        for (at, folder) in self.folders.iter().enumerate() {
            for name in crate::support::names_in(folder) {
                let Some((part, _)) = name.split_once(".moved-") else { continue };
                let part: u16 = part["part-".len()..].parse().unwrap();
                if (0..N_SERVERS).any(|other| other != at && self.owns(other, part)) {
                    std::fs::remove_dir_all(folder.join(name)).unwrap();
                }
            }
        }
    }

    /// Brings back whoever is down, and takes up moves that were cut off.
    pub(crate) fn heal(&mut self) {
        for at in 0..N_SERVERS {
            if self.servers[at].is_none() {
                self.start_server(at);
            }
        }
        self.write_map(&[0, 1, 2]);
        for to in 0..N_SERVERS {
            for name in crate::support::names_in(&self.folders[to]) {
                let Some((part, _)) = name.split_once(".copy-") else { continue };
                let part: u16 = part["part-".len()..].parse().unwrap();
                self.take_up(part, to, &name);
            }
        }
    }

    /// Goes on with a move that was cut off, from the server that has the partition, or had it.
    fn take_up(&self, part: u16, to: usize, name: &str) {
        let id = name.split_once(".copy-").unwrap().1;
        let given_up = |at: usize| self.folders[at].join(format!("part-{part:03}.moved-{id}"));
        let others = || (0..N_SERVERS).filter(|&at| at != to);
        let had = others().find(|&at| given_up(at).exists());
        let Some(from) = had.or_else(|| others().find(|&at| self.owns(at, part))) else {
            panic!("partition {part} is nowhere, and {name} is left");
        };
        if self.owns(to, part) && had.is_none() {
            // A holder of its own; what is left of an attempt is not wanted any more.
            std::fs::remove_dir_all(self.folders[to].join(name)).unwrap();
            return;
        }
        // What an earlier run left may be of another holder, whose files have the same names: the
        // check finds that, and the next run begins from nothing.
        let run = || lodestore_client::PartMove::run(self.plan(from, part, to), &mut |_, _| {});
        run().or_else(|_| run()).unwrap();
    }

    /// Every server has what was acknowledged of each of its partitions, the replicas too.
    pub(crate) fn check_each(&self, load: &Workload) {
        for (at, address) in self.addresses.iter().enumerate() {
            let client = Client::connect(&[address], ClientConfig::default()).unwrap();
            for part in (0..N_PARTS).filter(|&part| self.owns(at, part)) {
                let ids = client.book().range(PartId(part)).map(NodeId).collect::<Vec<_>>();
                load.check(&client, &ids);
            }
        }
    }

    /// Stops all cleanly, and reads all files.
    pub(crate) fn stop_and_verify(mut self) -> Whole {
        let client = self.client().unwrap();
        let version = client.commit().unwrap();
        drop(client);
        for server in &mut self.servers {
            server.take().unwrap().stop();
        }
        let mut bytes = 0;
        for part in 0..N_PARTS {
            let n_owners = (0..N_SERVERS).filter(|&at| self.owns(at, part)).count();
            let expected = if part == REPLICATED { 2 } else { 1 };
            assert_eq!(n_owners, expected, "owners of partition {part}");
        }
        for folder in &self.folders {
            let report = lodestore_store::verify(folder, &mut |_, _| {}).unwrap();
            assert!(report.damaged.is_empty(), "{report:?}");
            bytes += report.bytes;
        }
        Whole { version, bytes }
    }
}

fn copy_dir(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), &to).unwrap();
        }
    }
}
