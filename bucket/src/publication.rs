//! A publication: a version of a partition, with the chunks of its files.

use std::collections::BTreeSet;

use lodestore_graph::PartId;
use lodestore_store::follow::Manifest;
use uuid::Uuid;

use crate::layout::{CHUNK_BYTES, ChunkId, UploadId, chunk_lengths};
use crate::sealed::{Fields, Kind, Unsealed, seal, unseal};

/// Bytes of the hash of a chunk.
const HASH_BYTES: usize = 32;

/// The identity of the graph of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GraphIdentity {
    pub(crate) graph: Uuid,
    pub(crate) n_parts: u16,
}

/// A version of a partition as it is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Publication {
    /// Its number: 1 is the first one of the partition.
    pub(crate) sequence: u64,
    /// Number of takeovers before it: a writer publishes in the epoch that it owns.
    pub(crate) epoch: u32,
    /// Drawn for each attempt to publish.
    pub(crate) attempt: Uuid,
    /// BLAKE3 of the publication before it; zeros in the first one.
    pub(crate) previous: [u8; 32],
    pub(crate) manifest: Manifest,
    /// The description of the graph first.
    pub(crate) files: Vec<PublishedFile>,
}

/// A file with its chunks, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublishedFile {
    pub(crate) name: String,
    pub(crate) n_bytes: u64,
    pub(crate) chunks: Vec<ChunkId>,
}

/// The object at the key of a publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    Live(Box<Publication>),
    /// Removed by garbage collection; it was of this version.
    Removed {
        sequence: u64,
        version: u32,
    },
}

impl GraphIdentity {
    /// Returns, little-endian: graph 16 | partitions u16.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut body = self.graph.as_bytes().to_vec();
        body.extend_from_slice(&self.n_parts.to_le_bytes());
        seal(Kind::Graph, &body)
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, Unsealed> {
        let mut fields = body_of(bytes, Kind::Graph)?;
        let this = Self { graph: Uuid::from_bytes(fields.take()?), n_parts: fields.u16()? };
        fields.end()?;
        if this.n_parts == 0 {
            return Err("a graph of no partitions".into());
        }
        Ok(this)
    }

    pub(crate) fn parts(self) -> impl Iterator<Item = PartId> {
        (0..self.n_parts).map(PartId)
    }
}

impl PublishedFile {
    /// Returns its chunks in order, each with its length in bytes.
    pub(crate) fn chunks_with_lengths(&self) -> impl Iterator<Item = (&ChunkId, usize)> {
        self.chunks.iter().zip(chunk_lengths(self.n_bytes))
    }
}

impl Publication {
    pub(crate) fn part(&self) -> PartId {
        self.manifest.part()
    }

    pub(crate) fn version(&self) -> u32 {
        self.manifest.version()
    }

    /// Returns all chunks; one that several files share is repeated.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = &ChunkId> {
        self.files.iter().flat_map(|file| &file.chunks)
    }

    pub(crate) fn n_bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.n_bytes))
    }

    /// Returns the publication of an earlier version, of a part of these files; `None` where they
    /// do not hold it.
    pub(crate) fn at(&self, version: u32) -> Option<Self> {
        let manifest = self.manifest.at(version)?;
        let is_kept = |file: &&PublishedFile| {
            let is_of = |manifest: &Manifest| manifest.files().any(|name| name == file.name);
            is_of(&manifest) || !is_of(&self.manifest)
        };
        let files = self.files.iter().filter(is_kept).cloned().collect();
        Some(Self { manifest, files, ..self.clone() })
    }

    /// Returns, little-endian: sequence u64 | epoch u32 | attempt 16 | previous 32 | manifest (u32
    /// and bytes) | files u16. Each file has its name (u16 and bytes), bytes u64, and for each of its
    /// chunks hash 32 | upload u64; in format 1 the hash alone.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let manifest = self.manifest.to_bytes();
        let mut body = self.sequence.to_le_bytes().to_vec();
        body.extend_from_slice(&self.epoch.to_le_bytes());
        body.extend_from_slice(self.attempt.as_bytes());
        body.extend_from_slice(&self.previous);
        let n_bytes = u32::try_from(manifest.len()).expect("a manifest lists some thousand files");
        body.extend_from_slice(&n_bytes.to_le_bytes());
        body.extend_from_slice(&manifest);
        let n_files = u16::try_from(self.files.len()).expect("a partition has fewer files");
        body.extend_from_slice(&n_files.to_le_bytes());
        for file in &self.files {
            let n_bytes = u16::try_from(file.name.len()).expect("names of files are short");
            body.extend_from_slice(&n_bytes.to_le_bytes());
            body.extend_from_slice(file.name.as_bytes());
            body.extend_from_slice(&file.n_bytes.to_le_bytes());
            for chunk in &file.chunks {
                body.extend_from_slice(&chunk.hash);
                body.extend_from_slice(&chunk.upload.0.to_le_bytes());
            }
        }
        seal(Kind::Publication, &body)
    }

    fn from_body(format: u32, mut fields: Fields<'_>) -> Result<Self, Unsealed> {
        let (sequence, epoch) = (fields.u64()?, fields.u32()?);
        let attempt = Uuid::from_bytes(fields.take()?);
        let previous = fields.take()?;
        let n_bytes = fields.u32()? as usize;
        let manifest = Manifest::from_bytes(fields.slice(n_bytes)?)
            .map_err(|reason| format!("its manifest: {reason}"))?;
        let n_files = fields.u16()?;
        let (mut files, mut names) = (Vec::new(), BTreeSet::new());
        for _ in 0..n_files {
            let n_bytes = fields.u16()?.into();
            let name =
                std::str::from_utf8(fields.slice(n_bytes)?).map_err(|_| "a name is not UTF-8")?;
            if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
                return Err(format!("{name:?} is not a plain file name").into());
            }
            if !names.insert(name) {
                return Err(format!("it lists file {name:?} twice").into());
            }
            let n_bytes = fields.u64()?;
            let n_chunks = usize::try_from(n_bytes.div_ceil(CHUNK_BYTES as u64));
            let id_bytes = if format == 1 { HASH_BYTES } else { HASH_BYTES + size_of::<u64>() };
            let n_listed = n_chunks.ok().and_then(|n| n.checked_mul(id_bytes));
            let listed = fields.slice(n_listed.ok_or("a file is too long")?)?;
            let chunks = listed.chunks_exact(id_bytes).map(chunk_from_bytes);
            let chunks = chunks.collect::<Result<_, Unsealed>>()?;
            files.push(PublishedFile { name: name.to_owned(), n_bytes, chunks });
        }
        fields.end()?;
        if let Some(missing) = manifest.files().find(|file| !names.contains(file)) {
            return Err(format!("it has no chunks of {missing}").into());
        }
        Ok(Self { sequence, epoch, attempt, previous, manifest, files })
    }
}

impl Published {
    pub(crate) fn version(&self) -> u32 {
        match self {
            Self::Live(publication) => publication.version(),
            Self::Removed { version, .. } => *version,
        }
    }

    pub(crate) fn sequence(&self) -> u64 {
        match self {
            Self::Live(publication) => publication.sequence,
            Self::Removed { sequence, .. } => *sequence,
        }
    }

    pub(crate) fn live(&self) -> Option<&Publication> {
        match self {
            Self::Live(publication) => Some(publication),
            Self::Removed { .. } => None,
        }
    }

    /// Returns the object that replaces a publication of `version`.
    pub(crate) fn tombstone(sequence: u64, version: u32) -> Vec<u8> {
        let mut body = sequence.to_le_bytes().to_vec();
        body.extend_from_slice(&version.to_le_bytes());
        seal(Kind::Tombstone, &body)
    }

    /// Reads the object at the key of publication `sequence` of a partition of `graph`.
    pub(crate) fn from_bytes(
        bytes: &[u8],
        graph: Uuid,
        part: PartId,
        sequence: u64,
    ) -> Result<Self, Unsealed> {
        let (kind, format, body) = unseal(bytes)?;
        let mut fields = Fields(body);
        let (found, published) = match kind {
            Kind::Publication => {
                let publication = Publication::from_body(format, fields)?;
                let manifest = &publication.manifest;
                if (manifest.graph(), manifest.part()) != (graph, part) {
                    return Err(format!(
                        "expected partition {part} of graph {graph}, found partition {} of graph {}",
                        manifest.part(),
                        manifest.graph()
                    )
                    .into());
                }
                (publication.sequence, Self::Live(Box::new(publication)))
            }
            Kind::Tombstone => {
                let (found, version) = (fields.u64()?, fields.u32()?);
                fields.end()?;
                (found, Self::Removed { sequence: found, version })
            }
            other => return Err(format!("expected a publication, found {other:?}").into()),
        };
        if found != sequence {
            return Err(format!("expected publication {sequence}, found {found}").into());
        }
        Ok(published)
    }
}

/// Reads the name of a chunk: a hash, or a hash and the number of its upload.
fn chunk_from_bytes(bytes: &[u8]) -> Result<ChunkId, Unsealed> {
    let mut fields = Fields(bytes);
    let hash = fields.take()?;
    let upload = match fields.0.is_empty() {
        true => UploadId::UNNUMBERED,
        false => UploadId(fields.u64()?),
    };
    Ok(ChunkId { hash, upload })
}

/// Returns the object of a pin.
pub(crate) fn pin_to_bytes(version: u32) -> Vec<u8> {
    seal(Kind::Pin, &version.to_le_bytes())
}

/// Reads the version of a pin.
pub(crate) fn pin_from_bytes(bytes: &[u8]) -> Result<u32, Unsealed> {
    let mut fields = body_of(bytes, Kind::Pin)?;
    let version = fields.u32()?;
    fields.end()?;
    Ok(version)
}

/// Returns the lease of an upload: the uploads that it continues, u64 each.
pub(crate) fn lease_to_bytes(continued: &[UploadId]) -> Vec<u8> {
    let numbers = continued.iter().flat_map(|upload| upload.0.to_le_bytes());
    seal(Kind::Upload, &numbers.collect::<Vec<u8>>())
}

/// Reads the uploads that an upload continues.
pub(crate) fn lease_from_bytes(bytes: &[u8]) -> Result<Vec<UploadId>, Unsealed> {
    let mut fields = body_of(bytes, Kind::Upload)?;
    let mut continued = Vec::new();
    while !fields.0.is_empty() {
        continued.push(UploadId(fields.u64()?));
    }
    Ok(continued)
}

/// Returns the publications that a run of garbage collection removes: partition u16 | sequence u64
/// each.
pub(crate) fn condemned_to_bytes(condemned: &BTreeSet<(PartId, u64)>) -> Vec<u8> {
    let mut body = Vec::new();
    for (part, sequence) in condemned {
        body.extend_from_slice(&part.0.to_le_bytes());
        body.extend_from_slice(&sequence.to_le_bytes());
    }
    seal(Kind::Condemned, &body)
}

/// Reads the publications that a run of garbage collection removes.
pub(crate) fn condemned_from_bytes(bytes: &[u8]) -> Result<BTreeSet<(PartId, u64)>, Unsealed> {
    let mut fields = body_of(bytes, Kind::Condemned)?;
    let mut condemned = BTreeSet::new();
    while !fields.0.is_empty() {
        condemned.insert((PartId(fields.u16()?), fields.u64()?));
    }
    Ok(condemned)
}

/// The publications of a partition that garbage collection has left: all others up to `up_to` are
/// tombstones, which stay so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Floor {
    pub(crate) up_to: u64,
    /// Ascending.
    pub(crate) left: Vec<u64>,
}

impl Floor {
    /// Returns, little-endian: up to u64 | left u64 each.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let numbers = std::iter::once(&self.up_to).chain(&self.left);
        seal(Kind::Floor, &numbers.flat_map(|it| it.to_le_bytes()).collect::<Vec<u8>>())
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, Unsealed> {
        let mut fields = body_of(bytes, Kind::Floor)?;
        let mut floor = Self { up_to: fields.u64()?, left: Vec::new() };
        while !fields.0.is_empty() {
            let sequence = fields.u64()?;
            let before = floor.left.last().copied().unwrap_or(0);
            if sequence <= before || sequence > floor.up_to {
                let up_to = floor.up_to;
                return Err(format!("{sequence} after {before} of {up_to} publications").into());
            }
            floor.left.push(sequence);
        }
        Ok(floor)
    }
}

fn body_of(bytes: &[u8], expected: Kind) -> Result<Fields<'_>, Unsealed> {
    match unseal(bytes)? {
        (kind, _, body) if kind == expected => Ok(Fields(body)),
        (kind, ..) => Err(format!("expected {expected:?}, found {kind:?}").into()),
    }
}
