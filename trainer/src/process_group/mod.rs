//! The processes of a run: their workers, and the messages of a step.

mod partitions;

use std::time::Instant;

use lodestore_client::load_stats::LoadStats;
use lodestore_comm::collective::{Collective, Term};
use lodestore_comm::error::CollectiveError;
use lodestore_comm::group::Group;
use lodestore_comm::tag::Payload;
use lodestore_comm::traffic::Traffic;
use lodestore_models::adam::ReplicaState;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::error::TrainError;
use crate::sources::RowVersions;
use crate::step::Place;
use crate::step_outcome::{GradientTerm, MemberStats, MovingModel, StepOutcome, TeamStep};

/// Most elements of a replica's state in one message: 1 GiB.
const PIECE_ELEMENTS: usize = 1 << 28;

/// Receivers of the rows of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowsTo {
    All,
    Leader,
}

/// One process of a run and its workers. Worker w belongs to rank w mod ranks.
pub(crate) struct ProcessGroup<'c> {
    group: Group<'c>,
    /// Elements of each parameter.
    lengths: Vec<usize>,
    /// Most elements of a list in one message.
    piece_elements: usize,
}

/// Message of each process at the start of a run.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Opening {
    /// Digest of everything that must be equal in all processes.
    pub(crate) digest: [u32; 8],
    /// The versions of its rows.
    pub(crate) versions: RowVersions,
    /// Pulls that filled the sources of its workers.
    pub(crate) filled: LoadStats,
    /// From the leader of a resumed run: its place, and the updates of each replica. The states
    /// follow in messages of their own.
    pub(crate) resumed: Option<(Place, Vec<u32>)>,
}

/// Place of a resumed run, and the state of each replica.
pub(crate) type Resumed = Option<(Place, Vec<ReplicaState>)>;

/// The figures of a process after a step.
#[derive(Default, Serialize, Deserialize)]
struct StepMessage {
    /// Entries of its workers, in order.
    stats: Vec<MemberStats>,
    outcomes: Vec<(u32, StepOutcome)>,
}

impl StepMessage {
    /// Returns whether the message has the figures of `workers`, and outcomes of no others.
    fn is_of(&self, workers: impl Iterator<Item = u32>) -> bool {
        let workers: Vec<u32> = workers.collect();
        let is_own = |(worker, _): &(u32, StepOutcome)| workers.contains(worker);
        self.stats.len() == workers.len() && self.outcomes.iter().all(is_own)
    }
}

impl<'c> ProcessGroup<'c> {
    pub(crate) fn new(collective: &'c mut dyn Collective) -> Self {
        let group = Group::new(collective);
        Self { group, lengths: Vec::new(), piece_elements: PIECE_ELEMENTS }
    }

    pub(crate) fn leads(&self) -> bool {
        self.group.leads()
    }

    pub(crate) fn n_ranks(&self) -> u32 {
        self.group.n_ranks()
    }

    /// Returns the number of processes that share this machine's cores.
    pub(crate) fn n_local(&self) -> u32 {
        self.group.n_local()
    }

    /// Returns this process's workers out of `workers`.
    pub(crate) fn local_workers(&self, workers: u32) -> impl Iterator<Item = u32> + use<> {
        workers_of(self.rank(), self.n_ranks(), workers)
    }

    /// Begins the run: checks that all processes have the same run, and sums the pulls that filled
    /// their sources. Returns the sum and, of a resumed run, the leader's place and states.
    /// `lengths` are the elements of each parameter.
    pub(crate) fn open(
        &mut self,
        lengths: Vec<usize>,
        mut opening: Opening,
        resumed: Resumed,
    ) -> Result<(LoadStats, Resumed), TrainError> {
        self.lengths = lengths;
        if self.n_ranks() == 1 {
            return Ok((opening.filled, resumed));
        }
        let resumed = resumed.filter(|_| self.leads());
        let n_steps = |states: &[ReplicaState]| states.iter().map(|state| state.n_steps).collect();
        opening.resumed = resumed.as_ref().map(|(place, states)| (*place, n_steps(states)));
        let mut all = self.group.exchange(&opening)?;
        let (mut filled, expected) = (LoadStats::default(), all[0].versions);
        for (message, rank) in all.iter().zip(0..) {
            if message.digest != opening.digest {
                return Err(TrainError::OtherRun { rank });
            }
            let found = message.versions;
            if !found.agree(expected) {
                let (expected, found) = (expected.to_string(), found.to_string());
                return Err(TrainError::OtherVersion { rank, expected, found });
            }
            filled += message.filled;
        }
        let Some((place, n_steps)) = all.swap_remove(0).resumed else {
            return Ok((filled, None));
        };
        let empty = |&n_steps: &u32| {
            let [values, means, variances] =
                [(); 3].map(|()| self.lengths.iter().map(|&n| vec![0.0; n]).collect());
            ReplicaState { n_steps, values, means, variances }
        };
        let mut states = match resumed {
            Some((_, states)) => states,
            None => n_steps.iter().map(empty).collect(),
        };
        for state in &mut states {
            self.share(state)?;
        }
        Ok((filled, Some((place, states))))
    }

    /// Returns the step of all workers, from the outcomes and gradients of this process's workers
    /// that had a batch. Fills `stats` with the figures of all workers.
    pub(crate) fn step(
        &mut self,
        mut outcomes: Vec<(u32, StepOutcome)>,
        gradients: Vec<GradientTerm>,
        stats: &mut [MemberStats],
    ) -> Result<TeamStep, TrainError> {
        let (n_ranks, n_workers) = (self.n_ranks(), stats.len() as u32);
        if n_ranks > 1 {
            let own = self.local_workers(n_workers).map(|worker| stats[worker as usize]);
            let message = StepMessage { stats: own.collect(), outcomes };
            let all = self.group.exchange(&message)?;
            outcomes = Vec::new();
            for (message, rank) in all.into_iter().zip(0..) {
                let of_rank = workers_of(rank, n_ranks, n_workers);
                if !message.is_of(of_rank) {
                    let error = CollectiveError::out_of_step(rank, "its own workers", "others");
                    return Err(self.group.raise(error).into());
                }
                for (worker, of_worker) in workers_of(rank, n_ranks, n_workers).zip(message.stats) {
                    stats[worker as usize] = of_worker;
                }
                outcomes.extend(message.outcomes);
            }
            outcomes.sort_by_key(|(worker, _)| *worker);
        }
        let (start, mut step) = (Instant::now(), TeamStep::new(outcomes));
        let len = self.lengths.iter().sum();
        let term = |GradientTerm { order, n_roots, mut values }: GradientTerm| {
            let share = step.share(n_roots) as f32;
            if share != 1.0 {
                values.iter_mut().for_each(|value| *value *= share);
            }
            Term { order, values }
        };
        let terms = gradients.into_iter().map(term).collect();
        let sum = self.group.reduce_ordered(Payload::Gradients, terms, len)?;
        step.gradients = self.lists(sum);
        step.average_seconds = start.elapsed().as_secs_f64();
        Ok(step)
    }

    /// Moves models with their gradients `by` workers ahead, out of `n_workers`. Returns the models
    /// at this process's workers afterwards, by worker.
    ///
    /// All models have the same `parameters` within an iteration. So received parameters are only
    /// compared with them.
    pub(crate) fn migrate(
        &mut self,
        models: Vec<MovingModel>,
        by: u32,
        n_workers: u32,
        parameters: &[f32],
    ) -> Result<Vec<MovingModel>, TrainError> {
        let (rank_here, n_ranks) = (self.rank(), self.n_ranks());
        let target = |worker: u32| (worker + by) % n_workers;
        if n_ranks == 1 {
            let arrive = |model: MovingModel| MovingModel { worker: target(model.worker), ..model };
            let mut models: Vec<_> = models.into_iter().map(arrive).collect();
            models.sort_by_key(|model| model.worker);
            return Ok(models);
        }
        self.group.check_status()?;
        let to_rank = |rank| models.iter().filter(move |it| target(it.worker) % n_ranks == rank);
        let gradients: Vec<Vec<u8>> = (0..n_ranks)
            .map(|rank| {
                to_rank(rank).flat_map(|it| bytemuck::cast_slice(&it.sum)).copied().collect()
            })
            .collect();
        let travelling: Vec<Vec<u8>> = (0..n_ranks)
            .map(|rank| bytemuck::cast_slice(parameters).repeat(to_rank(rank).count()))
            .collect();
        let row_bytes = size_of_val(parameters);
        let mut exchange = |payload, outgoing: &[Vec<u8>]| {
            let outgoing: Vec<&[u8]> = outgoing.iter().map(|bytes| &bytes[..]).collect();
            let mut incoming = Vec::new();
            let moved = self.group.all_to_all(payload, row_bytes, &outgoing, &mut incoming);
            moved.map(|()| incoming)
        };
        let arrived = exchange(Payload::Parameters, &travelling)?;
        let gradients = exchange(Payload::Gradients, &gradients)?;
        let mut models = Vec::new();
        for (rank, (parameters_of, sums)) in (0..).zip(arrived.iter().zip(&gradients)) {
            let from = workers_of(rank, n_ranks, n_workers).map(target);
            let here: Vec<u32> = from.filter(|worker| worker % n_ranks == rank_here).collect();
            let expected = here.len() * row_bytes;
            let own: &[u8] = bytemuck::cast_slice(parameters);
            let are_same = parameters_of.chunks_exact(row_bytes.max(1)).all(|of| of == own);
            if parameters_of.len() != expected || sums.len() != expected || !are_same {
                let (expected, found) = ("the models of this step", "models of another step");
                let error = CollectiveError::out_of_step(rank, expected, found);
                return Err(self.group.raise(error).into());
            }
            let sums = sums.chunks_exact(row_bytes.max(1));
            models.extend(here.into_iter().zip(sums).map(|(worker, sum)| {
                let sum = sum.as_chunks().0.iter().map(|it| f32::from_ne_bytes(*it)).collect();
                MovingModel { worker, sum }
            }));
        }
        models.sort_by_key(|model| model.worker);
        Ok(models)
    }

    /// Returns the message of the leader.
    pub(crate) fn of_leader<M: Serialize + DeserializeOwned>(
        &mut self,
        message: &M,
    ) -> Result<M, TrainError> {
        Ok(self.group.exchange_with_leader(message)?)
    }

    /// Sends `rows` to the receivers. Returns the rows of each rank, of `lengths` bytes, if this
    /// process is a receiver, else empty messages.
    pub(crate) fn share_rows(
        &mut self,
        rows: &[u8],
        lengths: &[usize],
        to: RowsTo,
    ) -> Result<Vec<Vec<u8>>, TrainError> {
        self.group.check_status()?;
        let is_for = |rank: u32| to == RowsTo::All || rank == 0;
        let to_rank = |rank| if is_for(rank) { rows } else { &[] };
        let outgoing: Vec<&[u8]> = (0..self.n_ranks()).map(to_rank).collect();
        let mut incoming = Vec::new();
        let lengths = if is_for(self.rank()) { lengths } else { &vec![0; lengths.len()] };
        self.move_rows(4, &outgoing, &mut incoming, lengths)?;
        Ok(incoming)
    }

    /// Sends rows of layers to each rank, and fills `incoming` with the `expected` number of bytes
    /// from each.
    fn move_rows(
        &mut self,
        row_bytes: usize,
        outgoing: &[&[u8]],
        incoming: &mut Vec<Vec<u8>>,
        expected: &[usize],
    ) -> Result<(), TrainError> {
        self.group.all_to_all(Payload::Embeddings, row_bytes, outgoing, incoming)?;
        for (rank, (bytes, &n_bytes)) in (0..).zip(incoming.iter().zip(expected)) {
            self.group.expect_bytes(rank, bytes, n_bytes)?;
        }
        Ok(())
    }

    /// Ends a run without errors: the leader announces the end, the others wait for it. Returns the
    /// bytes that all processes sent.
    pub(crate) fn end(&mut self) -> Result<Traffic, TrainError> {
        Ok(self.group.end()?)
    }

    /// Reports an error of this process to the others, unless all find it themselves.
    pub(crate) fn fail(&mut self, error: &TrainError) {
        if !error.is_common() {
            self.group.fail(&error.to_string());
        }
    }

    /// Returns the messages of all processes, by rank. Fails with [`TrainError::Ended`] if the
    /// leader ended the run.
    pub(crate) fn exchange<M: Serialize + DeserializeOwned>(
        &mut self,
        message: &M,
    ) -> Result<Vec<M>, TrainError> {
        Ok(self.group.exchange(message)?)
    }

    pub(crate) fn rank(&self) -> u32 {
        self.group.rank()
    }

    /// Returns a flat list for each parameter.
    fn lists(&self, mut values: Vec<f32>) -> Vec<Vec<f32>> {
        let mut end = self.lengths.iter().sum::<usize>();
        // From the end, so that the first list is not copied.
        let split = |&n: &usize| {
            end -= n;
            if end == 0 { std::mem::take(&mut values) } else { values.split_off(end) }
        };
        let mut lists: Vec<_> = self.lengths.iter().rev().map(split).collect();
        lists.reverse();
        lists
    }

    /// Replaces the lists of `state` by those of the leader, in pieces of one message each.
    fn share(&mut self, state: &mut ReplicaState) -> Result<(), CollectiveError> {
        let ReplicaState { values, means, variances, .. } = state;
        let lists = [values, means, variances].into_iter().flatten();
        let mut buffer = Vec::new();
        for piece in lists.flat_map(|list| list.chunks_mut(self.piece_elements)) {
            let piece = bytemuck::cast_slice_mut(piece);
            self.group.broadcast_from_leader(Payload::Parameters, piece, &mut buffer)?;
        }
        Ok(())
    }
}

/// Returns the workers of `rank`.
fn workers_of(rank: u32, n_ranks: u32, workers: u32) -> impl Iterator<Item = u32> + use<> {
    (rank..workers).step_by(n_ranks as usize)
}

#[cfg(test)]
mod tests;
