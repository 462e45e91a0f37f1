//! A server's publications: cuts of its partitions are published as they are committed, and other
//! writers are fenced.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use lodestore_graph::PartId;
use lodestore_store::update::{GraphVersion, next_cut};
use lodestore_store::{Graph, GraphHandle, OpenMode, OpenOptions, StoreError};

use crate::bucket::{Bucket, Reached};
use crate::epochs::Epochs;
use crate::error::BucketError;
use crate::head::{Folder, Head, Known, Standing};
use crate::lease::UploadLease;
use crate::leases::{Leases, Place};
use crate::push::{Round, Running, identity_of};

/// The one writer of some partitions of a graph in a bucket.
pub struct Publisher {
    bucket: Bucket,
    heads: Vec<Head>,
    leases: Leases,
    /// The version that the last round has published, or has begun to.
    last_cut: u32,
}

/// A version that a publisher publishes, pinned.
#[derive(Debug)]
pub struct Cut(GraphVersion);

/// What a publisher does for one partition.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// The partition.
    pub part: PartId,
    /// Whether another writer of the partition is looked for.
    pub looks_for_others: bool,
    /// The cut that is published, unless that or a later version is there: the files of the commits
    /// since are uploaded, then the publication is created.
    pub cut: Option<&'a Cut>,
}

impl Cut {
    /// Returns the version.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.0.version()
    }
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
        let live = GraphHandle::open(graph, Some(&parts), OpenMode::Read, &OpenOptions::default())?;
        Self::begin_with(bucket, &live, folder)
    }

    /// Like [`Publisher::begin`], for all partitions that are open.
    pub fn begin_with(
        bucket: Bucket,
        live: &GraphHandle,
        folder: Folder,
    ) -> Result<Self, BucketError> {
        let (graph, parts) = (live.graph(), live.parts().collect::<Vec<_>>());
        let mut epochs = Epochs::read(graph, &bucket)?;
        let heads = bucket.heads(graph.dir(), identity_of(graph), &parts, &epochs);
        let mut heads = bucket.run(heads)?;
        for head in &mut heads {
            bucket.compare(head, live, folder)?;
        }
        // Before the first publication: a takeover from now on is noticed after a restart too.
        epochs.note(&heads)?;
        let last_cut = heads.iter().map(Head::version).min().unwrap_or(0);
        Ok(Self { bucket, heads, leases: Leases::default(), last_cut })
    }

    /// Returns when the bucket has answered last.
    #[must_use]
    pub fn reached(&self) -> Reached {
        self.bucket.reached()
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

    /// Returns whether a version of a partition is published, or one after it, with the rows that
    /// the folder has.
    #[must_use]
    pub fn has(&self, part: PartId, version: u32) -> bool {
        let head = self.heads.iter().find(|head| head.part == part);
        head.is_some_and(|head| head.last.is_some() && head.version() >= version && !head.is_stale)
    }

    /// Chooses and pins the version that the next round publishes of all partitions. `None` where
    /// the last round has published the newest one.
    ///
    /// Where another server has other partitions of the graph, both choose the same versions, see
    /// [`next_cut`]; folds leave the next one readable.
    pub fn next_cut(&mut self, live: &GraphHandle) -> Result<Option<Cut>, StoreError> {
        let newest = live.version();
        let is_alone = live.parts().count() == usize::from(live.graph().book().n_parts());
        let is_published = |(part, _): (PartId, u32)| self.has(part, newest);
        if live.part_versions().into_iter().all(is_published) {
            live.keep_cut_after((!is_alone).then_some(newest));
            return Ok(None);
        }
        let mut wanted = match is_alone {
            true => None,
            false => next_cut(self.last_cut, newest),
        };
        // A version that was folded meanwhile is no cut any more.
        let pinned = loop {
            let version = wanted.unwrap_or(newest);
            match live.pin(version) {
                Err(StoreError::NoVersion { .. }) if wanted.is_some() => {
                    wanted = next_cut(version, newest);
                }
                pinned => break pinned?,
            }
        };
        self.last_cut = pinned.version();
        live.keep_cut_after((!is_alone).then_some(self.last_cut));
        Ok(Some(Cut(pinned)))
    }

    /// Publishes partitions at cuts, and looks for other writers. Some are uploaded in parallel, and
    /// all are published in the order of the turns. Returns how each turn has ended.
    ///
    /// After [`BucketError::fences`] nothing more can be published of a partition; any other error
    /// may pass.
    ///
    /// # Panics
    /// Where two turns are of one partition.
    pub fn take_turns(
        &mut self,
        live: &GraphHandle,
        turns: &[Turn<'_>],
    ) -> Vec<Result<(), BucketError>> {
        let mut outcomes = Vec::with_capacity(turns.len());
        for turn in turns {
            outcomes.push(self.find_or_add(live, turn.part).map(drop));
        }
        let mut turn_of = BTreeMap::new();
        for (at, turn) in turns.iter().enumerate() {
            let other = turn_of.insert(turn.part, at);
            assert!(other.is_none(), "one turn for each partition");
        }
        let mut items = Vec::with_capacity(turns.len());
        for head in &mut self.heads {
            if let Some(&at) = turn_of.get(&head.part)
                && outcomes[at].is_ok()
            {
                items.push((at, head));
            }
        }
        items.sort_by_key(|(at, _)| *at);
        let bucket = &self.bucket;
        let outcomes = RefCell::new(outcomes);
        let mut progress = |_, _| {};
        let running = RefCell::new(Running::new(&mut progress));
        type Lease = Option<UploadLease>;
        let each = async |(at, head): (usize, &mut Head), lease: &mut Lease, place: Place<'_>| {
            let turn = &turns[at];
            let looked = match turn.looks_for_others {
                true => bucket.look_for_others(live, head).await,
                false => Ok(()),
            };
            let published = match (looked, turn.cut) {
                (Ok(()), Some(cut)) => {
                    let round = Round { live, pinned: Some(&cut.0) };
                    let published = bucket.publish_part(&round, head, lease, place, &running).await;
                    published.inspect(|()| head.is_stale = false)
                }
                (looked, _) => looked,
            };
            outcomes.borrow_mut()[at] = published;
            ControlFlow::Continue(())
        };
        bucket.run(self.leases.share(items, each));
        outcomes.into_inner()
    }

    /// Records in the folder what was published, for a restart after many commits.
    pub fn record(&self, live: &GraphHandle) -> Result<(), BucketError> {
        Epochs::read(live.graph(), &self.bucket)?.note(&self.heads)
    }

    /// Ends the uploads under way, of a server that stops.
    pub fn end(self) {
        self.bucket.run(self.leases.end(&self.bucket));
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
        let bucket = &self.bucket;
        let last = bucket.run(bucket.last(identity_of(live.graph()), part, 0))?;
        let epoch = last.as_ref().map_or(0, |last| last.publication.epoch);
        let (standing, recorded) = (Standing::Found, None);
        let mut head = Head { part, epoch, last, standing, recorded, is_stale: false };
        bucket.compare(&mut head, live, Folder::Continues)?;
        Epochs::read(live.graph(), bucket)?.note([&head])?;
        self.heads.push(head);
        Ok(self.heads.len() - 1)
    }
}

impl Bucket {
    /// Fails where another writer has published a partition, or taken it over: by one request.
    async fn look_for_others(
        &self,
        live: &GraphHandle,
        head: &mut Head,
    ) -> Result<(), BucketError> {
        let newer = self.newer(identity_of(live.graph()), head.part, head.sequence()).await?;
        let Some(newer) = newer else { return Ok(()) };
        self.follow_other(head, newer, live.part_files(head.part)?.manifest(), live)?;
        self.compare(head, live, Folder::Continues)
    }

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
            let (last, ours) = (&last.publication, files.manifest());
            let known = Known::of(live, last, head.recorded)?;
            let is_there = self.is_published(last, ours, known, folder)?;
            head.is_stale = !is_there && ours.version() == last.version();
        }
        head.standing = Standing::Continued;
        Ok(())
    }
}
