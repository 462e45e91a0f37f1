//! Pushing: what a bucket lacks of a graph is uploaded, then published.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use lodestore_graph::PartId;
use lodestore_store::{
    Graph, GraphHandle, META_FILE, Manifest, OpenMode, OpenOptions, PartFiles, StoreError,
    Succession, verify_lists,
};
use serde::Serialize;
use uuid::Uuid;

use crate::Progress;
use crate::bucket::{Attempt, Bucket, N_PARALLEL};
use crate::error::BucketError;
use crate::layout::{CHUNK_BYTES, ChunkId, chunk_key, chunk_lengths, chunk_of_key, chunks_prefix};
use crate::publication::{GraphIdentity, Publication, Published, PublishedFile};
use crate::upload_plan::{
    FileId, FolderFile, KnownChunks, KnownFile, UPLOAD_MAX, published_chunks,
};

/// What a push has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PushReport {
    /// The lowest version of the partitions.
    pub version: u32,
    /// The partitions, ascending.
    pub parts: Vec<PushedPart>,
    /// Chunks uploaded, and those that were there.
    pub chunks: u64,
    /// Chunks that were there.
    pub chunks_kept: u64,
    /// Bytes uploaded.
    pub bytes: u64,
    /// Bytes that were there.
    pub bytes_kept: u64,
}

/// A partition that was pushed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PushedPart {
    /// The partition.
    pub part: u16,
    /// Its version.
    pub version: u32,
    /// Number of its newest publication.
    pub publication: u64,
    /// Whether this push has made it.
    pub is_new: bool,
}

/// A partition that has something to publish.
struct Upload {
    part: PartId,
    files: Arc<PartFiles>,
    last: Option<(Box<Publication>, [u8; 32])>,
    known: Arc<KnownChunks>,
    /// Chunks of each file, as far as they are known.
    chunks: Vec<Vec<Option<ChunkId>>>,
}

/// A chunk that is read.
#[derive(Clone, Copy)]
struct Job {
    upload: usize,
    file: usize,
    chunk: usize,
    n_bytes: usize,
}

impl Bucket {
    /// Uploads what the bucket lacks of the newest committed version of these partitions of a
    /// graph, all that are in the folder if empty, and publishes it. Puts and commits may go on
    /// meanwhile.
    ///
    /// Every page of rows is checked as it is read, and every list of edges before. What was
    /// uploaded stays when it fails, so that another try continues.
    pub fn push(
        &self,
        dir: &Path,
        parts: &[PartId],
        progress: &mut Progress<'_>,
    ) -> Result<PushReport, BucketError> {
        let start = Instant::now();
        let graph = Graph::open(dir)?;
        let mut parts = if parts.is_empty() { graph.parts_here() } else { parts.to_vec() };
        parts.sort_unstable();
        parts.dedup();
        let live = GraphHandle::open(graph, Some(&parts), OpenMode::Read, &OpenOptions::default())?;
        self.run(async {
            let ours = identity_of(live.graph());
            let found = self.find_or_create_graph(ours).await?;
            if found != ours {
                return Err(self.other_graph(dir, ours.graph, found.graph));
            }
            let mut report = PushReport { version: live.version(), ..PushReport::default() };
            let mut uploads = Vec::new();
            for &part in &parts {
                match self.begin_upload(&live, ours, part).await? {
                    ControlFlow::Continue(upload) => uploads.push(upload),
                    ControlFlow::Break(there) => report.parts.push(there),
                }
            }
            self.upload(&mut uploads, &mut report, progress).await?;
            for upload in uploads {
                if start.elapsed() > UPLOAD_MAX {
                    let hours = start.elapsed().as_secs() / 3600;
                    return Err(BucketError::TooSlow { url: self.url().to_owned(), hours });
                }
                report.parts.push(self.publish_upload(ours, upload).await?);
            }
            report.parts.sort_by_key(|it| it.part);
            Ok(report)
        })
    }

    /// Compares a partition with its newest publication; breaks where nothing is to be published.
    async fn begin_upload(
        &self,
        live: &GraphHandle,
        graph: GraphIdentity,
        part: PartId,
    ) -> Result<ControlFlow<PushedPart, Upload>, BucketError> {
        let files = Arc::new(live.part_files(part)?);
        let ours = files.manifest();
        let last = match self.newest(graph, part, 0).await? {
            Some((Published::Live(last), bytes)) => Some((last, *blake3::hash(&bytes).as_bytes())),
            // The newest one is never removed.
            Some((Published::Removed { .. }, _)) => {
                let key = crate::layout::publications_prefix(part);
                return Err(self.damaged(&key, "the newest publication is a tombstone"));
            }
            None => None,
        };
        let published = last.as_ref().map(|(last, _)| &**last);
        let known = Arc::new(self.known_chunks(part, published).await?);
        if let Some(last) = published {
            let is_there = match ours.succession(&last.manifest) {
                Succession::Later => false,
                Succession::Same => ours.has_tensors_of(&last.manifest),
                Succession::Earlier => return Err(self.behind(last, ours)),
                Succession::Apart => return Err(self.fenced(part, last.sequence, last.version())),
            };
            if is_there && known.has_all_of(last) {
                return Ok(ControlFlow::Break(PushedPart {
                    part: part.0,
                    version: ours.version(),
                    publication: last.sequence,
                    is_new: false,
                }));
            }
        }
        let mut chunks = chunks_of(&files, published);
        // What the bucket has lost is read and uploaded again.
        for ((_, n_bytes), chunks) in files.files().zip(&mut chunks) {
            for (chunk, n_bytes) in chunks.iter_mut().zip(chunk_lengths(n_bytes)) {
                *chunk = chunk.filter(|it| known.has(it, n_bytes));
            }
        }
        let names: Vec<&str> = files.files().map(|(name, _)| name).collect();
        let is_read = |(name, chunks): (&str, &Vec<Option<ChunkId>>)| {
            name != META_FILE && ours.file_id(name).is_none() && chunks.contains(&None)
        };
        if names.into_iter().zip(&chunks).any(is_read) {
            check_lists(live.graph(), part)?;
        }
        Ok(ControlFlow::Continue(Upload { part, files, last, known, chunks }))
    }

    /// Returns the chunks that the bucket has of a partition.
    async fn known_chunks(
        &self,
        part: PartId,
        last: Option<&Publication>,
    ) -> Result<KnownChunks, BucketError> {
        let time = self.time().await?;
        let listed = self.list(&chunks_prefix(part), time).await?;
        let chunk =
            |it: crate::bucket::Listed| Some((chunk_of_key(&it.key)?, (it.n_bytes, it.age)));
        Ok(KnownChunks {
            published: last.into_iter().flat_map(Publication::chunks).copied().collect(),
            listed: listed.into_iter().filter_map(chunk).collect(),
        })
    }

    /// Reads and checks all chunks that are not known, and uploads those that the bucket lacks.
    async fn upload(
        &self,
        uploads: &mut [Upload],
        report: &mut PushReport,
        progress: &mut Progress<'_>,
    ) -> Result<(), BucketError> {
        let mut jobs = Vec::new();
        for (at, upload) in uploads.iter().enumerate() {
            for (file, (_, n_bytes)) in upload.files.files().enumerate() {
                for (chunk, n_bytes) in chunk_lengths(n_bytes).enumerate() {
                    match upload.chunks[file][chunk] {
                        Some(_) => {
                            report.chunks_kept += 1;
                            report.bytes_kept += n_bytes as u64;
                        }
                        None => jobs.push(Job { upload: at, file, chunk, n_bytes }),
                    }
                }
            }
        }
        let total: u64 = jobs.iter().map(|job| job.n_bytes as u64).sum();
        let (mut done, mut results) = (0, Vec::with_capacity(jobs.len()));
        {
            let uploads = &*uploads;
            let each = |job: Job| async move {
                Ok::<_, BucketError>((job, self.upload_chunk(&uploads[job.upload], job).await?))
            };
            let mut under_way = stream::iter(jobs).map(each).buffer_unordered(N_PARALLEL);
            while let Some(uploaded) = under_way.next().await {
                let (job, (chunk, is_sent)) = uploaded?;
                let n_bytes = job.n_bytes as u64;
                let (chunks, bytes) = match is_sent {
                    true => (&mut report.chunks, &mut report.bytes),
                    false => (&mut report.chunks_kept, &mut report.bytes_kept),
                };
                *chunks += 1;
                *bytes += n_bytes;
                done += n_bytes;
                progress(done, total);
                results.push((job, chunk));
            }
        }
        for (job, chunk) in results {
            uploads[job.upload].chunks[job.file][job.chunk] = Some(chunk);
        }
        Ok(())
    }

    /// Reads and checks a chunk, and uploads it unless it is there; returns whether it was sent.
    async fn upload_chunk(
        &self,
        upload: &Upload,
        job: Job,
    ) -> Result<(ChunkId, bool), BucketError> {
        let files = Arc::clone(&upload.files);
        let read = tokio::task::spawn_blocking(move || read_chunk(&files, job));
        let read = read.await.map_err(|error| BucketError::Runtime(error.to_string()))?;
        let (chunk, bytes) = read?;
        if upload.known.has(&chunk, job.n_bytes) {
            return Ok((chunk, false));
        }
        self.write(&chunk_key(upload.part, &chunk), bytes).await?;
        Ok((chunk, true))
    }

    /// Creates the publication of an upload, all of whose chunks are there.
    async fn publish_upload(
        &self,
        graph: GraphIdentity,
        upload: Upload,
    ) -> Result<PushedPart, BucketError> {
        let manifest = upload.files.manifest();
        let whole = |chunks: Vec<Option<ChunkId>>| chunks.into_iter().flatten().collect();
        let files = upload.files.files().zip(upload.chunks);
        let publication = Publication {
            sequence: upload.last.as_ref().map_or(1, |(last, _)| last.sequence + 1),
            attempt: Uuid::new_v4(),
            previous: upload.last.as_ref().map_or([0; 32], |(_, hash)| *hash),
            manifest: manifest.clone(),
            files: files
                .map(|((name, n_bytes), chunks)| PublishedFile {
                    name: name.to_owned(),
                    n_bytes,
                    chunks: whole(chunks),
                })
                .collect(),
        };
        match self.publish(graph, &publication).await? {
            Attempt::Published => Ok(PushedPart {
                part: upload.part.0,
                version: manifest.version(),
                publication: publication.sequence,
                is_new: true,
            }),
            Attempt::Lost(other) => {
                Err(self.fenced(upload.part, publication.sequence, other.version()))
            }
        }
    }

    pub(crate) fn other_graph(&self, dir: &Path, expected: Uuid, found: Uuid) -> BucketError {
        BucketError::OtherGraph { url: self.url().to_owned(), dir: dir.to_owned(), expected, found }
    }

    fn behind(&self, last: &Publication, ours: &Manifest) -> BucketError {
        BucketError::Behind {
            url: self.url().to_owned(),
            part: ours.part(),
            published: last.version(),
            here: ours.version(),
        }
    }

    fn fenced(&self, part: PartId, sequence: u64, version: u32) -> BucketError {
        BucketError::Fenced { url: self.url().to_owned(), part, sequence, version }
    }
}

/// Returns the identity under which a bucket has a graph.
pub(crate) fn identity_of(graph: &Graph) -> GraphIdentity {
    GraphIdentity { graph: graph.uuid(), n_parts: graph.book().n_parts() }
}

fn id_of(manifest: &Manifest, name: &str) -> FileId {
    match manifest.file_id(name) {
        Some(id) => FileId::Segment(id),
        // It changes when a tensor is added or dropped.
        None if name == META_FILE => FileId::Unknown,
        None => FileId::OfGraph,
    }
}

/// Returns the chunks of each file: those of the last publication, or as many unknown ones.
fn chunks_of(files: &PartFiles, last: Option<&Publication>) -> Vec<Vec<Option<ChunkId>>> {
    let folder: Vec<FolderFile> = files
        .files()
        .map(|(name, n_bytes)| FolderFile {
            name: name.to_owned(),
            n_bytes,
            id: id_of(files.manifest(), name),
        })
        .collect();
    let known = last.into_iter().flat_map(|last| {
        last.files.iter().map(|file| KnownFile { file, id: id_of(&last.manifest, &file.name) })
    });
    let planned = published_chunks(&folder, &known.collect::<Vec<_>>());
    let unknown = |n_bytes| chunk_lengths(n_bytes).map(|_| None).collect();
    let chunks = planned.into_iter().zip(&folder).map(|(chunks, file)| match chunks {
        Some(chunks) => chunks.into_iter().map(Some).collect(),
        None => unknown(file.n_bytes),
    });
    chunks.collect()
}

fn read_chunk(files: &PartFiles, job: Job) -> Result<(ChunkId, Bytes), BucketError> {
    let offset = job.chunk as u64 * CHUNK_BYTES as u64;
    let mut bytes = Vec::with_capacity(job.n_bytes);
    files.read(job.file, offset, job.n_bytes, &mut bytes)?;
    files.check(job.file, offset, &bytes)?;
    Ok((*blake3::hash(&bytes).as_bytes(), Bytes::from(bytes)))
}

/// Reads and checks the lists of edges of a partition.
fn check_lists(graph: &Graph, part: PartId) -> Result<(), BucketError> {
    let report = verify_lists(graph, part)?;
    let Some(damage) = report.damaged.first() else { return Ok(()) };
    let reason = format!("{} is damaged ({}); nothing was published", damage.file, damage.reason);
    Err(StoreError::MoveRefused { part, reason }.into())
}
