//! Keys of a bucket, below its URL.

use lodestore_graph::PartId;

/// The identity of the graph.
pub(crate) const GRAPH_KEY: &str = "lodestore-graph";
/// Prefix of the versions that garbage collection keeps.
pub(crate) const PINS_PREFIX: &str = "pins";
/// Prefix of the leases of uploads.
pub(crate) const UPLOADS_PREFIX: &str = "pushing";
/// Prefix of what runs of garbage collection are removing.
pub(crate) const CONDEMNED_PREFIX: &str = "condemned";
/// Prefix of objects by which the time of the bucket is read.
const CLOCKS_PREFIX: &str = "clock";
/// Bytes of a chunk but the last one of a file. A multiple of the page size.
pub(crate) const CHUNK_BYTES: usize = 8 << 20;

/// Number of an upload. 0 stands for all uploads of releases that did not number them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct UploadId(pub(crate) u64);

/// Name of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ChunkId {
    /// BLAKE3 of its bytes.
    pub(crate) hash: [u8; 32],
    /// The upload that has written it. The same bytes of another upload are another chunk.
    pub(crate) upload: UploadId,
}

impl UploadId {
    pub(crate) const UNNUMBERED: Self = Self(0);
}

/// Returns the key of a publication.
pub(crate) fn publication_key(part: PartId, sequence: u64) -> String {
    format!("{}/{sequence:010}", publications_prefix(part))
}

/// Returns the prefix of all publications of a partition.
pub(crate) fn publications_prefix(part: PartId) -> String {
    format!("part-{:03}/published", part.0)
}

/// Returns the key of a chunk.
pub(crate) fn chunk_key(part: PartId, chunk: &ChunkId) -> String {
    let hash = blake3::Hash::from_bytes(chunk.hash).to_hex();
    match chunk.upload {
        UploadId::UNNUMBERED => format!("{}/{hash}", chunks_prefix(part)),
        UploadId(number) => format!("{}/{hash}-{number:016x}", chunks_prefix(part)),
    }
}

/// Returns the prefix of all chunks of a partition.
pub(crate) fn chunks_prefix(part: PartId) -> String {
    format!("part-{:03}/chunks", part.0)
}

/// Returns the chunk of a key, if it is one of a chunk.
pub(crate) fn chunk_of_key(key: &str) -> Option<ChunkId> {
    let (_, name) = key.rsplit_once('/')?;
    let (hash, upload) = match name.split_once('-') {
        None => (name, UploadId::UNNUMBERED),
        Some((hash, number)) => (hash, upload_of_name(number)?),
    };
    let hash = blake3::Hash::from_hex(hash).ok().filter(|_| is_plain_hex(hash))?;
    Some(ChunkId { hash: *hash.as_bytes(), upload })
}

/// Returns the key of the lease of an upload.
pub(crate) fn upload_key(upload: UploadId) -> String {
    format!("{UPLOADS_PREFIX}/{:016x}", upload.0)
}

/// Returns the upload of the key of a lease.
pub(crate) fn upload_of_key(key: &str) -> Option<UploadId> {
    upload_of_name(key.rsplit('/').next()?)
}

fn upload_of_name(name: &str) -> Option<UploadId> {
    let is_number = name.len() == 16 && is_plain_hex(name);
    let number = u64::from_str_radix(name, 16).ok().filter(|_| is_number)?;
    Some(UploadId(number)).filter(|it| *it != UploadId::UNNUMBERED)
}

fn is_plain_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns the key of what a run of garbage collection is removing.
pub(crate) fn condemned_key(run: uuid::Uuid) -> String {
    format!("{CONDEMNED_PREFIX}/{}", run.simple())
}

/// Returns the key of the object that says which publications of a partition are left.
pub(crate) fn floor_key(part: PartId) -> String {
    format!("part-{:03}/floor", part.0)
}

/// Returns the number of the publication of a key; `None` for a key of something else.
pub(crate) fn sequence_of_key(key: &str) -> Option<u64> {
    key.rsplit('/').next()?.parse().ok()
}

/// Returns the key of a pin.
pub(crate) fn pin_key(name: &str) -> String {
    format!("{PINS_PREFIX}/{name}")
}

/// Returns the key of an object by which the time of the bucket is read.
pub(crate) fn clock_key(id: uuid::Uuid) -> String {
    format!("{CLOCKS_PREFIX}/{}", id.simple())
}

/// Returns the lengths of the chunks of a file.
pub(crate) fn chunk_lengths(n_bytes: u64) -> impl Iterator<Item = usize> {
    let n_chunks = n_bytes.div_ceil(CHUNK_BYTES as u64);
    (0..n_chunks)
        .map(move |at| (n_bytes - at * CHUNK_BYTES as u64).min(CHUNK_BYTES as u64) as usize)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_chunk_is_read_from_its_key_and_lengths_sum_to_the_file(
            hash in any::<[u8; 32]>(), upload in any::<u64>(), part in any::<u16>(),
            n_bytes in 0u64..100 << 20,
        ) {
            let id = ChunkId { hash, upload: UploadId(upload) };
            prop_assert_eq!(chunk_of_key(&chunk_key(PartId(part), &id)), Some(id));
            let lengths: Vec<usize> = chunk_lengths(n_bytes).collect();
            prop_assert_eq!(lengths.iter().map(|n| *n as u64).sum::<u64>(), n_bytes);
            prop_assert!(lengths.iter().all(|n| (1..=CHUNK_BYTES).contains(n)));
            prop_assert!(lengths.iter().rev().skip(1).all(|n| *n == CHUNK_BYTES));
        }
    }

    #[test]
    fn keys_sort_by_sequence_and_other_keys_are_no_chunks() {
        assert_eq!(publication_key(PartId(3), 12), "part-003/published/0000000012");
        assert!(publication_key(PartId(3), 9) < publication_key(PartId(3), 10));
        let id = ChunkId { hash: [0xab; 32], upload: UploadId(0x1c) };
        let key = chunk_key(PartId(3), &id);
        assert_eq!(chunk_of_key(&key.to_uppercase()), None);
        assert_eq!(chunk_of_key(&key[..key.len() - 1]), None);
        assert_eq!(chunk_of_key(&publication_key(PartId(3), 12)), None);
        assert_eq!(upload_of_key(&upload_key(id.upload)), Some(id.upload));
        assert_eq!(upload_of_key("pushing/1c"), None);
    }
}
