//! A server's publications: each commit is published as it is made, and other writers are fenced.

use std::path::Path;

use lodestore_graph::PartId;
use lodestore_store::{Graph, GraphHandle, OpenMode, OpenOptions};

use crate::bucket::Bucket;
use crate::epochs::Epochs;
use crate::error::BucketError;
use crate::head::{Head, Standing};
use crate::push::identity_of;

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

impl Publisher {
    /// Begins to publish partitions of the graph in `dir` behind what is published, all that are
    /// there if empty. No process need have the graph open.
    ///
    /// Fails where another writer has taken one of them over, or has published another history.
    pub fn begin(
        bucket: Bucket,
        dir: &Path,
        parts: &[PartId],
        folder: Folder,
    ) -> Result<Self, BucketError> {
        let graph = Graph::open(dir)?;
        let parts = if parts.is_empty() { graph.local_parts() } else { parts.to_vec() };
        let mut epochs = Epochs::read(dir, bucket.url())?;
        let mut heads = bucket.run(bucket.heads(dir, identity_of(&graph), &parts, &epochs))?;
        let live = GraphHandle::open(graph, Some(&parts), OpenMode::Read, &OpenOptions::default())?;
        for head in &mut heads {
            bucket.compare(head, &live, folder)?;
        }
        // Before the first publication: a takeover from now on is noticed after a restart too.
        epochs.own(heads.iter().map(|head| (head.part, head.epoch)))?;
        Ok(Self { bucket, heads })
    }

    /// Returns the newest published version of each partition; 0 before the first.
    pub fn versions(&self) -> impl Iterator<Item = (PartId, u32)> {
        self.heads.iter().map(|head| (head.part, head.version()))
    }

    /// Returns the newest published version of a partition; `None` before the first.
    #[must_use]
    pub fn version(&self, part: PartId) -> Option<u32> {
        let head = self.heads.iter().find(|head| head.part == part)?;
        head.last.as_ref().map(|last| last.publication.version())
    }

    /// Publishes one partition at its newest committed version, unless it is there: uploads the
    /// files of the commits since, then creates the publication.
    ///
    /// After [`BucketError::fences`] nothing more can be published; any other error may pass.
    pub fn publish(&mut self, live: &GraphHandle, part: PartId) -> Result<(), BucketError> {
        let at = self.find_or_add(live, part)?;
        let (bucket, head) = (&self.bucket, std::slice::from_mut(&mut self.heads[at]));
        bucket.run(bucket.publish_newest(live, head, &mut |_, _| {})).map(drop)
    }

    /// Fails where another writer has published a partition, or taken it over: by one request.
    pub fn look_for_others(&mut self, live: &GraphHandle, part: PartId) -> Result<(), BucketError> {
        let at = self.find_or_add(live, part)?;
        let (bucket, head) = (&self.bucket, &mut self.heads[at]);
        let newer = bucket.newer(identity_of(live.graph()), part, head.sequence());
        let Some(newer) = bucket.run(newer)? else { return Ok(()) };
        bucket.follow_other(head, newer, live.part_files(part)?.manifest())?;
        bucket.compare(head, live, Folder::Continues)
    }

    /// Forgets the partitions that are not among these: they have another writer.
    pub fn retain(&mut self, parts: &[PartId]) {
        self.heads.retain(|head| parts.contains(&head.part));
    }

    /// Returns the position of the head of a partition, which may have come since. Its writer
    /// before has handed it over, in the epoch that is there.
    fn find_or_add(&mut self, live: &GraphHandle, part: PartId) -> Result<usize, BucketError> {
        if let Some(at) = self.heads.iter().position(|head| head.part == part) {
            return Ok(at);
        }
        let (bucket, dir) = (&self.bucket, live.graph().dir());
        let last = bucket.run(bucket.last(identity_of(live.graph()), part, 0))?;
        let epoch = last.as_ref().map_or(0, |last| last.publication.epoch);
        let mut head = Head { part, epoch, last, standing: Standing::Found };
        bucket.compare(&mut head, live, Folder::Continues)?;
        Epochs::read(dir, bucket.url())?.own([(part, epoch)])?;
        self.heads.push(head);
        Ok(self.heads.len() - 1)
    }
}

impl Bucket {
    /// Compares what is committed in `live` with the newest publication.
    ///
    /// Fails where it does not continue that.
    fn compare(
        &self,
        head: &mut Head,
        live: &GraphHandle,
        folder: Folder,
    ) -> Result<(), BucketError> {
        if let Some(last) = &head.last {
            let files = live.part_files(head.part)?;
            match self.is_published(&last.publication, files.manifest()) {
                Err(BucketError::UnknownHistory { .. }) if folder == Folder::TakesOver => {}
                compared => drop(compared?),
            }
        }
        head.standing = Standing::Continued;
        Ok(())
    }
}
