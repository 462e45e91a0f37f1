//! The part of a partition that a bucket lacks.

use std::collections::HashMap;

use crate::layout::{ChunkId, UploadId};
use crate::publication::{Publication, PublishedFile};

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

/// The chunks of a partition that a bucket has and that can be published, by hash, each with its
/// length.
#[derive(Debug, Default)]
pub(crate) struct KnownChunks {
    by_hash: HashMap<[u8; 32], (ChunkId, u64)>,
    /// Chunks that the newest publication names, whether they are there or not.
    named: HashMap<[u8; 32], ChunkId>,
}

impl KnownChunks {
    /// Takes the chunks of a publication for being there.
    pub(crate) fn of(publication: &Publication) -> Self {
        let mut this = Self::default();
        for (chunk, n_bytes) in
            publication.files.iter().flat_map(PublishedFile::chunks_with_lengths)
        {
            this.add(*chunk, n_bytes as u64);
            this.add_named(*chunk);
        }
        this
    }

    /// Adds a chunk that the newest publication names. Garbage collection leaves it.
    pub(crate) fn add_named(&mut self, chunk: ChunkId) {
        self.named.insert(chunk.hash, chunk);
    }

    /// Returns the chunk that bytes with this hash become: under the name that is published, so
    /// that what the bucket has lost is there again, or under that of an upload.
    pub(crate) fn name(&self, hash: [u8; 32], upload: UploadId) -> ChunkId {
        self.named.get(&hash).copied().unwrap_or(ChunkId { hash, upload })
    }

    /// Adds a chunk that is there, of so many bytes.
    pub(crate) fn add(&mut self, chunk: ChunkId, n_bytes: u64) {
        self.by_hash.insert(chunk.hash, (chunk, n_bytes));
    }

    /// Returns the chunk that has these bytes.
    pub(crate) fn find(&self, hash: &[u8; 32], n_bytes: usize) -> Option<ChunkId> {
        let (chunk, found) = self.by_hash.get(hash)?;
        (*found == n_bytes as u64).then_some(*chunk)
    }

    /// Returns whether a chunk is there as it is named.
    pub(crate) fn has(&self, chunk: &ChunkId, n_bytes: usize) -> bool {
        self.find(&chunk.hash, n_bytes) == Some(*chunk)
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

    fn chunk(hash: u8) -> ChunkId {
        ChunkId { hash: [hash; 32], upload: UploadId(3) }
    }

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
                let chunks = vec![chunk(name * 16 + kind)];
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
                same.then(|| vec![chunk(name * 16 + kind)])
            }).collect();
            prop_assert_eq!(planned, naive);
        }
    }

    #[test]
    fn a_chunk_of_another_length_or_upload_is_not_taken_for_being_there() {
        let chunk = |hash: u8, upload| ChunkId { hash: [hash; 32], upload: UploadId(upload) };
        let mut known = KnownChunks::default();
        known.add(chunk(1, 7), 5);
        assert_eq!(known.find(&[1; 32], 5), Some(chunk(1, 7)));
        assert_eq!(known.find(&[1; 32], 6), None, "cut short");
        assert_eq!(known.find(&[2; 32], 5), None);
        assert!(known.has(&chunk(1, 7), 5) && !known.has(&chunk(1, 8), 5));
        known.add_named(chunk(3, 7));
        assert_eq!(known.find(&[3; 32], 5), None, "published, and lost since");
        assert_eq!(known.name([3; 32], UploadId(9)), chunk(3, 7));
        assert_eq!(known.name([1; 32], UploadId(9)), chunk(1, 9));
    }
}
