//! Rows and gradients of partitions that train together.

use super::ProcessGroup;
use crate::collective::{CollectiveError, Payload, Term};
use crate::error::TrainError;
use crate::strategy::full::{Messages, PartFigures};

impl ProcessGroup<'_> {
    /// Sends the outgoing messages of rows of `row_bytes`, one to each rank, and fills the incoming
    /// ones, of `expected` bytes.
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
        self.exchange_status(super::CONTINUE, &[])?;
        let outgoing: Vec<&[u8]> = outgoing.iter().map(|bytes| &bytes[..]).collect();
        self.move_rows(row_bytes.max(1), &outgoing, incoming, expected)
    }

    /// Returns the figures of all `n_parts` partitions, in their order.
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
            return Err(self.raise(CollectiveError::out_of_step(0, expected, found)));
        }
        Ok(all)
    }

    /// Returns the sum of the terms of all partitions, in their order: a list for each parameter.
    pub(crate) fn sum_gradients(&mut self, terms: Vec<Term>) -> Result<Vec<Vec<f32>>, TrainError> {
        let len = self.lengths.iter().sum();
        let sum = self.collective.reduce_ordered(Payload::Gradients, terms, len);
        let sum = sum.inspect_err(|_| self.is_over = true)?;
        Ok(self.lists(sum))
    }
}
