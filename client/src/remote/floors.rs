//! Floors: for each partition, the latest version that this client has seen. It reads no earlier
//! version afterwards, and none of another commit.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lodestore_graph::PartId;
use lodestore_graph::fork::PerProcess;
use lodestore_graph::lock::IgnorePoison;
use lodestore_schema::Versions;
use lodestore_schema::versions::{PartVersion, VersionTag};

use crate::address::Address;
use crate::error::ClientError;
use crate::route::PartSet;

/// By partition: the highest version that was committed or seen, 0 for none.
pub(super) struct Floors {
    parts: Vec<Floor>,
    /// The server that reported each floor. A floor changes under this lock.
    sources: PerProcess<Mutex<BTreeMap<PartId, Address>>>,
}

/// A version that is read without a lock. The tag is 0 while the version changes.
#[derive(Default)]
struct Floor {
    number: AtomicU32,
    tag: AtomicU64,
}

impl Floor {
    fn get(&self) -> VersionTag {
        loop {
            let number = self.number.load(Ordering::Acquire);
            let tag = self.tag.load(Ordering::Acquire);
            // Numbers ascend: if the number is the same, the tag belongs to it.
            if self.number.load(Ordering::Acquire) == number {
                return VersionTag { number, tag };
            }
        }
    }

    /// Replaces the version by a higher one.
    fn set(&self, version: VersionTag) {
        self.tag.store(0, Ordering::Release);
        self.number.store(version.number, Ordering::Release);
        self.tag.store(version.tag, Ordering::Release);
    }
}

impl Floors {
    pub(super) fn new(n_parts: usize) -> Self {
        let parts = (0..n_parts).map(|_| Floor::default()).collect();
        Self { parts, sources: PerProcess::new() }
    }

    /// Returns the versions that a pull of these partitions asks for.
    pub(super) fn wanted(&self, parts: &PartSet) -> Versions {
        let of = |part: PartId| PartVersion { part: part.0, version: self.of(part) };
        Versions::reaching(parts.iter().map(of))
    }

    /// Raises the floors of these partitions to the versions that a server sent with their rows.
    ///
    /// # Errors
    /// See [`Floors::raise`].
    pub(super) fn see(
        &self,
        parts: &PartSet,
        versions: &Versions,
        source: &Address,
    ) -> Result<(), ClientError> {
        parts.iter().try_for_each(|part| self.raise(part, versions.of(part.0), source))
    }

    /// Raises the floor of a partition to a version of the server `source`.
    ///
    /// # Errors
    /// `OtherHistory` if the floor has the same version by another commit.
    pub(super) fn raise(
        &self,
        part: PartId,
        version: VersionTag,
        source: &Address,
    ) -> Result<(), ClientError> {
        let Some(floor) = self.parts.get(part.index()) else { return Ok(()) };
        // Checked without the lock first: floors change rarely, and all threads read them.
        let known = floor.get();
        if known == version || known.number > version.number {
            return Ok(());
        }
        let mut sources = self.sources().lock().ignore_poison();
        let known = floor.get();
        if known.is_other_history(version) {
            let other = sources.get(&part).map(ToString::to_string);
            return Err(ClientError::OtherHistory {
                address: source.clone(),
                other: other.unwrap_or_else(|| OTHER.to_owned()),
                reason: format!(
                    "partition {part}: version {version} at the first, {known} at the second"
                ),
            });
        }
        let is_learned = known.number == version.number && known.tag == 0 && version.tag != 0;
        if is_learned {
            floor.tag.store(version.tag, Ordering::Release);
        } else if known.number < version.number {
            floor.set(version);
        } else {
            return Ok(());
        }
        sources.insert(part, source.clone());
        Ok(())
    }

    /// Raises the floor of every partition to this version number.
    pub(super) fn raise_all(&self, number: u32) {
        let mut sources = self.sources().lock().ignore_poison();
        for (part, floor) in (0..).map(PartId).zip(&self.parts) {
            if floor.get().number < number {
                floor.set(VersionTag::any(number));
                sources.remove(&part);
            }
        }
    }

    /// Returns the floor of a partition.
    pub(super) fn of(&self, part: PartId) -> VersionTag {
        self.parts.get(part.index()).map_or_else(VersionTag::default, Floor::get)
    }

    /// Returns the server that reported the floor of one of these partitions, for messages.
    pub(super) fn source_of(&self, parts: &PartSet) -> String {
        let sources = self.sources().lock().ignore_poison();
        let source = parts.iter().find_map(|part| sources.get(&part));
        source.map_or_else(|| OTHER.to_owned(), ToString::to_string)
    }

    /// Returns the sources of this process: a forked child does not wait for a lock of its parent.
    fn sources(&self) -> &Mutex<BTreeMap<PartId, Address>> {
        self.sources.get_or(|_| Mutex::default())
    }
}

/// Stands in a message for a floor that no server has reported.
const OTHER: &str = "the requested version";

#[cfg(test)]
mod tests {
    use super::*;

    fn version(number: u32, tag: u64) -> VersionTag {
        VersionTag { number, tag }
    }

    fn parts(all: &[u16]) -> PartSet {
        let mut set = PartSet::default();
        all.iter().for_each(|&part| set.insert(PartId(part)));
        set
    }

    #[test]
    fn the_floor_of_a_partition_is_requested_and_never_falls() {
        let (floors, source) = (Floors::new(3), "127.0.0.1:7".parse().unwrap());
        let all = || [0, 1, 2].map(|part| floors.of(PartId(part)));
        assert_eq!(floors.wanted(&parts(&[0, 2])), Versions::default());
        let above = |part, number| PartVersion { part, version: version(number, 70) };
        let versions = Versions { lowest: version(5, 50), above: vec![above(2, 7), above(9, 9)] };
        floors.see(&parts(&[0, 2]), &versions, &source).unwrap();
        assert_eq!(all(), [version(5, 50), version(0, 0), version(7, 70)]);
        let versions = Versions { lowest: version(6, 60), above: Vec::new() };
        floors.see(&parts(&[0, 2]), &versions, &source).unwrap();
        assert_eq!(all(), [version(6, 60), version(0, 0), version(7, 70)]);
        let wanted = floors.wanted(&parts(&[0, 2]));
        assert_eq!([wanted.of(0), wanted.of(2)], [version(6, 60), version(7, 70)]);
        floors.raise(PartId(40), version(1, 1), &source).unwrap();
        floors.raise_all(7);
        assert_eq!(all(), [version(7, 0), version(7, 0), version(7, 70)]);
        // An unknown commit is replaced by a known one, and never the reverse.
        floors.raise(PartId(1), version(7, 71), &source).unwrap();
        floors.raise(PartId(1), version(7, 0), &source).unwrap();
        assert_eq!(floors.of(PartId(1)), version(7, 71));
    }

    #[test]
    fn one_number_of_two_commits_is_an_error_that_names_both_servers() {
        let floors = Floors::new(2);
        let [one, other] = [7, 8].map(|port| format!("127.0.0.1:{port}").parse().unwrap());
        floors.raise(PartId(1), version(3, 0x33), &one).unwrap();
        let error = floors.raise(PartId(1), version(3, 0x44), &other).unwrap_err();
        assert!(matches!(error, ClientError::OtherHistory { .. }), "{error}");
        let told = error.to_string();
        for part in ["127.0.0.1:7", "127.0.0.1:8", "0000000000000033", "0000000000000044"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert_eq!(floors.of(PartId(1)), version(3, 0x33));
        assert_eq!(floors.source_of(&parts(&[0, 1])), "127.0.0.1:7");
        assert_eq!(floors.source_of(&parts(&[0])), OTHER);
    }
}
