//! Versions of several partitions in a few words: the lowest of all, and which are higher.

use std::fmt;

use crate::limits::FLOORS_MAX;
use crate::lodestore_capnp::part_version;

/// A version as the wire has it: its number, and the tag of the commit that made it.
///
/// Two servers have one version only if both agree. A tag of 0 is that of an unknown commit, and
/// agrees with any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VersionTag {
    /// The number, from 1; 0 for none.
    pub number: u32,
    /// The last eight bytes of the commit's id; 0 where it is unknown, and for an import's version.
    pub tag: u64,
}

impl VersionTag {
    /// Returns the version of this number, whatever its commit.
    #[must_use]
    pub fn any(number: u32) -> Self {
        Self { number, tag: 0 }
    }

    /// Returns whether both may be one version: where a commit is unknown, the number decides.
    #[must_use]
    pub fn may_be(self, other: Self) -> bool {
        self.number == other.number && !self.is_other_history(other)
    }

    /// Returns whether two versions have one number and different commits.
    #[must_use]
    pub fn is_other_history(self, other: Self) -> bool {
        self.number == other.number && self.tag != other.tag && self.tag != 0 && other.tag != 0
    }
}

impl fmt::Display for VersionTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tag {
            0 => write!(f, "{}", self.number),
            tag => write!(f, "{} (commit {tag:016x})", self.number),
        }
    }
}

/// A partition and a version of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartVersion {
    /// The partition.
    pub part: u16,
    /// Its version.
    pub version: VersionTag,
}

/// Versions of the partitions of a server, or of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// The lowest.
    pub lowest: VersionTag,
    /// Partitions that have a higher one, or one of another commit, [`FLOORS_MAX`] at most.
    pub above: Vec<PartVersion>,
}

impl Versions {
    /// Returns versions that reach all of these. They are these where the wire has room for that;
    /// past it tags are left out, and then the lowest are raised, to the least that fits.
    pub fn reaching(all: impl Iterator<Item = PartVersion> + Clone) -> Self {
        if let Some(exact) = Self::exactly(all.clone()) {
            return exact;
        }
        let mut numbers: Vec<u32> = all.clone().map(|it| it.version.number).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        let lowest = numbers.get(FLOORS_MAX).or(numbers.last()).copied().unwrap_or(0);
        let above = all.filter(|it| it.version.number > lowest).collect();
        Self { lowest: VersionTag::any(lowest), above }
    }

    /// Returns exactly these versions, if the wire has room for that.
    pub fn exactly(all: impl Iterator<Item = PartVersion> + Clone) -> Option<Self> {
        let lowest = all.clone().map(|it| it.version).min_by_key(|it| it.number);
        let lowest = lowest.unwrap_or_default();
        let others = all.filter(|it| it.version != lowest).take(FLOORS_MAX + 1);
        let above: Vec<PartVersion> = others.collect();
        (above.len() <= FLOORS_MAX).then_some(Self { lowest, above })
    }

    /// Returns the version of a partition.
    #[must_use]
    pub fn of(&self, part: u16) -> VersionTag {
        match self.above.iter().find(|it| it.part == part) {
            Some(above) if above.version.number >= self.lowest.number => above.version,
            _ => self.lowest,
        }
    }

    /// Returns the same versions, whatever their commits: before
    /// [`WIRE_VERSION_IDENTITY`](crate::limits::WIRE_VERSION_IDENTITY) they have none.
    #[must_use]
    pub fn without_tags(&self) -> Self {
        let lowest = VersionTag::any(self.lowest.number);
        let above = self.above.iter().filter(|it| it.version.number > lowest.number);
        let untagged = |it: &PartVersion| PartVersion {
            version: VersionTag::any(it.version.number),
            part: it.part,
        };
        Self { lowest, above: above.map(untagged).collect() }
    }

    /// Returns whether one of them has a tag.
    #[must_use]
    pub fn have_tags(&self) -> bool {
        self.lowest.tag != 0 || self.above.iter().any(|it| it.version.tag != 0)
    }

    /// Returns the number of elements of a list on the wire.
    pub(crate) fn n_above(&self) -> u32 {
        u32::try_from(self.above.len().min(FLOORS_MAX)).unwrap_or(0)
    }

    /// Returns the number of elements of the list of tags, which is empty without any.
    pub(crate) fn n_tags(&self) -> u32 {
        let has_tag = self.above.iter().any(|it| it.version.tag != 0);
        if has_tag { self.n_above() } else { 0 }
    }

    pub(crate) fn write_above(&self, mut to: capnp::struct_list::Builder<'_, part_version::Owned>) {
        for (at, from) in (0..to.len()).zip(&self.above) {
            let mut to = to.reborrow().get(at);
            to.set_part(from.part);
            to.set_version(from.version.number);
        }
    }

    pub(crate) fn write_tags(&self, mut to: capnp::primitive_list::Builder<'_, u64>) {
        for (at, from) in (0..to.len()).zip(&self.above) {
            to.set(at, from.version.tag);
        }
    }

    /// Reads a list and the list of its tags, which may be shorter. What is past the limit is left
    /// out.
    pub(crate) fn read(
        lowest: VersionTag,
        above: capnp::struct_list::Reader<'_, part_version::Owned>,
        tags: capnp::primitive_list::Reader<'_, u64>,
    ) -> Self {
        let tag_of = |at: u32| if at < tags.len() { tags.get(at) } else { 0 };
        let one = |(at, it): (u32, part_version::Reader<'_>)| PartVersion {
            part: it.get_part(),
            version: VersionTag { number: it.get_version(), tag: tag_of(at) },
        };
        Self { lowest, above: (0..).zip(above.iter()).take(FLOORS_MAX).map(one).collect() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(versions: &[(u32, u64)]) -> Vec<PartVersion> {
        let all = (0..).zip(versions);
        let one =
            |(part, &(number, tag))| PartVersion { part, version: VersionTag { number, tag } };
        all.map(one).collect()
    }

    proptest! {
        #[test]
        fn no_version_is_lowered_and_none_is_raised_that_has_room(
            versions in prop::collection::vec((0u32..3, 0u64..2), 0..200)
        ) {
            let all = list(&versions);
            let (exact, reaching) =
                (Versions::exactly(all.iter().copied()), Versions::reaching(all.iter().copied()));
            if let Some(exact) = &exact {
                prop_assert_eq!(exact, &reaching);
                prop_assert!(all.iter().all(|it| exact.of(it.part) == it.version));
            }
            let numbers = versions.iter().map(|&(number, _)| number);
            let mut sorted: Vec<u32> = numbers.clone().collect();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            let least = match exact {
                Some(_) => 0,
                None => sorted.get(FLOORS_MAX).or(sorted.last()).copied().unwrap_or(0),
            };
            for &PartVersion { part, version } in &all {
                let found = reaching.of(part);
                prop_assert_eq!(found.number, version.number.max(least));
                prop_assert!(found.tag == 0 || found == version, "no tag of another version");
            }
            let untagged = reaching.without_tags();
            prop_assert!(!untagged.have_tags());
            for part in 0..200 {
                prop_assert_eq!(untagged.of(part).number, reaching.of(part).number);
            }
            prop_assert!(reaching.above.len() <= FLOORS_MAX);
        }
    }

    #[test]
    fn versions_are_of_one_history_unless_both_commits_are_known() {
        let version = |number, tag| VersionTag { number, tag };
        assert!(version(3, 1).is_other_history(version(3, 2)));
        for (one, other) in [((3, 1), (3, 1)), ((3, 0), (3, 2)), ((3, 1), (4, 2))] {
            assert!(!version(one.0, one.1).is_other_history(version(other.0, other.1)));
        }
        assert_eq!(version(3, 0x1f).to_string(), "3 (commit 000000000000001f)");
        assert_eq!(version(3, 0).to_string(), "3");
    }
}
