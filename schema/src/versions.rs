//! Versions of several partitions in a few words: the lowest of all, and which are higher.

use crate::limits::FLOORS_MAX;
use crate::lodestore_capnp::part_version;

/// A partition and a version of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartVersion {
    /// The partition.
    pub part: u16,
    /// Its version.
    pub version: u32,
}

/// Versions of the partitions of a server, or of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// The lowest.
    pub lowest: u32,
    /// Partitions that have a higher one, [`FLOORS_MAX`] at most.
    pub above: Vec<PartVersion>,
}

impl Versions {
    /// Returns versions that reach all of these. They are these where the wire has room for that;
    /// past it the lowest are raised, to the least that fits.
    pub fn reaching(all: impl Iterator<Item = PartVersion> + Clone) -> Self {
        let mut versions: Vec<u32> = all.clone().map(|it| it.version).collect();
        versions.sort_unstable_by(|a, b| b.cmp(a));
        let lowest = versions.get(FLOORS_MAX).or(versions.last()).copied().unwrap_or(0);
        Self::above(lowest, all)
    }

    /// Returns exactly these versions, if the wire has room for that.
    pub fn exactly(all: impl Iterator<Item = PartVersion> + Clone) -> Option<Self> {
        let lowest = all.clone().map(|it| it.version).min().unwrap_or(0);
        let exact = Self::above(lowest, all);
        (exact.above.len() <= FLOORS_MAX).then_some(exact)
    }

    fn above(lowest: u32, all: impl Iterator<Item = PartVersion>) -> Self {
        Self { lowest, above: all.filter(|it| it.version > lowest).collect() }
    }

    /// Returns the version of a partition.
    #[must_use]
    pub fn of(&self, part: u16) -> u32 {
        let above = self.above.iter().find(|it| it.part == part);
        above.map_or(self.lowest, |it| it.version.max(self.lowest))
    }

    /// Returns the number of elements of a list on the wire.
    pub(crate) fn n_above(&self) -> u32 {
        u32::try_from(self.above.len().min(FLOORS_MAX)).unwrap_or(0)
    }

    pub(crate) fn write_above(&self, mut to: capnp::struct_list::Builder<'_, part_version::Owned>) {
        for (at, from) in (0..to.len()).zip(&self.above) {
            let mut to = to.reborrow().get(at);
            to.set_part(from.part);
            to.set_version(from.version);
        }
    }

    /// Reads a list, of which what is past the limit is left out.
    pub(crate) fn read(
        lowest: u32,
        above: capnp::struct_list::Reader<'_, part_version::Owned>,
    ) -> Self {
        let one = |it: part_version::Reader<'_>| PartVersion {
            part: it.get_part(),
            version: it.get_version(),
        };
        Self { lowest, above: above.iter().take(FLOORS_MAX).map(one).collect() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(versions: &[u32]) -> Vec<PartVersion> {
        let all = (0..).zip(versions);
        all.map(|(part, &version)| PartVersion { part, version }).collect()
    }

    proptest! {
        #[test]
        fn no_version_is_lowered_and_none_is_raised_that_has_room(
            versions in prop::collection::vec(0u32..3, 0..200)
        ) {
            let all = list(&versions);
            let (exact, reaching) =
                (Versions::exactly(all.iter().copied()), Versions::reaching(all.iter().copied()));
            let lowest = versions.iter().min();
            let n_above = versions.iter().filter(|version| Some(*version) > lowest).count();
            prop_assert_eq!(exact.is_some(), n_above <= FLOORS_MAX);
            prop_assert!(exact.is_none_or(|exact| exact == reaching));
            let mut sorted = versions.clone();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            let least = sorted.get(FLOORS_MAX).copied().unwrap_or(0);
            for &PartVersion { part, version } in &all {
                prop_assert_eq!(reaching.of(part), version.max(least));
            }
            prop_assert!(reaching.above.len() <= FLOORS_MAX);
        }
    }
}
