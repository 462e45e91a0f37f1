//! Takeovers: a folder becomes the writer of partitions, and fences the writers before.

use std::path::Path;
use std::sync::Arc;

use lodestore_graph::PartId;
use lodestore_store::follow::FollowedFolder;
use lodestore_store::transfer::Arrival;
use lodestore_store::{Graph, GraphHandle, OpenMode, OpenOptions};

use crate::Progress;
use crate::bucket::Bucket;
use crate::epochs::Epochs;
use crate::error::BucketError;
use crate::head::{Folder, Head, Known, Last, Standing};
use crate::layout::publications_prefix;
use crate::publication::{GraphIdentity, Publication};
use crate::pull::{PullReport, is_in};

/// Tries to take over a partition whose writer publishes meanwhile.
const TRIES: u32 = 20;

/// A takeover in progress.
struct Takeover<'a, 'p> {
    bucket: &'a Bucket,
    dir: &'a Path,
    graph: GraphIdentity,
    report: PullReport,
    progress: &'a mut Progress<'p>,
}

impl Bucket {
    /// Makes the folder `dir` the writer of partitions, all of the graph if empty. Brings all of
    /// them to their newest publications. Then publishes these again in their next epochs, which
    /// fences the writers before.
    pub fn take_over(
        &self,
        dir: &Path,
        parts: &[PartId],
        progress: &mut Progress<'_>,
    ) -> Result<PullReport, BucketError> {
        let graph = self.run(self.graph())?;
        self.check_graph_of(dir, graph)?;
        let parts = self.check_parts(graph, parts)?;
        self.run(self.check_creates())?;
        let report = PullReport::default();
        let mut takeover = Takeover { bucket: self, dir, graph, report, progress };
        // No writer is fenced before all of them can be continued.
        let mut brought = Vec::with_capacity(parts.len());
        for &part in &parts {
            brought.push(takeover.bring(part, 0)?);
        }
        for last in brought.into_iter().flatten() {
            takeover.fence(last)?;
        }
        let mut report = takeover.report;
        report.parts = parts.iter().map(|part| part.0).collect();
        FollowedFolder::end(dir)?;
        Ok(report)
    }
}

impl Takeover<'_, '_> {
    /// Brings a partition to its newest publication, which is searched for behind `known`; `None`
    /// for a partition that is here and was never published.
    fn bring(&mut self, part: PartId, known: u64) -> Result<Option<Last>, BucketError> {
        let bucket = self.bucket;
        let Some(last) = bucket.run(bucket.last(self.graph, part, known))? else {
            return match is_in(self.dir, part)? {
                true => Ok(None),
                false => Err(bucket.not_published(part)),
            };
        };
        let publication = &last.publication;
        if self.is_behind(publication)? {
            let total = publication.n_bytes();
            let mut each = |done| (self.progress)(done, total);
            bucket.pull_part(self.dir, self.graph, publication, &mut self.report, &mut each)?;
        }
        self.report.version = publication.version();
        Ok(Some(last))
    }

    /// Publishes the newest publication again in the next epoch.
    fn fence(&mut self, mut last: Last) -> Result<(), BucketError> {
        let (bucket, part) = (self.bucket, last.publication.part());
        for _ in 0..TRIES {
            let publication = Arc::clone(&last.publication);
            let Some(epoch) = publication.epoch.checked_add(1) else {
                let reason = "no epoch is left after the last number; use an empty URL";
                return Err(bucket.damaged(&publications_prefix(part), reason));
            };
            let (standing, recorded) = (Standing::Continued, None);
            let mut head =
                Head { part, epoch, last: Some(last), standing, recorded, is_stale: false };
            let taken = head.next(publication.manifest.clone(), publication.files.clone());
            if bucket.run(bucket.publish_at(self.graph, &mut head, taken))?.is_none() {
                let graph = Graph::open(self.dir)?;
                return Epochs::read(&graph, bucket)?.note([&head]);
            }
            let newer = self.bring(part, publication.sequence)?;
            last = newer.ok_or_else(|| {
                bucket.damaged(&publications_prefix(part), "it was there just now")
            })?;
        }
        Err(bucket.refused(format!(
            "other writers publish partition {part} without pause; stop them, and run it again"
        )))
    }

    /// Returns whether the folder has to be brought to a publication before it can continue it.
    ///
    /// Fails for a folder of another history, and for one that another process follows or writes.
    fn is_behind(&self, publication: &Publication) -> Result<bool, BucketError> {
        let part = publication.part();
        if !is_in(self.dir, part)? || Arrival::is_begun(self.dir, part)? {
            return Ok(true);
        }
        let (graph, options) = (Graph::open(self.dir)?, OpenOptions::default());
        let live = GraphHandle::open(graph, Some(&[part]), OpenMode::Follow, &options)?;
        let files = live.part_files(part)?;
        let owned = Epochs::read(live.graph(), self.bucket)?.of(part);
        let recorded = owned.and_then(|owned| owned.published);
        let known = Known::of(&live, publication, recorded)?;
        match self.bucket.is_published(publication, files.manifest(), known, Folder::TakesOver) {
            Err(BucketError::Behind { .. }) => Ok(true),
            Ok(_) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
