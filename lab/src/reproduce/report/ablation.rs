//! Which part of `rapid` alone is as good as all of it.

use std::fmt;

use super::super::groups::Group;
use super::super::runs::Contestant;

/// The part of `rapid` that explains its speed-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Explained {
    Prefetching,
    Cache,
    /// Each part alone does.
    Either,
    /// No part alone does.
    Both,
    /// There is no speed-up.
    Nothing,
}

impl Explained {
    /// Steps within this factor of each other are alike.
    pub(super) const NEAR: f64 = 1.05;

    pub(super) fn by(group: &Group) -> Self {
        use Contestant::{Ondemand, Rapid, RapidCache, RapidPrefetch};
        let steps = [Ondemand, RapidPrefetch, RapidCache, Rapid]
            .map(|contestant| group.run(contestant).map_or(f64::INFINITY, |run| run.step_seconds));
        Self::by_steps(steps)
    }

    /// Returns the part by seconds of a step with neither, prefetching, the cache, and both.
    fn by_steps([neither, prefetching, cache, both]: [f64; 4]) -> Self {
        let is_as_good = |alone: f64| alone <= both * Self::NEAR;
        match (is_as_good(prefetching), is_as_good(cache)) {
            _ if neither <= both * Self::NEAR => Self::Nothing,
            (true, true) => Self::Either,
            (true, false) => Self::Prefetching,
            (false, true) => Self::Cache,
            (false, false) => Self::Both,
        }
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prefetching => "prefetching alone",
            Self::Cache => "the cache alone",
            Self::Either => "either alone",
            Self::Both => "both",
            Self::Nothing => "no speed-up",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_explains_what_it_comes_near_alone() {
        let by = Explained::by_steps;
        assert_eq!(by([2.0, 1.04, 1.5, 1.0]), Explained::Prefetching);
        assert_eq!(by([2.0, 0.9, 1.5, 1.0]), Explained::Prefetching, "more than both");
        assert_eq!(by([2.0, 1.5, 1.05, 1.0]), Explained::Cache);
        assert_eq!(by([2.0, 1.0, 1.0, 1.0]), Explained::Either);
        assert_eq!(by([2.0, 1.1, 1.5, 1.0]), Explained::Both);
        assert_eq!(by([1.04, 1.0, 1.0, 1.0]), Explained::Nothing);
        assert_eq!(by([0.5, 1.0, 1.0, 1.0]), Explained::Nothing);
    }
}
