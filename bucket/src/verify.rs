//! Verification of a bucket: every chunk that a publication names is read and checked.

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream};
use lodestore_graph::PartId;
use serde::Serialize;

use crate::Progress;
use crate::bucket::{Bucket, N_PARALLEL};
use crate::error::BucketError;
use crate::layout::{ChunkId, publication_key};
use crate::publication::{GraphIdentity, Published};

/// Result of the verification of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BucketVerifyReport {
    /// Nothing is damaged or missing.
    pub ok: bool,
    /// Publications that were checked.
    pub publications: u64,
    /// Chunks that were read.
    pub chunks: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Every fault.
    pub damaged: Vec<BucketDamage>,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BucketDamage {
    /// The file, or the publication.
    pub file: String,
    /// The object, what was expected and what was found.
    pub reason: String,
}

/// A chunk with the first file that names it, by partition and hash.
type Chunks = BTreeMap<(PartId, ChunkId), (usize, String)>;

impl Bucket {
    /// Reads and checks all publications that garbage collection has left, and all their chunks.
    ///
    /// Fails only where the store does; what is damaged is in the report.
    pub fn verify(&self, progress: &mut Progress<'_>) -> Result<BucketVerifyReport, BucketError> {
        self.run(async {
            let graph = self.graph().await?;
            let (mut report, mut chunks) = (BucketVerifyReport::default(), Chunks::new());
            for part in graph.parts() {
                self.verify_publications(graph, part, &mut report, &mut chunks).await?;
            }
            let total = chunks.values().map(|(n_bytes, _)| *n_bytes as u64).sum();
            let each = |((part, chunk), (n_bytes, file)): ((PartId, ChunkId), (usize, String))| async move {
                let name = format!("part-{:03}/{file}", part.0);
                (self.chunk(part, &chunk, n_bytes, &name).await, n_bytes, name)
            };
            let mut read = stream::iter(chunks).map(each).buffer_unordered(N_PARALLEL);
            while let Some((result, n_bytes, file)) = read.next().await {
                report.chunks += 1;
                report.bytes += n_bytes as u64;
                progress(report.bytes, total);
                report.note(file, result.map(drop))?;
            }
            report.damaged.sort_by(|a, b| (&a.file, &a.reason).cmp(&(&b.file, &b.reason)));
            report.ok = report.damaged.is_empty();
            Ok(report)
        })
    }

    /// Checks the publications of a partition, the newest first, and collects their chunks.
    async fn verify_publications(
        &self,
        graph: GraphIdentity,
        part: PartId,
        report: &mut BucketVerifyReport,
        chunks: &mut Chunks,
    ) -> Result<(), BucketError> {
        let of_part = format!("part-{:03}", part.0);
        let newest = match self.newest(graph, part, 0).await {
            Ok(Some((newest, _))) => newest,
            Ok(None) => {
                report.add(of_part, "nothing is published of it");
                return Ok(());
            }
            Err(error) => return report.note(of_part, Err(error)),
        };
        let Some(last) = newest.live().map(|it| it.sequence) else {
            report.add(of_part, "its newest publication was removed");
            return Ok(());
        };
        let mut next_hash = None;
        for sequence in (1..=last).rev() {
            let key = publication_key(part, sequence);
            let (published, bytes) = match self.publication(graph, part, sequence).await {
                Ok(Some(found)) => found,
                Ok(None) => {
                    report.add(key, "it is missing; numbers have no gap");
                    continue;
                }
                Err(error) => {
                    report.note(key, Err(error))?;
                    continue;
                }
            };
            let Published::Live(publication) = published else {
                next_hash = None;
                continue;
            };
            report.publications += 1;
            if next_hash.is_some_and(|expected| expected != *blake3::hash(&bytes).as_bytes()) {
                report.add(key, "the publication after it was made over another one");
            }
            next_hash = Some(publication.previous);
            for file in &publication.files {
                for (chunk, n_bytes) in file.chunks_with_lengths() {
                    chunks.entry((part, *chunk)).or_insert_with(|| (n_bytes, file.name.clone()));
                }
            }
        }
        Ok(())
    }
}

impl BucketVerifyReport {
    fn add(&mut self, file: String, reason: impl Into<String>) {
        self.damaged.push(BucketDamage { file, reason: reason.into() });
    }

    /// Takes damage into the report; passes on errors of the store.
    fn note(&mut self, file: String, result: Result<(), BucketError>) -> Result<(), BucketError> {
        match result {
            Ok(()) => Ok(()),
            Err(error @ (BucketError::Damaged { .. } | BucketError::Newer { .. })) => {
                self.add(file, error.to_string());
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
