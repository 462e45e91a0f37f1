//! When a cache is not worth its while.

/// When to go past a cache, and for how long. A round is this many batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BypassSettings {
    /// Batches of a round. One in which the cache still filled up says nothing of it.
    pub round_batches: u32,
    /// Go past it when the moving hit rate stays under this, a share of 1 ...
    pub leave_below: f64,
    /// ... for this many rounds.
    pub patience_rounds: u32,
    /// Come back when a trial reaches this hit rate. At least `leave_below`: the gap keeps the
    /// decision from going back and forth.
    pub return_at: f64,
    /// Go past it for this many rounds, then try it for `patience_rounds`.
    pub rest_rounds: u32,
    /// Weight of the latest round in the moving hit rate, above 0 and at most 1.
    pub weight: f64,
}

impl Default for BypassSettings {
    /// Returns rounds of 32 batches; leaves after 3 under 5 %, tries again every 10, and returns at
    /// 10 %.
    fn default() -> Self {
        Self {
            round_batches: 32,
            leave_below: 0.05,
            patience_rounds: 3,
            return_at: 0.1,
            rest_rounds: 10,
            weight: 0.5,
        }
    }
}

/// A round fills a cache up when more than one in this many accesses took a slot that was free.
const FILLING: u64 = 20;

/// Counts what a cache does, batch by batch, and says when to go past it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    /// None: always in use.
    bypass: Option<Bypass>,
    n_batches: u32,
    hits: u64,
    accesses: u64,
    /// Rows that were resident when the round began.
    n_resident: usize,
}

impl Watch {
    pub(crate) fn new(settings: Option<BypassSettings>) -> Self {
        Self { bypass: settings.map(Bypass::new), ..Self::default() }
    }

    /// Returns whether the next batch goes past the cache.
    pub(crate) fn is_resting(&self) -> bool {
        self.bypass.as_ref().is_some_and(Bypass::is_resting)
    }

    /// Counts a batch that was looked up in a cache with this many rows, or went past it without
    /// accesses.
    pub(crate) fn count(&mut self, hits: usize, accesses: usize, n_resident: usize) {
        let Some(bypass) = &mut self.bypass else { return };
        self.n_batches += 1;
        self.hits += hits as u64;
        self.accesses += accesses as u64;
        if self.n_batches < bypass.settings.round_batches {
            return;
        }
        let n_filled = n_resident.saturating_sub(self.n_resident) as u64;
        let is_filling = n_filled * FILLING > self.accesses;
        let (hits, accesses) = if is_filling { (0, 0) } else { (self.hits, self.accesses) };
        bypass.end_round(hits, accesses);
        (self.n_batches, self.hits, self.accesses, self.n_resident) = (0, 0, 0, n_resident);
    }
}

/// Decision to bypass a cache by its hit rate, round by round. CaPGNN, section 5.5: when the
/// moving-average hit ratio stays below a threshold for several epochs, bypass the caching path
/// temporarily.
///
/// A bypassed cache has no hit rate, so it is tried after a rest. During the trial it is filled and
/// counted like any. It is kept if the last round of the trial was good enough.
#[derive(Clone, Debug)]
struct Bypass {
    settings: BypassSettings,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Using { moving: Option<f64>, rounds_below: u32 },
    Resting { rounds_left: u32 },
    Trying { rounds_left: u32 },
}

const FRESH: State = State::Using { moving: None, rounds_below: 0 };

impl Bypass {
    /// Uses the cache at first. Settings that make no sense are taken at the nearest that do.
    fn new(settings: BypassSettings) -> Self {
        let settings = BypassSettings {
            round_batches: settings.round_batches.max(1),
            patience_rounds: settings.patience_rounds.max(1),
            return_at: settings.return_at.max(settings.leave_below),
            rest_rounds: settings.rest_rounds.max(1),
            weight: if settings.weight > 0.0 { settings.weight.min(1.0) } else { 1.0 },
            ..settings
        };
        Self { settings, state: FRESH }
    }

    /// Returns whether the cache is to be left alone in the round that comes or runs.
    fn is_resting(&self) -> bool {
        matches!(self.state, State::Resting { .. })
    }

    /// Ends a round, with its hits and accesses. One without accesses says nothing of the cache,
    /// but time passes for one that rests.
    fn end_round(&mut self, hits: u64, accesses: u64) {
        let rate = (accesses > 0).then(|| hits as f64 / accesses as f64);
        self.state = match (self.state, rate) {
            (State::Resting { rounds_left: ..=1 }, _) => {
                State::Trying { rounds_left: self.settings.patience_rounds }
            }
            (State::Resting { rounds_left }, _) => State::Resting { rounds_left: rounds_left - 1 },
            (state, None) => state,
            (State::Trying { rounds_left: ..=1 }, Some(rate)) => {
                if rate >= self.settings.return_at { FRESH } else { self.rest() }
            }
            (State::Trying { rounds_left }, _) => State::Trying { rounds_left: rounds_left - 1 },
            (State::Using { moving, rounds_below }, Some(rate)) => {
                self.after_use(moving, rounds_below, rate)
            }
        };
    }

    fn after_use(&self, moving: Option<f64>, rounds_below: u32, rate: f64) -> State {
        let moving = moving.map_or(rate, |moving| moving + self.settings.weight * (rate - moving));
        let rounds_below = if moving < self.settings.leave_below { rounds_below + 1 } else { 0 };
        if rounds_below >= self.settings.patience_rounds {
            return self.rest();
        }
        State::Using { moving: Some(moving), rounds_below }
    }

    fn rest(&self) -> State {
        State::Resting { rounds_left: self.settings.rest_rounds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SETTINGS: BypassSettings = BypassSettings {
        round_batches: 4,
        leave_below: 0.2,
        patience_rounds: 2,
        return_at: 0.4,
        rest_rounds: 3,
        weight: 0.5,
    };

    /// Returns the rounds, by number, that are bypassed at a number of hits of 100.
    fn bypassed(hits: &[u64]) -> Vec<usize> {
        let mut bypass = Bypass::new(SETTINGS);
        let mut rounds = Vec::new();
        for (round, &hits) in hits.iter().enumerate() {
            if bypass.is_resting() {
                rounds.push(round);
                bypass.end_round(0, 0);
            } else {
                bypass.end_round(hits, 100);
            }
        }
        rounds
    }

    #[test]
    fn a_cache_that_stays_bad_rests_and_is_tried_again_and_again() {
        assert_eq!(bypassed(&[10; 14]), [2, 3, 4, 7, 8, 9, 12, 13]);
    }

    #[test]
    fn one_bad_round_is_not_enough() {
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
    fn a_round_without_accesses_says_nothing() {
        let mut bypass = Bypass::new(SETTINGS);
        for _ in 0..9 {
            bypass.end_round(0, 0);
        }
        assert!(!bypass.is_resting());
    }

    /// Runs batches of 25 accesses with this many hits each, until the watch says to go past.
    fn batches_until_rest(hits: usize, n_filled: impl Fn(usize) -> usize) -> Option<usize> {
        let mut watch = Watch::new(Some(SETTINGS));
        (1..=100).find(|&batch| {
            watch.count(hits, 25, n_filled(batch));
            watch.is_resting()
        })
    }

    #[test]
    fn a_bad_cache_is_left_after_as_many_rounds_as_there_is_patience() {
        assert_eq!(batches_until_rest(4, |_| 0), Some(8));
        assert_eq!(batches_until_rest(5, |_| 0), None, "a fifth is enough");
        let mut never = Watch::new(None);
        (0..100).for_each(|_| never.count(0, 25, 0));
        assert!(!never.is_resting());
    }

    #[test]
    fn a_cache_that_fills_up_is_not_judged() {
        assert_eq!(batches_until_rest(0, |batch| batch * 2), None);
        assert_eq!(batches_until_rest(0, |batch| batch.min(20) * 2), Some(28), "full after 20");
        assert_eq!(batches_until_rest(0, |batch| batch), Some(8), "one in 25 is not filling up");
    }

    #[test]
    fn a_rest_takes_its_rounds_and_then_there_is_a_trial() {
        let mut watch = Watch::new(Some(SETTINGS));
        (0..8).for_each(|_| watch.count(0, 25, 0));
        let n_past = (0..).take_while(|_| {
            let is_resting = watch.is_resting();
            watch.count(0, 0, 0);
            is_resting
        });
        assert_eq!(n_past.count(), 3 * 4);
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
            let rounds = bypassed(&hits);
            let rests = rounds.chunk_by(|a, b| a + 1 == *b).collect::<Vec<_>>();
            for (at, rest) in rests.iter().enumerate() {
                let is_cut = at + 1 == rests.len() && rounds.last() == Some(&(hits.len() - 1));
                prop_assert!(rest.len() == 3 || is_cut && rest.len() < 3);
            }
        }
    }
}
