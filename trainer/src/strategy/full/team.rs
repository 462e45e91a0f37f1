//! The partitions of this process, and an epoch of all partitions of the run.

use std::{
    thread,
    time::{Duration, Instant},
};

use lodestore_client::load_stats::LoadStats;
use lodestore_comm::collective::Term;
use lodestore_models::conv::LayerDropout;
use lodestore_models::layer::Layer;
use lodestore_models::loss::worst_row;
use lodestore_models::model::Model;
use rayon::ThreadPool;
use serde::{Deserialize, Serialize};

use super::{
    compress::RowCode,
    exchange::{Messages, Placement, Routes, Sent, Way},
    operator::Destinations,
    part::Part,
};
use crate::config::Halo;
use crate::error::TrainError;
use crate::process_group::ProcessGroup;
use crate::step_outcome::{MemberStats, exact};

/// The partitions of this process.
pub(crate) struct FullTeam {
    pub(super) parts: Vec<Part>,
    pub(super) exchange: Exchange,
    pub(super) pool: ThreadPool,
    /// Training nodes of the graph.
    pub(super) n_train: u64,
    /// Partitions of the run.
    pub(super) n_parts: u32,
    /// Share of edges that partitions have.
    pub(super) kept_share: f64,
    /// Figures of all workers of the run.
    pub(crate) stats: Vec<MemberStats>,
}

/// Exchange of rows between partitions.
pub(super) struct Exchange {
    pub(super) placement: Placement,
    /// By way.
    pub(super) routes: [Routes; 2],
    pub(super) code: RowCode,
    pub(super) halo: Halo,
    /// Whether messages overlap with computation.
    pub(super) overlaps: bool,
    /// Most epochs that rows of halos may be old.
    pub(super) staleness: u32,
    /// By layer, and by way.
    pub(super) layers: Vec<[Stamped; 2]>,
    pub(super) epoch: u32,
    /// Figures of the epoch.
    pub(super) seconds: Duration,
    pub(super) waited: Duration,
    pub(super) oldest: u32,
}

/// The last messages of a layer in one direction, with their epoch.
#[derive(Default)]
pub(super) struct Stamped {
    messages: Messages,
    stamp: Option<u32>,
}

/// The end of a pass: gradients of parameters by partition, and figures.
pub(crate) struct Passed {
    pub(crate) terms: Vec<Term>,
    pub(crate) figures: Vec<PartFigures>,
}

/// The figures of a partition in an epoch, as processes exchange them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PartFigures {
    pub(crate) part: u32,
    /// Mean loss over its training nodes.
    #[serde(with = "exact")]
    pub(crate) loss: f64,
    pub(crate) n_roots: u64,
    pub(crate) n_right: u64,
    pub(crate) n_own: u64,
    /// Rows of its halo, and those of other workers among them.
    pub(crate) halo_rows: u64,
    pub(crate) remote_rows: u64,
    /// Other workers' input rows that were pulled.
    pub(crate) pulled: LoadStats,
    /// Rows of layers received from other workers, and their bytes.
    pub(crate) embedding_rows: u64,
    pub(crate) embedding_bytes: u64,
    /// Bytes of gradients sent back to other workers.
    pub(crate) gradient_bytes: u64,
    /// Squares of what narrowing took from rows and gradients that it sent, and of these.
    pub(crate) narrowing: [f64; 2],
    pub(crate) compute_seconds: f64,
    /// Seconds that its process waited for messages without work.
    pub(crate) exchange_seconds: f64,
    pub(crate) wait_seconds: f64,
    /// Age of the oldest used rows, in epochs.
    pub(crate) staleness: u32,
    /// Bytes of kept inputs.
    pub(crate) input_bytes: u64,
    /// Description of the values where the loss is not finite.
    pub(crate) fault: Option<Fault>,
}

/// Cause of a loss that is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// A feature that is not finite, by its bits, since JSON has no such numbers.
    Feature { node: u32, column: u64, bits: u32 },
    /// The row of this node.
    Row { node: u32 },
}

impl PartFigures {
    /// Adds the loss of narrowing, unless it is not finite: the training loss shows that.
    pub(crate) fn note(&mut self, Sent { loss, .. }: Sent) {
        if loss.error.is_finite() && loss.all.is_finite() {
            self.narrowing[0] += loss.error;
            self.narrowing[1] += loss.all;
        }
    }
}

impl Stamped {
    /// Returns the age of its rows in `epoch`, if they may still be used. Nothing else decides
    /// that.
    fn usable_age(&self, epoch: u32, staleness: u32) -> Option<u32> {
        let age = epoch.checked_sub(self.stamp?)?;
        // Rows of this very epoch are never there before they are exchanged.
        (age > 0 && age <= staleness).then_some(age)
    }
}

impl FullTeam {
    /// Runs `model` forward and back over all partitions, with the dropout masks of `seed`.
    pub(crate) fn pass(
        &mut self,
        model: &Model,
        epoch: u32,
        seed: u64,
        group: &mut ProcessGroup<'_>,
    ) -> Result<Passed, TrainError> {
        self.pool.install(|| {
            self.parts.iter_mut().try_for_each(|part| part.inputs.begin_epoch(&part.graph))
        })?;
        let figures = self.parts.iter().map(|part| self.exchange.figures_of(part));
        let mut figures: Vec<PartFigures> = figures.collect();
        self.parts.iter_mut().for_each(|part| part.seconds = 0.0);
        self.exchange.begin(epoch);
        let layers: Vec<(usize, &Layer)> = model.layers.iter().enumerate().collect();
        for &(number, layer) in &layers {
            let dropout = LayerDropout::new(model.dropout, seed, number as u64);
            each(&self.pool, &mut self.parts, |part| part.begin_layer(number, layer, dropout));
            let sent = self.exchange.forward(&mut self.parts, &self.pool, number, group)?;
            let row_bytes = self.exchange.row_bytes(&self.parts, number);
            for (figures, sent) in figures.iter_mut().zip(sent) {
                figures.embedding_rows += figures.remote_rows;
                figures.embedding_bytes += figures.remote_rows * row_bytes;
                figures.note(sent);
            }
            each(&self.pool, &mut self.parts, |part| part.end_layer(number, layer, dropout));
        }
        let n_all = self.n_train;
        for (part, figures) in self.parts.iter_mut().zip(&mut figures) {
            (figures.loss, figures.n_right) = part.loss(n_all);
            if !figures.loss.is_finite() {
                figures.fault = Some(fault_of(part));
            }
        }
        for &(number, layer) in layers.iter().rev() {
            each(&self.pool, &mut self.parts, |part| part.begin_back(number, layer));
            let sent = self.exchange.back(&mut self.parts, &self.pool, number, layer, group)?;
            for (figures, sent) in figures.iter_mut().zip(sent) {
                figures.gradient_bytes += sent.bytes;
                figures.note(sent);
            }
            each(&self.pool, &mut self.parts, |part| part.end_back(number, layer));
        }
        let term = |part: &mut Part| Term { order: part.graph.part, values: part.end_epoch() };
        let terms = self.parts.iter_mut().map(term).collect();
        for (figures, part) in figures.iter_mut().zip(&self.parts) {
            figures.compute_seconds = part.seconds;
            figures.exchange_seconds = self.exchange.seconds.as_secs_f64();
            figures.wait_seconds = self.exchange.waited.as_secs_f64();
            figures.staleness = self.exchange.oldest;
        }
        Ok(Passed { terms, figures })
    }

    /// Releases the memory of passes.
    pub(crate) fn clear(&mut self) {
        self.parts.iter().for_each(|part| part.workspace.clear());
    }
}

/// Calls `f` with one partition after the other, each of which uses all threads.
fn each(pool: &ThreadPool, parts: &mut [Part], f: impl Fn(&mut Part) + Sync) {
    pool.install(|| {
        for part in parts {
            let start = Instant::now();
            f(part);
            part.took(start);
        }
    });
}

/// Returns the likely cause of a loss that is not finite: a feature, else the worst row.
fn fault_of(part: &Part) -> Fault {
    if let Some((node, column, found)) = part.inputs.not_finite {
        return Fault::Feature { node: node.0, column: column as u64, bits: found.to_bits() };
    }
    let row = part.logits().map_or(0, worst_row);
    Fault::Row { node: part.graph.nodes.get(row).map_or(0, |node| node.0) }
}

impl Exchange {
    /// Returns what is known of a partition before a pass.
    fn figures_of(&self, part: &Part) -> PartFigures {
        let (graph, worker_of) = (&part.graph, |part| self.placement.worker_of(part));
        let is_remote = |other| worker_of(other) != worker_of(graph.part);
        PartFigures {
            part: graph.part,
            n_roots: part.roots.local_ids.len() as u64,
            n_own: graph.n_own as u64,
            halo_rows: graph.n_halo() as u64,
            remote_rows: match self.halo {
                Halo::Zero => 0,
                Halo::Exchange => graph.n_rows_from(is_remote),
            },
            input_bytes: part.inputs.n_bytes(),
            ..PartFigures::default()
        }
    }

    /// Returns the bytes of a row of layer `number` as it travels.
    fn row_bytes(&self, parts: &[Part], number: usize) -> u64 {
        self.code.row_bytes(width_of(parts, number)) as u64
    }

    fn begin(&mut self, epoch: u32) {
        (self.seconds, self.waited, self.oldest) = (Duration::ZERO, Duration::ZERO, 0);
        self.epoch = epoch;
    }

    /// Sends rows of layer `number` to halos, and aggregates.
    fn forward(
        &mut self,
        parts: &mut [Part],
        pool: &ThreadPool,
        number: usize,
        group: &mut ProcessGroup<'_>,
    ) -> Result<Vec<Sent>, TrainError> {
        let aggregate = |parts: &mut [Part], which| {
            each(pool, parts, |part| part.aggregate(number, which));
        };
        if number == 0 || self.halo == Halo::Zero {
            if number > 0 {
                parts.iter_mut().for_each(|part| part.pass.halo.fill(0.0));
            }
            aggregate(parts, Destinations::All);
            return Ok(Vec::new());
        }
        let inner = |parts: &mut [Part]| aggregate(parts, Destinations::Inner);
        let rows = LayerRows { way: Way::Forward, number };
        let sent = self.move_rows(parts, pool, rows, group, &inner)?;
        let (width, start) = (width_of(parts, number), Instant::now());
        let [messages, _] = &self.layers[number];
        let [routes, _] = &self.routes;
        pool.install(|| routes.unpack(parts, self.code, width, &messages.messages));
        parts.iter_mut().take(1).for_each(|part| part.took(start));
        aggregate(parts, Destinations::Boundary);
        Ok(sent)
    }

    /// Sends gradients of layer `number` to the owners of rows, which add them.
    fn back(
        &mut self,
        parts: &mut [Part],
        pool: &ThreadPool,
        number: usize,
        layer: &Layer,
        group: &mut ProcessGroup<'_>,
    ) -> Result<Vec<Sent>, TrainError> {
        let own = |parts: &mut [Part]| each(pool, parts, |part| part.go_back(number, layer));
        if number == 0 || self.halo == Halo::Zero {
            own(parts);
            return Ok(Vec::new());
        }
        let rows = LayerRows { way: Way::Back, number };
        let sent = self.move_rows(parts, pool, rows, group, &own)?;
        let (width, start) = (width_of(parts, number), Instant::now());
        let [_, messages] = &self.layers[number];
        let [_, routes] = &self.routes;
        routes.add(parts, self.code, width, &messages.messages);
        parts.iter_mut().take(1).for_each(|part| part.took(start));
        Ok(sent)
    }

    /// Exchanges rows, unless those of an earlier epoch may be used, and calls `compute` meanwhile.
    /// Returns the figures of each part.
    fn move_rows(
        &mut self,
        parts: &mut [Part],
        pool: &ThreadPool,
        LayerRows { way, number }: LayerRows,
        group: &mut ProcessGroup<'_>,
        compute: &(dyn Fn(&mut [Part]) + Sync),
    ) -> Result<Vec<Sent>, TrainError> {
        let (routes, stamped) =
            (&self.routes[way as usize], &mut self.layers[number][way as usize]);
        if let Some(age) = stamped.usable_age(self.epoch, self.staleness) {
            self.oldest = self.oldest.max(age);
            compute(parts);
            return Ok(Vec::new());
        }
        let (code, width) = (self.code, width_of(parts, number));
        let row_bytes = code.row_bytes(width);
        let messages = &mut stamped.messages;
        let pack = || routes.pack(parts, code, width, messages);
        let sent = pool.install(pack);
        let expected = routes.incoming_bytes(row_bytes);
        let start = Instant::now();
        let waited = if group.n_ranks() == 1 || !self.overlaps {
            group.exchange_rows(row_bytes, messages, &expected)?;
            let waited = start.elapsed();
            self.seconds += waited;
            compute(parts);
            waited
        } else {
            // Only this thread may use the collective; others compute.
            let (moved, computed) = thread::scope(|scope| {
                let computing = scope.spawn(|| {
                    compute(parts);
                    Instant::now()
                });
                let moved = group.exchange_rows(row_bytes, messages, &expected);
                (moved.map(|()| Instant::now()), computing.join())
            });
            let moved_at = moved?;
            let worker = self.placement.rank;
            let computed_at = computed.map_err(|_| TrainError::WorkerPanicked { worker })?;
            self.seconds += moved_at - start;
            moved_at.saturating_duration_since(computed_at)
        };
        self.waited += waited;
        stamped.stamp = Some(self.epoch);
        Ok(sent)
    }
}

/// Rows of a layer in one direction.
#[derive(Clone, Copy, Debug)]
struct LayerRows {
    way: Way,
    number: usize,
}

/// Returns the width of a layer's messages, except the first layer's. It is equal for all
/// partitions.
fn width_of(parts: &[Part], number: usize) -> usize {
    parts.first().map_or(0, |part| part.plans[number].message_width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_older_than_allowed_are_never_used() {
        for staleness in 0..5 {
            for stamp in 0..10 {
                for epoch in 0..20 {
                    let stamped = Stamped { stamp: Some(stamp), ..Stamped::default() };
                    let age = stamped.usable_age(epoch, staleness);
                    let may = epoch > stamp && epoch - stamp <= staleness;
                    assert_eq!(age, may.then(|| epoch - stamp));
                }
            }
            assert_eq!(Stamped::default().usable_age(3, staleness), None);
        }
    }
}
