//! Rows that iterations need from other servers, by sampling alone: nothing is trained or sent.

use std::ops::AddAssign;

use lodestore_graph::micrograph::{Locality, Micrographs};
use lodestore_graph::sampler::{Deal, Fanout, RootPlan, Sampler, epoch_order};
use lodestore_graph::{NodeId, PartitionBook};
use lodestore_trainer::config::Merge;
use lodestore_trainer::strategy::hop::{Iteration, Iterations};
use rayon::prelude::*;
use serde::Serialize;

use super::source::ServerCut;

/// HopWay in which roots, models and rows meet in an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum HopWay {
    /// Each model trains on its roots where it is.
    ModelCentric,
    /// Models move to the roots, and pull the rows of each time step (section 5.1): +MG.
    Micrographs,
    /// A server pulls the rows of all time steps together (section 5.2): +PG.
    Pregathered,
    /// The same, with the time steps of fewest roots merged into others (section 5.3).
    MergedMin,
    /// The same, with any time steps merged.
    MergedRandom,
    /// Each server trains on batches of its own roots: LO (section 7.9).
    Owned,
    /// Each server trains on those roots of the global batch that it owns: `--migration none`.
    Home,
}

impl HopWay {
    /// Returns its name in tables and charts.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::ModelCentric => "model-centric",
            Self::Micrographs => "+MG",
            Self::Pregathered => "+PG",
            Self::MergedMin => "merged, min",
            Self::MergedRandom => "merged, random",
            Self::Owned => "LO",
            Self::Home => "none",
        }
    }
}

/// Batches to sample.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) fanouts: &'a [Fanout],
    /// Roots of each model.
    pub(super) batch: usize,
    pub(super) seed: u64,
    /// Number of iterations, at least 1.
    pub(super) iterations: u32,
}

/// Rows of all servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Rows that are distinct in each pull.
    pub(super) wanted: u64,
    /// Rows of these from another server.
    pub(super) remote: u64,
    /// Servers asked, summed over pulls.
    pub(super) requests: u64,
}

/// Rows of all servers in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WayCounts {
    pub(super) way: HopWay,
    /// Time steps of an iteration.
    pub(super) time_steps: u32,
    pub(super) counts: Counts,
}

/// The sums over some iterations.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    /// All iterations have the same ways in the same order.
    pub(super) ways: Vec<WayCounts>,
    pub(super) locality: Locality,
    pub(super) iterations: u32,
    /// Roots of all global batches.
    pub(super) roots: u64,
}

/// Counts the rows of `setting.iterations` iterations, over the threads of the pool.
pub(super) fn count(cut: &ServerCut, setting: Setting<'_>) -> Sums {
    let plan = plan(&cut.book, setting, Deal::Home);
    let places = places(cut.train.len(), plan.batch_size, plan.workers, setting.iterations);
    let of_iterations: Vec<Sums> = places
        .into_par_iter()
        .with_max_len(1)
        .map(|(epoch, batch)| Gatherer::new(cut, setting).iteration(epoch, batch))
        .collect();
    of_iterations.into_iter().fold(Sums::default(), Sums::plus)
}

/// Returns epoch and number of the first `n` iterations whose global batch is whole, or of the
/// first in each epoch where none is.
pub(super) fn places(n_train: usize, batch: usize, workers: u32, n: u32) -> Vec<(u32, u32)> {
    let of_epoch = (n_train / batch.saturating_mul(workers as usize)).max(1) as u32;
    (0..n).map(|at| (at / of_epoch, at % of_epoch)).collect()
}

/// Returns how many time steps are left at each level of merging that is counted, fewest last.
pub(super) fn levels(workers: u32) -> Vec<u32> {
    let halves = std::iter::successors(Some(workers / 2), |&n| Some(n / 2));
    let mut levels: Vec<u32> =
        [workers.saturating_sub(1)].into_iter().chain(halves.take_while(|&n| n > 0)).collect();
    levels.retain(|&n| n > 0);
    levels.dedup();
    levels
}

/// Returns how training nodes become roots; each partition is a server's.
pub(super) fn plan<'a>(book: &'a PartitionBook, setting: Setting<'_>, deal: Deal) -> RootPlan<'a> {
    let workers = u32::from(book.n_parts());
    RootPlan { seed: setting.seed, deal, workers, batch_size: setting.batch, book }
}

/// Samples what servers need in an iteration.
struct Gatherer<'a> {
    cut: &'a ServerCut,
    setting: Setting<'a>,
    sampler: Sampler<'a>,
}

impl<'a> Gatherer<'a> {
    fn new(cut: &'a ServerCut, setting: Setting<'a>) -> Self {
        let sampler = Sampler::new(&cut.topology, setting.fanouts);
        Self { cut, setting, sampler }
    }

    fn plan(&self, deal: Deal) -> RootPlan<'a> {
        plan(&self.cut.book, self.setting, deal)
    }

    /// Counts one iteration in all ways.
    fn iteration(mut self, epoch: u32, batch: u32) -> Sums {
        let mut ways = Vec::new();
        let mut add = |way, time_steps, counts| ways.push(WayCounts { way, time_steps, counts });
        let (model_centric, locality) = self.model_centric(epoch, batch);
        add(HopWay::ModelCentric, 1, model_centric);
        let plan = self.plan(Deal::Home);
        let train = &self.cut.train;
        let iteration = Iterations::new(plan, train, Merge::None).get(epoch, batch, 0);
        let seed = plan.seed_of(0, epoch, batch);
        add(HopWay::Micrographs, plan.workers, self.micrographs(&iteration, seed));
        add(HopWay::Pregathered, plan.workers, self.pregathered(&iteration, seed));
        for (way, merge) in [(HopWay::MergedMin, Merge::Min), (HopWay::MergedRandom, Merge::Random)]
        {
            let mut iterations = Iterations::new(plan, train, merge);
            for n_steps in levels(plan.workers) {
                let merged = iterations.get(epoch, batch, plan.workers - n_steps);
                add(way, merged.steps().len() as u32, self.pregathered(&merged, seed));
            }
        }
        for (way, deal) in [(HopWay::Owned, Deal::Owned), (HopWay::Home, Deal::Home)] {
            add(way, 1, self.dealt(deal, epoch, batch));
        }
        let roots = iteration.roots_of_models().iter().sum();
        Sums { ways, locality, iterations: 1, roots }
    }

    /// Counts what models need that stay, and the locality of their roots.
    fn model_centric(&mut self, epoch: u32, batch: u32) -> (Counts, Locality) {
        let plan = self.plan(Deal::Turns);
        let order = epoch_order(plan.seed, epoch, &self.cut.train);
        let (mut counts, mut locality) = (Counts::default(), Locality::default());
        let mut micrographs = Micrographs::default();
        for server in 0..plan.workers {
            let roots = plan.batches(&order, server).swap_remove(batch as usize);
            let sampled = self.sampler.sample(&roots, plan.seed_of(server, epoch, batch));
            counts += self.rows(&sampled.nodes, server);
            locality.add(&sampled, plan.book, plan.workers, &mut micrographs);
        }
        (counts, locality)
    }

    /// Counts what servers need for roots that are dealt to them.
    fn dealt(&mut self, deal: Deal, epoch: u32, batch: u32) -> Counts {
        let plan = self.plan(deal);
        let order = epoch_order(plan.seed, epoch, &self.cut.train);
        let mut counts = Counts::default();
        for server in 0..plan.workers {
            let batches = plan.batches(&order, server);
            // A server with few roots has no more batches of its own.
            let Some(roots) = batches.get(batch as usize) else { continue };
            let sampled = self.sampler.sample(roots, plan.seed_of(server, epoch, batch));
            counts += self.rows(&sampled.nodes, server);
        }
        counts
    }

    /// Counts what servers need for each time step of an iteration.
    fn micrographs(&mut self, iteration: &Iteration, seed: u64) -> Counts {
        let mut counts = Counts::default();
        for server in 0..u32::from(self.cut.book.n_parts()) {
            for step in iteration.steps() {
                let sampled = self.sampler.sample(step.roots_at(server), seed);
                counts += self.rows(&sampled.nodes, server);
            }
        }
        counts
    }

    /// Counts what servers need for all time steps of an iteration together. The nodes of
    /// micrographs are those of one sample from all their roots, since what a node draws depends on
    /// no other node.
    fn pregathered(&mut self, iteration: &Iteration, seed: u64) -> Counts {
        let mut counts = Counts::default();
        for server in 0..u32::from(self.cut.book.n_parts()) {
            let steps = iteration.steps().iter();
            let roots: Vec<NodeId> =
                steps.flat_map(|step| step.roots_at(server)).copied().collect();
            let sampled = self.sampler.sample(&roots, seed);
            counts += self.rows(&sampled.nodes, server);
        }
        counts
    }

    /// Counts one pull of distinct rows.
    fn rows(&self, nodes: &[NodeId], server: u32) -> Counts {
        let plan = self.plan(Deal::Home);
        let mut is_asked = vec![false; plan.workers as usize];
        let mut counts = Counts { wanted: nodes.len() as u64, ..Counts::default() };
        for owner in nodes.iter().filter_map(|&node| plan.owner_of(node)) {
            if owner != server {
                counts.remote += 1;
                is_asked[owner as usize] = true;
            }
        }
        counts.requests = is_asked.into_iter().filter(|&asked| asked).count() as u64;
        counts
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.wanted += other.wanted;
        self.remote += other.remote;
        self.requests += other.requests;
    }
}

impl Sums {
    /// Returns the sums over the iterations of both.
    fn plus(mut self, other: Self) -> Self {
        if self.ways.is_empty() {
            return other;
        }
        for (way, more) in self.ways.iter_mut().zip(other.ways) {
            way.counts += more.counts;
        }
        let (a, b) = (self.locality, other.locality);
        let roots = a.roots + b.roots;
        let mean = |x: f64, y: f64| (x * a.roots as f64 + y * b.roots as f64) / roots.max(1) as f64;
        let (r_micro, r_sub) = (mean(a.r_micro, b.r_micro), mean(a.r_sub, b.r_sub));
        self.locality = Locality { roots, r_micro, r_sub };
        self.iterations += other.iterations;
        self.roots += other.roots;
        self
    }
}

#[cfg(test)]
mod tests;
