//! Pulling: the files of a version that a folder lacks are fetched, checked, and given their names.

use std::path::Path;
use std::sync::mpsc as finishing;
use std::thread;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use lodestore_graph::PartId;
use lodestore_store::follow::{FetchCheck, FetchedFile, Manifest};
use lodestore_store::graph::META_FILE;
use lodestore_store::transfer::{Arrival, ArrivingFile};
use lodestore_store::{Graph, GraphHandle, OpenMode, OpenOptions, StoreError};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::Progress;
use crate::bucket::{Bucket, N_PARALLEL};
use crate::error::BucketError;
use crate::layout::{CHUNK_BYTES, ChunkId, chunk_key};
use crate::publication::{GraphIdentity, Publication, PublishedFile};

/// Number of the arrival in which a partition comes first.
const FIRST_COPY: u64 = 1;
/// The bucket has the files that are fetched.
const CHECK: FetchCheck = FetchCheck::AsReceived;
/// Chunks that have come and are not written yet.
const N_WAITING: usize = 4;

/// The partitions and the version of a pull.
#[derive(Clone, Debug, Default)]
pub struct PullOptions {
    /// The partitions; all of the graph if empty.
    pub parts: Vec<PartId>,
    /// The version; the newest one that is complete if `None`.
    pub version: Option<u32>,
}

/// The result of a pull.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PullReport {
    /// The version that the folder has now.
    pub version: u32,
    /// The partitions, ascending.
    pub parts: Vec<u16>,
    /// Files fetched.
    pub files: u64,
    /// Files that were here.
    pub files_kept: u64,
    /// Bytes fetched.
    pub bytes: u64,
}

/// A file that is coming.
enum Coming {
    Rows(Box<FetchedFile>),
    List(ArrivingFile),
}

/// A file that is fetched from a byte on.
struct Fetch<'a> {
    file: &'a PublishedFile,
    coming: Coming,
    n_bytes_here: u64,
}

impl Bucket {
    /// Brings partitions in `dir` to a version: those that are not there come as a whole, others
    /// get the files that they lack. A pull that was cut off continues.
    ///
    /// A partition gets its name, or its version, only after all of its files were read and
    /// checked.
    pub fn pull(
        &self,
        dir: &Path,
        options: &PullOptions,
        progress: &mut Progress<'_>,
    ) -> Result<PullReport, BucketError> {
        let (graph, publications) = self.run(async {
            let graph = self.graph().await?;
            Ok::<_, BucketError>((graph, self.complete(graph, options.version).await?))
        })?;
        self.check_graph_of(dir, graph)?;
        let wanted = self.check_parts(graph, &options.parts)?;
        let is_wanted = |it: &&Publication| wanted.contains(&it.part());
        let publications: Vec<&Publication> = publications.iter().filter(is_wanted).collect();
        let total = publications.iter().map(|it| it.n_bytes()).sum();
        let (mut report, mut done) = (PullReport::default(), 0);
        for publication in publications {
            let mut each = |n_bytes| progress(done + n_bytes, total);
            self.pull_part(dir, graph, publication, &mut report, &mut each)?;
            done += publication.n_bytes();
            progress(done, total);
            report.version = publication.version();
            report.parts.push(publication.part().0);
        }
        Ok(report)
    }

    /// Fails where the folder has another graph.
    pub(crate) fn check_graph_of(
        &self,
        dir: &Path,
        graph: GraphIdentity,
    ) -> Result<(), BucketError> {
        if !dir.join(META_FILE).exists() {
            return Ok(());
        }
        let here = Graph::open(dir)?.uuid();
        match here == graph.graph {
            true => Ok(()),
            false => Err(self.other_graph(dir, here, graph.graph)),
        }
    }

    /// Returns these partitions ascending, all of the graph if there are none.
    pub(crate) fn check_parts(
        &self,
        graph: GraphIdentity,
        parts: &[PartId],
    ) -> Result<Vec<PartId>, BucketError> {
        let mut parts = if parts.is_empty() { graph.parts().collect() } else { parts.to_vec() };
        parts.sort_unstable();
        parts.dedup();
        match parts.iter().find(|part| part.0 >= graph.n_parts) {
            None => Ok(parts),
            Some(&part) => {
                let n_parts = graph.n_parts;
                Err(self.refused(format!("there is no partition {part}; the graph has {n_parts}")))
            }
        }
    }

    /// Brings a partition of a folder to a publication.
    pub(crate) fn pull_part(
        &self,
        dir: &Path,
        graph: GraphIdentity,
        publication: &Publication,
        report: &mut PullReport,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), BucketError> {
        let (part, manifest) = (publication.part(), &publication.manifest);
        // One that was cut off at its end has left its folder.
        if is_in(dir, part)? && !Arrival::is_begun(dir, part)? {
            return self.pull_next(dir, publication, report, progress);
        }
        let arrival = Arrival::find_or_begin(dir, part, FIRST_COPY)?;
        if arrival.id() != FIRST_COPY {
            let reason =
                format!("partition {part} is coming by `lode transfer`; finish that first");
            return Err(BucketError::refused_at(dir, reason));
        }
        if arrival.is_taken() {
            arrival.take()?;
            return self.pull_next(dir, publication, report, progress);
        }
        let (meta, others): (Vec<_>, Vec<_>) =
            publication.files.iter().partition(|file| file.name == META_FILE);
        // Before any other file: it says what they must be.
        let meta: Vec<Fetch<'_>> = meta
            .into_iter()
            .map(|file| Fetch::of_list(file, &arrival))
            .collect::<Result<_, _>>()?;
        self.fetch(part, meta, report, &mut |_| {})?;
        let coming = arrival.check_graph()?;
        if coming.uuid() != graph.graph {
            return Err(self.other_graph(dir, graph.graph, coming.uuid()));
        }
        let mut fetches = Vec::new();
        for file in others {
            if is_of(manifest, file) {
                match FetchedFile::begin(&coming, manifest, &file.name, file.n_bytes, CHECK)? {
                    Some(rows) => fetches.push(Fetch::of_rows(file, rows)),
                    None => report.files_kept += 1,
                }
            } else if arrival.has(&file.name, file.n_bytes)? {
                report.files_kept += 1;
            } else {
                fetches.push(Fetch::of_list(file, &arrival)?);
            }
        }
        self.fetch(part, fetches, report, progress)?;
        Ok(arrival.install(manifest)?)
    }

    /// Brings a partition that is in the folder to a later version.
    fn pull_next(
        &self,
        dir: &Path,
        publication: &Publication,
        report: &mut PullReport,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), BucketError> {
        let part = publication.part();
        let graph = Graph::open(dir)?;
        let options = OpenOptions::default();
        let live = GraphHandle::open(graph, Some(&[part]), OpenMode::Follow, &options)?;
        if live.pending_version() > live.version() {
            let reason = format!(
                "partition {part} has rows that are not committed; commit them, or pull into another \
                 folder"
            );
            return Err(BucketError::refused_at(dir, reason));
        }
        self.fetch_next(&live, publication, report, progress)?;
        live.install(&publication.manifest)?;
        Ok(())
    }

    /// Fetches the files of rows that an open partition lacks of a publication.
    pub(crate) fn fetch_next(
        &self,
        live: &GraphHandle,
        publication: &Publication,
        report: &mut PullReport,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), BucketError> {
        let manifest = &publication.manifest;
        let is_rows = |file: &&PublishedFile| is_of(manifest, file);
        let mut fetches = Vec::new();
        for file in publication.files.iter().filter(is_rows) {
            match FetchedFile::begin_next(live, manifest, &file.name, file.n_bytes, CHECK)? {
                Some(rows) => fetches.push(Fetch::of_rows(file, rows)),
                None => report.files_kept += 1,
            }
        }
        self.fetch(publication.part(), fetches, report, progress)
    }

    /// Fetches files to their ends. Chunks come in parallel and are appended in order, by a thread
    /// of their own; another one checks and names the files that are whole.
    fn fetch(
        &self,
        part: PartId,
        fetches: Vec<Fetch<'_>>,
        report: &mut PullReport,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), BucketError> {
        let mut jobs = Vec::new();
        for (at, fetch) in fetches.iter().enumerate() {
            let first = (fetch.n_bytes_here / CHUNK_BYTES as u64) as usize;
            let chunks = fetch.file.chunks_with_lengths();
            let mut skip = (fetch.n_bytes_here % CHUNK_BYTES as u64) as usize;
            for (chunk, n_bytes) in chunks.skip(first) {
                jobs.push((at, *chunk, n_bytes, std::mem::take(&mut skip)));
            }
        }
        report.files += fetches.len() as u64;
        let names: Vec<&str> = fetches.iter().map(|fetch| fetch.file.name.as_str()).collect();
        let mut left = vec![0; fetches.len()];
        jobs.iter().for_each(|(at, ..)| left[*at] += 1);
        let coming: Vec<Coming> = fetches.into_iter().map(|fetch| fetch.coming).collect();
        thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel::<(usize, Bytes)>(N_WAITING);
            let writer = scope.spawn(move || write_all(coming, left, receiver));
            let fetched = self.run(async {
                let each = |(at, chunk, n_bytes, skip): (usize, ChunkId, usize, usize)| {
                    let name = names[at];
                    async move {
                        let bytes = self.chunk(part, &chunk, n_bytes, name).await?;
                        Ok::<_, BucketError>((at, bytes.slice(skip..)))
                    }
                };
                let mut chunks = stream::iter(jobs).map(each).buffered(N_PARALLEL);
                let mut done = 0;
                while let Some((at, bytes)) = chunks.try_next().await? {
                    done += bytes.len() as u64;
                    if sender.send((at, bytes)).await.is_err() {
                        // The writer has failed, and says why.
                        break;
                    }
                    progress(done);
                }
                drop(sender);
                Ok::<u64, BucketError>(done)
            });
            let written = writer.join();
            let written =
                written.map_err(|_| BucketError::Runtime("a thread panicked".to_owned()))?;
            // An error of the store ends the writer early too.
            let n_bytes = fetched?;
            written?;
            report.bytes += n_bytes;
            Ok(())
        })
    }

    /// Reads a chunk and checks it.
    pub(crate) async fn chunk(
        &self,
        part: PartId,
        chunk: &ChunkId,
        n_bytes: usize,
        file: &str,
    ) -> Result<Bytes, BucketError> {
        let key = chunk_key(part, chunk);
        let reason = match self.read(&key, n_bytes as u64).await? {
            None => format!("a chunk of {file} is not there; collected since, or removed by hand"),
            Some(bytes) if bytes.len() != n_bytes => {
                format!("a chunk of {file} has {} bytes, expected {n_bytes}", bytes.len())
            }
            Some(bytes) => match blake3::hash(&bytes) {
                found if *found.as_bytes() == chunk.hash => return Ok(bytes),
                found => {
                    format!("a chunk of {file} has BLAKE3 {found}, expected that of its name")
                }
            },
        };
        Err(self.damaged(&key, reason))
    }
}

impl<'a> Fetch<'a> {
    fn of_rows(file: &'a PublishedFile, rows: FetchedFile) -> Self {
        Self { file, n_bytes_here: rows.n_bytes(), coming: Coming::Rows(Box::new(rows)) }
    }

    /// Begins a file that is fetched from its beginning: the graph's description or a list of
    /// edges.
    fn of_list(file: &'a PublishedFile, arrival: &Arrival) -> Result<Self, StoreError> {
        Ok(Self { file, n_bytes_here: 0, coming: Coming::List(arrival.file(&file.name)?) })
    }
}

impl Coming {
    fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        match self {
            Self::Rows(file) => file.append(bytes),
            Self::List(file) => file.append(bytes),
        }
    }

    fn finish(self) -> Result<(), StoreError> {
        match self {
            Self::Rows(file) => file.finish(),
            Self::List(file) => file.finish(),
        }
    }
}

/// Returns whether a partition is in a folder.
pub(crate) fn is_in(dir: &Path, part: PartId) -> Result<bool, StoreError> {
    Ok(dir.join(META_FILE).exists() && Graph::open(dir)?.local_parts().contains(&part))
}

/// Returns whether a file is one of rows.
fn is_of(manifest: &Manifest, file: &PublishedFile) -> bool {
    manifest.files().any(|name| name == file.name)
}

/// Appends chunks as they come, and finishes files of which none are `left` to come, beside what
/// still comes.
fn write_all(
    coming: Vec<Coming>,
    mut left: Vec<usize>,
    mut receiver: mpsc::Receiver<(usize, Bytes)>,
) -> Result<(), StoreError> {
    thread::scope(|scope| {
        let (whole, to_finish) = finishing::channel::<Coming>();
        let finisher = scope.spawn(move || to_finish.into_iter().try_for_each(Coming::finish));
        let mut coming: Vec<Option<Coming>> = coming.into_iter().map(Some).collect();
        // A file of which everything had come before.
        let is_whole = |(at, file): (usize, &mut Option<Coming>)| {
            if left[at] > 0 { None } else { file.take() }
        };
        let mut finished: Vec<Coming> =
            coming.iter_mut().enumerate().filter_map(is_whole).collect();
        let mut written = Ok(());
        loop {
            for file in finished.drain(..) {
                // It ends early only when it fails.
                let _ = whole.send(file);
            }
            let Some((at, bytes)) = receiver.blocking_recv() else { break };
            let Some(file) = coming[at].as_mut() else { continue };
            written = file.append(&bytes);
            if written.is_err() {
                break;
            }
            left[at] -= 1;
            if left[at] == 0 {
                finished.extend(coming[at].take());
            }
        }
        drop(whole);
        let finished = finisher.join();
        written?;
        finished.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
