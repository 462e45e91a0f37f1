//! The names of the policies.

use std::str::FromStr;

use thiserror::Error;

/// Names of the policies, as commands and reports spell them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// Keeps nothing: every lookup misses.
    None,
    /// Evicts the row that was not read for the longest time.
    Lru,
    /// Evicts the row that was stored first.
    Fifo,
    /// One reference bit per slot, a hand that takes the first slot it finds without one.
    Clock,
    /// A queue in which rows that were read stay where they are when the hand passes.
    Sieve,
    /// A small queue on trial, a main queue, and the ids that were tried and found wanting.
    S3Fifo,
    /// A window before a main space that only rows used more often than its victims enter.
    TinyLfu,
    /// MassiveGNN: scores that decay while a row is not sampled.
    Decay,
    /// The rows of the highest degree, for good.
    Degree,
    /// RapidGNN: the rows used most in an epoch, changed at its end.
    Frequency,
    /// CaPGNN's JACA: rows that more partitions need replace those that fewer need.
    Overlap,
    /// Belady's MIN: the optimum, from knowing the future.
    Oracle,
    /// Keeps every row it ever saw.
    Unbounded,
}

/// A name that is no policy.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("unknown policy `{found}`; one of: {}", PolicyKind::ALL.map(PolicyKind::name).join(", "))]
pub struct UnknownPolicy {
    /// The name given.
    pub found: String,
}

impl PolicyKind {
    /// All policies, in the order in which reports list them.
    pub const ALL: [Self; 13] = [
        Self::None,
        Self::Lru,
        Self::Fifo,
        Self::Clock,
        Self::Sieve,
        Self::S3Fifo,
        Self::TinyLfu,
        Self::Decay,
        Self::Degree,
        Self::Frequency,
        Self::Overlap,
        Self::Oracle,
        Self::Unbounded,
    ];

    /// Those that need no plan and stay within a capacity, for tiers that are given rows and
    /// nothing else.
    pub const REACTIVE: [Self; 7] =
        [Self::None, Self::Lru, Self::Fifo, Self::Clock, Self::Sieve, Self::S3Fifo, Self::TinyLfu];

    /// Returns the name in commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lru => "lru",
            Self::Fifo => "fifo",
            Self::Clock => "clock",
            Self::Sieve => "sieve",
            Self::S3Fifo => "s3-fifo",
            Self::TinyLfu => "tinylfu",
            Self::Decay => "decay",
            Self::Degree => "degree",
            Self::Frequency => "frequency",
            Self::Overlap => "overlap",
            Self::Oracle => "oracle",
            Self::Unbounded => "unbounded",
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicySpec;

    #[test]
    fn reactive_are_those_that_a_name_makes_and_a_capacity_bounds() {
        let bounded = PolicyKind::ALL.into_iter().filter(|&kind| kind != PolicyKind::Unbounded);
        let made: Vec<_> = bounded.filter(|&kind| PolicySpec::try_from(kind).is_ok()).collect();
        assert_eq!(made, PolicyKind::REACTIVE);
    }

    #[test]
    fn names_come_back() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "lru2".parse::<PolicyKind>().unwrap_err();
        assert!(error.to_string().starts_with("unknown policy `lru2`; one of: none, lru, fifo,"));
    }
}
