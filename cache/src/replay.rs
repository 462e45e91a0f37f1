//! Replaying a trace against a directory, without rows.

use std::sync::Arc;

use crate::directory::{Directory, DirectoryError, Placement, TierStats};
use crate::index::NO_SLOT;
use crate::policy::PolicySpec;
use crate::trace::Trace;

/// What a policy is told while a trace is replayed, beside what its [`PolicySpec`] says.
#[derive(Clone, Debug, Default)]
pub struct Telling {
    /// For `oracle`: [`crate::next_uses`] of the trace.
    pub next_uses: Option<Arc<[u32]>>,
    /// For `frequency`: the ranking of each epoch of the trace.
    pub rankings: Option<Arc<[Arc<[u32]>]>>,
    /// Rows that a planned policy wants are brought before they are missed: when it starts, at
    /// the start of an epoch (`frequency`), and in its rounds (`decay`). Otherwise a row comes
    /// only when it is missed, and the policy decides whether it stays.
    pub ahead: bool,
}

/// A policy on its way through a trace. It serves each batch as the owner of a tier does: looks
/// it up, and admits what it missed.
pub struct Replay<'a> {
    trace: &'a Trace,
    directory: Directory,
    telling: Telling,
    next_batch: u32,
    next_epoch: usize,
    n_ahead: u64,
    slots: Vec<u32>,
    misses: Vec<u32>,
    wanted: Vec<u32>,
    positions: Vec<u32>,
    placements: Vec<Placement>,
}

/// What a replay came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayStats {
    /// Counts of the directory.
    pub tier: TierStats,
    /// Rows that were brought before they were missed.
    pub n_ahead: u64,
    /// Memory of index, slots and policy in bytes, at the end.
    pub bytes: usize,
}

impl ReplayStats {
    /// Rows that had to come from below: those missed, and those brought ahead. No policy brings
    /// fewer than `oracle` misses, since a row that comes ahead could as well come when it is
    /// used.
    #[must_use]
    pub fn moved_rows(&self) -> u64 {
        self.tier.misses + self.n_ahead
    }
}

impl<'a> Replay<'a> {
    /// A directory of `capacity_rows` before the first batch of `trace`.
    ///
    /// # Panics
    ///
    /// When what is told does not belong to the trace.
    pub fn new(
        trace: &'a Trace,
        capacity_rows: u32,
        spec: &PolicySpec,
        telling: Telling,
    ) -> Result<Self, DirectoryError> {
        let fits = telling.next_uses.as_ref().is_none_or(|uses| uses.len() == trace.n_ids())
            && telling.rankings.as_ref().is_none_or(|all| all.len() == trace.epochs().len());
        assert!(fits, "one next use per access, and one ranking per epoch");
        Ok(Self {
            trace,
            directory: Directory::new(capacity_rows, trace.id_space(), spec)?,
            telling,
            next_batch: 0,
            next_epoch: 0,
            n_ahead: 0,
            slots: Vec::new(),
            misses: Vec::new(),
            wanted: Vec::new(),
            positions: Vec::new(),
            placements: Vec::new(),
        })
    }

    /// Serves batches until at least `n_ids` more accesses are done, or all; gives their number,
    /// and 0 at the end of the trace.
    pub fn advance(&mut self, n_ids: usize) -> usize {
        let first = self.trace.bounds()[self.next_batch as usize];
        let mut done = 0;
        while self.next_batch < self.trace.n_batches() && done < n_ids.max(1) {
            self.serve();
            done = self.trace.bounds()[self.next_batch as usize] - first;
        }
        done
    }

    /// Whether all batches are served.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.next_batch == self.trace.n_batches()
    }

    /// What it has come to so far.
    #[must_use]
    pub fn stats(&self) -> ReplayStats {
        let (tier, bytes) = (self.directory.stats(), self.directory.bytes());
        ReplayStats { tier, n_ahead: self.n_ahead, bytes }
    }

    fn serve(&mut self) {
        let batch = self.next_batch;
        if self.trace.epochs().get(self.next_epoch) == Some(&batch) {
            self.begin_epoch();
        }
        let range = self.trace.range(batch);
        if let Some(next_uses) = &self.telling.next_uses {
            self.directory.announce(&next_uses[range.clone()]);
        }
        let ids = &self.trace.ids()[range];
        self.directory.lookup(ids, &mut self.slots);
        self.misses.clear();
        let misses = (0..).zip(&self.slots).filter(|&(_, &slot)| slot == NO_SLOT);
        self.misses.extend(misses.map(|(position, _)| position));
        self.directory.admit(ids, &self.misses, &mut self.placements);
        self.next_batch = batch + 1;
        if self.telling.ahead && self.ends_round() {
            self.bring_ahead();
        }
    }

    /// Whether `decay` has just chosen what it wants instead of what.
    fn ends_round(&self) -> bool {
        matches!(self.directory.policy(), PolicySpec::Decay(spec)
            if self.next_batch.is_multiple_of(spec.interval))
    }

    fn begin_epoch(&mut self) {
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        // The first ranking is that of the specification.
        if epoch > 0 {
            let Some(rankings) = &self.telling.rankings else { return };
            // Only this policy takes it. The last batch is over, and holds its slots no more.
            if !matches!(self.directory.policy(), PolicySpec::Frequency(_)) {
                return;
            }
            self.directory.lookup(&[], &mut self.slots);
            self.directory.retarget(&rankings[epoch]);
        }
        if self.telling.ahead {
            self.bring_ahead();
        }
    }

    fn bring_ahead(&mut self) {
        self.directory.wanted(&mut self.wanted);
        self.positions.clear();
        self.positions.extend(0..self.wanted.len() as u32);
        self.directory.admit(&self.wanted, &self.positions, &mut self.placements);
        self.n_ahead += self.wanted.len() as u64;
    }
}

#[cfg(test)]
mod tests;
