//! Puts of clients that overlap, and which of them a row may be of.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lodestore_graph::NodeId;

use crate::ROW_BYTES;

pub(crate) const N_CLIENTS: u32 = 2;
pub(crate) const TENSORS: [&str; 2] = ["feat", "packed"];
/// End of a put that is not acknowledged yet.
const OPEN: u64 = u64::MAX;

/// Times at which each put began and was acknowledged, and the last acknowledged put of each row.
pub(crate) struct History {
    n_nodes: u32,
    clock: AtomicU64,
    /// By client and turn; turn 0 is the import.
    spans: [Mutex<Vec<Range<u64>>>; N_CLIENTS as usize],
    /// By client, tensor and node: the last acknowledged turn.
    acknowledged: [Vec<AtomicU32>; N_CLIENTS as usize],
}

/// One client's put of a turn.
pub(crate) struct Put {
    client: u32,
    turn: u32,
    n_nodes: u32,
}

impl History {
    pub(crate) fn new(n_nodes: u32) -> Self {
        let zeros = || (0..2 * n_nodes).map(|_| AtomicU32::new(0)).collect();
        let spans = std::array::from_fn(|_| Mutex::new(Vec::from([Range::default()])));
        Self { n_nodes, clock: AtomicU64::new(1), spans, acknowledged: [zeros(), zeros()] }
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    pub(crate) fn begin(&self, client: u32, turn: u32) -> Put {
        self.spans[client as usize].lock().unwrap().push(self.now()..OPEN);
        Put { client, turn, n_nodes: self.n_nodes }
    }

    pub(crate) fn acknowledge(&self, put: &Put) {
        self.spans[put.client as usize].lock().unwrap()[put.turn as usize].end = self.now();
        let last = &self.acknowledged[put.client as usize];
        for id in put.ids() {
            last[put.cell(id)].store(put.turn, Ordering::SeqCst);
        }
    }

    /// Returns for each client the last acknowledged turn of each row.
    pub(crate) fn acknowledged(&self) -> [Vec<u32>; N_CLIENTS as usize] {
        let load = |turn: &AtomicU32| turn.load(Ordering::SeqCst);
        self.acknowledged.each_ref().map(|turns| turns.iter().map(load).collect())
    }

    pub(crate) fn n_puts(&self) -> usize {
        self.spans.iter().map(|spans| spans.lock().unwrap().len() - 1).sum()
    }

    /// Checks the rows of each tensor after a commit; `before` was acknowledged before it.
    pub(crate) fn check(&self, rows: &[Vec<u8>], before: &[Vec<u32>; N_CLIENTS as usize]) {
        let spans = self.spans.each_ref().map(|spans| spans.lock().unwrap().clone());
        for (rows, tensor) in rows.iter().zip(0..) {
            for (row, node) in rows.chunks_exact(ROW_BYTES).zip(0..self.n_nodes) {
                let stamp = u32::from_le_bytes(row[4..8].try_into().unwrap());
                assert!(row == row_of(NodeId(node), stamp), "node {node} is a mix: {row:?}");
                let (client, turn) = (stamp % N_CLIENTS, stamp / N_CLIENTS);
                let put = Put { client, turn, n_nodes: self.n_nodes };
                let is_known = (turn as usize) < spans[client as usize].len();
                assert!(is_known && (turn == 0 || put.has(tensor, node)), "node {node}: {stamp}");
                let own = spans[client as usize][turn as usize].clone();
                for other in 0..N_CLIENTS {
                    let last = before[other as usize][(tensor * self.n_nodes + node) as usize];
                    let is_later = spans[other as usize][last as usize].start > own.end;
                    assert!(
                        last == 0 || (other == client && turn >= last) || !is_later,
                        "{} of node {node}: turn {turn} of client {client}, acknowledged before \
                         turn {last} of client {other} began, which was before the commit",
                        TENSORS[tensor as usize]
                    );
                    assert!(other != client || turn >= last, "node {node}: {turn} after {last}");
                }
            }
        }
    }
}

impl Put {
    fn tensor_at(&self) -> u32 {
        self.turn % 2
    }

    pub(crate) fn tensor(&self) -> &'static str {
        TENSORS[self.tensor_at() as usize]
    }

    /// Returns whether the put has this row.
    fn has(&self, tensor: u32, node: u32) -> bool {
        let (first, n_rows, step) = self.shape();
        let from = (node + self.n_nodes - first) % self.n_nodes;
        tensor == self.tensor_at() && from.is_multiple_of(step) && from / step < n_rows
    }

    /// Returns the first node, number of rows, and distance between two.
    fn shape(&self) -> (u32, u32, u32) {
        let n_rows = [1, 40, self.n_nodes / 16, self.n_nodes / 4][(self.turn / 2 % 4) as usize];
        let step = [1, 3][(self.turn / 8 % 2) as usize];
        ((self.turn / 4 * 997 + self.client * 13) % self.n_nodes, n_rows, step)
    }

    pub(crate) fn ids(&self) -> Vec<NodeId> {
        let (first, n_rows, step) = self.shape();
        (0..n_rows).map(|i| NodeId((first + i * step) % self.n_nodes)).collect()
    }

    pub(crate) fn rows(&self) -> Vec<u8> {
        let stamp = self.turn * N_CLIENTS + self.client;
        self.ids().into_iter().flat_map(|id| row_of(id, stamp)).collect()
    }

    fn cell(&self, id: NodeId) -> usize {
        (self.tensor_at() * self.n_nodes + id.0) as usize
    }
}

/// Returns the row of a node that the put with this stamp has; stamp 0 is the import's.
pub(crate) fn row_of(node: NodeId, stamp: u32) -> [u8; ROW_BYTES] {
    let mut row = [0; ROW_BYTES];
    for pair in row.chunks_exact_mut(8) {
        pair[..4].copy_from_slice(&node.0.to_le_bytes());
        pair[4..].copy_from_slice(&stamp.to_le_bytes());
    }
    row
}
