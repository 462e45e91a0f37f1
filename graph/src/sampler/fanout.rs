//! How many in-neighbours of a node one hop takes.

use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Neighbours per node and hop; written as a number, or −1 for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "i64", try_from = "i64")]
pub enum Fanout {
    /// All in-neighbours.
    All,
    /// This many, drawn without replacement; all of them for a node that has no more.
    AtMost(NonZeroU32),
}

/// A text or number that is no fan-out.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("a fan-out is a number from 1 to {}, or -1 for all neighbours; found `{found}`", u32::MAX)]
pub struct FanoutError {
    /// The given value.
    pub found: String,
}

impl Fanout {
    /// Returns a fan-out of `n` neighbours; `None` when `n` is 0.
    #[must_use]
    pub const fn at_most(n: u32) -> Option<Self> {
        match NonZeroU32::new(n) {
            Some(n) => Some(Self::AtMost(n)),
            None => None,
        }
    }

    /// Neighbours taken of a node that has `degree`.
    #[must_use]
    pub const fn of(self, degree: u32) -> u32 {
        match self {
            Self::AtMost(n) if n.get() < degree => n.get(),
            _ => degree,
        }
    }
}

impl From<Fanout> for i64 {
    fn from(fanout: Fanout) -> Self {
        match fanout {
            Fanout::All => -1,
            Fanout::AtMost(n) => n.get().into(),
        }
    }
}

impl TryFrom<i64> for Fanout {
    type Error = FanoutError;

    fn try_from(number: i64) -> Result<Self, FanoutError> {
        match number {
            -1 => Ok(Self::All),
            _ => u32::try_from(number)
                .ok()
                .and_then(Self::at_most)
                .ok_or_else(|| FanoutError { found: number.to_string() }),
        }
    }
}

impl FromStr for Fanout {
    type Err = FanoutError;

    fn from_str(text: &str) -> Result<Self, FanoutError> {
        let number = text.trim().parse::<i64>();
        number.map_err(|_| FanoutError { found: text.to_owned() })?.try_into()
    }
}

impl std::fmt::Display for Fanout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        i64::from(*self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for text in ["-1", "1", "25", "4294967295"] {
            assert_eq!(text.parse::<Fanout>().unwrap().to_string(), text);
        }
        assert_eq!(" 10".parse(), Ok(Fanout::at_most(10).unwrap()));
        for text in ["0", "-2", "", "x", "4294967296", "99999999999999999999"] {
            assert_eq!(text.parse::<Fanout>(), Err(FanoutError { found: text.to_owned() }));
        }
    }

    #[test]
    fn takes_no_more_than_there_are() {
        let ten = Fanout::at_most(10).unwrap();
        assert_eq!([0, 3, 10, 11].map(|degree| ten.of(degree)), [0, 3, 10, 10]);
        assert_eq!(Fanout::All.of(u32::MAX), u32::MAX);
    }
}
