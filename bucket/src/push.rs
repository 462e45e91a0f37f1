//! Pushing: what a bucket lacks of a graph is uploaded, then published.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use lodestore_graph::PartId;
use lodestore_store::follow::Manifest;
use lodestore_store::graph::META_FILE;
use lodestore_store::update::PartFiles;
use lodestore_store::verify::verify_lists;
use lodestore_store::{Graph, GraphHandle, OpenMode, OpenOptions, StoreError};
use serde::Serialize;
use uuid::Uuid;

use crate::Progress;
use crate::bucket::{Bucket, Listed, N_PARALLEL};
use crate::epochs::Epochs;
use crate::error::BucketError;
use crate::head::{Head, Standing};
use crate::layout::{CHUNK_BYTES, ChunkId, chunk_key, chunk_lengths, chunk_of_key, chunks_prefix};
use crate::publication::{GraphIdentity, Publication, PublishedFile};
use crate::upload_plan::{FileId, KnownChunks, KnownFiles, UPLOAD_MAX, known_file};

/// The result of a push.
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

/// Times that a push opens a folder again which seems to be behind.
const OPEN_TRIES: u32 = 5;

/// A partition that has something to publish.
struct Upload {
    /// Position of its head.
    at: usize,
    part: PartId,
    files: Arc<PartFiles>,
    known: Arc<KnownChunks>,
    /// Chunks of each file, as far as they are known.
    chunks: Vec<Vec<Option<ChunkId>>>,
    /// Chunks that were there, too old to be relied on, and were written again.
    rewritten: Vec<ChunkId>,
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
    /// Uploads what the bucket lacks of the newest committed version of partitions, and publishes
    /// it. Without `parts` these are all that are in the folder. Puts and commits may continue
    /// meanwhile.
    ///
    /// Every page of rows is checked as it is read, and every list of edges before. After a failure
    /// the uploaded chunks stay, so that another try continues.
    pub fn push(
        &self,
        dir: &Path,
        parts: &[PartId],
        progress: &mut Progress<'_>,
    ) -> Result<PushReport, BucketError> {
        let mut n_tries = 0;
        loop {
            match self.push_newest(dir, parts, progress) {
                // A server that publishes may have committed since the folder was opened.
                Err(BucketError::Behind { .. }) if n_tries < OPEN_TRIES => n_tries += 1,
                pushed => return pushed,
            }
        }
    }

    fn push_newest(
        &self,
        dir: &Path,
        parts: &[PartId],
        progress: &mut Progress<'_>,
    ) -> Result<PushReport, BucketError> {
        let graph = Graph::open(dir)?;
        let parts = if parts.is_empty() { graph.local_parts() } else { parts.to_vec() };
        let live = GraphHandle::open(graph, Some(&parts), OpenMode::Read, &OpenOptions::default())?;
        self.run(async {
            let (graph, mut epochs) = (identity_of(live.graph()), Epochs::read(dir, self.url())?);
            let mut heads = self.heads(dir, graph, &parts, &epochs).await?;
            let report = self.publish_newest(&live, &mut heads, progress).await?;
            if let Err(error) = epochs.own(heads.iter().map(|head| (head.part, head.epoch))) {
                // Without it another writer is still found by its history.
                tracing::warn!(%error, "it is published all the same");
            }
            Ok(report)
        })
    }

    /// Uploads what the bucket lacks of the newest committed version of partitions, and publishes
    /// it.
    pub(crate) async fn publish_newest(
        &self,
        live: &GraphHandle,
        heads: &mut [Head],
        progress: &mut Progress<'_>,
    ) -> Result<PushReport, BucketError> {
        let graph = identity_of(live.graph());
        let mut report = PushReport::default();
        let mut left: Vec<usize> = (0..heads.len()).collect();
        // Each further round follows a publication of this history by another process.
        while !left.is_empty() {
            let start = Start::now();
            let mut uploads = Vec::new();
            for at in std::mem::take(&mut left) {
                match self.begin_upload(live, at, &heads[at]).await? {
                    ControlFlow::Continue(upload) => uploads.push(upload),
                    ControlFlow::Break(there) => report.parts.push(there),
                }
            }
            self.upload(&mut uploads, &mut report, progress).await?;
            for upload in uploads {
                // Garbage collection may have looked at one before it was written again.
                if !self.has_all(upload.part, &upload.rewritten).await? {
                    left.push(upload.at);
                    continue;
                }
                let took = start.elapsed();
                if took > UPLOAD_MAX {
                    let hours = took.as_secs() / 3600;
                    return Err(self.refused(format!(
                        "uploading took {hours} h, and garbage collection may have removed what came \
                         first; run it again: it continues"
                    )));
                }
                let head = &mut heads[upload.at];
                let at = upload.at;
                match self.publish_upload(graph, head, upload).await? {
                    Some(published) => report.parts.push(published),
                    None => left.push(at),
                }
            }
        }
        report.parts.sort_by_key(|it| it.part);
        report.version = report.parts.iter().map(|it| it.version).min().unwrap_or(0);
        Ok(report)
    }

    /// Compares a partition with its newest publication; breaks where nothing is to be published.
    async fn begin_upload(
        &self,
        live: &GraphHandle,
        at: usize,
        head: &Head,
    ) -> Result<ControlFlow<PushedPart, Upload>, BucketError> {
        let part = head.part;
        let files = Arc::new(live.part_files(part)?);
        let ours = files.manifest();
        let last = head.last.as_ref().map(|last| &*last.publication);
        let is_there = match last.map(|last| self.is_published(last, ours)) {
            None => false,
            Some(Err(BucketError::UnknownHistory { .. }))
                if matches!(head.standing, Standing::Continued | Standing::Own) =>
            {
                false
            }
            Some(Err(BucketError::Behind { .. })) if head.standing == Standing::Overtaken => {
                return Ok(ControlFlow::Break(pushed(head, false)));
            }
            Some(compared) => compared?,
        };
        // One request for a thousand chunks, so that the bucket is repaired of what it has lost.
        let known = Arc::new(match last.filter(|_| head.standing == Standing::Own) {
            Some(last) => KnownChunks::of(last),
            None => self.known_chunks(part, last).await?,
        });
        if let Some(last) = last
            && is_there
            && known.has_all_of(last)
        {
            return Ok(ControlFlow::Break(pushed(head, false)));
        }
        let mut chunks = chunks_of(&files, last);
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
        let rewritten = Vec::new();
        Ok(ControlFlow::Continue(Upload { at, part, files, known, chunks, rewritten }))
    }

    /// Returns the chunks that the bucket has of a partition.
    async fn known_chunks(
        &self,
        part: PartId,
        last: Option<&Publication>,
    ) -> Result<KnownChunks, BucketError> {
        let time = self.time().await?;
        // Ages of the future, after the clock was set back, are as good as none here.
        let listed = self.list(&chunks_prefix(part), time).await?;
        let chunk = |it: Listed| Some((chunk_of_key(&it.key)?, (it.n_bytes, it.age)));
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
                results.push((job, chunk, is_sent));
            }
        }
        for (job, chunk, is_sent) in results {
            let upload = &mut uploads[job.upload];
            upload.chunks[job.file][job.chunk] = Some(chunk);
            if is_sent && upload.known.listed.contains_key(&chunk) {
                upload.rewritten.push(chunk);
            }
        }
        Ok(())
    }

    /// Returns whether a partition has all of these chunks, by a request for each.
    async fn has_all(&self, part: PartId, chunks: &[ChunkId]) -> Result<bool, BucketError> {
        let each = |chunk: ChunkId| async move { self.has(&chunk_key(part, &chunk)).await };
        let looks = stream::iter(chunks.to_vec()).map(each).buffer_unordered(N_PARALLEL);
        looks.try_all(std::future::ready).await
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

    /// Creates the publication of an upload, all of whose chunks are there. Returns `None` where
    /// another process has published of the same history meanwhile, which is the head then.
    async fn publish_upload(
        &self,
        graph: GraphIdentity,
        head: &mut Head,
        upload: Upload,
    ) -> Result<Option<PushedPart>, BucketError> {
        let manifest = upload.files.manifest();
        let whole = |chunks: Vec<Option<ChunkId>>| chunks.into_iter().flatten().collect();
        let files = upload.files.files().zip(upload.chunks);
        let files = files.map(|((name, n_bytes), chunks)| PublishedFile {
            name: name.to_owned(),
            n_bytes,
            chunks: whole(chunks),
        });
        let publication = head.next(manifest.clone(), files.collect());
        if let Some(other) = self.publish_at(graph, head, publication).await? {
            self.follow_other(head, other, manifest)?;
            return Ok(None);
        }
        Ok(Some(pushed(head, true)))
    }

    pub(crate) fn other_graph(&self, dir: &Path, expected: Uuid, found: Uuid) -> BucketError {
        self.refused(format!(
            "graph {found} is there, and {} is graph {expected}; use the URL of this graph, or an empty \
             one",
            dir.display()
        ))
    }
}

/// Returns the outcome for a partition of which nothing is to be published any more.
fn pushed(head: &Head, is_new: bool) -> PushedPart {
    let (version, publication) = (head.version(), head.sequence());
    PushedPart { part: head.part.0, version, publication, is_new }
}

/// A moment by both clocks: one does not run while the machine sleeps, the other can be set back.
struct Start(Instant, SystemTime);

impl Start {
    fn now() -> Self {
        Self(Instant::now(), SystemTime::now())
    }

    /// Returns the longer of the times since.
    fn elapsed(&self) -> Duration {
        self.0.elapsed().max(self.1.elapsed().unwrap_or_default())
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
    let known = last.into_iter().flat_map(|last| {
        let id = |file: &PublishedFile| id_of(&last.manifest, &file.name);
        last.files.iter().map(move |file| (file.name.as_str(), (id(file), file)))
    });
    let known: KnownFiles<'_> = known.collect();
    let chunks =
        |(name, n_bytes)| match known_file(&known, name, n_bytes, id_of(files.manifest(), name)) {
            Some(file) => file.chunks.iter().copied().map(Some).collect(),
            None => chunk_lengths(n_bytes).map(|_| None).collect(),
        };
    files.files().map(chunks).collect()
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
