//! Versions of the wire.

use std::fmt;

use crate::limits::{WIRE_VERSION, WIRE_VERSION_OLDEST};

/// Versions of the wire that one end speaks: all from the oldest to the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireVersions {
    /// First of them, at least 1.
    pub oldest: u16,
    /// Last of them.
    pub newest: u16,
}

impl WireVersions {
    /// The versions of this crate.
    pub const SPOKEN: Self = Self { oldest: WIRE_VERSION_OLDEST, newest: WIRE_VERSION };

    /// Returns whether `version` is one of them.
    #[must_use]
    pub fn contains(self, version: u16) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }

    /// Returns the newest version that both ends speak.
    #[must_use]
    pub fn newest_common(self, other: Self) -> Option<u16> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }
}

impl fmt::Display for WireVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.oldest == self.newest {
            true => write!(f, "{}", self.newest),
            false => write!(f, "{} to {}", self.oldest, self.newest),
        }
    }
}
