//! Four servers of one graph, and maps in files: of their Unix sockets, and of the relays before
//! their ports.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use lodestore_client::transfer::{PartitionTransfer, TransferPlan};
use lodestore_client::{Address, Client, ClientConfig, ClientError};
use lodestore_graph::PartId;
use tempfile::TempDir;

use crate::DEADLINE;
use crate::relay::Relay;
use testing::Numbers;
use testing::mount::Disk;
use testing::process::Serving;
use testing::workload::known_graph;

pub(crate) const N_SERVERS: usize = 4;
pub(crate) const N_PARTS: u16 = 6;
/// The server with a disk of its own, which is filled at times.
pub(crate) const ON_DISK: usize = 2;
/// The server that is never killed nor started again: what it takes of memory and descriptors in
/// all that time is bounded.
pub(crate) const STEADY: usize = 3;
/// Bytes of the disk; its image takes no more room than the written data.
const DISK_BYTES: u64 = 1 << 30;
/// Below those that the system hands out for any, so that a server finds its port again.
const PORTS: (u32, u32) = (20_000, 12_000);
/// Memory for resident rows, by server: none, some, and enough to share some with clients of the
/// machine.
const MEMORY: [&str; N_SERVERS] = ["100KiB", "0", "32MiB", "64MiB"];

pub(crate) struct Cluster {
    /// `None` for one that is down.
    pub(crate) servers: [Option<Serving>; N_SERVERS],
    pub(crate) relays: [Relay; N_SERVERS],
    pub(crate) folders: [PathBuf; N_SERVERS],
    ports: [u16; N_SERVERS],
    /// `None` where the system has none.
    pub(crate) disk: Option<Disk>,
    dir: TempDir,
}

impl Cluster {
    pub(crate) fn start(n_nodes: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let graph = known_graph(dir.path(), n_nodes, N_PARTS);
        let disk = Disk::ext4(DISK_BYTES);
        let folders = std::array::from_fn(|at| match &disk {
            Some(disk) if at == ON_DISK => disk.path(&format!("server-{at}")),
            _ => dir.path().join(format!("server-{at}")),
        });
        for (at, folder) in folders.iter().enumerate() {
            std::fs::create_dir(folder).unwrap();
            std::fs::copy(graph.join("graph.toml"), folder.join("graph.toml")).unwrap();
            for part in 0..N_PARTS {
                if usize::from(part) % N_SERVERS == at {
                    let name = format!("part-{part:03}");
                    copy_dir(&graph.join(&name), &folder.join(&name));
                }
            }
        }
        // Others on this machine may have the same seed, and in namespaces the same process id.
        let mut numbers = Numbers(RandomState::new().build_hasher().finish());
        let relays = std::array::from_fn(|at| Relay::new(Ipv4Addr::new(127, 0, 0, 11 + at as u8)));
        // Each is held until all are drawn, so that no two are the same.
        let held: [TcpListener; N_SERVERS] = std::array::from_fn(|_| free_port(&mut numbers));
        let ports = held.map(|listener| listener.local_addr().unwrap().port());
        let servers = [const { None }; N_SERVERS];
        let mut this = Self { servers, relays, folders, ports, disk, dir };
        (0..N_SERVERS).for_each(|at| this.start_server(at));
        this.write_maps([0, 1, 2, 3]);
        this
    }

    /// Returns the map of the relays.
    pub(crate) fn far(&self) -> String {
        format!("map:{}", self.dir.path().join("far").display())
    }

    /// Returns the map of the Unix sockets.
    pub(crate) fn near(&self) -> String {
        format!("map:{}", self.dir.path().join("near").display())
    }

    /// Returns the Unix socket of a server.
    pub(crate) fn socket(&self, at: usize) -> String {
        format!("unix:{}", self.dir.path().join(format!("{at}.sock")).display())
    }

    fn address(&self, at: usize) -> Address {
        Address::Tcp((Ipv4Addr::LOCALHOST, self.ports[at]).into())
    }

    /// Writes both maps, with the servers in this order.
    pub(crate) fn write_maps(&self, order: [usize; N_SERVERS]) {
        let far = order.map(|at| format!("127.0.0.{}:{}", 11 + at, self.ports[at]));
        let near = order.map(|at| self.socket(at));
        for (name, lines) in [("far", far), ("near", near)] {
            let (new, map) = (self.dir.path().join("map.new"), self.dir.path().join(name));
            std::fs::write(&new, lines.join("\n")).unwrap();
            std::fs::rename(new, map).unwrap();
        }
    }

    pub(crate) fn start_server(&mut self, at: usize) {
        self.try_start_server(at).unwrap_or_else(|log| panic!("server {at}: {log}"));
    }

    /// Returns the log of one that does not start.
    pub(crate) fn try_start_server(&mut self, at: usize) -> Result<(), String> {
        let (folder, memory, listen) = (self.folders[at].display(), MEMORY[at], self.address(at));
        let socket = self.socket(at);
        self.servers[at] = Some(Serving::try_start_command(&format!(
            "serve {folder} --json --local-parts --writable --insecure --shards 1 --memory {memory} \
             --log-level error --listen {listen} --metrics 127.0.0.1:0 --unix {}",
            &socket["unix:".len()..]
        ))?);
        let port = |door: Address| match door {
            Address::Tcp(address) => address.port(),
            other => panic!("{other}"),
        };
        let doors = self.direct(at).endpoints();
        self.relays[at].face(&doors.into_iter().map(port).collect::<Vec<_>>());
        Ok(())
    }

    /// Asserts that no process has ended by itself.
    pub(crate) fn check_running(&mut self) {
        for (at, server) in self.servers.iter_mut().enumerate() {
            let server = server.as_mut().unwrap_or_else(|| panic!("server {at} is down"));
            if let Some(how) = server.ended() {
                panic!("server {at} has ended by itself, {how}");
            }
        }
    }

    /// Connects to one server alone, past its relay.
    pub(crate) fn direct(&self, at: usize) -> Client {
        Client::connect(&[self.address(at).to_string()], ClientConfig::default()).unwrap()
    }

    /// Returns whether a server's folder owns a partition.
    pub(crate) fn owns(&self, at: usize, part: u16) -> bool {
        self.folders[at].join(format!("part-{part:03}")).exists()
    }

    pub(crate) fn parts_of(&self, at: usize) -> Vec<u16> {
        (0..N_PARTS).filter(|&part| self.owns(at, part)).collect()
    }

    /// Returns the plan of a partition's move between two servers that run.
    pub(crate) fn plan(&self, from: usize, part: u16, to: usize) -> TransferPlan {
        TransferPlan {
            from: self.address(from),
            part: PartId(part),
            into: self.folders[to].clone(),
            to: Some(self.address(to)),
            unserved: false,
            keep: false,
            config: ClientConfig { deadline: DEADLINE, ..ClientConfig::default() },
        }
    }

    /// Removes released folders, as operators do, once another server has the partition.
    pub(crate) fn tidy(&self) {
        for (at, folder) in self.folders.iter().enumerate() {
            for name in testing::names_in(folder) {
                let Some((part, _)) = name.split_once(".moved-") else { continue };
                let part: u16 = part["part-".len()..].parse().unwrap();
                if (0..N_SERVERS).any(|other| other != at && self.owns(other, part)) {
                    std::fs::remove_dir_all(folder.join(name)).unwrap();
                }
            }
        }
    }

    /// Restarts servers that are down, and takes up moves that were cut off.
    pub(crate) fn heal(&mut self) {
        for at in 0..N_SERVERS {
            if self.servers[at].is_none() {
                self.start_server(at);
            }
        }
        for to in 0..N_SERVERS {
            for name in testing::names_in(&self.folders[to]) {
                let Some((part, _)) = name.split_once(".copy-") else { continue };
                let part: u16 = part["part-".len()..].parse().unwrap();
                if let Err(error) = self.take_up(part, to, &name) {
                    self.check_running();
                    panic!("{error}");
                }
            }
        }
    }

    /// Continues a move that was cut off, from the server that has the partition, or had it.
    fn take_up(&self, part: u16, to: usize, name: &str) -> Result<(), ClientError> {
        let id = name.split_once(".copy-").unwrap().1;
        let given_up = |at: usize| self.folders[at].join(format!("part-{part:03}.moved-{id}"));
        let others = || (0..N_SERVERS).filter(|&at| at != to);
        let had = others().find(|&at| given_up(at).exists());
        // The one of two that has more: every server keeps something.
        let owners = || others().filter(|&at| self.owns(at, part));
        let owner = || owners().max_by_key(|&at| self.parts_of(at).len());
        let Some(from) = had.or_else(owner) else {
            panic!("partition {part} is nowhere, and {name} is left");
        };
        if self.owns(to, part) && had.is_none() {
            // A holder of its own; what is left of an attempt is not wanted any more.
            std::fs::remove_dir_all(self.folders[to].join(name)).unwrap();
            return Ok(());
        }
        // Leftovers of an earlier run may be of another holder, whose files have the same names.
        // The check finds that, and the next run begins from nothing.
        let run = || PartitionTransfer::run(self.plan(from, part, to), &mut |_, _| {});
        run().or_else(|_| run()).map(drop)
    }
}

/// Returns a port without another listener.
fn free_port(numbers: &mut Numbers) -> TcpListener {
    let ports = std::iter::repeat_with(|| (PORTS.0 + numbers.below(PORTS.1)) as u16);
    let mut ports = ports.take(1000);
    ports.find_map(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).ok()).unwrap()
}

fn copy_dir(from: &Path, to: &Path) {
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
