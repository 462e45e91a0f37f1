//! When a cache is not worth its while.

/// When to go past a cache, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BypassSettings {
    /// Go past it when the moving hit rate stays under this, a share of 1 ...
    pub leave_below: f64,
    /// ... for so many epochs.
    pub patience_epochs: u32,
    /// Come back when a trial reaches this hit rate. At least `leave_below`: the gap keeps the
    /// decision from going back and forth.
    pub return_at: f64,
    /// Go past it for so many epochs, then try it for `patience_epochs`.
    pub rest_epochs: u32,
    /// Weight of the latest epoch in the moving hit rate, above 0 and at most 1.
    pub weight: f64,
}

impl Default for BypassSettings {
    /// Leaves after 3 epochs under 5 %, tries again every 10, and returns at 10 %.
    fn default() -> Self {
        Self { leave_below: 0.05, patience_epochs: 3, return_at: 0.1, rest_epochs: 10, weight: 0.5 }
    }
}

/// Watches the hit rate of a cache epoch by epoch, and says when to go past it (CaPGNN, section
/// 5.5: when the moving-average hit ratio stays below a threshold for several epochs, bypass the
/// caching path temporarily).
///
/// While a cache is bypassed it has no hit rate, so after a rest it is tried: filled and counted
/// like any, and kept if the last epoch of the trial was good enough.
#[derive(Clone, Debug)]
pub struct Bypass {
    settings: BypassSettings,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Using { moving: Option<f64>, epochs_below: u32 },
    Resting { epochs_left: u32 },
    Trying { epochs_left: u32 },
}

const FRESH: State = State::Using { moving: None, epochs_below: 0 };

impl Bypass {
    /// Uses the cache at first. Settings that make no sense are taken at the nearest that do.
    #[must_use]
    pub fn new(settings: BypassSettings) -> Self {
        let settings = BypassSettings {
            patience_epochs: settings.patience_epochs.max(1),
            return_at: settings.return_at.max(settings.leave_below),
            rest_epochs: settings.rest_epochs.max(1),
            weight: if settings.weight > 0.0 { settings.weight.min(1.0) } else { 1.0 },
            ..settings
        };
        Self { settings, state: FRESH }
    }

    /// Whether the cache is to be left alone in the epoch that comes or runs.
    #[must_use]
    pub fn is_bypassing(&self) -> bool {
        matches!(self.state, State::Resting { .. })
    }

    /// An epoch ends, with so many hits of so many accesses. One without accesses says nothing of
    /// the cache, but time passes for one that rests.
    pub fn end_epoch(&mut self, hits: u64, accesses: u64) {
        let rate = (accesses > 0).then(|| hits as f64 / accesses as f64);
        self.state = match (self.state, rate) {
            (State::Resting { epochs_left: ..=1 }, _) => {
                State::Trying { epochs_left: self.settings.patience_epochs }
            }
            (State::Resting { epochs_left }, _) => State::Resting { epochs_left: epochs_left - 1 },
            (state, None) => state,
            (State::Trying { epochs_left: ..=1 }, Some(rate)) => {
                if rate >= self.settings.return_at { FRESH } else { self.rest() }
            }
            (State::Trying { epochs_left }, _) => State::Trying { epochs_left: epochs_left - 1 },
            (State::Using { moving, epochs_below }, Some(rate)) => {
                self.after_use(moving, epochs_below, rate)
            }
        };
    }

    fn after_use(&self, moving: Option<f64>, epochs_below: u32, rate: f64) -> State {
        let moving = moving.map_or(rate, |moving| moving + self.settings.weight * (rate - moving));
        let epochs_below = if moving < self.settings.leave_below { epochs_below + 1 } else { 0 };
        if epochs_below >= self.settings.patience_epochs {
            return self.rest();
        }
        State::Using { moving: Some(moving), epochs_below }
    }

    fn rest(&self) -> State {
        State::Resting { epochs_left: self.settings.rest_epochs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SETTINGS: BypassSettings = BypassSettings {
        leave_below: 0.2,
        patience_epochs: 2,
        return_at: 0.4,
        rest_epochs: 3,
        weight: 0.5,
    };

    /// The epochs, by number, that are bypassed when hits are so many of 100.
    fn bypassed(hits: &[u64]) -> Vec<usize> {
        let mut bypass = Bypass::new(SETTINGS);
        let mut epochs = Vec::new();
        for (epoch, &hits) in hits.iter().enumerate() {
            if bypass.is_bypassing() {
                epochs.push(epoch);
                bypass.end_epoch(0, 0);
            } else {
                bypass.end_epoch(hits, 100);
            }
        }
        epochs
    }

    #[test]
    fn a_cache_that_stays_bad_rests_and_is_tried_again_and_again() {
        assert_eq!(bypassed(&[10; 14]), [2, 3, 4, 7, 8, 9, 12, 13]);
    }

    #[test]
    fn one_bad_epoch_is_not_enough() {
        assert!(bypassed(&[60, 0, 60, 0, 60, 0, 0, 60, 0]).is_empty());
        assert_eq!(bypassed(&[60, 0, 0, 0, 0, 60]), [4, 5], "30, 15 and 8 of 100 on average");
    }

    #[test]
    fn between_the_thresholds_nothing_changes() {
        // 30 of 100 is enough to stay, and not enough to come back.
        assert!(bypassed(&[30; 20]).is_empty());
        assert_eq!(bypassed(&[0, 0, 0, 0, 0, 30, 30, 30]), [2, 3, 4, 7]);
        assert_eq!(bypassed(&[0, 0, 0, 0, 0, 5, 40, 30, 30, 30]), [2, 3, 4]);
    }

    #[test]
    fn an_epoch_without_accesses_says_nothing() {
        let mut bypass = Bypass::new(SETTINGS);
        for _ in 0..9 {
            bypass.end_epoch(0, 0);
        }
        assert!(!bypass.is_bypassing());
    }

    proptest! {
        #[test]
        fn a_cache_over_the_threshold_is_never_left(
            hits in prop::collection::vec(20u64..=100, 0..60),
        ) {
            prop_assert!(bypassed(&hits).is_empty());
        }

        #[test]
        fn no_rest_is_for_ever_and_none_shorter_than_set(
            hits in prop::collection::vec(0u64..=100, 0..90),
        ) {
            let epochs = bypassed(&hits);
            let rests = epochs.chunk_by(|a, b| a + 1 == *b).collect::<Vec<_>>();
            for (at, rest) in rests.iter().enumerate() {
                let is_cut = at + 1 == rests.len() && epochs.last() == Some(&(hits.len() - 1));
                prop_assert!(rest.len() == 3 || is_cut && rest.len() < 3);
            }
        }
    }
}
