//! What a version is: its number, and the commit that made it.
//!
//! Two histories of a graph can reach one number: a restored copy, or a server that took over,
//! commits it again. The id of the commit tells them apart.

use std::fmt;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

/// Id of a commit. Whoever commits draws it once, and every partition records it with the version,
/// on all servers. So it also says which versions of different partitions belong together.
///
/// It is a UUID of version 7: time and random bits. Ids of version 4 are from older releases, which
/// drew one for each partition: they identify a partition's history, and cannot be compared between
/// partitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitId(Uuid);

/// A version: its number, and the commit that made it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VersionId {
    /// Its number, from 1.
    pub number: u32,
    /// The commit; [`CommitId::UNKNOWN`] for the version of an import.
    pub commit: CommitId,
}

impl CommitId {
    /// The commit of an import's version, of a version that a partition passed over, and of one
    /// that a repair could not find out.
    pub const UNKNOWN: Self = Self(Uuid::nil());

    /// Draws the id of a new commit.
    #[must_use]
    pub fn draw() -> Self {
        Self(Uuid::now_v7())
    }

    /// Returns the id that these bytes are.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// Returns the 16 bytes of the id.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.into_bytes()
    }

    /// Returns whether the commit is known.
    #[must_use]
    pub fn is_known(self) -> bool {
        self != Self::UNKNOWN
    }

    /// Returns whether all partitions of the commit have recorded this id.
    #[must_use]
    pub fn is_shared(self) -> bool {
        self.0.get_version_num() == 7
    }

    /// Returns eight bytes that identify the commit on the wire; 0 for an unknown one.
    #[must_use]
    pub fn tag(self) -> u64 {
        self.0.as_u64_pair().1
    }

    /// Returns when the id was drawn, by the clock of whoever drew it; `None` where it has no time.
    #[must_use]
    pub fn time(self) -> Option<SystemTime> {
        let (seconds, nanoseconds) = self.0.get_timestamp()?.to_unix();
        SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds))
    }

    /// Returns whether two partitions may have recorded these ids for one commit.
    #[must_use]
    pub fn may_be_shared_with(self, other: Self) -> bool {
        self == other || !self.is_shared() || !other.is_shared()
    }

    /// Returns whether partitions may have recorded these ids for one commit. An id of an older
    /// release was drawn for each partition, and tells nothing of the others.
    #[must_use]
    pub fn may_be_one(commits: impl IntoIterator<Item = Self>) -> bool {
        let mut shared = commits.into_iter().filter(|commit| commit.is_shared());
        shared.next().is_none_or(|first| shared.all(|commit| commit == first))
    }

    /// Returns the uuid of a file with the rows of this commit, and of earlier ones. `mask` is
    /// derived from whose rows they are: each file of a commit gets a uuid of its own.
    ///
    /// [`CommitId::of_segment`] returns the commit again: a repair finds it without a catalog.
    pub(crate) fn segment_uuid(self, mask: SegmentMask) -> Uuid {
        if !self.is_shared() {
            return Uuid::new_v4();
        }
        with_version(mask.applied_to(self.0), 8)
    }

    /// Returns the commit of a file by its uuid; [`CommitId::UNKNOWN`] where the uuid has none.
    pub(crate) fn of_segment(uuid: Uuid, mask: SegmentMask) -> Self {
        if uuid.get_version_num() != 8 {
            return Self::UNKNOWN;
        }
        Self(with_version(mask.applied_to(uuid), 7))
    }
}

/// Bits that are derived from the rows that a file has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentMask([u8; 16]);

impl SegmentMask {
    /// Derives the mask of a file of `tensor` in partition `part`: a delta of the versions from
    /// `first` to `last`, or with 0 as `first` a segment that has every row at version `last`.
    pub(crate) fn new(part: u16, tensor: &str, first: u32, last: u32) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&part.to_le_bytes());
        hasher.update(&first.to_le_bytes());
        hasher.update(&last.to_le_bytes());
        hasher.update(tensor.as_bytes());
        let mut mask = [0; 16];
        mask.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        // Version and variant of the uuid stay as they are.
        mask[6] &= 0x0f;
        mask[8] &= 0x3f;
        Self(mask)
    }

    fn applied_to(self, uuid: Uuid) -> Uuid {
        Uuid::from_u128(uuid.as_u128() ^ u128::from_be_bytes(self.0))
    }
}

fn with_version(uuid: Uuid, version: u8) -> Uuid {
    let mut bytes = uuid.into_bytes();
    bytes[6] = bytes[6] & 0x0f | version << 4;
    Uuid::from_bytes(bytes)
}

impl VersionId {
    /// Returns a version by its number, and the commit that made it.
    #[must_use]
    pub fn new(number: u32, commit: CommitId) -> Self {
        Self { number, commit }
    }

    /// Returns whether both name one version of a partition: of the same number, and not made by
    /// two commits that are known and differ.
    #[must_use]
    pub fn may_be(self, other: Self) -> bool {
        let is_known = self.commit.is_known() && other.commit.is_known();
        self.number == other.number && (!is_known || self.commit == other.commit)
    }
}

impl From<u32> for VersionId {
    /// Returns the version of this number, whichever commit made it.
    fn from(number: u32) -> Self {
        Self { number, commit: CommitId::UNKNOWN }
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_known() {
            true => write!(f, "{:016x}", self.tag()),
            false => f.write_str("unknown"),
        }
    }
}

impl fmt::Display for VersionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)?;
        if self.commit.is_known() {
            write!(f, " (commit {})", self.commit)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_that_was_drawn_is_shared_and_has_a_time() {
        let before = SystemTime::now() - Duration::from_millis(2);
        let ids: Vec<CommitId> = (0..100).map(|_| CommitId::draw()).collect();
        assert!(ids.is_sorted_by(|a, b| a < b), "the earlier one is the smaller one");
        for id in ids {
            assert!(id.is_shared() && id.is_known() && id.tag() != 0);
            assert!(id.time().unwrap() >= before);
            assert_eq!(CommitId::from_bytes(id.to_bytes()), id);
        }
        assert_eq!((CommitId::UNKNOWN.tag(), CommitId::UNKNOWN.time()), (0, None));
    }

    #[test]
    fn versions_differ_by_number_or_by_known_commits() {
        let [one, two] = [CommitId::draw(), CommitId::draw()];
        let of = |number, commit| VersionId { number, commit };
        assert!(of(3, one).may_be(of(3, one)));
        assert!(!of(3, one).may_be(of(3, two)));
        assert!(!of(3, one).may_be(of(4, one)));
        assert!(of(3, one).may_be(of(3, CommitId::UNKNOWN)));
        let old = CommitId(Uuid::new_v4());
        assert!(!of(3, one).may_be(of(3, old)), "of one partition all ids count");
        assert!(one.may_be_shared_with(old), "an old id says nothing of another partition");
        assert!(!one.may_be_shared_with(two) && one.may_be_shared_with(one));
    }

    proptest! {
        #[test]
        fn the_uuid_of_a_file_tells_its_commit_and_is_its_own(
            part: u16, tensor in "[a-z]{1,8}", first in 0u32..9, more in 0u32..9,
        ) {
            let commit = CommitId::draw();
            let mask = SegmentMask::new(part, &tensor, first, first + more);
            let uuid = commit.segment_uuid(mask);
            prop_assert_eq!(CommitId::of_segment(uuid, mask), commit);
            for other in [
                SegmentMask::new(part ^ 1, &tensor, first, first + more),
                SegmentMask::new(part, &format!("{tensor}0"), first, first + more),
                SegmentMask::new(part, &tensor, first + 1, first + more),
                SegmentMask::new(part, &tensor, first, first + more + 1),
            ] {
                prop_assert_ne!(commit.segment_uuid(other), uuid);
            }
        }
    }

    #[test]
    fn a_random_uuid_tells_no_commit() {
        let mask = SegmentMask::new(1, "feat", 0, 1);
        assert_eq!(CommitId::of_segment(Uuid::new_v4(), mask), CommitId::UNKNOWN);
        assert_eq!(CommitId::UNKNOWN.segment_uuid(mask).get_version_num(), 4);
    }

    #[test]
    fn shared_ids_are_compared_and_those_of_partitions_are_not() {
        let (a, b) = (CommitId::draw(), CommitId::draw());
        let of_part =
            |n: u8| CommitId::from_bytes([n, 0, 0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 0]);
        assert!(CommitId::may_be_one([]));
        assert!(CommitId::may_be_one([a, CommitId::UNKNOWN, of_part(1), a]));
        assert!(CommitId::may_be_one([of_part(1), of_part(2)]));
        assert!(!CommitId::may_be_one([a, of_part(1), b]));
    }
}
