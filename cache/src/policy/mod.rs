//! Which rows a tier keeps. A policy sees slots and batches; it does no I/O and knows no clock.

mod clock;

use std::str::FromStr;

use thiserror::Error;

use clock::Clock;

/// Names of the policies, as commands and reports spell them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// Keeps nothing: every lookup misses.
    None,
    /// One reference bit per slot, a hand that takes the first slot it finds without one.
    Clock,
}

/// A name that is no policy.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("unknown policy `{found}`; one of: none, clock")]
pub struct UnknownPolicy {
    /// The name given.
    pub found: String,
}

impl PolicyKind {
    /// All policies, in the order in which reports list them.
    pub const ALL: [Self; 2] = [Self::None, Self::Clock];

    /// The name in commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Clock => "clock",
        }
    }

    /// Memory of the policy's own state per slot, in bytes.
    pub(crate) const fn slot_bytes(self) -> usize {
        match self {
            Self::None => 0,
            Self::Clock => Clock::SLOT_BYTES,
        }
    }
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| UnknownPolicy { found: name.to_owned() })
    }
}

impl std::fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The state of one tier's policy.
pub(crate) enum Policy {
    None,
    Clock(Clock),
}

impl Policy {
    pub(crate) fn new(kind: PolicyKind, n_slots: u32) -> Self {
        match kind {
            PolicyKind::None => Self::None,
            PolicyKind::Clock => Self::Clock(Clock::new(n_slots)),
        }
    }

    /// The slots of some lookups; `NO_SLOT` stands for a miss.
    pub(crate) fn on_lookup(&mut self, slots: &[u32]) {
        match self {
            Self::None => {}
            Self::Clock(clock) => clock.on_lookup(slots),
        }
    }

    /// The slot that a new row of the current batch shall overwrite, free or not; `None` when the
    /// row shall not be kept. Never a slot that it gave earlier in the same batch.
    pub(crate) fn place(&mut self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Clock(clock) => clock.place(),
        }
    }

    /// The row in `slot` is gone; never one that the current batch has placed.
    pub(crate) fn on_remove(&mut self, slot: u32) {
        match self {
            Self::None => {}
            Self::Clock(clock) => clock.on_remove(slot),
        }
    }

    /// The batch of placements is complete.
    pub(crate) fn end_batch(&mut self) {
        match self {
            Self::None => {}
            Self::Clock(clock) => clock.end_batch(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "lru2".parse::<PolicyKind>().unwrap_err();
        assert_eq!(error.to_string(), "unknown policy `lru2`; one of: none, clock");
        let known: Vec<_> = PolicyKind::ALL.map(PolicyKind::name).to_vec();
        assert!(error.to_string().ends_with(&known.join(", ")));
    }
}
