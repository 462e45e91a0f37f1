//! A priority queue of nodes whose keys change: a binary heap that knows where each node is.

/// Not in the queue.
const ABSENT: u32 = u32::MAX;

/// Nodes by key, the largest first; of equal keys the one that was hashed higher.
#[derive(Debug)]
pub(super) struct Queue {
    /// The heap: each entry is not before its parent at (i − 1) / 2.
    heap: Vec<(i64, u32)>,
    /// Where each node is in the heap.
    places: Vec<u32>,
}

impl Queue {
    /// Returns an empty queue for nodes below `n_nodes`.
    pub(super) fn new(n_nodes: u32) -> Self {
        Self { heap: Vec::new(), places: vec![ABSENT; n_nodes as usize] }
    }

    pub(super) fn clear(&mut self) {
        for (_, node) in self.heap.drain(..) {
            self.places[node as usize] = ABSENT;
        }
    }

    /// Returns the key of `node`, if it is queued.
    pub(super) fn key(&self, node: u32) -> Option<i64> {
        let place = self.places[node as usize];
        (place != ABSENT).then(|| self.heap[place as usize].0)
    }

    /// Queues `node`, or changes its key.
    pub(super) fn set(&mut self, node: u32, key: i64) {
        match self.places[node as usize] {
            ABSENT => {
                self.places[node as usize] = self.heap.len() as u32;
                self.heap.push((key, node));
                self.rise(self.heap.len() - 1);
            }
            place => {
                let old = std::mem::replace(&mut self.heap[place as usize].0, key);
                if key > old { self.rise(place as usize) } else { self.sink(place as usize) }
            }
        }
    }

    /// Takes the node of the largest key.
    pub(super) fn pop(&mut self) -> Option<(i64, u32)> {
        let last = self.heap.pop()?;
        let Some(first) = self.heap.first_mut() else {
            self.places[last.1 as usize] = ABSENT;
            return Some(last);
        };
        let top = std::mem::replace(first, last);
        self.places[top.1 as usize] = ABSENT;
        self.places[last.1 as usize] = 0;
        self.sink(0);
        Some(top)
    }

    fn rise(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.heap[parent] >= self.heap[at] {
                break;
            }
            self.swap(at, parent);
            at = parent;
        }
    }

    fn sink(&mut self, mut at: usize) {
        loop {
            let left = 2 * at + 1;
            let children = left..(left + 2).min(self.heap.len());
            let Some(child) = children.max_by_key(|&child| self.heap[child]) else { return };
            if self.heap[child] <= self.heap[at] {
                return;
            }
            self.swap(at, child);
            at = child;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.places[self.heap[a].1 as usize] = a as u32;
        self.places[self.heap[b].1 as usize] = b as u32;
    }
}
