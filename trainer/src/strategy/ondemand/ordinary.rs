//! Ordinary random sampling: what a trainer without a schedule does, to compare what is learnt.

use std::{collections::HashMap, sync::Mutex};

use lodestore_client::ClientError;
use lodestore_client::loader::RowResidency;
use lodestore_client::prefetch::BatchSource;
use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::{
    NodeId,
    batch::{Batch, Block},
    sampler::{Fanout, RootShare, is_local},
    topology::Topology,
};
use lodestore_models::random::CounterRandom;

use crate::config::TrainConfig;

/// A stream that neither roots nor neighbours of a schedule are drawn from.
const STREAM: u64 = 0x7261_6e64_6f6d_0000;

/// A worker's batches from one stream of random numbers: roots are shuffled in place each epoch,
/// and neighbours drawn one after the other. Neither depends on the epoch, the batch or the node
/// but by how many numbers were drawn before.
pub(crate) struct OrdinaryBatches<'a> {
    config: &'a TrainConfig,
    topology: &'a Topology,
    per_epoch: u32,
    state: Mutex<State>,
}

struct State {
    random: CounterRandom,
    n_drawn: u64,
    /// The worker's own, in the order of the present epoch.
    roots: Vec<NodeId>,
    /// The batch that is next: they come in order.
    next: u32,
}

impl<'a> OrdinaryBatches<'a> {
    /// Returns the batches of `share`.
    pub(crate) fn new(
        share: RootShare<'a>,
        config: &'a TrainConfig,
        topology: &'a Topology,
    ) -> Self {
        let RootShare { worker, plan, train } = share;
        let is_own = |node: &NodeId| is_local(plan.book, worker, config.workers, *node);
        let roots: Vec<NodeId> = train.iter().copied().filter(is_own).collect();
        let per_epoch = u32::try_from(roots.len().div_ceil(config.batch_size)).unwrap_or(u32::MAX);
        let random = CounterRandom::new(config.seed, STREAM ^ u64::from(worker));
        let state = Mutex::new(State { random, n_drawn: 0, roots, next: 0 });
        Self { config, topology, per_epoch, state }
    }
}

impl State {
    /// Returns a number below `n`, which is some.
    fn below(&mut self, n: usize) -> usize {
        self.n_drawn += 1;
        let bits = self.random.bits(self.n_drawn);
        ((u128::from(bits) * n as u128) >> 64) as usize
    }

    /// Returns the batch of `roots`: `fanouts` next to the roots first.
    fn sample(&mut self, roots: &[NodeId], fanouts: &[Fanout], topology: &Topology) -> Batch {
        let mut nodes = roots.to_vec();
        let mut local: HashMap<NodeId, u32> = (nodes.iter().copied()).zip(0..).collect();
        let mut blocks = Vec::new();
        for fanout in fanouts {
            let (n_dst, mut offsets, mut sources) = (nodes.len(), vec![0], Vec::new());
            for dst in 0..n_dst {
                let mut list = topology.in_neighbours(nodes[dst]).to_vec();
                for drawn in 0..fanout.of(list.len() as u32) as usize {
                    let other = drawn + self.below(list.len() - drawn);
                    list.swap(drawn, other);
                    let node = NodeId(list[drawn]);
                    let id = *local.entry(node).or_insert_with(|| {
                        nodes.push(node);
                        nodes.len() as u32 - 1
                    });
                    sources.push(id);
                }
                offsets.push(sources.len() as u32);
            }
            blocks.push(Block { n_src: nodes.len() as u32, n_dst: n_dst as u32, offsets, sources });
        }
        blocks.reverse();
        Batch { nodes, n_roots: roots.len(), blocks }
    }
}

impl BatchSource for OrdinaryBatches<'_> {
    fn n_batches(&self) -> u32 {
        self.per_epoch.saturating_mul(self.config.epochs)
    }

    fn batch(&self, index: u32) -> Result<(Batch, RowResidency), ClientError> {
        let config = self.config;
        let mut state = self.state.lock().ignore_poison();
        assert_eq!(state.next, index, "batches of one stream come in order");
        state.next += 1;
        let position = index % self.per_epoch;
        if position == 0 {
            for n in (2..=state.roots.len()).rev() {
                let other = state.below(n);
                state.roots.swap(n - 1, other);
            }
        }
        let first = position as usize * config.batch_size;
        let last = (first + config.batch_size).min(state.roots.len());
        let roots = state.roots[first..last].to_vec();
        Ok((state.sample(&roots, &config.fanouts, self.topology), None))
    }

    fn end_of_epoch(&self, index: u32) -> u32 {
        let per_epoch = self.per_epoch.max(1);
        (index / per_epoch + 1).saturating_mul(per_epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lodestore_graph::{PartitionBook, sampler::Deal};

    /// Batches are well formed, hold every own root once an epoch, and draw neighbours uniformly.
    #[test]
    fn batches_are_those_of_an_ordinary_sampler() {
        let n = 12u32;
        let offsets = (0..=u64::from(n)).map(|at| at * 4).collect();
        let lists = (0..n).flat_map(|node| (1..=4).map(move |step| (node + step) % n)).collect();
        let topology = Topology::from_lists(offsets, lists).unwrap();
        let book = PartitionBook::from_counts(&[6, 6]).unwrap();
        let train: Vec<NodeId> = (0..n).map(NodeId).collect();
        let (epochs, fanouts) = (500, vec![Fanout::at_most(2).unwrap(), Fanout::All]);
        let usual = TrainConfig::default();
        let config = TrainConfig { workers: 2, batch_size: 4, epochs, fanouts, ..usual };
        let share =
            RootShare { worker: 1, plan: config.plan_of(Deal::Owned, &book), train: &train };
        let source = OrdinaryBatches::new(share, &config, &topology);
        assert_eq!(source.n_batches(), 2 * epochs);
        let mut drawn = [0u32; 4];
        let mut firsts = [0u32; 12];
        for epoch in 0..epochs {
            let mut roots = Vec::new();
            for position in 0..2 {
                let (batch, _) = source.batch(2 * epoch + position).unwrap();
                batch.check(n).unwrap();
                roots.extend(batch.roots().to_vec());
                let hop = &batch.blocks[1];
                for dst in 0..batch.n_roots {
                    let range = hop.offsets[dst] as usize..hop.offsets[dst + 1] as usize;
                    let found = &hop.sources[range];
                    assert!(found.len() == 2 && found[0] != found[1]);
                    for &source in found {
                        let (from, to) = (batch.nodes[source as usize].0, batch.nodes[dst].0);
                        drawn[((from + n - to) % n) as usize - 1] += 1;
                    }
                }
            }
            firsts[roots[0].index()] += 1;
            roots.sort_unstable();
            assert_eq!(roots, train[6..]);
        }
        // 1500 ± 6 standard deviations of 27, and 83 ± 5 of 8.
        assert!(drawn.iter().all(|count| (1335..1665).contains(count)), "{drawn:?}");
        assert!(firsts[6..].iter().all(|count| (42..125).contains(count)), "{firsts:?}");
    }
}
