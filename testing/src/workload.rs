//! Clients that put and pull rows whose every version is known. Writers own nodes of their own, and
//! each row says which writer put it in which turn. Every pull is compared with what was committed
//! before it and tried after it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use lodestore_client::{Client, ClientConfig, ClientError};
use lodestore_graph::NodeId;
use lodestore_graph::npy::NpyType;

use crate::process::lode_line;
use crate::{Numbers, write_npy};

pub const WIDTH: u32 = 26;
pub const ROW_BYTES: usize = WIDTH as usize * 4;
pub const N_WRITERS: u32 = 3;

/// Imports a ring of nodes, whose ids stay, to `dir/graph`: turn 0 of every row.
pub fn known_graph(dir: &Path, n_nodes: u32, n_parts: u16) -> PathBuf {
    let (edges, rows, graph) = (dir.join("edges.npy"), dir.join("feat.npy"), dir.join("graph"));
    let ring: Vec<[u32; 2]> = (0..n_nodes).map(|node| [node, (node + 1) % n_nodes]).collect();
    write_npy(&edges, NpyType::U32, &[n_nodes.into(), 2], &ring);
    let feat: Vec<u8> = (0..n_nodes).flat_map(|node| put_row(NodeId(node), 0)).collect();
    write_npy(&rows, NpyType::I32, &[n_nodes.into(), WIDTH.into()], &feat);
    lode_line(&format!(
        "import --edges {} --undirected --tensor feat={} --parts {n_parts} \
         --partitioner range --order input --out {}",
        edges.display(),
        rows.display(),
        graph.display()
    ))
    .succeeded();
    graph
}

/// Returns the row of `node` that was put as its writer's `turn`th.
pub fn put_row(node: NodeId, turn: u32) -> Vec<u8> {
    [node.0, turn].repeat(WIDTH as usize / 2).iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Acknowledged changes, tried ones, and the events.
pub struct Workload {
    n_nodes: u32,
    /// By node: the last turn whose put was acknowledged.
    acknowledged: Vec<AtomicU32>,
    /// By node: the last turn that was acknowledged before a commit was begun that has succeeded.
    committed: Vec<AtomicU32>,
    /// By writer: the turn that it tried last.
    tried: Vec<AtomicU32>,
    /// By writer: the last turn that was acknowledged, whole.
    finished: Vec<AtomicU32>,
    is_over: AtomicBool,
    pub counts: Counts,
}

#[derive(Default)]
pub struct Counts {
    pub puts: AtomicU64,
    pub rows_put: AtomicU64,
    pub puts_failed: AtomicU64,
    pub pulls: AtomicU64,
    pub rows_compared: AtomicU64,
    pub pulls_failed: AtomicU64,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Workload {
    pub fn new(n_nodes: u32) -> Self {
        let zeros = |n: u32| (0..n).map(|_| AtomicU32::new(0)).collect();
        assert_eq!(n_nodes % N_WRITERS, 0, "every node has one writer");
        Self {
            n_nodes,
            acknowledged: zeros(n_nodes),
            committed: zeros(n_nodes),
            tried: zeros(N_WRITERS),
            finished: zeros(N_WRITERS),
            is_over: AtomicBool::new(false),
            counts: Counts::default(),
        }
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Connects as often as it takes.
    pub fn client(&self, addresses: &[String], deadline: Duration) -> Option<Client> {
        let config = ClientConfig { deadline, ..ClientConfig::default() };
        while !self.is_over() {
            if let Ok(client) = Client::connect(addresses, config.clone()) {
                return Some(client);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }

    /// Puts rows of its own until the end, each turn until it is acknowledged.
    pub fn write(&self, client: &Client, writer: u32, failed: &dyn Fn(&ClientError)) {
        while !self.is_over() {
            self.try_put(client, writer).unwrap_or_else(|error| failed(&error));
        }
    }

    /// Puts the rows of a writer's next turn, or again those of its last if that was not
    /// acknowledged.
    pub fn try_put(&self, client: &Client, writer: u32) -> Result<(), ClientError> {
        let put = self.next_put(writer);
        put.send(client)?;
        put.acknowledge();
        Ok(())
    }

    /// Returns the rows of [`Self::try_put`].
    pub fn next_put(&self, writer: u32) -> Put<'_> {
        let turn = self.finished[writer as usize].load(Ordering::Relaxed) + 1;
        self.tried[writer as usize].store(turn, Ordering::Relaxed);
        let n_rows = [1, 30, 200][turn as usize % 3];
        let nodes = (0..n_rows).map(|i| (turn * 131 + i * 7) * N_WRITERS + writer);
        let mut ids: Vec<NodeId> = nodes.map(|node| NodeId(node % self.n_nodes)).collect();
        ids.sort_unstable();
        ids.dedup();
        let rows = ids.iter().flat_map(|&id| put_row(id, turn)).collect();
        Put { load: self, writer, turn, ids, rows }
    }

    /// Commits: no later pull may return rows older than those of puts acknowledged before.
    pub fn commit(&self, client: &Client) -> Result<u32, ClientError> {
        let turns: Vec<u32> =
            self.acknowledged.iter().map(|turn| turn.load(Ordering::Relaxed)).collect();
        let version = client.commit()?;
        for (committed, turn) in self.committed.iter().zip(turns) {
            committed.fetch_max(turn, Ordering::Relaxed);
        }
        Ok(version)
    }

    /// Returns for each writer its last turn that was acknowledged.
    pub fn finished(&self) -> Vec<u32> {
        self.finished.iter().map(|turn| turn.load(Ordering::Relaxed)).collect()
    }

    /// Pulls and compares until the end.
    pub fn read(&self, client: &Client, seed: u64, failed: &dyn Fn(&ClientError)) {
        let mut numbers = Numbers(seed);
        while !self.is_over() {
            let ids = self.some_ids(&mut numbers, &[1, 50, 700]);
            self.try_pull(client, &ids).unwrap_or_else(|error| failed(&error));
        }
    }

    /// Draws ids, with repetitions: as many as one of `counts`.
    pub fn some_ids(&self, numbers: &mut Numbers, counts: &[usize]) -> Vec<NodeId> {
        let n_rows = counts[numbers.below(counts.len() as u32) as usize];
        (0..n_rows).map(|_| NodeId(numbers.below(self.n_nodes))).collect()
    }

    /// Pulls every row once; fails the test unless all come.
    pub fn check_all(&self, client: &Client) {
        let ids: Vec<NodeId> = (0..self.n_nodes).map(NodeId).collect();
        self.check(client, &ids);
    }

    /// Pulls these rows; fails the test unless all come.
    pub fn check(&self, client: &Client, ids: &[NodeId]) {
        self.try_pull(client, ids).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Pulls rows and compares them with what was put; a row that must not be fails the test.
    pub fn try_pull(&self, client: &Client, ids: &[NodeId]) -> Result<(), ClientError> {
        let mut pull = self.pull(ids);
        pull.ask(client)?;
        pull.compare();
        Ok(())
    }

    /// Returns the pull of [`Self::try_pull`], not sent yet.
    pub fn pull<'a>(&'a self, ids: &'a [NodeId]) -> Pull<'a> {
        let committed = |id: &NodeId| self.committed[id.index()].load(Ordering::Relaxed);
        let before = ids.iter().map(committed).collect();
        Pull { load: self, ids, before, rows: vec![0xee; ids.len() * ROW_BYTES] }
    }
}

/// A writer's turn that is not acknowledged yet.
pub struct Put<'a> {
    load: &'a Workload,
    writer: u32,
    turn: u32,
    ids: Vec<NodeId>,
    rows: Vec<u8>,
}

impl Put<'_> {
    pub fn send(&self, client: &Client) -> Result<(), ClientError> {
        let sent = client.put_rows("feat", &self.ids, &self.rows);
        sent.inspect_err(|_| add(&self.load.counts.puts_failed, 1)).map(drop)
    }

    /// Acknowledges the turn: from the next commit on no pull may return older rows.
    pub fn acknowledge(self) {
        add(&self.load.counts.puts, 1);
        add(&self.load.counts.rows_put, self.ids.len() as u64);
        for id in self.ids {
            self.load.acknowledged[id.index()].store(self.turn, Ordering::Relaxed);
        }
        self.load.finished[self.writer as usize].store(self.turn, Ordering::Relaxed);
    }
}

/// Rows that are asked for, and what was committed of each before.
pub struct Pull<'a> {
    load: &'a Workload,
    ids: &'a [NodeId],
    before: Vec<u32>,
    rows: Vec<u8>,
}

impl Pull<'_> {
    pub fn ask(&mut self, client: &Client) -> Result<(), ClientError> {
        let asked = client.sync_pull("feat", self.ids, &mut self.rows);
        asked.inspect_err(|_| add(&self.load.counts.pulls_failed, 1)).map(drop)
    }

    /// Compares the rows, once they have arrived.
    pub fn compare(self) {
        let Self { load, ids, before, rows } = self;
        for ((row, &id), before) in rows.chunks_exact(ROW_BYTES).zip(ids).zip(before) {
            let tried = load.tried[(id.0 % N_WRITERS) as usize].load(Ordering::Relaxed);
            let turn = u32::from_le_bytes(row[4..8].try_into().unwrap());
            assert!(row == put_row(id, turn), "node {id} is a mix: {row:?}");
            assert!(
                (before..=tried).contains(&turn),
                "node {id}: {turn}, and {before} was committed before, {tried} tried last"
            );
        }
        add(&load.counts.pulls, 1);
        add(&load.counts.rows_compared, ids.len() as u64);
    }
}

/// The others end with this thread, however that ends.
pub struct EndOnDrop<'a>(pub &'a Workload);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}
