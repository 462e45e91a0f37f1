//! How much memory hot sets and window may take, and what fits into it.

/// Sizes of the steady cache and of the prefetch window of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowBudget {
    /// Rows of one hot set; there are two sets.
    pub n_hot: usize,
    /// Batches in the window: Q in the paper.
    pub window: usize,
}

impl RowBudget {
    /// RapidGNN's bound (section 3), 2·n_hot·d + Q·m_max·d, in bytes: `row_bytes` is d, and
    /// `max_nodes` the input nodes of the largest batch.
    #[must_use]
    pub fn bound_bytes(self, max_nodes: usize, row_bytes: usize) -> u64 {
        let rows = (self.n_hot as u64).saturating_mul(2);
        let rows = rows.saturating_add((self.window as u64).saturating_mul(max_nodes as u64));
        rows.saturating_mul(row_bytes as u64)
    }

    /// The same or smaller sizes whose bound is at most `budget_bytes`.
    ///
    /// The window shrinks first, down to one batch: more batches ahead save no bytes. Then the
    /// hot sets shrink, and the last batch of the window goes if it alone is too large.
    #[must_use]
    pub fn fit(self, budget_bytes: u64, max_nodes: usize, row_bytes: usize) -> Self {
        let rows = budget_bytes / (row_bytes as u64).max(1);
        let max_nodes = (max_nodes as u64).max(1);
        let least = if rows >= max_nodes { self.window.min(1) } else { 0 };
        let for_hot = (rows - least as u64 * max_nodes) / 2;
        let n_hot = (self.n_hot as u64).min(for_hot);
        let window = (self.window as u64).min((rows - 2 * n_hot) / max_nodes);
        // Both are at most what they were.
        Self { n_hot: n_hot as usize, window: window as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_window_gives_way_first() {
        let asked = RowBudget { n_hot: 100, window: 4 };
        assert_eq!(asked.bound_bytes(50, 8), 3200);
        let fit = |bytes| asked.fit(bytes, 50, 8);
        assert_eq!(fit(3200), asked);
        assert_eq!(fit(3199), RowBudget { n_hot: 100, window: 3 });
        assert_eq!(fit(2000), RowBudget { n_hot: 100, window: 1 });
        assert_eq!(fit(1200), RowBudget { n_hot: 50, window: 1 });
        assert_eq!(fit(399), RowBudget { n_hot: 24, window: 0 });
        assert_eq!(fit(0), RowBudget { n_hot: 0, window: 0 });
    }

    proptest! {
        #[test]
        fn what_fits_is_within_the_budget_and_no_larger_than_asked(
            n_hot in 0usize..1000, window in 0usize..9, max_nodes in 0usize..300,
            row_bytes in 1usize..9, budget in 0u64..20_000,
        ) {
            let asked = RowBudget { n_hot, window };
            let fit = asked.fit(budget, max_nodes, row_bytes);
            prop_assert!(fit.bound_bytes(max_nodes, row_bytes) <= budget);
            prop_assert!(fit.n_hot <= n_hot && fit.window <= window);
            if asked.bound_bytes(max_nodes.max(1), row_bytes) <= budget {
                prop_assert_eq!(fit, asked);
            }
        }
    }
}
