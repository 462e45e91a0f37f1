//! One worker's batches without a schedule: each is sampled when it is needed.

use std::sync::Mutex;

use lodestore_graph::NodeId;
use lodestore_graph::batch::Batch;
use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::sampler::{RootShare, Sampler};

use crate::error::ClientError;
use crate::loader::RowResidency;
use crate::prefetch::BatchSource;

/// A worker's batches, sampled one by one: those that a schedule of the same seed has. No row is
/// kept between them.
pub struct SampledBatches<'a> {
    share: RootShare<'a>,
    epochs: u32,
    per_epoch: u32,
    /// Most edges of a batch.
    max_edges: u32,
    state: Mutex<State<'a>>,
}

struct State<'a> {
    sampler: Sampler<'a>,
    epoch: u32,
    /// The roots of each batch of `epoch`.
    roots: Vec<Vec<NodeId>>,
}

impl<'a> SampledBatches<'a> {
    /// Returns the batches of `share` in all `epochs`.
    #[must_use]
    pub fn new(share: RootShare<'a>, epochs: u32, sampler: Sampler<'a>) -> Self {
        let roots = share.batches(0);
        let per_epoch = u32::try_from(roots.len()).unwrap_or(u32::MAX);
        let state = Mutex::new(State { sampler, epoch: 0, roots });
        Self { share, epochs, per_epoch, max_edges: u32::MAX, state }
    }
}

impl BatchSource for SampledBatches<'_> {
    fn n_batches(&self) -> u32 {
        self.per_epoch.saturating_mul(self.epochs)
    }

    fn batch(&self, index: u32) -> Result<(Batch, RowResidency), ClientError> {
        let (epoch, position) = (index / self.per_epoch, index % self.per_epoch);
        let mut state = self.state.lock().ignore_poison();
        if state.epoch != epoch {
            state.roots = self.share.batches(epoch);
            state.epoch = epoch;
        }
        let seed = self.share.seed_of(epoch, position);
        let State { sampler, roots, .. } = &mut *state;
        let batch = sampler.sample_at_most(&roots[position as usize], seed, self.max_edges)?;
        Ok((batch, None))
    }

    fn end_of_epoch(&self, index: u32) -> u32 {
        let per_epoch = self.per_epoch.max(1);
        (index / per_epoch + 1).saturating_mul(per_epoch)
    }
}

#[cfg(test)]
mod tests {
    use lodestore_graph::PartitionBook;
    use lodestore_graph::sampler::{Deal, Fanout, RootPlan};
    use lodestore_graph::topology::Topology;

    use super::*;

    #[test]
    fn a_batch_of_too_many_edges_is_an_error() {
        // Each of four nodes has all others as neighbours.
        let lists = (0..4u32).flat_map(|node| (1..4).map(move |step| (node + step) % 4)).collect();
        let topology = Topology::from_lists(vec![0, 3, 6, 9, 12], lists).unwrap();
        let book = PartitionBook::from_counts(&[4]).unwrap();
        let (fanouts, train) = (vec![Fanout::All; 2], [NodeId(0)]);
        let plan = RootPlan { seed: 0, deal: Deal::Owned, workers: 1, batch_size: 8, book: &book };
        let share = RootShare { worker: 0, plan, train: &train };
        let mut source = SampledBatches::new(share, 1, Sampler::new(&topology, &fanouts));
        source.max_edges = 15;
        source.batch(0).unwrap();
        source.max_edges = 14;
        let found = source.batch(0).err().unwrap().to_string();
        assert!(found.contains("15 edges") && found.contains("use smaller batches"), "{found}");
    }
}
