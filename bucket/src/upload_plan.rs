//! The part of a partition that a bucket lacks.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::layout::ChunkId;
use crate::publication::{Publication, PublishedFile};

/// Oldest age at which a chunk that no publication names is taken for being there. With
/// [`UPLOAD_MAX`] it stays below the grace period of garbage collection.
pub(crate) const REUSE_MAX: Duration = Duration::from_secs(6 * 3600);
/// Longest time from the first chunk to the publication.
pub(crate) const UPLOAD_MAX: Duration = Duration::from_secs(12 * 3600);

/// Identity of a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileId {
    /// Header and tables of a segment.
    Segment([u8; 48]),
    /// Written once, by the import that has drawn the graph's uuid.
    OfGraph,
    /// Changes under its name.
    Unknown,
}

/// Files of the last publication by name, each with its identity. Two files of one name with the
/// same identity have the same bytes.
pub(crate) type KnownFiles<'a> = HashMap<&'a str, (FileId, &'a PublishedFile)>;

/// Returns the same file of the last publication; another one has to be read.
pub(crate) fn known_file<'a>(
    last: &KnownFiles<'a>,
    name: &str,
    n_bytes: u64,
    id: FileId,
) -> Option<&'a PublishedFile> {
    let &(known, file) = last.get(name)?;
    (id != FileId::Unknown && id == known && n_bytes == file.n_bytes).then_some(file)
}

/// The chunks of a partition that a bucket has.
#[derive(Debug, Default)]
pub(crate) struct KnownChunks {
    /// Chunks of the newest publication, which is never removed.
    pub(crate) published: HashSet<ChunkId>,
    /// Chunks of a listing, with length and age.
    pub(crate) listed: HashMap<ChunkId, (u64, Duration)>,
}

impl KnownChunks {
    /// Takes the chunks of a publication for being there.
    pub(crate) fn of(publication: &Publication) -> Self {
        let chunks = publication.files.iter().flat_map(PublishedFile::chunks_with_lengths);
        let listed = chunks.map(|(chunk, n_bytes)| (*chunk, (n_bytes as u64, Duration::ZERO)));
        Self { published: publication.chunks().copied().collect(), listed: listed.collect() }
    }

    /// Returns whether a chunk of `n_bytes` need not travel. One that a list lacks travels again,
    /// also where a publication names it: it may have been lost.
    pub(crate) fn has(&self, chunk: &ChunkId, n_bytes: usize) -> bool {
        let stays = |age: &Duration| *age <= REUSE_MAX || self.published.contains(chunk);
        let listed = self.listed.get(chunk);
        listed.is_some_and(|(length, age)| *length == n_bytes as u64 && stays(age))
    }

    /// Returns whether the bucket has each chunk of a publication, with its length.
    pub(crate) fn has_all_of(&self, publication: &Publication) -> bool {
        let mut chunks = publication.files.iter().flat_map(PublishedFile::chunks_with_lengths);
        chunks.all(|(chunk, n_bytes)| self.has(chunk, n_bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(kind: u8) -> FileId {
        match kind {
            0 => FileId::Unknown,
            1 => FileId::OfGraph,
            other => FileId::Segment([other; 48]),
        }
    }

    proptest! {
        #[test]
        fn a_file_is_read_unless_the_last_publication_has_the_same(
            ours in prop::collection::btree_map(0u8..6, (0u64..3, 0u8..4), 0..6),
            theirs in prop::collection::btree_map(0u8..6, (0u64..3, 0u8..4), 0..6),
        ) {
            let published: Vec<PublishedFile> = theirs.iter().map(|(name, (n_bytes, kind))| {
                let chunks = vec![[name * 16 + kind; 32]];
                PublishedFile { name: name.to_string(), n_bytes: *n_bytes, chunks }
            }).collect();
            let last: KnownFiles<'_> = published.iter().zip(theirs.values())
                .map(|(file, (_, kind))| (file.name.as_str(), (id(*kind), file))).collect();
            let planned: Vec<Option<Vec<ChunkId>>> = ours.iter().map(|(name, (n_bytes, kind))| {
                let same = known_file(&last, &name.to_string(), *n_bytes, id(*kind));
                same.map(|file| file.chunks.clone())
            }).collect();
            let naive: Vec<Option<Vec<ChunkId>>> = ours.iter().map(|(name, (n_bytes, kind))| {
                let same = theirs.get(name) == Some(&(*n_bytes, *kind)) && *kind != 0;
                same.then(|| vec![[name * 16 + kind; 32]])
            }).collect();
            prop_assert_eq!(planned, naive);
        }
    }

    #[test]
    fn an_old_chunk_without_a_publication_travels_again() {
        let mut known = KnownChunks::default();
        known.listed.insert([1; 32], (5, REUSE_MAX));
        known.listed.insert([2; 32], (5, REUSE_MAX + Duration::from_secs(1)));
        known.listed.insert([3; 32], (5, 2 * REUSE_MAX));
        known.published.extend([[3; 32], [4; 32]]);
        assert!(known.has(&[1; 32], 5) && known.has(&[3; 32], 5));
        assert!(!known.has(&[4; 32], 5), "published, and lost since");
        assert!(!known.has(&[3; 32], 6), "published, and cut short since");
        assert!(!known.has(&[1; 32], 6), "cut short");
        assert!(!known.has(&[2; 32], 5) && !known.has(&[5; 32], 5));
        assert!(REUSE_MAX + UPLOAD_MAX < crate::gc_plan::GRACE);
    }
}
