//! Loading of partitions ahead of their turns.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::Scope;
use std::time::Instant;

use lodestore_graph::NodeId;

use super::residents::{Admission, Residents};
use super::{LocalPartition, PartitionSource};
use crate::error::ClientError;
use crate::prefetch::BatchReadiness;

/// A partition of a worker, and the nodes that its local model trains on.
#[derive(Clone, Debug)]
pub struct Turn {
    /// The partition.
    pub part: u32,
    /// The nodes to train on, all of them its own.
    pub roots: Arc<[NodeId]>,
    /// Bytes in memory.
    pub n_bytes: u64,
}

/// The partitions of a worker, each in its turn.
pub struct Turns {
    partitions: Receiver<Result<Ready, ClientError>>,
    /// Marks a partition as no longer used.
    released: Sender<()>,
}

/// A partition in its turn.
pub struct Ready {
    /// The partition with its halo.
    pub partition: Arc<LocalPartition>,
    /// Whether it was loaded for this turn.
    pub is_new: bool,
    /// Bytes of all partitions in memory.
    pub held_bytes: u64,
}

impl Turns {
    /// Begins to load, on a thread: `turns` again and again, from turn `first` on until `n_turns`
    /// are over, within `budget` bytes. Without a budget any two partitions fit.
    ///
    /// # Panics
    ///
    /// If one partition alone is larger than the budget.
    pub fn start<'scope, 'env>(
        scope: &'scope Scope<'scope, 'env>,
        source: PartitionSource<'scope>,
        turns: Vec<Turn>,
        range: Range<usize>,
        budget: Option<u64>,
    ) -> Self {
        let (outbox, partitions) = sync_channel(1);
        let (released, releases) = channel();
        scope.spawn(move || {
            let sizes = turns.iter().map(|turn| turn.n_bytes).collect();
            let residents = Residents::new(sizes, budget);
            let held = vec![None; turns.len()];
            Loader { source, turns, residents, held, outbox, releases }.run(range);
        });
        Self { partitions, released }
    }

    /// Returns the next partition, its readiness, and the seconds waited. The previous partition must
    /// be released.
    ///
    /// # Errors
    /// Those of [`PartitionSource::load`]. There is no turn after one that failed.
    pub fn next(&self) -> Result<(Ready, BatchReadiness, f64), ClientError> {
        let start = Instant::now();
        let (ready, met) = match self.partitions.try_recv() {
            Ok(ready) => (Some(ready), BatchReadiness::Ready),
            Err(TryRecvError::Empty) => (self.partitions.recv().ok(), BatchReadiness::Waited),
            Err(TryRecvError::Disconnected) => (None, BatchReadiness::Waited),
        };
        let Some(ready) = ready else { unreachable!("as many turns as orders") };
        Ok((ready?, met, start.elapsed().as_secs_f64()))
    }

    /// Releases the present partition.
    pub fn release(&self, ready: Ready) {
        drop(ready);
        // The loader may have ended.
        let _ = self.released.send(());
    }
}

/// The thread that loads.
struct Loader<'run> {
    source: PartitionSource<'run>,
    turns: Vec<Turn>,
    residents: Residents,
    held: Vec<Option<Arc<LocalPartition>>>,
    outbox: SyncSender<Result<Ready, ClientError>>,
    releases: Receiver<()>,
}

impl Loader<'_> {
    fn run(mut self, range: Range<usize>) {
        let mut present = None;
        for turn in range {
            let next = turn % self.turns.len();
            let mut admission = self.residents.admit(next, present);
            if admission == Admission::Wait {
                if self.releases.recv().is_err() {
                    return;
                }
                present = None;
                admission = self.residents.admit(next, None);
            }
            let ready = self.ready(next, admission);
            let is_error = ready.is_err();
            if self.outbox.send(ready).is_err() || is_error {
                return;
            }
            // One partition ahead of the present one.
            if present.is_some() && self.releases.recv().is_err() {
                return;
            }
            present = Some(next);
        }
    }

    fn ready(&mut self, next: usize, admission: Admission) -> Result<Ready, ClientError> {
        let is_new = match admission {
            Admission::Resident => false,
            Admission::Load(gone) => {
                gone.into_iter().for_each(|turn| self.held[turn] = None);
                let Turn { part, roots, .. } = &self.turns[next];
                self.held[next] = Some(Arc::new(self.source.load(*part, roots)?));
                true
            }
            Admission::Wait => unreachable!("each partition fits alone"),
        };
        let Some(partition) = self.held[next].clone() else {
            unreachable!("what is resident is held")
        };
        let held_bytes = self.held.iter().flatten().map(|held| held.n_bytes()).sum();
        debug_assert_eq!(held_bytes, self.residents.held(), "partitions take what was planned");
        Ok(Ready { partition, is_new, held_bytes })
    }
}
