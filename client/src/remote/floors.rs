//! The version of each partition that this client has seen: it reads none before it afterwards.

use std::sync::atomic::{AtomicU32, Ordering};

use lodestore_graph::PartId;
use lodestore_schema::Versions;
use lodestore_schema::versions::PartVersion;

use crate::route::PartSet;

/// By partition: the highest version that was committed or seen, 0 for none.
#[derive(Debug)]
pub(super) struct Floors(Vec<AtomicU32>);

impl Floors {
    pub(super) fn new(n_parts: usize) -> Self {
        Self((0..n_parts).map(|_| AtomicU32::new(0)).collect())
    }

    /// Returns what a pull of these partitions asks for.
    pub(super) fn wanted(&self, parts: &PartSet) -> Versions {
        let of = |part: PartId| PartVersion { part: part.0, version: self.of(part) };
        Versions::reaching(parts.iter().map(of))
    }

    /// Notes the versions that a server has sent with the rows of these partitions.
    pub(super) fn see(&self, parts: &PartSet, versions: &Versions) {
        parts.iter().for_each(|part| self.raise(part, versions.of(part.0)));
    }

    /// Notes that a version of a partition is committed.
    pub(super) fn raise(&self, part: PartId, version: u32) {
        let Some(floor) = self.0.get(part.index()) else { return };
        // A read first: it changes rarely, and all threads look at it.
        if floor.load(Ordering::Relaxed) < version {
            floor.fetch_max(version, Ordering::AcqRel);
        }
    }

    /// Returns the version of a partition.
    pub(super) fn of(&self, part: PartId) -> u32 {
        self.0.get(part.index()).map_or(0, |floor| floor.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_of_a_partition_is_wanted_of_it_and_never_falls() {
        let floors = Floors::new(3);
        let parts = |all: &[u16]| {
            let mut set = PartSet::default();
            all.iter().for_each(|&part| set.insert(PartId(part)));
            set
        };
        assert_eq!(floors.wanted(&parts(&[0, 2])), Versions::default());
        let above = vec![PartVersion { part: 2, version: 7 }, PartVersion { part: 9, version: 9 }];
        floors.see(&parts(&[0, 2]), &Versions { lowest: 5, above });
        assert_eq!([0, 1, 2].map(|part| floors.of(PartId(part))), [5, 0, 7]);
        floors.see(&parts(&[0, 2]), &Versions { lowest: 6, above: Vec::new() });
        assert_eq!([0, 1, 2].map(|part| floors.of(PartId(part))), [6, 0, 7]);
        let wanted = floors.wanted(&parts(&[0, 2]));
        assert_eq!((wanted.of(0), wanted.of(2)), (6, 7));
        floors.raise(PartId(40), 1);
    }
}
