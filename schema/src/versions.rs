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
    /// Returns versions that are reached by all of these: past the limit of the wire some are lower.
    pub fn reached(all: impl Iterator<Item = PartVersion> + Clone) -> Self {
        let lowest = all.clone().map(|it| it.version).min().unwrap_or(0);
        let above = all.filter(|it| it.version > lowest).take(FLOORS_MAX).collect();
        Self { lowest, above }
    }

    /// Returns versions that reach all of these: past the limit of the wire all are the highest.
    pub fn reaching(all: impl Iterator<Item = PartVersion> + Clone) -> Self {
        let found = Self::reached(all.clone());
        let lowest = found.lowest;
        if all.clone().filter(|it| it.version > lowest).count() == found.above.len() {
            return found;
        }
        let highest = all.map(|it| it.version).max().unwrap_or(0);
        Self { lowest: highest, above: Vec::new() }
    }

    /// The version of a partition.
    #[must_use]
    pub fn of(&self, part: u16) -> u32 {
        let above = self.above.iter().find(|it| it.part == part);
        above.map_or(self.lowest, |it| it.version.max(self.lowest))
    }

    /// The number of elements of a list on the wire.
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
        fn a_report_is_never_too_high_and_a_wish_never_too_low(
            versions in prop::collection::vec(0u32..3, 0..200)
        ) {
            let all = list(&versions);
            let (reached, reaching) =
                (Versions::reached(all.iter().copied()), Versions::reaching(all.iter().copied()));
            let is_exact = reached.above.len() < FLOORS_MAX;
            for &PartVersion { part, version } in &all {
                let (low, high) = (reached.of(part), reaching.of(part));
                prop_assert!(low <= version && version <= high);
                prop_assert!(!is_exact || (low == version && high == version));
            }
            prop_assert!(reached.above.len() <= FLOORS_MAX && reaching.above.len() <= FLOORS_MAX);
        }
    }
}
