//! A server's publications: each commit is published as it is made, and other writers are fenced.

use std::path::Path;
use std::sync::Arc;

use lodestore_graph::PartId;
use lodestore_store::{Arrival, FollowedFolder, Graph, GraphHandle, OpenMode, OpenOptions};

use crate::Progress;
use crate::bucket::Bucket;
use crate::epochs::Epochs;
use crate::error::BucketError;
use crate::head::Head;
use crate::layout::publications_prefix;
use crate::publication::{GraphIdentity, Publication};
use crate::pull::{PullReport, is_in};
use crate::push::{Chunks, PushReport, identity_of};

/// Tries to take over a partition whose writer publishes meanwhile.
const TAKEOVER_TRIES: u32 = 20;

/// Whether a request to take over vouches for a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folder {
    /// It has to know the commit that it continues.
    Continues,
    /// It may have forgotten that.
    TakesOver,
}

/// The one writer of some partitions of a graph in a bucket.
pub struct Publisher {
    bucket: Bucket,
    heads: Vec<Head>,
}

/// The newest published version of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedVersion {
    /// The partition.
    pub part: PartId,
    /// Version of the newest publication; 0 before the first.
    pub version: u32,
}

impl Publisher {
    /// Begins to publish partitions of the graph in `dir`, all that are there if empty, behind what
    /// is published; the graph need not be open.
    ///
    /// Fails where another writer has taken one of them over, or has published another history.
    pub fn begin(bucket: Bucket, dir: &Path, parts: &[PartId]) -> Result<Self, BucketError> {
        let graph = Graph::open(dir)?;
        let parts = if parts.is_empty() { graph.parts_here() } else { parts.to_vec() };
        let mut epochs = Epochs::read(dir, bucket.url())?;
        let heads = bucket.run(bucket.heads(dir, identity_of(&graph), &parts, &epochs))?;
        // Before the first publication: a takeover from now on is noticed after a restart too.
        epochs.own(heads.iter().map(|head| (head.part, head.epoch)))?;
        Ok(Self { bucket, heads })
    }

    /// Returns the newest published version of each partition.
    pub fn versions(&self) -> impl Iterator<Item = PublishedVersion> {
        self.heads.iter().map(|head| PublishedVersion {
            part: head.part,
            version: head.last.as_ref().map_or(0, |last| last.publication.version()),
        })
    }

    /// Returns the newest published version of a partition; `None` before the first.
    #[must_use]
    pub fn version(&self, part: PartId) -> Option<u32> {
        let head = self.heads.iter().find(|head| head.part == part)?;
        head.last.as_ref().map(|last| last.publication.version())
    }

    /// Fails where what is committed in `live` does not continue what is published.
    pub fn check(&self, live: &GraphHandle, folder: Folder) -> Result<(), BucketError> {
        for head in &self.heads {
            let Some(last) = &head.last else { continue };
            let files = live.part_files(head.part)?;
            match self.bucket.is_published(&last.publication, files.manifest()) {
                Err(BucketError::UnknownHistory { .. }) if folder == Folder::TakesOver => {}
                checked => drop(checked?),
            }
        }
        Ok(())
    }

    /// Publishes one partition at its newest committed version, unless it is there: uploads the
    /// files of the commits since, then creates the publication.
    ///
    /// After [`BucketError::fences`] nothing more can be published; any other error may pass.
    pub fn publish(&mut self, live: &GraphHandle, part: PartId) -> Result<PushReport, BucketError> {
        let at = self.find_or_add(live, part)?;
        let (bucket, head) = (&self.bucket, std::slice::from_mut(&mut self.heads[at]));
        bucket.run(bucket.publish_newest(live, head, Chunks::Published, &mut |_, _| {}))
    }

    /// Fails where another writer has published a partition, or taken it over: by one request.
    pub fn look_for_others(&mut self, live: &GraphHandle, part: PartId) -> Result<(), BucketError> {
        let at = self.find_or_add(live, part)?;
        let (bucket, head) = (&self.bucket, &mut self.heads[at]);
        let known = head.last.as_ref().map_or(0, |last| last.publication.sequence);
        let graph = identity_of(live.graph());
        let Some(newer) = bucket.run(bucket.newer(graph, part, known))? else { return Ok(()) };
        if newer.publication.epoch != head.epoch {
            return Err(bucket.taken_over(&newer.publication));
        }
        // Another process may push the same folder.
        let files = live.part_files(part)?;
        bucket.is_published(&newer.publication, files.manifest())?;
        head.last = Some(newer);
        Ok(())
    }

    /// Returns the position of the head of a partition, which may have come since.
    fn find_or_add(&mut self, live: &GraphHandle, part: PartId) -> Result<usize, BucketError> {
        if let Some(at) = self.heads.iter().position(|head| head.part == part) {
            return Ok(at);
        }
        let (bucket, dir) = (&self.bucket, live.dir());
        let mut epochs = Epochs::read(dir, bucket.url())?;
        let graph = identity_of(live.graph());
        let heads = bucket.run(bucket.heads(dir, graph, &[part], &epochs))?;
        epochs.own(heads.iter().map(|head| (head.part, head.epoch)))?;
        self.heads.extend(heads);
        Ok(self.heads.len() - 1)
    }
}

impl Bucket {
    /// Makes the folder `dir` the writer of partitions, all of the graph if empty. Brings each to
    /// its newest publication and publishes that again in the next epoch, which fences the writer
    /// before. A partition whose epoch the folder owns already stays in it.
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
        let mut report = PullReport::default();
        for part in parts {
            self.take_over_part(dir, graph, part, &mut report, progress)?;
            report.parts.push(part.0);
        }
        FollowedFolder::end(dir)?;
        Ok(report)
    }

    fn take_over_part(
        &self,
        dir: &Path,
        graph: GraphIdentity,
        part: PartId,
        report: &mut PullReport,
        progress: &mut Progress<'_>,
    ) -> Result<(), BucketError> {
        let mut known = 0;
        for _ in 0..TAKEOVER_TRIES {
            let Some(last) = self.run(self.last(graph, part, known))? else {
                // The first publication of a partition that is here follows.
                return match is_in(dir, part)? {
                    true => Ok(()),
                    false => {
                        let (url, wanted) = (self.url().to_owned(), None);
                        Err(BucketError::NoVersion { url, wanted, part })
                    }
                };
            };
            let publication = Arc::clone(&last.publication);
            known = publication.sequence;
            if self.is_behind(dir, &publication)? {
                let total = publication.n_bytes();
                let mut each = |done| progress(done, total);
                self.pull_part(dir, graph, &publication, report, &mut each)?;
            }
            report.version = publication.version();
            let mut epochs = Epochs::read(dir, self.url())?;
            if epochs.of(part) == Some(publication.epoch) {
                return Ok(());
            }
            let Some(epoch) = publication.epoch.checked_add(1) else {
                let reason = "no epoch is left after the last number; use an empty URL";
                return Err(self.damaged(&publications_prefix(part), reason));
            };
            let mut head = Head { part, epoch, last: Some(last) };
            let taken = head.next(publication.manifest.clone(), publication.files.clone());
            if self.run(self.publish_at(graph, &mut head, taken))?.is_none() {
                return epochs.own([(part, epoch)]);
            }
        }
        Err(BucketError::Contended { url: self.url().to_owned(), part })
    }

    /// Returns whether the folder has to be brought to a publication before it can continue it.
    ///
    /// Fails for a folder of another history.
    fn is_behind(&self, dir: &Path, publication: &Publication) -> Result<bool, BucketError> {
        let part = publication.part();
        if !is_in(dir, part)? || Arrival::is_begun(dir, part)? {
            return Ok(true);
        }
        let (graph, options) = (Graph::open(dir)?, OpenOptions::default());
        let live = GraphHandle::open(graph, Some(&[part]), OpenMode::Read, &options)?;
        let files = live.part_files(part)?;
        match self.is_published(publication, files.manifest()) {
            Err(BucketError::Behind { .. }) => Ok(true),
            // The request to take over vouches for the folder.
            Ok(_) | Err(BucketError::UnknownHistory { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
