//! The baseline: each batch is sampled and pulled when the trainer asks for it.

use std::sync::Mutex;

use lodestore_client::ClientError;
use lodestore_client::loader::RowResidency;
use lodestore_client::prefetch::BatchSource;
use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::{NodeId, batch::Batch, sampler::Sampler};

use crate::strategy::Share;

/// A worker's batches, sampled one by one. Nothing is kept between them.
pub(crate) struct SampledBatches<'a> {
    share: Share<'a>,
    epochs: u32,
    per_epoch: u32,
    /// Most edges of a batch.
    max_edges: u32,
    state: Mutex<State<'a>>,
}

struct State<'a> {
    sampler: Sampler<'a>,
    /// The epoch whose roots are at hand, and these.
    epoch: u32,
    roots: Vec<Vec<NodeId>>,
}

impl<'a> SampledBatches<'a> {
    /// Returns the batches of `share` in all epochs.
    pub(crate) fn new(share: Share<'a>, epochs: u32, sampler: Sampler<'a>) -> Self {
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
        let seed = self.share.plan.seed_of(self.share.worker, epoch, position);
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
    use lodestore_graph::{
        PartitionBook,
        sampler::{Deal, Fanout},
        topology::Topology,
    };

    use super::*;
    use crate::config::TrainConfig;

    #[test]
    fn a_batch_of_too_many_edges_is_an_error() {
        // Each of four nodes has all others as neighbours.
        let lists = (0..4u32).flat_map(|node| (1..4).map(move |step| (node + step) % 4)).collect();
        let topology = Topology::from_lists(vec![0, 3, 6, 9, 12], lists).unwrap();
        let book = PartitionBook::from_counts(&[4]).unwrap();
        let (fanouts, train) = (vec![Fanout::All; 2], [NodeId(0)]);
        let config = TrainConfig::default();
        let share = Share { worker: 0, plan: config.plan_of(Deal::Owned, &book), train: &train };
        let mut source = SampledBatches::new(share, 1, Sampler::new(&topology, &fanouts));
        source.max_edges = 15;
        source.batch(0).unwrap();
        source.max_edges = 14;
        let found = source.batch(0).err().unwrap().to_string();
        assert!(found.contains("15 edges") && found.contains("use smaller batches"), "{found}");
    }
}
