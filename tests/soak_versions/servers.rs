//! The writer and its followers, and what happens to them.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use lodestore_graph::NodeId;
use lodestore_graph::npy::NpyType;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::ROW_BYTES;
use crate::history::row_of;
use testing::process::{Serving, lode_line, signal};
use testing::{Numbers, write_npy};

pub(crate) const N_SERVERS: usize = 3;
pub(crate) const WRITER: usize = 0;
/// The server that is never killed, for the reader that pins.
const STEADY: usize = 2;
/// Memory for resident rows: a part of them.
const MEMORY: &str = "1MiB";

/// Running servers of one graph.
pub(crate) struct Servers {
    running: [Option<Serving>; N_SERVERS],
    folders: [PathBuf; N_SERVERS],
    addresses: [String; N_SERVERS],
    n_killed: [u32; N_SERVERS],
    n_stopped: u32,
    n_compactions: u32,
    _dir: TempDir,
}

impl Servers {
    pub(crate) fn start(n_nodes: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let ring: Vec<[u32; 2]> = (0..n_nodes).map(|node| [node, (node + 1) % n_nodes]).collect();
        write_npy(&path("edges.npy"), NpyType::U32, &[n_nodes.into(), 2], &ring);
        let rows: Vec<u8> = (0..n_nodes).flat_map(|node| row_of(NodeId(node), 0)).collect();
        let shape = [n_nodes.into(), (ROW_BYTES / 4) as u64];
        write_npy(&path("rows.npy"), NpyType::I32, &shape, &rows);
        let folders = std::array::from_fn(|at| path(&format!("server-{at}")));
        lode_line(&format!(
            "import --edges {} --undirected --tensor feat={2} --tensor packed={2} --codec packed=zstd \
             --parts 2 --partitioner range --order input --out {1}",
            path("edges.npy").display(),
            folders[WRITER].display(),
            path("rows.npy").display(),
        ))
        .succeeded();
        let mut this = Self {
            running: [const { None }; N_SERVERS],
            folders,
            addresses: [const { String::new() }; N_SERVERS],
            n_killed: [0; N_SERVERS],
            n_stopped: 0,
            n_compactions: 0,
            _dir: dir,
        };
        (0..N_SERVERS).for_each(|at| this.start_one(at));
        this
    }

    pub(crate) fn addresses(&self) -> [String; N_SERVERS] {
        self.addresses.clone()
    }

    /// Starts a server, under its address if it had one.
    fn start_one(&mut self, at: usize) {
        let listen = match self.addresses[at].as_str() {
            "" => "127.0.0.1:0",
            address => address,
        };
        let role = match at {
            WRITER => "--writable --insecure".to_owned(),
            _ => format!("--follow {} --follow-interval 20", self.addresses[WRITER]),
        };
        let more =
            format!("{role} --shards 1 --memory {MEMORY} --log-level error --listen {listen}");
        let server = Serving::start(&self.folders[at], &more);
        self.addresses[at].clone_from(&server.address);
        self.running[at] = Some(server);
    }

    /// Kills a server and starts it again, stops one for a moment, or has the writer compact.
    pub(crate) fn fault(&mut self, numbers: &mut Numbers) {
        let pause = Duration::from_millis(u64::from(numbers.below(300)));
        match numbers.below(6) {
            0 => self.kill(WRITER, pause),
            1 | 2 => self.kill(1, pause),
            at @ (3 | 4) => {
                let child =
                    &self.running[if at == 3 { WRITER } else { STEADY }].as_ref().unwrap().child;
                signal(child, Signal::STOP);
                thread::sleep(pause);
                signal(child, Signal::CONT);
                self.n_stopped += 1;
            }
            _ => {
                let compact = format!("compact --connect {}", self.addresses[WRITER]);
                if lode_line(&compact).code == Some(0) {
                    self.n_compactions += 1;
                }
            }
        }
    }

    fn kill(&mut self, at: usize, pause: Duration) {
        self.running[at].take().unwrap().kill();
        self.n_killed[at] += 1;
        thread::sleep(pause);
        self.start_one(at);
    }

    pub(crate) fn faults(&self) -> String {
        let [writer, follower, _] = self.n_killed;
        let (stopped, compactions) = (self.n_stopped, self.n_compactions);
        format!(
            "the writer was killed {writer} times, a follower {follower}, {stopped} stops, \
             {compactions} compactions"
        )
    }

    pub(crate) fn stop(self) {
        self.running.into_iter().flatten().for_each(Serving::stop);
    }
}
