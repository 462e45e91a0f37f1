//! How evenly the roots of global batches fall on servers.

use lodestore_graph::NodeId;
use lodestore_graph::sampler::{RootPlan, epoch_order};
use serde::Serialize;

use super::rows::places;

/// Iterations that are looked at.
const ITERATIONS: u32 = 200;
/// Servers' roots are even where the fewest are this share fewer than the most (section 5.1).
const EVEN: f64 = 0.1;

/// Roots of servers, by iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Balance {
    pub(super) iterations: u32,
    /// Share of the iterations in which the fewest roots of a server are less than a tenth fewer
    /// than the most.
    pub(super) even: f64,
    /// Mean of the most roots over the mean, less 1: `roots_imbalance` of `lode train`.
    pub(super) imbalance: f64,
    /// Largest share by which the fewest roots of a server were fewer than the most.
    pub(super) worst: f64,
}

/// Deals the roots of iterations to their owners.
pub(super) fn balance(plan: RootPlan<'_>, train: &[NodeId]) -> Balance {
    let mut found = Balance::default();
    let mut order = Vec::new();
    for (epoch, batch) in places(train.len(), plan.batch_size, plan.workers, ITERATIONS) {
        if batch == 0 {
            order = epoch_order(plan.seed, epoch, train);
        }
        let roots = plan.global_batches(&order).nth(batch as usize).unwrap_or_default();
        let mut counts = vec![0u32; plan.workers as usize];
        let owners = roots.iter().filter_map(|&root| plan.owner_of(root));
        owners.for_each(|owner| counts[owner as usize] += 1);
        found.add(&counts);
    }
    found
}

impl Balance {
    /// Adds an iteration with these roots of each server.
    fn add(&mut self, roots: &[u32]) {
        let most = roots.iter().copied().max().unwrap_or(0);
        let fewest = roots.iter().copied().min().unwrap_or(0);
        let sum: u32 = roots.iter().sum();
        let difference = f64::from(most - fewest) / f64::from(most.max(1));
        let excess = f64::from(most) * roots.len() as f64 / f64::from(sum.max(1)) - 1.0;
        self.iterations += 1;
        let weight = 1.0 / f64::from(self.iterations);
        self.even += (f64::from(u8::from(difference < EVEN)) - self.even) * weight;
        self.imbalance += (excess - self.imbalance) * weight;
        self.worst = self.worst.max(difference);
    }
}

#[cfg(test)]
mod tests {
    use lodestore_graph::PartitionBook;
    use lodestore_graph::sampler::Deal;

    use super::*;

    #[test]
    fn even_is_a_difference_below_a_tenth() {
        let mut found = Balance::default();
        found.add(&[100, 91]);
        assert_eq!((found.even, found.worst), (1.0, 0.09));
        assert!((found.imbalance - (100.0 / 95.5 - 1.0)).abs() < 1e-12);
        found.add(&[100, 90]);
        assert_eq!((found.iterations, found.even), (2, 0.5));
        found.add(&[5, 0]);
        assert_eq!(found.worst, 1.0);
        assert!((found.even - 1.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn roots_are_dealt_to_owners() {
        // All roots are of the first of two servers; then half of them.
        let book = PartitionBook::from_counts(&[8, 8]).unwrap();
        let (seed, deal, workers, batch_size) = (1, Deal::Home, 2, 4);
        let plan = RootPlan { seed, deal, workers, batch_size, book: &book };
        let train = |n: u32| (0..n).map(NodeId).collect::<Vec<_>>();
        let found = balance(plan, &train(8));
        assert_eq!((found.iterations, found.even, found.imbalance), (ITERATIONS, 0.0, 1.0));
        let whole = RootPlan { batch_size: 8, ..plan };
        assert_eq!(balance(whole, &train(16)).even, 1.0);
    }
}
