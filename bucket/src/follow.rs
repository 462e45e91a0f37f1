//! A folder that follows a bucket: its partitions come one after the other, and then new versions.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodestore_graph::PartId;
use lodestore_store::GraphHandle;
use lodestore_store::follow::{FollowedFolder, Manifest};

use crate::Progress;
use crate::bucket::Bucket;
use crate::error::BucketError;
use crate::publication::{GraphIdentity, Publication, PublishedFile};
use crate::pull::{PullReport, is_in};

/// The partitions of a folder that follows a bucket.
pub struct BucketFollower {
    bucket: Bucket,
    dir: PathBuf,
    graph: GraphIdentity,
    /// Most bytes that files in the folder may take.
    bytes_max: u64,
    parts: Vec<FollowedPart>,
    left_out: Vec<PartId>,
}

struct FollowedPart {
    part: PartId,
    /// The newest publication that was read.
    newest: Arc<Publication>,
    /// The one that is in the folder, as far as is known.
    installed: Option<Arc<Publication>>,
}

impl BucketFollower {
    /// Makes `dir` a folder that follows partitions of a bucket, all of the graph if empty.
    ///
    /// Partitions in the folder are chosen first, then others in the order of `parts`. Each is
    /// chosen whose files fit into `bytes_max` beside those before it.
    pub fn begin(
        bucket: Bucket,
        dir: &Path,
        parts: &[PartId],
        bytes_max: Option<u64>,
    ) -> Result<Self, BucketError> {
        let graph = bucket.run(bucket.graph())?;
        bucket.check_graph_of(dir, graph)?;
        bucket.check_parts(graph, parts)?;
        let mut wanted = if parts.is_empty() { graph.parts().collect() } else { parts.to_vec() };
        let mut here = HashMap::new();
        for &part in &wanted {
            here.insert(part, is_in(dir, part)?);
        }
        wanted.sort_by_key(|part| !here[part]);
        let bytes_max = bytes_max.unwrap_or(u64::MAX);
        let (mut chosen, mut left_out, mut n_bytes) = (Vec::<FollowedPart>::new(), Vec::new(), 0);
        for part in wanted {
            if chosen.iter().any(|it| it.part == part) {
                continue;
            }
            let last = bucket.run(bucket.last(graph, part, 0))?;
            let last = last.ok_or_else(|| bucket.not_published(part))?;
            let with_it = last.publication.n_bytes().saturating_add(n_bytes);
            if with_it > bytes_max && !here[&part] {
                left_out.push(part);
                continue;
            }
            n_bytes = with_it;
            chosen.push(FollowedPart { part, newest: last.publication, installed: None });
        }
        FollowedFolder::open(dir, bucket.url())?;
        let dir = dir.to_owned();
        Ok(Self { bucket, dir, graph, bytes_max, parts: chosen, left_out })
    }

    /// Returns the partitions that are followed, in the order in which they come.
    pub fn parts(&self) -> impl Iterator<Item = PartId> {
        self.parts.iter().map(|followed| followed.part)
    }

    /// Returns the partitions that do not fit into the folder.
    #[must_use]
    pub fn left_out(&self) -> &[PartId] {
        &self.left_out
    }

    /// Returns whether the folder has one of the partitions.
    pub fn has_any(&self) -> Result<bool, BucketError> {
        for part in self.parts() {
            if is_in(&self.dir, part)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns whether a partition is in the folder, as far as that can be seen.
    #[must_use]
    pub fn is_here(&self, part: PartId) -> bool {
        is_in(&self.dir, part).unwrap_or(false)
    }

    /// Returns a follower of the same partitions by connections of its own.
    #[must_use]
    pub fn with_bucket(&self, bucket: Bucket) -> Self {
        let part = |it: &FollowedPart| FollowedPart {
            part: it.part,
            newest: Arc::clone(&it.newest),
            installed: None,
        };
        Self {
            bucket,
            dir: self.dir.clone(),
            graph: self.graph,
            bytes_max: self.bytes_max,
            parts: self.parts.iter().map(part).collect(),
            left_out: self.left_out.clone(),
        }
    }

    /// Brings the first partition that is not there yet, as a whole and checked; `None` when all
    /// are there. `progress` receives bytes fetched and to fetch.
    pub fn bring_next(
        &mut self,
        progress: &mut Progress<'_>,
    ) -> Result<Option<PartId>, BucketError> {
        let mut first = Ok(None);
        for at in 0..self.parts.len() {
            let part = self.parts[at].part;
            if self.parts[at].installed.is_some() || is_in(&self.dir, part)? {
                continue;
            }
            match self.bring(at, progress) {
                Ok(()) => return Ok(Some(part)),
                // Another one may come all the same.
                Err(error) => first = first.and(Err(error)),
            }
        }
        first
    }

    fn bring(&mut self, at: usize, progress: &mut Progress<'_>) -> Result<(), BucketError> {
        // The chunks of an older one may be gone by now, and the others may have grown.
        for each in 0..self.parts.len() {
            self.read_newest(each)?;
        }
        let publication = Arc::clone(&self.parts[at].newest);
        self.check_room(at, &publication)?;
        let (total, mut report) = (publication.n_bytes(), PullReport::default());
        let mut each = |done| progress(done, total);
        self.bucket.pull_part(&self.dir, self.graph, &publication, &mut report, &mut each)?;
        self.parts[at].installed = Some(publication);
        Ok(())
    }

    /// Looks for the newest version of a partition that is published; `None` for one that is not
    /// followed.
    pub fn look(&mut self, part: PartId) -> Result<Option<u32>, BucketError> {
        let Some(at) = self.position(part) else { return Ok(None) };
        self.read_newest(at)?;
        Ok(Some(self.parts[at].newest.version()))
    }

    /// Fetches the version of a partition that was seen last into the folder of `live`, which serves
    /// it, and has `install` take it over. Returns whether it was new.
    pub fn fetch<E: From<BucketError>>(
        &mut self,
        live: &GraphHandle,
        part: PartId,
        install: &mut dyn FnMut(&Manifest) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let Some(at) = self.position(part) else { return Ok(false) };
        let publication = Arc::clone(&self.parts[at].newest);
        let installed = self.parts[at].installed.as_ref();
        if installed.is_some_and(|it| it.sequence == publication.sequence) {
            return Ok(false);
        }
        self.check_room(at, &publication)?;
        let mut report = PullReport::default();
        self.bucket.fetch_next(live, &publication, &mut report, &mut |_| {})?;
        let is_new = install(&publication.manifest)?;
        self.parts[at].installed = Some(publication);
        Ok(is_new)
    }

    fn position(&self, part: PartId) -> Option<usize> {
        self.parts.iter().position(|it| it.part == part)
    }

    /// Reads the newest publication of a partition, if it is another one than before.
    fn read_newest(&mut self, at: usize) -> Result<(), BucketError> {
        let (part, known) = (self.parts[at].part, self.parts[at].newest.sequence);
        if let Some(newer) = self.bucket.run(self.bucket.newer(self.graph, part, known))? {
            self.parts[at].newest = newer.publication;
        }
        Ok(())
    }

    /// Fails where the files of a publication do not fit beside those of the other partitions.
    /// Until it is installed, the files of the version that is served count too.
    fn check_room(&self, at: usize, publication: &Publication) -> Result<(), BucketError> {
        let others = self.parts.iter().enumerate().filter(|(other, _)| *other != at);
        let others = others.map(|(_, it)| it.installed.as_deref().unwrap_or(&it.newest).n_bytes());
        let installed = self.parts[at].installed.as_ref().map_or(&[][..], |it| &it.files);
        let of_part = bytes_until_installed(installed, &publication.files);
        let needed = others.fold(of_part, u64::saturating_add);
        if needed <= self.bytes_max {
            return Ok(());
        }
        let reason = format!(
            "version {} of partition {} brings the folder to {needed} bytes, of {} at most; raise that \
             limit, or follow fewer partitions",
            publication.version(),
            publication.part(),
            self.bytes_max
        );
        Err(BucketError::NoRoom { url: self.bucket.url().to_owned(), reason })
    }
}

/// Returns the bytes that a partition takes until the files `next` are installed. The files that
/// `next` drops are served until then.
fn bytes_until_installed(installed: &[PublishedFile], next: &[PublishedFile]) -> u64 {
    let is_kept = |file: &&PublishedFile| next.iter().any(|it| it.name == file.name);
    let dropped = installed.iter().filter(|file| !is_kept(file));
    next.iter().chain(dropped).map(|file| file.n_bytes).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_a_new_version_drops_take_room_until_it_is_installed() {
        let files = |files: &[(&str, u64)]| -> Vec<PublishedFile> {
            let file = |&(name, n_bytes): &(&str, u64)| PublishedFile {
                name: name.to_owned(),
                n_bytes,
                chunks: Vec::new(),
            };
            files.iter().map(file).collect()
        };
        let (base, delta, folded) = (("base", 1000), ("delta", 30), ("folded", 1010));
        let needed = |installed: &[(&str, u64)], next: &[(&str, u64)]| {
            bytes_until_installed(&files(installed), &files(next))
        };
        assert_eq!(needed(&[], &[base]), 1000);
        assert_eq!(needed(&[base], &[base, delta]), 1030, "a file that stays counts once");
        assert_eq!(needed(&[base, delta], &[folded]), 2040, "old files go after the switch");
        assert_eq!(needed(&[("x", u64::MAX)], &[base]), u64::MAX);
    }
}
