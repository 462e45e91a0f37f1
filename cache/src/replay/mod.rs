//! Replaying a trace against tiers without rows.

mod two_level;

use std::sync::Arc;

use thiserror::Error;

use crate::device::DeviceError;
use crate::directory::{Directory, DirectoryError, Placement, TierStats};
use crate::policy::{PolicyKind, PolicySpec};
use crate::slots::absent;
use crate::trace::Trace;
use crate::two_level::{Inclusion, TwoLevelStats};

use two_level::{TwoLevelSizes, TwoLevels};

/// The tiers that a trace is replayed against, in rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierSizes {
    /// One tier.
    One(u32),
    /// A tier on each of some devices, over one of the host that they share, all under the same
    /// policy. The batches of each epoch belong to the devices in turn. `ahead` and `oracle` are
    /// not for them.
    Two {
        /// How many devices; at least 1.
        n_devices: u16,
        /// Rows of each device's tier.
        device_rows: u32,
        /// Rows of the host's tier.
        host_rows: u32,
        /// Which rows a device and the host may have in common.
        inclusion: Inclusion,
    },
}

/// Inputs of a policy while a trace is replayed, beside those of its [`PolicySpec`].
#[derive(Clone, Debug, Default)]
pub struct ReplayInputs {
    /// For `oracle`: [`crate::policy::next_uses`] of the trace.
    pub next_uses: Option<Arc<[u32]>>,
    /// For `frequency`: the ranking of each epoch of the trace.
    pub rankings: Option<Arc<[Arc<[u32]>]>>,
    /// Rows that a planned policy wants are brought before they are missed. This is done when it
    /// starts, at the start of an epoch (`frequency`), and in its rounds (`decay`). Otherwise a row
    /// comes only when it is missed, and the policy decides whether it stays.
    pub ahead: bool,
}

/// A policy on its way through a trace. It serves each batch as the owner of its tiers does: looks
/// it up, and admits what it missed.
pub struct Replay<'a> {
    trace: &'a Trace,
    tiers: Tiers,
    spec: PolicySpec,
    inputs: ReplayInputs,
    next_batch: u32,
    next_epoch: usize,
    n_ahead: u64,
}

enum Tiers {
    One(Box<OneTier>),
    Two(Box<TwoLevels>),
}

/// Why there is no replay.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// A tier cannot be made.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A device's tier cannot be made.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The host sees only what devices miss.
    #[error("the host tier under a device tier cannot be `{kind}`: its future is not known")]
    Policy {
        /// The policy asked for.
        kind: PolicyKind,
    },
}

/// Result of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayStats {
    /// Counts of the directory; of two tiers, hits and misses as of one, the rest of both.
    pub tier: TierStats,
    /// Counts of each of two tiers.
    pub levels: Option<TwoLevelStats>,
    /// Rows that were brought before they were missed.
    pub n_ahead: u64,
    /// Memory of index, slots and policy in bytes, at the end; of two tiers also what they keep of
    /// each row's age and number.
    pub bytes: usize,
}

impl TierSizes {
    /// Returns whether a batch passes two tiers.
    #[must_use]
    pub fn is_two(self) -> bool {
        !matches!(self, Self::One(_))
    }

    /// Returns the rows of all tiers together.
    #[must_use]
    pub fn rows(self) -> u32 {
        match self {
            Self::One(rows) => rows,
            Self::Two { n_devices, device_rows, host_rows, .. } => {
                device_rows.saturating_mul(n_devices.into()).saturating_add(host_rows)
            }
        }
    }
}

impl ReplayStats {
    /// Returns the rows that had to come from below: those missed, and those brought ahead. No
    /// policy brings fewer than `oracle` misses, since a row that comes ahead could as well come
    /// when it is used.
    #[must_use]
    pub fn moved_rows(&self) -> u64 {
        self.tier.misses + self.n_ahead
    }
}

impl<'a> Replay<'a> {
    /// Returns empty tiers before the first batch of `trace`.
    ///
    /// Fails when the policy's inputs make no sense, it is not for two tiers, or the system
    /// refuses the memory.
    ///
    /// # Panics
    ///
    /// When the inputs do not belong to the trace, or there are no devices.
    pub fn new(
        trace: &'a Trace,
        sizes: TierSizes,
        spec: &PolicySpec,
        inputs: ReplayInputs,
    ) -> Result<Self, ReplayError> {
        let fits = inputs.next_uses.as_ref().is_none_or(|uses| uses.len() == trace.n_ids())
            && inputs.rankings.as_ref().is_none_or(|all| all.len() == trace.epochs().len());
        assert!(fits, "one next use per access, and one ranking per epoch");
        let tiers = match sizes {
            TierSizes::One(rows) => {
                Tiers::One(Box::new(OneTier::new(rows, trace.id_space(), spec)?))
            }
            TierSizes::Two { n_devices, device_rows, host_rows, inclusion } => {
                assert!(n_devices > 0, "a batch belongs to a device");
                if spec.kind() == PolicyKind::Oracle {
                    return Err(ReplayError::Policy { kind: PolicyKind::Oracle });
                }
                let sizes = TwoLevelSizes { n_devices, device_rows, host_rows, inclusion };
                Tiers::Two(Box::new(TwoLevels::new(sizes, trace, spec)?))
            }
        };
        let (spec, next_batch, next_epoch) = (spec.clone(), 0, 0);
        Ok(Self { trace, tiers, spec, inputs, next_batch, next_epoch, n_ahead: 0 })
    }

    /// Serves batches until at least `n_ids` more accesses are done, or all; returns their number,
    /// and 0 at the end of the trace.
    pub fn advance(&mut self, n_ids: usize) -> usize {
        let first = self.trace.bounds()[self.next_batch as usize];
        let mut done = 0;
        while !self.is_done() && done < n_ids.max(1) {
            self.serve();
            done = self.trace.bounds()[self.next_batch as usize] - first;
        }
        done
    }

    /// Serves the next batch, if there is one; returns its number of accesses.
    pub fn advance_batch(&mut self) -> usize {
        if self.is_done() {
            return 0;
        }
        self.serve();
        self.trace.range(self.next_batch - 1).len()
    }

    /// Returns whether all batches are served.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.next_batch == self.trace.n_batches()
    }

    /// Appends the ids that the last batch missed, in its order.
    pub fn missed(&self, ids: &mut Vec<u32>) {
        let Some(last) = self.next_batch.checked_sub(1) else { return };
        let batch = &self.trace.ids()[self.trace.range(last)];
        match &self.tiers {
            Tiers::One(tier) => ids.extend(tier.misses.iter().map(|&at| batch[at as usize])),
            Tiers::Two(tiers) => ids.extend_from_slice(&tiers.missed),
        }
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn stats(&self) -> ReplayStats {
        let n_ahead = self.n_ahead;
        match &self.tiers {
            Tiers::One(tier) => {
                let (tier, bytes) = (tier.directory.stats(), tier.directory.bytes());
                ReplayStats { tier, levels: None, n_ahead, bytes }
            }
            Tiers::Two(tiers) => {
                let (levels, bytes) = (tiers.stats(), tiers.bytes());
                ReplayStats { tier: as_one(&levels), levels: Some(levels), n_ahead, bytes }
            }
        }
    }

    fn serve(&mut self) {
        let batch = self.next_batch;
        if self.trace.epochs().get(self.next_epoch) == Some(&batch) {
            self.begin_epoch();
        }
        let range = self.trace.range(batch);
        let ids = &self.trace.ids()[range.clone()];
        match &mut self.tiers {
            Tiers::One(tier) => {
                tier.serve(ids, self.inputs.next_uses.as_ref().map(|uses| &uses[range]));
            }
            Tiers::Two(tiers) => tiers.serve(ids),
        }
        self.next_batch = batch + 1;
        if self.ends_round() {
            self.bring_ahead();
        }
    }

    /// Returns whether `decay` has just chosen what it wants instead of what.
    fn ends_round(&self) -> bool {
        matches!(&self.spec, PolicySpec::Decay(spec)
            if self.next_batch.is_multiple_of(spec.interval))
    }

    fn begin_epoch(&mut self) {
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        if let Tiers::Two(tiers) = &mut self.tiers {
            tiers.begin_epoch();
        }
        // The first ranking is that of the specification.
        if epoch > 0 {
            let Some(rankings) = &self.inputs.rankings else { return };
            if !matches!(self.spec, PolicySpec::Frequency(_)) {
                return;
            }
            match &mut self.tiers {
                Tiers::One(tier) => tier.retarget(&rankings[epoch]),
                Tiers::Two(tiers) => tiers.retarget(&rankings[epoch]),
            }
        }
        self.bring_ahead();
    }

    fn bring_ahead(&mut self) {
        if let (Tiers::One(tier), true) = (&mut self.tiers, self.inputs.ahead) {
            self.n_ahead += tier.bring_ahead();
        }
    }
}

/// A directory, served as the owner of a tier does: a batch is looked up, and what it missed is
/// admitted.
struct OneTier {
    directory: Directory,
    slots: Vec<u32>,
    /// Positions of the last batch that missed.
    misses: Vec<u32>,
    wanted: Vec<u32>,
    positions: Vec<u32>,
    placements: Vec<Placement>,
}

impl OneTier {
    fn new(n_rows: u32, id_space: u32, spec: &PolicySpec) -> Result<Self, DirectoryError> {
        Ok(Self {
            directory: Directory::new(n_rows, id_space, spec)?,
            slots: Vec::new(),
            misses: Vec::new(),
            wanted: Vec::new(),
            positions: Vec::new(),
            placements: Vec::new(),
        })
    }

    fn serve(&mut self, ids: &[u32], next_uses: Option<&[u32]>) {
        if let Some(next_uses) = next_uses {
            self.directory.announce(next_uses);
        }
        self.directory.lookup(ids, &mut self.slots);
        self.misses.clear();
        self.misses.extend(absent(&self.slots));
        self.directory.admit(ids, &self.misses, &mut self.placements);
    }

    /// Ends the last batch and passes the next epoch to the policy.
    fn retarget(&mut self, ranking: &[u32]) {
        self.directory.lookup(&[], &mut self.slots);
        self.directory.retarget(ranking);
    }

    /// Brings what the policy wants; returns how many rows that is.
    fn bring_ahead(&mut self) -> u64 {
        self.directory.wanted(&mut self.wanted);
        self.positions.clear();
        self.positions.extend(0..self.wanted.len() as u32);
        self.directory.admit(&self.wanted, &self.positions, &mut self.placements);
        self.wanted.len() as u64
    }
}

/// Returns the stats of two tiers as one: a row that neither has is a miss. Evictions are of
/// copies; a row may have one in each tier, and one that moves down has not gone. Admissions and
/// removals count moves too.
fn as_one(levels: &TwoLevelStats) -> TierStats {
    TierStats {
        hits: levels.device.hits + levels.host.hits,
        misses: levels.host.misses,
        admissions: levels.device.admissions + levels.host.admissions,
        evictions: levels.device.evictions + levels.host.evictions - levels.demotions,
        removals: levels.device.removals + levels.host.removals,
        ..TierStats::default()
    }
}

#[cfg(test)]
mod tests;
