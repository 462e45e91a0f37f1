//! Messages of `full` and `sdt`: rows, gradients and local models of partitions.

use lodestore_comm::collective::Term;
use lodestore_comm::error::CollectiveError;
use lodestore_comm::tag::Payload;
use lodestore_models::adam::ReplicaState;

use super::ProcessGroup;
use crate::error::TrainError;
use crate::strategy::full::{Messages, PartFigures};

impl ProcessGroup<'_> {
    /// Sends an outgoing message of rows of `row_bytes` to each rank, and fills the incoming
    /// messages, of `expected` bytes.
    pub(crate) fn exchange_rows(
        &mut self,
        row_bytes: usize,
        messages: &mut Messages,
        expected: &[usize],
    ) -> Result<(), TrainError> {
        let Messages { outgoing, incoming } = messages;
        if self.n_ranks() == 1 {
            incoming.resize_with(1, Vec::new);
            std::mem::swap(outgoing, incoming);
            return Ok(());
        }
        self.group.check_status()?;
        let outgoing: Vec<&[u8]> = outgoing.iter().map(|bytes| &bytes[..]).collect();
        self.move_rows(row_bytes.max(1), &outgoing, incoming, expected)
    }

    /// Returns the figures of all `n_parts` partitions, by partition.
    pub(crate) fn exchange_figures(
        &mut self,
        figures: Vec<PartFigures>,
        n_parts: u32,
    ) -> Result<Vec<PartFigures>, TrainError> {
        let mut all = figures;
        if self.n_ranks() > 1 {
            all = self.exchange(&all)?.into_iter().flatten().collect();
        }
        all.sort_by_key(|of_part| of_part.part);
        if !all.iter().map(|of_part| of_part.part).eq(0..n_parts) {
            let (expected, found) = ("the figures of each partition", "others");
            let error = CollectiveError::out_of_step(0, expected, found);
            return Err(self.group.raise(error).into());
        }
        Ok(all)
    }

    /// Adds the terms of all partitions in their order. Returns a list for each parameter.
    pub(crate) fn sum_gradients(&mut self, terms: Vec<Term>) -> Result<Vec<Vec<f32>>, TrainError> {
        let len = self.lengths.iter().sum();
        let sum = self.group.reduce_ordered(Payload::Gradients, terms, len)?;
        Ok(self.lists(sum))
    }

    pub(crate) fn has_worker(&self, worker: u32) -> bool {
        worker % self.n_ranks() == self.rank()
    }

    /// Adds the terms of all processes, of `len` values each, in their order.
    pub(crate) fn sum_parameters(
        &mut self,
        terms: Vec<Term>,
        len: usize,
    ) -> Result<Vec<f32>, TrainError> {
        Ok(self.group.reduce_ordered(Payload::Parameters, terms, len)?)
    }

    /// Sends the state of each partition to the leader. Partition p belongs to worker p mod
    /// `n_workers`.
    pub(crate) fn gather_states(
        &mut self,
        states: &mut [ReplicaState],
        n_workers: u32,
    ) -> Result<(), TrainError> {
        for (part, state) in (0..).zip(states) {
            let owner = part % n_workers % self.n_ranks();
            if owner == 0 {
                continue;
            }
            if self.leads() {
                self.receive_state(owner, state)?;
            } else if owner == self.rank() {
                self.send_state(state)?;
            }
        }
        Ok(())
    }

    fn send_state(&mut self, state: &ReplicaState) -> Result<(), CollectiveError> {
        let n_steps = state.n_steps.to_ne_bytes();
        self.group.send_to_leader(Payload::Parameters, &n_steps)?;
        let lists = [&state.values, &state.means, &state.variances].into_iter().flatten();
        for piece in lists.flat_map(|list| list.chunks(self.piece_elements)) {
            self.group.send_to_leader(Payload::Parameters, bytemuck::cast_slice(piece))?;
        }
        Ok(())
    }

    fn receive_state(
        &mut self,
        from: u32,
        state: &mut ReplicaState,
    ) -> Result<(), CollectiveError> {
        let empty = || self.lengths.iter().map(|&n| vec![0.0; n]).collect();
        *state = ReplicaState { n_steps: 0, values: empty(), means: empty(), variances: empty() };
        let n_steps = bytemuck::bytes_of_mut(&mut state.n_steps);
        self.group.receive(from, Payload::Parameters, n_steps)?;
        let ReplicaState { values, means, variances, .. } = state;
        let (lists, len) = ([values, means, variances].into_iter().flatten(), self.piece_elements);
        for piece in lists.flat_map(|list| list.chunks_mut(len)) {
            let piece = bytemuck::cast_slice_mut(piece);
            self.group.receive(from, Payload::Parameters, piece)?;
        }
        Ok(())
    }
}
