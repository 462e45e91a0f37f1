//! Decisions that follow from one seed.

use lodestore_graph::splitmix64;

/// A stream of decisions.
#[derive(Debug)]
pub(super) struct Dice {
    state: u64,
}

/// Fate of a group of things that may each be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    /// Everything stays.
    Keeps,
    /// Everything goes.
    Loses,
    /// Each on its own.
    Mixes,
}

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: splitmix64(seed) }
    }

    pub(super) fn word(&mut self) -> u64 {
        self.state = splitmix64(self.state);
        self.state
    }

    /// Returns a number below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    pub(super) fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// Extremes are as likely as everything between them, since bugs live there.
    pub(super) fn mood(&mut self) -> Mood {
        match self.below(4) {
            0 => Mood::Keeps,
            1 => Mood::Loses,
            _ => Mood::Mixes,
        }
    }

    /// Returns whether one thing of a group in this mood stays.
    pub(super) fn keeps(&mut self, mood: Mood) -> bool {
        match mood {
            Mood::Keeps => true,
            Mood::Loses => false,
            Mood::Mixes => self.coin(),
        }
    }
}
