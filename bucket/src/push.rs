//! Pushing: what a bucket lacks of a graph is uploaded, several partitions in parallel, and
//! published in the order of the partitions.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use lodestore_graph::PartId;
use lodestore_store::follow::Manifest;
use lodestore_store::graph::META_FILE;
use lodestore_store::update::{GraphVersion, PartFiles};
use lodestore_store::verify::verify_lists;
use lodestore_store::{Graph, GraphHandle, OpenMode, OpenOptions, StoreError};
use serde::Serialize;
use uuid::Uuid;

use crate::Progress;
use crate::bucket::{Bucket, N_PARALLEL};
use crate::epochs::Epochs;
use crate::error::BucketError;
use crate::head::{Folder, Head, Known, Standing};
use crate::layout::{
    CHUNK_BYTES, ChunkId, UploadId, chunk_key, chunk_lengths, chunk_of_key, chunks_prefix,
};
use crate::lease::UploadLease;
use crate::leases::{Leases, Place};
use crate::publication::{GraphIdentity, Publication, PublishedFile};
use crate::upload_plan::{FileId, KnownChunks, KnownFiles, known_file};

/// The result of a push.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PushReport {
    /// The lowest version of the partitions.
    pub version: u32,
    /// The partitions, ascending.
    pub parts: Vec<PushedPart>,
    /// Chunks uploaded.
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

/// Partitions of an open graph at the version that a writer publishes.
pub(crate) struct Round<'a> {
    pub(crate) live: &'a GraphHandle,
    /// The version; each partition's newest one without it.
    pub(crate) pinned: Option<&'a GraphVersion>,
}

/// A partition that has something to publish.
struct Upload {
    part: PartId,
    files: Arc<PartFiles>,
    known: KnownChunks,
    /// Chunks of each file, as far as they are known.
    chunks: Vec<Vec<Option<ChunkId>>>,
}

/// A chunk that is read.
#[derive(Clone, Copy)]
struct Job {
    file: usize,
    chunk: usize,
    n_bytes: usize,
}

/// Counts of a push that are reported while it runs.
pub(crate) struct Running<'a, 'p> {
    pub(crate) report: PushReport,
    /// Bytes that were looked at, and those of all partitions.
    pub(crate) n_done: u64,
    pub(crate) n_bytes: u64,
    pub(crate) progress: &'a mut Progress<'p>,
}

impl Round<'_> {
    fn files(&self, part: PartId) -> Result<PartFiles, StoreError> {
        match self.pinned {
            Some(pinned) => self.live.part_files_at(part, pinned),
            None => self.live.part_files(part),
        }
    }
}

impl<'a, 'p> Running<'a, 'p> {
    pub(crate) fn new(progress: &'a mut Progress<'p>) -> Self {
        Self { report: PushReport::default(), n_done: 0, n_bytes: 0, progress }
    }

    /// Counts a chunk that was sent, or that is there.
    fn count(&mut self, n_bytes: usize, is_sent: bool) {
        let report = &mut self.report;
        if is_sent {
            report.chunks += 1;
            report.bytes += n_bytes as u64;
        } else {
            report.chunks_kept += 1;
            report.bytes_kept += n_bytes as u64;
        }
        self.n_done += n_bytes as u64;
        (self.progress)(self.n_done, self.n_bytes.max(self.n_done));
    }
}

impl Bucket {
    /// Uploads what the bucket lacks of partitions at the newest version that all of them have
    /// committed, and publishes each as soon as all of it is there. Without `parts` these are all
    /// that are in the folder. Puts and commits may continue meanwhile.
    ///
    /// Every page of rows is checked as it is read, and every list of edges before. After a failure
    /// the uploaded chunks stay for some hours, so that another try continues.
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
        // A partition that was restored on its own may not have the version of the others.
        let pinned = live.pin(live.version()).ok();
        let round = Round { live: &live, pinned: pinned.as_ref() };
        let mut running = Running::new(progress);
        running.n_bytes = bytes_of(&live);
        self.run(async {
            let (graph, mut epochs) =
                (identity_of(live.graph()), Epochs::read(live.graph(), self)?);
            let mut heads = self.heads(dir, graph, &parts, &epochs).await?;
            let running = RefCell::new(running);
            let outcomes: RefCell<Vec<_>> = RefCell::new(heads.iter().map(|_| None).collect());
            let mut leases = Leases::default();
            let publish = async |(at, head), lease: &mut Option<UploadLease>, place: Place<'_>| {
                let published = self.publish_part(&round, head, lease, place, &running).await;
                let has_failed = published.is_err();
                outcomes.borrow_mut()[at] = Some(published);
                if has_failed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            leases.share(heads.iter_mut().enumerate().collect(), publish).await;
            let outcomes = outcomes.into_inner();
            let is_done = |outcome: &Option<Result<(), _>>| matches!(outcome, Some(Ok(())));
            let done = heads.iter().zip(&outcomes).filter(|(_, outcome)| is_done(outcome));
            if let Err(error) = epochs.note(done.map(|(head, _)| head)) {
                // Without it another writer is still found by its history.
                tracing::warn!(%error, "published, but not recorded in the folder");
            }
            outcomes.into_iter().flatten().collect::<Result<(), _>>()?;
            leases.end(self).await;
            let mut report = running.into_inner().report;
            report.parts.sort_by_key(|it| it.part);
            report.version = report.parts.iter().map(|it| it.version).min().unwrap_or(0);
            Ok(report)
        })
    }

    /// Uploads what the bucket lacks of a partition, and publishes it when the partitions before
    /// it have ended. Chunks are written under `lease`, which is drawn where there is none.
    pub(crate) async fn publish_part(
        &self,
        round: &Round<'_>,
        head: &mut Head,
        lease: &mut Option<UploadLease>,
        place: Place<'_>,
        running: &RefCell<Running<'_, '_>>,
    ) -> Result<(), BucketError> {
        // Each further turn follows a publication of this history by another process, or the loss
        // of the lease.
        loop {
            let mut upload = match self.begin_upload(round, head, lease).await? {
                ControlFlow::Continue(upload) => upload,
                ControlFlow::Break(there) => {
                    if head.standing == Standing::Found {
                        head.standing = Standing::Continued;
                    }
                    running.borrow_mut().report.parts.push(there);
                    return Ok(());
                }
            };
            if let Err(error) = self.upload(&mut upload, lease, running).await {
                // The next try has to look for the chunks that have come.
                head.standing = head.standing.without_chunks();
                return Err(error);
            }
            place.wait_for_turn(self, lease).await?;
            if !self.is_held(lease.as_ref()).await? {
                tracing::warn!(part = %head.part, "the lease of the upload was lost; beginning again");
                *lease = None;
                continue;
            }
            let published = self.publish_upload(round.live, head, upload).await?;
            let Some(published) = published else { continue };
            if !lease.as_ref().is_none_or(UploadLease::is_recent) {
                // This process was stopped for hours: garbage collection may not have waited.
                *lease = None;
                head.standing = head.standing.without_chunks();
                continue;
            }
            running.borrow_mut().report.parts.push(published);
            // Content that returns later is another chunk.
            if let Some(old) = lease.take_if(|lease| lease.is_old()) {
                self.end_upload(old).await;
            }
            return Ok(());
        }
    }

    async fn is_held(&self, lease: Option<&UploadLease>) -> Result<bool, BucketError> {
        match lease {
            Some(lease) => self.holds(lease).await,
            // Nothing was written.
            None => Ok(true),
        }
    }

    /// Compares a partition with its newest publication; breaks where nothing is to be published.
    async fn begin_upload(
        &self,
        round: &Round<'_>,
        head: &Head,
        lease: &mut Option<UploadLease>,
    ) -> Result<ControlFlow<PushedPart, Upload>, BucketError> {
        let part = head.part;
        let files = Arc::new(round.files(part)?);
        let ours = files.manifest();
        let last = head.last.as_ref().map(|last| &*last.publication);
        let compared = match last {
            Some(last) => {
                let known = Known::of(round.live, last, head.recorded)?;
                Some(self.is_published(last, ours, known, Folder::Continues))
            }
            None => None,
        };
        let is_there = match compared {
            None => false,
            Some(Err(BucketError::UnknownHistory { .. }))
                if matches!(head.standing, Standing::Continued | Standing::Own) =>
            {
                false
            }
            Some(Err(behind @ BucketError::Behind { .. })) => {
                // A version after that of this round may have been published from this folder.
                let is_known = head.standing == Standing::Overtaken
                    || self.is_newest_of(round.live, head).unwrap_or(false);
                match is_known {
                    true => return Ok(ControlFlow::Break(pushed(head, false))),
                    false => return Err(behind),
                }
            }
            Some(compared) => compared?,
        };
        let known = match last.filter(|_| head.standing == Standing::Own) {
            Some(last) => KnownChunks::of(last),
            None => {
                // One request for a thousand chunks, so that the bucket is repaired of what it has
                // lost.
                let listed = self.listed_chunks(part).await?;
                let known = published_chunks(&listed, last);
                if let Some(last) = last
                    && is_there
                    && known.has_all_of(last)
                {
                    return Ok(ControlFlow::Break(pushed(head, false)));
                }
                self.chunks_to_continue(known, &listed, lease).await?
            }
        };
        if is_there && head.standing == Standing::Own {
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
            check_lists(round.live.graph(), part)?;
        }
        Ok(ControlFlow::Continue(Upload { part, files, known, chunks }))
    }

    /// Returns whether the newest version of the folder is, or continues, what is published.
    fn is_newest_of(&self, live: &GraphHandle, head: &Head) -> Result<bool, BucketError> {
        let Some(last) = &head.last else { return Ok(false) };
        let newest = live.part_files(head.part)?;
        let (last, ours) = (&last.publication, newest.manifest());
        let known = Known::of(live, last, head.recorded)?;
        Ok(self.is_published(last, ours, known, Folder::Continues).is_ok())
    }

    /// Returns the chunks of a partition with their lengths.
    async fn listed_chunks(&self, part: PartId) -> Result<Vec<(ChunkId, u64)>, BucketError> {
        // Ages of the future, after the clock was set back, do not matter here.
        let listed = self.list(&chunks_prefix(part), self.time().await?).await?;
        let chunk = |it: &crate::bucket::Listed| Some((chunk_of_key(&it.key)?, it.n_bytes));
        Ok(listed.iter().filter_map(chunk).collect())
    }

    /// Adds the chunks of uploads that were cut off lately, which this one continues.
    async fn chunks_to_continue(
        &self,
        mut known: KnownChunks,
        listed: &[(ChunkId, u64)],
        lease: &mut Option<UploadLease>,
    ) -> Result<KnownChunks, BucketError> {
        let is_left = |(chunk, n_bytes): &&(ChunkId, u64)| {
            chunk.upload != UploadId::UNNUMBERED && !known.has(chunk, *n_bytes as usize)
        };
        let left: Vec<(ChunkId, u64)> = listed.iter().filter(is_left).copied().collect();
        if left.is_empty() {
            return Ok(known);
        }
        let uploads: BTreeSet<UploadId> = left.iter().map(|(chunk, _)| chunk.upload).collect();
        let lease = self.drawn(lease).await?;
        self.continue_uploads(lease, &uploads).await?;
        for (chunk, n_bytes) in left {
            if lease.covers(chunk.upload) && known.find(&chunk.hash, n_bytes as usize).is_none() {
                known.add(chunk, n_bytes);
            }
        }
        Ok(known)
    }

    /// Returns the lease of this process, which is drawn if there is none.
    async fn drawn<'l>(
        &self,
        lease: &'l mut Option<UploadLease>,
    ) -> Result<&'l mut UploadLease, BucketError> {
        let held = match lease.take() {
            Some(held) => held,
            None => self.draw_upload().await?,
        };
        Ok(lease.insert(held))
    }

    /// Reads and checks all chunks that are not known, and uploads those that the bucket lacks.
    async fn upload(
        &self,
        upload: &mut Upload,
        lease: &mut Option<UploadLease>,
        running: &RefCell<Running<'_, '_>>,
    ) -> Result<(), BucketError> {
        let mut jobs = Vec::new();
        for (file, (_, n_bytes)) in upload.files.files().enumerate() {
            for (chunk, n_bytes) in chunk_lengths(n_bytes).enumerate() {
                match upload.chunks[file][chunk] {
                    Some(_) => running.borrow_mut().count(n_bytes, false),
                    None => jobs.push(Job { file, chunk, n_bytes }),
                }
            }
        }
        if jobs.is_empty() {
            return Ok(());
        }
        let lease = self.drawn(lease).await?;
        let mut results = Vec::with_capacity(jobs.len());
        {
            let (upload, number) = (&*upload, lease.id());
            let each = |job: Job| async move {
                Ok::<_, BucketError>((job, self.upload_chunk(upload, job, number).await?))
            };
            let mut under_way = stream::iter(jobs).map(each).buffer_unordered(N_PARALLEL);
            while let Some(uploaded) = under_way.next().await {
                let (job, (chunk, is_sent)) = uploaded?;
                running.borrow_mut().count(job.n_bytes, is_sent);
                results.push((job, chunk));
                self.renew(lease).await?;
            }
        }
        for (job, chunk) in results {
            upload.chunks[job.file][job.chunk] = Some(chunk);
        }
        Ok(())
    }

    /// Reads and checks a chunk, and uploads it unless it is there; returns whether it was sent.
    async fn upload_chunk(
        &self,
        upload: &Upload,
        job: Job,
        number: UploadId,
    ) -> Result<(ChunkId, bool), BucketError> {
        let _room = self.room_for_chunk().await;
        let files = Arc::clone(&upload.files);
        let read = tokio::task::spawn_blocking(move || read_chunk(&files, job));
        let read = read.await.map_err(|error| BucketError::Runtime(error.to_string()))?;
        let (hash, bytes) = read?;
        if let Some(chunk) = upload.known.find(&hash, job.n_bytes) {
            return Ok((chunk, false));
        }
        let chunk = upload.known.name(hash, number);
        self.write(&chunk_key(upload.part, &chunk), bytes).await?;
        Ok((chunk, true))
    }

    /// Creates the publication of an upload, all of whose chunks are there. Returns `None` where
    /// another process has published of the same history meanwhile, which is the head then.
    async fn publish_upload(
        &self,
        live: &GraphHandle,
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
        if let Some(other) = self.publish_at(identity_of(live.graph()), head, publication).await? {
            self.follow_other(head, other, manifest, live)?;
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

fn read_chunk(files: &PartFiles, job: Job) -> Result<([u8; 32], Bytes), BucketError> {
    let offset = job.chunk as u64 * CHUNK_BYTES as u64;
    let mut bytes = Vec::with_capacity(job.n_bytes);
    files.read(job.file, offset, job.n_bytes, &mut bytes)?;
    files.check(job.file, offset, &bytes)?;
    Ok((*blake3::hash(&bytes).as_bytes(), Bytes::from(bytes)))
}

/// Returns the chunks of a list that the newest publication names.
fn published_chunks(listed: &[(ChunkId, u64)], last: Option<&Publication>) -> KnownChunks {
    let named: BTreeSet<&ChunkId> = last.into_iter().flat_map(Publication::chunks).collect();
    let mut known = KnownChunks::default();
    named.iter().for_each(|chunk| known.add_named(**chunk));
    for (chunk, n_bytes) in listed.iter().filter(|(chunk, _)| named.contains(chunk)) {
        known.add(*chunk, *n_bytes);
    }
    known
}

/// Returns the bytes of all files of rows at the newest version.
fn bytes_of(live: &GraphHandle) -> u64 {
    let mut n_bytes = 0;
    for part in live.parts() {
        for tensor in (0..).map_while(|position| live.tensor(part, position)) {
            for layer in tensor.current().layers() {
                n_bytes += layer.segment().layout().file_bytes();
            }
        }
    }
    n_bytes
}

/// Reads and checks the lists of edges of a partition.
fn check_lists(graph: &Graph, part: PartId) -> Result<(), BucketError> {
    let report = verify_lists(graph, part)?;
    let Some(damage) = report.damaged.first() else { return Ok(()) };
    let reason = format!("{} is damaged ({}); nothing was published", damage.file, damage.reason);
    Err(StoreError::MoveRefused { part, reason }.into())
}
