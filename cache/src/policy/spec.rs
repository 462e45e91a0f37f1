//! A policy with its inputs.

use std::sync::Arc;

use thiserror::Error;

use super::clock::Clock;
use super::decay::{Decay, DecaySpec};
use super::fifo::Fifo;
use super::fixed::Fixed;
use super::lru::Lru;
use super::oracle::Oracle;
use super::overlap::Overlap;
use super::s3_fifo::{self, S3Fifo};
use super::sieve::Sieve;
use super::target::Target;
use super::tiny_lfu::TinyLfu;
use super::{Policy, PolicyKind};
use crate::huge_vec::MemoryError;

/// A policy and its inputs. Those that learn from the rows they see have none.
#[derive(Clone, Debug)]
pub enum PolicySpec {
    /// Keeps nothing.
    None,
    /// See [`PolicyKind::Lru`].
    Lru,
    /// See [`PolicyKind::Fifo`].
    Fifo,
    /// See [`PolicyKind::Clock`].
    Clock,
    /// See [`PolicyKind::Sieve`].
    Sieve,
    /// See [`PolicyKind::S3Fifo`].
    S3Fifo,
    /// See [`PolicyKind::TinyLfu`].
    TinyLfu,
    /// Candidates and parameters of MassiveGNN.
    Decay(DecaySpec),
    /// Ids, the best first: [`crate::policy::rank_by_degree`].
    Degree(Arc<[u32]>),
    /// Ids of the first epoch, the best first: [`crate::policy::rank_by_frequency`].
    Frequency(Arc<[u32]>),
    /// The overlap ratio R of each id, from id 0 on; ids past the end have 0.
    Overlap(Arc<[u16]>),
    /// The future comes batch by batch through [`crate::directory::Directory::announce`].
    Oracle {
        /// Batches of the trace: no next use is at or past it.
        n_batches: u32,
    },
    /// Has a slot for every id, whatever the capacity.
    Unbounded,
}

/// A policy cannot work with its inputs.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum NeedsPlan {
    /// The name alone is not enough.
    #[error("policy `{kind}` needs inputs from the graph or the schedule; `clock` does not")]
    Inputs {
        /// The policy.
        kind: PolicyKind,
    },
    /// Scores that grow with age, or vanish immediately.
    #[error("gamma must be above 0 and at most 1, found {found}")]
    Gamma {
        /// The given value.
        found: f64,
    },
    /// Rounds without batches between them.
    #[error("the interval of eviction rounds must be at least 1 batch, found 0")]
    Interval,
}

impl TryFrom<PolicyKind> for PolicySpec {
    type Error = NeedsPlan;

    fn try_from(kind: PolicyKind) -> Result<Self, NeedsPlan> {
        Ok(match kind {
            PolicyKind::None => Self::None,
            PolicyKind::Lru => Self::Lru,
            PolicyKind::Fifo => Self::Fifo,
            PolicyKind::Clock => Self::Clock,
            PolicyKind::Sieve => Self::Sieve,
            PolicyKind::S3Fifo => Self::S3Fifo,
            PolicyKind::TinyLfu => Self::TinyLfu,
            PolicyKind::Unbounded => Self::Unbounded,
            PolicyKind::Decay
            | PolicyKind::Degree
            | PolicyKind::Frequency
            | PolicyKind::Overlap
            | PolicyKind::Oracle => return Err(NeedsPlan::Inputs { kind }),
        })
    }
}

impl PolicySpec {
    /// Returns the same for a tier that is asked for some ids only, without the inputs for others.
    pub(crate) fn among(&self, is_asked: impl Fn(u32) -> bool) -> Self {
        let asked = |ids: &[u32]| ids.iter().copied().filter(|&id| is_asked(id)).collect();
        match self {
            Self::Degree(ids) => Self::Degree(asked(ids)),
            Self::Frequency(ids) => Self::Frequency(asked(ids)),
            Self::Decay(spec) => {
                let candidates = spec.candidates.iter().copied();
                let candidates = candidates.filter(|candidate| is_asked(candidate.id)).collect();
                Self::Decay(DecaySpec { candidates, ..spec.clone() })
            }
            other => other.clone(),
        }
    }

    /// Returns the policy's name.
    #[must_use]
    pub const fn kind(&self) -> PolicyKind {
        match self {
            Self::None => PolicyKind::None,
            Self::Lru => PolicyKind::Lru,
            Self::Fifo => PolicyKind::Fifo,
            Self::Clock => PolicyKind::Clock,
            Self::Sieve => PolicyKind::Sieve,
            Self::S3Fifo => PolicyKind::S3Fifo,
            Self::TinyLfu => PolicyKind::TinyLfu,
            Self::Decay(_) => PolicyKind::Decay,
            Self::Degree(_) => PolicyKind::Degree,
            Self::Frequency(_) => PolicyKind::Frequency,
            Self::Overlap(_) => PolicyKind::Overlap,
            Self::Oracle { .. } => PolicyKind::Oracle,
            Self::Unbounded => PolicyKind::Unbounded,
        }
    }

    /// Returns whether the inputs make sense.
    pub fn check(&self) -> Result<(), NeedsPlan> {
        let Self::Decay(DecaySpec { gamma, interval, .. }) = self else { return Ok(()) };
        if !(*gamma > 0.0 && *gamma <= 1.0) {
            return Err(NeedsPlan::Gamma { found: *gamma });
        }
        if *interval == 0 { Err(NeedsPlan::Interval) } else { Ok(()) }
    }

    /// Returns the slots of a capacity.
    pub(crate) fn n_slots(&self, capacity_rows: u32, id_space: u32) -> u32 {
        match self {
            Self::None => 0,
            Self::Unbounded => id_space,
            _ => capacity_rows.min(id_space),
        }
    }

    /// Returns the number of removed rows that the policy remembers, see [`Policy::remembers`].
    pub(crate) fn n_ghosts(&self, n_slots: u32) -> u32 {
        if matches!(self, Self::S3Fifo) { s3_fifo::n_ghosts(n_slots) } else { 0 }
    }

    /// Returns the memory that [`PolicySpec::build`] will take, in bytes. It grows with the number
    /// of slots.
    pub(crate) fn planned_bytes(&self, n_slots: u32, id_space: u32) -> usize {
        match self {
            Self::None | Self::Unbounded => 0,
            Self::Lru => Lru::planned_bytes(n_slots),
            Self::Fifo => Fifo::planned_bytes(n_slots),
            Self::Clock => Clock::planned_bytes(n_slots),
            Self::Sieve => Sieve::planned_bytes(n_slots),
            Self::S3Fifo => S3Fifo::planned_bytes(n_slots),
            Self::TinyLfu => TinyLfu::planned_bytes(n_slots),
            Self::Decay(spec) => Decay::planned_bytes(n_slots, id_space, spec),
            Self::Degree(_) | Self::Frequency(_) => Target::planned_bytes(n_slots, id_space),
            Self::Overlap(ratios) => Overlap::planned_bytes(n_slots, ratios),
            Self::Oracle { n_batches } => Oracle::planned_bytes(n_slots, *n_batches),
        }
    }

    pub(crate) fn build(
        &self,
        n_slots: u32,
        id_space: u32,
    ) -> Result<Box<dyn Policy>, MemoryError> {
        Ok(match self {
            Self::None | Self::Unbounded => Box::new(Fixed),
            Self::Lru => Box::new(Lru::new(n_slots)?),
            Self::Fifo => Box::new(Fifo::new(n_slots)?),
            Self::Clock => Box::new(Clock::new(n_slots)?),
            Self::Sieve => Box::new(Sieve::new(n_slots)?),
            Self::S3Fifo => Box::new(S3Fifo::new(n_slots)?),
            Self::TinyLfu => Box::new(TinyLfu::new(n_slots)?),
            Self::Decay(spec) => Box::new(Decay::new(n_slots, id_space, spec)?),
            Self::Degree(ids) | Self::Frequency(ids) => {
                Box::new(Target::new(ids, n_slots, id_space)?)
            }
            Self::Overlap(ratios) => Box::new(Overlap::new(n_slots, Arc::clone(ratios))?),
            Self::Oracle { n_batches } => Box::new(Oracle::new(n_slots, *n_batches)?),
        })
    }
}
