//! The newest publication of a partition: what a writer continues, and how it is fenced.

use std::path::Path;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use lodestore_graph::PartId;
use lodestore_store::follow::{Manifest, Succession};
use lodestore_store::{CommitId, GraphHandle, VersionId};
use uuid::Uuid;

use crate::bucket::{Bucket, N_LOOKS};
use crate::epochs::Epochs;
use crate::error::BucketError;
use crate::layout::{publication_key, publications_prefix};
use crate::publication::{GraphIdentity, Publication, Published, PublishedFile};

/// The newest publication of a partition, as a writer knows it.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) part: PartId,
    /// The epoch in which the writer publishes.
    pub(crate) epoch: u32,
    /// `None` before the first one.
    pub(crate) last: Option<Last>,
    pub(crate) standing: Standing,
    /// The newest version that the folder has published, as it has recorded it.
    pub(crate) recorded: Option<VersionId>,
    /// The folder has other rows of the version that is published: a tensor was imported again.
    pub(crate) is_stale: bool,
}

/// Whether a request to take over vouches for a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folder {
    /// It has to know the commit that it continues, by its catalog, its record of publications, or
    /// the files of that version.
    Continues,
    /// It may have forgotten that, as long as nothing in it contradicts what is published.
    TakesOver,
}

/// The knowledge of a writer about the newest publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It was found, and the folder has to be compared with it.
    Found,
    /// Another process was first to publish, and a later version of this history.
    Overtaken,
    /// The folder continues it: it was compared, or a takeover vouches for it.
    Continued,
    /// This process has published it, so that its chunks are known to be there.
    Own,
}

/// A publication that is there, and the BLAKE3 of its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Last {
    pub(crate) publication: Arc<Publication>,
    pub(crate) hash: [u8; 32],
}

impl Bucket {
    /// Returns the newest publications of partitions, ascending, of which the first makes the
    /// graph's home if there is none.
    ///
    /// Fails where another writer has taken one of them over, or the bucket has another graph.
    pub(crate) async fn heads(
        &self,
        dir: &Path,
        ours: GraphIdentity,
        parts: &[PartId],
        epochs: &Epochs,
    ) -> Result<Vec<Head>, BucketError> {
        self.check_creates().await?;
        let found = self.find_or_create_graph(ours).await?;
        if found != ours {
            return Err(self.other_graph(dir, ours.graph, found.graph));
        }
        let mut parts = parts.to_vec();
        parts.sort_unstable();
        parts.dedup();
        let last_of = |part: PartId| async move { self.last(ours, part, 0).await };
        let lasts: Vec<Option<Last>> =
            stream::iter(parts.clone()).map(last_of).buffered(N_LOOKS).try_collect().await?;
        let mut heads = Vec::with_capacity(parts.len());
        for (part, last) in parts.into_iter().zip(lasts) {
            let found = last.as_ref().map_or(0, |last| last.publication.epoch);
            let known = epochs.of(part);
            let owned = known.map_or(found, |known| known.epoch);
            let recorded = known.and_then(|known| known.published);
            if let Some(last) = last.as_ref().filter(|_| owned < found) {
                return Err(self.taken_over(&last.publication));
            }
            if owned > found {
                let reason = format!(
                    "this folder has published in epoch {owned}, and epoch {found} is there: \
                     publications were lost, or the bucket was restored from a copy; use an empty URL, \
                     or remove the file bucket-epochs from the folder"
                );
                return Err(self.damaged(&publications_prefix(part), reason));
            }
            let standing = Standing::Found;
            heads.push(Head { part, epoch: owned, last, standing, recorded, is_stale: false });
        }
        Ok(heads)
    }

    /// Returns the newest publication of a partition, searched for behind `known`, which is there,
    /// or behind 0.
    pub(crate) async fn last(
        &self,
        graph: GraphIdentity,
        part: PartId,
        known: u64,
    ) -> Result<Option<Last>, BucketError> {
        match self.newest(graph, part, known).await? {
            Some((Published::Live(publication), bytes)) => {
                Ok(Some(Last::new(*publication, &bytes)))
            }
            // The newest one is never removed.
            Some((Published::Removed { sequence, .. }, _)) => {
                let key = publication_key(part, sequence);
                Err(self.damaged(&key, "the newest publication is a tombstone"))
            }
            None => Ok(None),
        }
    }

    /// Returns the newest publication of a partition, if it is behind `known`, which is there.
    pub(crate) async fn newer(
        &self,
        graph: GraphIdentity,
        part: PartId,
        known: u64,
    ) -> Result<Option<Last>, BucketError> {
        match known.checked_add(1) {
            Some(next) if self.has(&publication_key(part, next)).await? => {
                self.last(graph, part, next).await
            }
            _ => Ok(None),
        }
    }

    /// Returns whether the newest publication has all of our manifest.
    ///
    /// Fails where ours does not continue it.
    pub(crate) fn is_published(
        &self,
        last: &Publication,
        ours: &Manifest,
        known: Known,
        folder: Folder,
    ) -> Result<bool, BucketError> {
        let theirs = &last.manifest;
        let is_same = || ours.has_rows_of(theirs);
        match ours.succession(theirs) {
            Succession::Later => Ok(false),
            Succession::Same => Ok(is_same()),
            Succession::Earlier => Err(self.behind(last, ours)),
            Succession::Apart | Succession::Unknown
                if continues_unknown(ours, theirs, known, folder) =>
            {
                Ok(ours.version() == theirs.version() && is_same())
            }
            Succession::Apart => Err(self.fenced(last)),
            // It was made here by another commit, as the catalog says.
            Succession::Unknown if known.commit.is_known() => Err(self.fenced(last)),
            // The folder is behind, whatever its history: the bucket is not.
            Succession::Unknown if ours.version() < last.version() => Err(self.behind(last, ours)),
            Succession::Unknown => {
                let reason = format!(
                    "partition {} is published at version {}. At version {}, this folder no longer \
                     knows by which commit that was made, and has no record of publishing it. If no \
                     other folder has published it, a takeover continues it",
                    last.part(),
                    last.version(),
                    ours.version()
                );
                Err(BucketError::UnknownHistory { url: self.url().to_owned(), reason })
            }
        }
    }

    /// Publishes behind the head of a partition, which it becomes. Returns what is there in its
    /// place where another process was first.
    pub(crate) async fn publish_at(
        &self,
        graph: GraphIdentity,
        head: &mut Head,
        publication: Publication,
    ) -> Result<Option<Last>, BucketError> {
        if self.publish(graph, &publication).await? {
            head.recorded = Some(publication.manifest.version_id());
            let bytes = publication.to_bytes();
            head.last = Some(Last::new(publication, &bytes));
            head.standing = Standing::Own;
            return Ok(None);
        }
        // The other one may have been removed since, and others be there.
        let last = self.last(graph, head.part, head.sequence()).await?;
        let key = publication_key(head.part, publication.sequence);
        last.map(Some).ok_or_else(|| self.damaged(&key, "it was there just now"))
    }

    /// Makes another process's publication the head, if it is one of the history of `ours` in the
    /// epoch of the writer.
    ///
    /// Fails with an error that fences where it is not, and where that is not known.
    pub(crate) fn follow_other(
        &self,
        head: &mut Head,
        newer: Last,
        ours: &Manifest,
        live: &GraphHandle,
    ) -> Result<(), BucketError> {
        let publication = &newer.publication;
        if publication.epoch != head.epoch {
            return Err(self.taken_over(publication));
        }
        let known = Known::of(live, publication, head.recorded)?;
        head.standing = match self.is_published(publication, ours, known, Folder::Continues) {
            Ok(_) => Standing::Found,
            Err(BucketError::Behind { .. })
                if ours.succession(&publication.manifest) == Succession::Earlier =>
            {
                Standing::Overtaken
            }
            Err(BucketError::Behind { .. } | BucketError::UnknownHistory { .. }) => {
                return Err(self.fenced(publication));
            }
            Err(error) => return Err(error),
        };
        head.last = Some(newer);
        Ok(())
    }

    /// Returns the error of a partition that has no publication.
    pub(crate) fn not_published(&self, part: PartId) -> BucketError {
        BucketError::NoVersion { url: self.url().to_owned(), wanted: None, part }
    }

    fn behind(&self, last: &Publication, ours: &Manifest) -> BucketError {
        let reason = format!(
            "partition {} is published at version {}, and version {} is here; `lode pull` brings this \
             folder forward",
            last.part(),
            last.version(),
            ours.version()
        );
        BucketError::Behind { url: self.url().to_owned(), reason }
    }

    fn fenced(&self, last: &Publication) -> BucketError {
        let reason = format!(
            "partition {} has publication {} of version {}, which is not in the history of this folder; \
             another writer publishes here. Stop one of them, and pull what is published into a new \
             folder",
            last.part(),
            last.sequence,
            last.version()
        );
        BucketError::Fenced { url: self.url().to_owned(), reason }
    }

    pub(crate) fn taken_over(&self, last: &Publication) -> BucketError {
        let reason = format!(
            "another writer has taken partition {} over, by publication {} (epoch {}). Stop one of them; \
             take the partition over again if nothing was committed here meanwhile, else pull what is \
             published into a new folder",
            last.part(),
            last.sequence,
            last.epoch
        );
        BucketError::Fenced { url: self.url().to_owned(), reason }
    }
}

/// What a folder knows of a published version beside its manifest, which lists its last commits
/// alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// The commit that made the published version here, as the catalog says.
    commit: CommitId,
    /// The newest version that the folder has published, as it has recorded it.
    recorded: Option<VersionId>,
}

impl Known {
    pub(crate) fn of(
        live: &GraphHandle,
        last: &Publication,
        recorded: Option<VersionId>,
    ) -> Result<Self, BucketError> {
        Ok(Self { commit: live.commit_of(last.part(), last.version())?, recorded })
    }
}

/// Returns whether a manifest continues a published one, although it does not list by which commit
/// that was made.
///
/// The catalog of the folder says so, or its record, or the files of the published version that the
/// folder has. A takeover vouches for the rest, as far as no file of both contradicts it.
fn continues_unknown(ours: &Manifest, published: &Manifest, known: Known, folder: Folder) -> bool {
    let version = published.version();
    if ours.graph() != published.graph() || ours.version() < version {
        return false;
    }
    let id = published.version_id();
    if known.commit.is_known() {
        return known.commit == id.commit;
    }
    let common = ours.common_files(published);
    if common.different > 0 {
        return false;
    }
    let at_it = ours.at(version);
    let has_its_files = at_it
        .is_some_and(|at_it| at_it.files().eq(published.files()) && at_it.has_rows_of(published));
    let is_forgotten = ours.succession(published) == Succession::Unknown;
    let is_vouched_for = folder == Folder::TakesOver && (is_forgotten || common.same > 0);
    known.recorded == Some(id) || has_its_files || is_vouched_for
}

impl Standing {
    /// Returns the same, without the knowledge of which chunks are there.
    pub(crate) fn without_chunks(self) -> Self {
        match self {
            Self::Own => Self::Continued,
            other => other,
        }
    }
}

impl Head {
    /// Returns the newest published version, if the folder has published or continues it.
    pub(crate) fn continued(&self) -> Option<VersionId> {
        let last = self.last.as_ref().filter(|_| self.standing != Standing::Found);
        last.filter(|_| self.standing != Standing::Overtaken)
            .map(|last| last.publication.manifest.version_id())
    }

    /// Returns the number of the newest publication; 0 before the first.
    pub(crate) fn sequence(&self) -> u64 {
        self.last.as_ref().map_or(0, |last| last.publication.sequence)
    }

    /// Returns the version of the newest publication; 0 before the first.
    pub(crate) fn version(&self) -> u32 {
        self.last.as_ref().map_or(0, |last| last.publication.version())
    }

    /// Returns a publication that continues it.
    pub(crate) fn next(&self, manifest: Manifest, files: Vec<PublishedFile>) -> Publication {
        Publication {
            sequence: self.sequence() + 1,
            epoch: self.epoch,
            attempt: Uuid::new_v4(),
            previous: self.last.as_ref().map_or([0; 32], |last| last.hash),
            manifest,
            files,
        }
    }
}

impl Last {
    fn new(publication: Publication, bytes: &[u8]) -> Self {
        Self { publication: Arc::new(publication), hash: *blake3::hash(bytes).as_bytes() }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use lodestore_store::OpenMode;
    use lodestore_store::update::Folding;

    use super::*;
    use crate::tests::graph::{commit, import, open};

    fn of(live: &GraphHandle) -> Manifest {
        live.part_files(PartId(0)).unwrap().manifest().clone()
    }

    /// Returns the manifest of a catalog that knows no commits.
    fn forgotten(manifest: &Manifest) -> Manifest {
        let mut bytes = manifest.to_bytes();
        // Their number, 20 bytes for each, and the checksum.
        bytes.truncate(bytes.len() - 32 - 20 * manifest.commits().count() - 2);
        bytes.extend_from_slice(&[0, 0]);
        let checksum = blake3::hash(&bytes);
        bytes.extend_from_slice(checksum.as_bytes());
        Manifest::from_bytes(&bytes).unwrap()
    }

    fn copy_dir(from: &Path, to: &Path) {
        std::fs::create_dir(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let to = to.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => copy_dir(&entry.path(), &to),
                false => drop(std::fs::copy(entry.path(), to).unwrap()),
            }
        }
    }

    fn known(recorded: Option<VersionId>) -> Known {
        Known { commit: CommitId::UNKNOWN, recorded }
    }

    #[test]
    fn a_forgotten_commit_is_proven_by_catalog_record_or_files_and_contradicted_by_files() {
        let dir = tempfile::tempdir().unwrap();
        let graph = import(dir.path());
        let copy = dir.path().join("copy");
        copy_dir(&graph, &copy);
        let live = open(&graph, OpenMode::Write);
        commit(&live, 5000);
        let published = of(&live);
        commit(&live, 6000);
        let with_files = forgotten(&of(&live));
        live.compact(None, None, Folding::All, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let folded = forgotten(&of(&live));
        assert_eq!(folded.succession(&published), Succession::Apart);
        let continues =
            |ours: &Manifest, known, folder| continues_unknown(ours, &published, known, folder);
        let by_takeover = |ours: &Manifest| continues(ours, known(None), Folder::TakesOver);
        assert!(continues(&with_files, known(None), Folder::Continues), "by its files");
        assert!(!continues(&folded, known(None), Folder::Continues));
        assert!(by_takeover(&folded), "label is the same, and nothing contradicts");
        let recorded = known(Some(published.version_id()));
        assert!(continues(&folded, recorded, Folder::Continues), "by its record");
        let other = known(Some(VersionId::new(2, CommitId::draw())));
        assert!(!continues(&folded, other, Folder::Continues));
        let of_catalog = Known { commit: published.version_id().commit, recorded: None };
        assert!(continues(&folded, of_catalog, Folder::Continues), "by its catalog");
        let by_other = Known { commit: CommitId::draw(), ..recorded };
        assert!(!continues(&with_files, by_other, Folder::TakesOver), "made by another commit");
        let before = forgotten(&published.at(1).unwrap());
        assert!(!continues(&before, recorded, Folder::TakesOver), "behind");
        // The same versions, of which another folder has other files.
        let live = open(&copy, OpenMode::Write);
        commit(&live, 7000);
        let others = forgotten(&of(&live));
        assert_eq!(others.version(), 2);
        assert!(!continues(&others, recorded, Folder::TakesOver));
    }
}
