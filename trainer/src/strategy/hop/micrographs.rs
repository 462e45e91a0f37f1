//! The micrographs that a worker trains on (HopGNN, sections 5.1 and 5.2).

use std::{collections::VecDeque, ops::Range, sync::Arc, time::Instant};

use lodestore_client::buffer::RowBuffer;
use lodestore_client::load_stats::LoadStats;
use lodestore_client::prefetch::{BatchReadiness, PrefetchStats};
use lodestore_client::{BatchLoader, ClientError};
use lodestore_graph::{NodeId, batch::Batch, sampler::Sampler};

use super::{Iteration, iteration::TimeStep};
use crate::error::TrainError;
use crate::features::FeatureRows;
use crate::worker::{BatchBytes, LoadedBatch, StepOrder, StepRows, WorkerBatches};

/// The micrographs of the roots that a worker trains on, by time step.
pub(super) struct Micrographs<'a> {
    worker: u32,
    sampler: Sampler<'a>,
    loader: BatchLoader,
    /// Whether one pull loads the rows of a whole iteration.
    pregather: bool,
    /// Micrographs of the present iteration with loaded rows.
    ready: VecDeque<Micrograph>,
    /// Memory for rows, reused by each iteration.
    rows: Arc<RowBuffer>,
    /// How ready batches were so far.
    stats: PrefetchStats,
}

/// Micrograph that a worker trains on next: that of a time step of an iteration.
#[derive(Clone, Debug)]
pub(super) struct MicrographOrder {
    pub(super) iteration: Arc<Iteration>,
    /// Which of its time steps.
    pub(super) at: usize,
}

/// The sampled neighbourhood of the roots of a time step, and the times of its preparation.
struct Micrograph {
    batch: Batch,
    rows: MicrographRows,
    load: LoadStats,
    /// Time to sample it.
    sample_seconds: f64,
    /// Time to prepare it in all.
    wait_seconds: f64,
}

/// The rows of a micrograph, among those that were read with them.
struct MicrographRows {
    rows: Arc<RowBuffer>,
    bytes: Range<usize>,
}

impl<'a> Micrographs<'a> {
    /// Returns the micrographs of `worker`.
    pub(super) fn new(
        worker: u32,
        sampler: Sampler<'a>,
        loader: BatchLoader,
        pregather: bool,
    ) -> Self {
        let (ready, rows, stats) = (VecDeque::new(), Arc::default(), PrefetchStats::default());
        Self { worker, sampler, loader, pregather, ready, rows, stats }
    }

    /// Returns the micrograph of time step `at` of an iteration, whose steps come in their order;
    /// `seed` is the iteration's.
    fn micrograph(
        &mut self,
        iteration: &Iteration,
        at: usize,
        seed: u64,
    ) -> Result<Micrograph, TrainError> {
        let has_roots = |step: &TimeStep| !step.roots_at(self.worker).is_empty();
        if at == 0 && iteration.steps().iter().any(has_roots) {
            self.stats.default_path += 1;
        }
        if at == 0 || !self.pregather {
            let until = if self.pregather { iteration.steps().len() } else { at + 1 };
            let steps = iteration.steps()[at..until].iter();
            let roots: Vec<&[NodeId]> = steps.map(|step| step.roots_at(self.worker)).collect();
            self.load(&roots, seed)?;
        }
        Ok(self.ready.pop_front().expect("time steps come in their order"))
    }

    /// Samples a micrograph for each list of roots, and reads the rows of all of them together.
    fn load(&mut self, roots: &[&[NodeId]], seed: u64) -> Result<(), TrainError> {
        let start = Instant::now();
        let sample = |roots: &&[NodeId]| self.sampler.sample_at_most(roots, seed, u32::MAX);
        let batches: Vec<Batch> =
            roots.iter().map(sample).collect::<Result<_, _>>().map_err(ClientError::from)?;
        let sample_seconds = start.elapsed().as_secs_f64();
        let row_bytes = self.loader.row_bytes();
        let n_bytes = row_bytes * batches.iter().map(|batch| batch.nodes.len()).sum::<usize>();
        self.ready.clear();
        if Arc::get_mut(&mut self.rows).is_none() {
            self.rows = Arc::default();
        }
        let rows = Arc::get_mut(&mut self.rows).expect("no micrograph has these rows");
        rows.resize(n_bytes);
        let mut wanted: Vec<_> = batches.iter().map(|batch| (&batch.nodes[..], None)).collect();
        let loads = self.loader.load_together(&mut wanted, rows.bytes_mut())?;
        drop(wanted);
        let seconds = start.elapsed().as_secs_f64();
        self.stats.wait_seconds += seconds;
        self.stats.peak_bytes = self.stats.peak_bytes.max(n_bytes as u64);
        let mut first = 0;
        for (batch, load) in batches.into_iter().zip(loads) {
            let bytes = first..first + batch.nodes.len() * row_bytes;
            first = bytes.end;
            self.stats.max_nodes = self.stats.max_nodes.max(batch.nodes.len() as u64);
            // The first step waits for the pull.
            let is_first = self.ready.is_empty();
            let sample_seconds = if is_first { sample_seconds } else { 0.0 };
            let wait_seconds = if is_first { seconds } else { 0.0 };
            let rows = MicrographRows { rows: Arc::clone(&self.rows), bytes };
            self.ready.push_back(Micrograph { batch, rows, load, sample_seconds, wait_seconds });
        }
        Ok(())
    }
}

impl WorkerBatches<MicrographOrder> for Micrographs<'_> {
    fn next(
        &mut self,
        order: &StepOrder<MicrographOrder>,
        seed: u64,
        _form: Option<&FeatureRows>,
    ) -> Result<LoadedBatch, TrainError> {
        let micrograph = self.micrograph(&order.part.iteration, order.part.at, seed)?;
        let Micrograph { batch, rows, load, sample_seconds, wait_seconds } = micrograph;
        let rows = StepRows::Bytes(BatchBytes::new(rows));
        let met = BatchReadiness::DefaultPath;
        Ok(LoadedBatch { batch, rows, load, met, sample_seconds, wait_seconds })
    }

    fn stats(&self) -> PrefetchStats {
        self.stats
    }
}

impl AsRef<[u8]> for MicrographRows {
    fn as_ref(&self) -> &[u8] {
        &self.rows.bytes()[self.bytes.clone()]
    }
}
