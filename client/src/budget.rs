//! Memory of hot sets and batches: the bound of given sizes, and the sizes that fit a budget.

/// Sizes of the hot sets and of the prefetch window of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowBudget {
    /// Rows of one hot set; there are two sets.
    pub n_hot: usize,
    /// Batches in the window: Q in the paper.
    pub window: usize,
}

/// Returns the number of batches in memory if `window` are prepared ahead: the window, the batch in
/// training, and one that the trainer prepares itself.
fn n_batches(window: u64) -> u64 {
    if window == 0 { 1 } else { window.saturating_add(2) }
}

impl RowBudget {
    /// Returns 2·n_hot·d + (Q + 2)·m_max·d, in bytes, or 2·n_hot·d + m_max·d without a window:
    /// `row_bytes` is d, and `max_nodes` the input nodes of the largest batch. The bound of
    /// RapidGNN (section 3) has Q batches: it counts neither the batch in training nor one that the
    /// trainer prepares itself.
    #[must_use]
    pub fn bound_bytes(self, max_nodes: usize, row_bytes: usize) -> u64 {
        let rows = (self.n_hot as u64).saturating_mul(2);
        let of_batches = n_batches(self.window as u64).saturating_mul(max_nodes as u64);
        rows.saturating_add(of_batches).saturating_mul(row_bytes as u64)
    }

    /// Returns the same or smaller sizes whose bound is at most `budget_bytes`; `None` if not even
    /// one batch fits.
    ///
    /// The window shrinks first, down to one batch: batches further ahead save no bytes. Then the
    /// hot sets shrink. The last batch of the window is dropped if it does not fit without hot
    /// sets.
    #[must_use]
    pub fn fit(self, budget_bytes: u64, max_nodes: usize, row_bytes: usize) -> Option<Self> {
        let rows = budget_bytes / (row_bytes as u64).max(1);
        let max_nodes = (max_nodes as u64).max(1);
        let window = self.window as u64;
        let least = [window.min(1), 0].into_iter().map(|window| n_batches(window) * max_nodes);
        let least = least.into_iter().find(|least| *least <= rows)?;
        let n_hot = (self.n_hot as u64).min((rows - least) / 2);
        let n_fit = (rows - 2 * n_hot) / max_nodes;
        let window = if n_fit < n_batches(1) { 0 } else { window.min(n_fit - 2) };
        // Neither is larger than before.
        Some(Self { n_hot: n_hot as usize, window: window as usize })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_window_yields_first() {
        let asked = RowBudget { n_hot: 100, window: 4 };
        assert_eq!(asked.bound_bytes(50, 8), 8 * (200 + 6 * 50));
        assert_eq!(RowBudget { n_hot: 100, window: 0 }.bound_bytes(50, 8), 8 * (200 + 50));
        let fit = |bytes| asked.fit(bytes, 50, 8).map(|fit| (fit.n_hot, fit.window));
        assert_eq!(fit(4000), Some((100, 4)));
        assert_eq!(fit(3999), Some((100, 3)));
        assert_eq!(fit(2800), Some((100, 1)));
        assert_eq!(fit(2799), Some((99, 1)), "the first batch precedes hot rows");
        assert_eq!(fit(1200), Some((0, 1)));
        assert_eq!(fit(1199), Some((49, 0)));
        assert_eq!(fit(400), Some((0, 0)), "one batch at a time");
        assert_eq!(fit(399), None);
    }

    proptest! {
        #[test]
        fn fitted_sizes_are_within_the_budget_and_no_larger_than_before(
            n_hot in 0usize..1000, window in 0usize..9, max_nodes in 1usize..300,
            row_bytes in 1usize..9, budget in 0u64..20_000,
        ) {
            let asked = RowBudget { n_hot, window };
            let Some(fit) = asked.fit(budget, max_nodes, row_bytes) else {
                let least = RowBudget { n_hot: 0, window: 0 }.bound_bytes(max_nodes, row_bytes);
                prop_assert!(budget < least);
                return Ok(());
            };
            prop_assert!(fit.bound_bytes(max_nodes, row_bytes) <= budget);
            prop_assert!(fit.n_hot <= n_hot && fit.window <= window);
            if asked.bound_bytes(max_nodes, row_bytes) <= budget {
                prop_assert_eq!(fit, asked);
            }
        }
    }
}
