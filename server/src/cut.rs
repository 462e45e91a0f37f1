//! The versions that a pull reads in all its chunks, one of each partition.
//!
//! The newest cut is replaced once all shards have reached a version. Each later pull reads that
//! version, and no running pull reads a part of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lodestore_graph::{NodeId, PartId, PartitionBook};
use lodestore_schema::Versions;
use lodestore_schema::versions::{PartVersion, VersionTag};
use lodestore_store::update::{GraphVersion, TensorVersion};
use lodestore_store::{CommitId, GraphHandle};

/// A partition at one version; holding this keeps its files.
#[derive(Clone, Debug)]
pub(crate) struct PartCut {
    pub(crate) version: VersionTag,
    /// In the order of the graph's description.
    tensors: Vec<Arc<TensorVersion>>,
    /// The last versions that were served before, ascending, at most [`EARLIER_MAX`].
    earlier: Vec<VersionTag>,
}

/// Number of past versions whose commits a partition remembers without reading its catalog: those
/// that clients have recently received.
const EARLIER_MAX: usize = 16;

/// One version of each partition.
#[derive(Debug)]
pub(crate) struct Cut {
    /// Unique among the cuts of this process, and not 0.
    serial: u64,
    /// By partition; `None` for a partition that is not here.
    parts: Vec<Option<Arc<PartCut>>>,
    /// The versions as a reply lists them, if the wire has room for all.
    exact: Option<Versions>,
    /// The version of a cut that has the same one on all partitions.
    pinned: Option<u32>,
}

impl PartCut {
    /// Returns a partition at its newest version, `number`; `None` if a tensor is at another
    /// version.
    pub(crate) fn newest(
        live: &GraphHandle,
        part: PartId,
        number: u32,
        n_tensors: usize,
    ) -> Option<Arc<Self>> {
        let newest = |position| {
            let current = live.tensor(part, position)?.current();
            (current.version() == number).then_some(current)
        };
        let tensors = (0..n_tensors).map(newest).collect::<Option<Vec<_>>>()?;
        let version = VersionTag { number, tag: commit_tag(live, part, number) };
        Some(Arc::new(Self { version, tensors, earlier: Vec::new() }))
    }

    /// Returns a partition at `number`; `None` if it is not open, or if that version was folded
    /// into a later one.
    pub(crate) fn at(
        live: &GraphHandle,
        part: PartId,
        number: u32,
        n_tensors: usize,
    ) -> Option<Arc<Self>> {
        let at = |position| live.tensor(part, position)?.at(number);
        let tensors = (0..n_tensors).map(at).collect::<Option<Vec<_>>>()?;
        let version = VersionTag { number, tag: commit_tag(live, part, number) };
        Some(Arc::new(Self { version, tensors, earlier: Vec::new() }))
    }

    /// Returns this version as the successor of `before`.
    pub(crate) fn after(&self, before: &Self) -> Self {
        let mut earlier = before.earlier.clone();
        if before.version.number != self.version.number {
            earlier.push(before.version);
        }
        let n_more = earlier.len().saturating_sub(EARLIER_MAX);
        earlier.drain(..n_more);
        Self { earlier, ..self.clone() }
    }

    /// Returns the tag of version `number` that was served before, if remembered.
    pub(crate) fn earlier(&self, number: u32) -> Option<VersionTag> {
        self.earlier.iter().find(|it| it.number == number).copied()
    }

    /// Returns whether `other` is a later version, or the same version in the current files of
    /// `live`.
    pub(crate) fn is_replaced_by(&self, other: &Self, live: &GraphHandle, part: PartId) -> bool {
        if other.version.number != self.version.number {
            return other.version.number > self.version.number;
        }
        let mut tensors = other.tensors.iter().enumerate();
        !self.has_tensors_of(other)
            && tensors.all(|(position, tensor)| {
                let now = live.tensor(part, position);
                now.is_some_and(|now| Arc::ptr_eq(&now.current(), tensor))
            })
    }

    fn has_tensors_of(&self, other: &Self) -> bool {
        self.tensors.iter().zip(&other.tensors).all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

impl Cut {
    pub(crate) fn new(parts: Vec<Option<Arc<PartCut>>>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let exact = Versions::exactly(versions(&parts));
        Self { serial, parts, exact, pinned: None }
    }

    /// Returns the cut of one version on all partitions.
    pub(crate) fn pinned(live: &GraphHandle, at: &GraphVersion, n_tensors: usize) -> Self {
        let number = at.version();
        let of_part = |part: PartId| {
            let tensors = (0..n_tensors).map(|position| at.tensor(part, position).cloned());
            let tensors = tensors.collect::<Option<Vec<_>>>()?;
            let version = VersionTag { number, tag: commit_tag(live, part, number) };
            Some(Arc::new(PartCut { version, tensors, earlier: Vec::new() }))
        };
        let parts = live.graph().book().parts().map(of_part).collect();
        Self { pinned: Some(number), ..Self::new(parts) }
    }

    /// Returns the same cut with other versions of some partitions.
    pub(crate) fn with(
        &self,
        changed: impl IntoIterator<Item = (PartId, Option<Arc<PartCut>>)>,
    ) -> Self {
        let mut parts = self.parts.clone();
        for (part, cut) in changed {
            if let Some(place) = parts.get_mut(part.index()) {
                *place = cut;
            }
        }
        Self::new(parts)
    }

    /// Returns the serial number, which no other cut of this process has.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// Returns the version of a pinned cut.
    pub(crate) fn pinned_number(&self) -> Option<u32> {
        self.pinned
    }

    /// Returns a partition, if it is here.
    pub(crate) fn part(&self, part: PartId) -> Option<&Arc<PartCut>> {
        self.parts.get(part.index())?.as_ref()
    }

    /// Returns the version of a partition, if it is here.
    pub(crate) fn version(&self, part: PartId) -> Option<VersionTag> {
        Some(self.part(part)?.version)
    }

    /// Returns the tensor at `position` of the graph's description in a partition.
    pub(crate) fn tensor(&self, part: PartId, position: usize) -> Option<&Arc<TensorVersion>> {
        self.part(part)?.tensors.get(position)
    }

    /// Returns whether the cut has exactly these versions, of all partitions that are here.
    pub(crate) fn is_exactly(&self, versions: &Versions) -> bool {
        self.exact.as_ref() == Some(versions)
    }

    /// Returns the versions of the partitions of these nodes, for the last chunk of a reply.
    pub(crate) fn versions(&self, book: &PartitionBook, ids: &[NodeId]) -> Versions {
        if let Some(exact) = &self.exact {
            return exact.clone();
        }
        // Nodes are scanned only if there are too many partitions to list all.
        let named = distinct_parts(book, ids);
        Versions::reaching(versions(&self.parts).filter(|it| named.contains(&PartId(it.part))))
    }
}

/// Returns the distinct partitions of these nodes.
pub(crate) fn distinct_parts(book: &PartitionBook, ids: &[NodeId]) -> Vec<PartId> {
    let (mut parts, mut last) = (Vec::new(), None);
    for &id in ids {
        let part = book.part_of(id);
        if part != last {
            last = part;
            parts.extend(part);
        }
    }
    parts.sort_unstable();
    parts.dedup();
    parts
}

fn versions(parts: &[Option<Arc<PartCut>>]) -> impl Iterator<Item = PartVersion> + Clone {
    let one = |(part, cut): (u16, &Option<Arc<PartCut>>)| {
        Some(PartVersion { part, version: cut.as_ref()?.version })
    };
    (0u16..).zip(parts).filter_map(one)
}

/// Returns the tag of the commit that made a version of a partition; 0 if unknown.
pub(crate) fn commit_tag(live: &GraphHandle, part: PartId, number: u32) -> u64 {
    // An unreadable catalog proves nothing about the history.
    live.commit_of(part, number).map_or(0, CommitId::tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_served_versions_are_remembered_with_their_commits() {
        let version = |number: u32| VersionTag { number, tag: u64::from(number) << 8 };
        let cut =
            |number| PartCut { version: version(number), tensors: Vec::new(), earlier: Vec::new() };
        let (mut served, newest) = (cut(1), EARLIER_MAX as u32 + 3);
        for number in 2..=newest {
            // A fold of a version replaces it too.
            served = cut(number).after(&served);
            served = cut(number).after(&served);
        }
        for number in 1..newest {
            let expected = (number > 2).then(|| version(number));
            assert_eq!(served.earlier(number), expected, "version {number}");
        }
    }
}
