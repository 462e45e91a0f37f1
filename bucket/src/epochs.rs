//! What a folder knows of its publications: the writer epochs that it owns, and the version that
//! it has published last.
//!
//! A takeover raises the epoch of a partition in the bucket. A folder publishes only in the epoch
//! that it has published in before, or taken, so that a writer that was taken over knows so after a
//! restart. By the version and its commit a folder whose catalog knows that commit no more still
//! knows that it continues what is published. The file is in the folder of the graph; one that is
//! missing leaves the folder free to continue the history that it has.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lodestore_graph::PartId;
use lodestore_store::file_system::{FileSystem, Guard};
use lodestore_store::{CommitId, Graph, VersionId};
use uuid::Uuid;

use crate::bucket::Bucket;
use crate::error::BucketError;
use crate::head::Head;

/// Name of the file.
const FILE: &str = "bucket-epochs";
/// Most bytes of it: URLs are short, and partitions at most 65,536.
const BYTES_MAX: u64 = 64 << 20;
/// Longest wait for other processes that write it, and the pause between two tries.
const LOCK_MAX: Duration = Duration::from_secs(10);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// The publications of one folder in one bucket.
#[derive(Debug)]
pub(crate) struct Epochs {
    fs: Arc<dyn FileSystem>,
    path: PathBuf,
    url: String,
    owned: AllOwned,
}

/// A partition that the folder has published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owned {
    pub(crate) epoch: u32,
    /// The newest version that it has published; `None` where only the epoch is known.
    pub(crate) published: Option<VersionId>,
}

impl Epochs {
    /// Reads those of a graph's folder.
    pub(crate) fn read(graph: &Graph, bucket: &Bucket) -> Result<Self, BucketError> {
        Self::read_on(Arc::clone(graph.file_system()), graph.dir(), bucket.url())
    }

    fn read_on(fs: Arc<dyn FileSystem>, dir: &Path, url: &str) -> Result<Self, BucketError> {
        let path = dir.join(FILE);
        let owned = read_owned(&*fs, &path)?;
        Ok(Self { fs, path, url: url.to_owned(), owned })
    }

    /// Returns what the folder has published of a partition, if anything.
    pub(crate) fn of(&self, part: PartId) -> Option<Owned> {
        self.owned.get(&(self.url.clone(), part.0)).copied()
    }

    /// Records the epochs of heads, and the versions that this folder has published or continues,
    /// durably.
    pub(crate) fn note<'a>(
        &mut self,
        heads: impl IntoIterator<Item = &'a Head>,
    ) -> Result<(), BucketError> {
        let owned = heads.into_iter().map(|head| {
            let known = self.of(head.part).filter(|known| known.epoch == head.epoch);
            let published = head.continued().or(known.and_then(|known| known.published));
            (head.part, Owned { epoch: head.epoch, published })
        });
        let owned: Vec<_> = owned.collect();
        self.own(owned)
    }

    fn own(&mut self, owned: Vec<(PartId, Owned)>) -> Result<(), BucketError> {
        if owned.iter().all(|(part, owned)| self.of(*part) == Some(*owned)) {
            return Ok(());
        }
        // Servers of other partitions, and a push beside them, write the same file.
        let _alone = self.lock().map_err(|error| refused(&self.path, &error.to_string()))?;
        let mut all = read_owned(&*self.fs, &self.path)?;
        for (part, owned) in owned {
            all.insert((self.url.clone(), part.0), owned);
        }
        let mut text =
            "# Partition, epoch@version:commit, and URL that this folder publishes to.\n"
                .to_owned();
        for ((url, part), Owned { epoch, published }) in &all {
            match published {
                Some(VersionId { number, commit }) => {
                    let commit = Uuid::from_bytes(commit.to_bytes()).simple();
                    writeln!(text, "{part} {epoch}@{number}:{commit} {url}")
                }
                None => writeln!(text, "{part} {epoch} {url}"),
            }
            .expect("a string has room");
        }
        let written = self.write(text.as_bytes());
        written.map_err(|error| refused(&self.path, &error.to_string()))?;
        self.owned = all;
        Ok(())
    }

    /// Keeps other processes from writing the file until the lock is dropped.
    fn lock(&self) -> io::Result<Guard> {
        let end = Instant::now() + LOCK_MAX;
        loop {
            match self.fs.lock(self.dir()) {
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < end => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                locked => return locked,
            }
        }
    }

    fn dir(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    /// Puts a file of these bytes in the place of the one that is there.
    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let temporary = self.path.with_extension("tmp");
        if self.fs.exists(&temporary) {
            self.fs.remove_file(&temporary)?;
        }
        let mut file = self.fs.create(&temporary)?;
        file.append(bytes)?;
        file.sync()?;
        self.fs.replace(&temporary, &self.path)?;
        self.fs.sync(self.dir())
    }
}

/// By URL and partition.
type AllOwned = BTreeMap<(String, u16), Owned>;

fn read_owned(fs: &dyn FileSystem, path: &Path) -> Result<AllOwned, BucketError> {
    let text = match read_text(fs, path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        text => text.map_err(|error| refused(path, &error.to_string()))?,
    };
    parse(&text).map_err(|reason| refused(path, &reason))
}

fn read_text(fs: &dyn FileSystem, path: &Path) -> io::Result<String> {
    let file = fs.open(path)?;
    let n_bytes = file.len_bytes()?;
    if n_bytes > BYTES_MAX {
        let reason = format!("{n_bytes} bytes, of {BYTES_MAX} at most");
        return Err(io::Error::new(ErrorKind::InvalidData, reason));
    }
    let mut bytes = vec![0; n_bytes as usize];
    file.read_exact_at(&mut bytes, 0)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

fn refused(path: &Path, reason: &str) -> BucketError {
    let advice = "without this file any later writer could not fence this folder";
    BucketError::refused_at(path, format!("{reason}; {advice}"))
}

fn parse(text: &str) -> Result<AllOwned, String> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let owned = lines.map(|line| {
        let mut fields = line.splitn(3, ' ');
        let part = fields.next().and_then(|part| part.parse().ok());
        let owned = fields.next().and_then(parse_owned);
        let url = fields.next().filter(|url| !url.is_empty());
        match (part, owned, url) {
            (Some(part), Some(owned), Some(url)) => Ok(((url.to_owned(), part), owned)),
            _ => Err(format!("expected PARTITION EPOCH@VERSION:COMMIT URL, found {line:?}")),
        }
    });
    owned.collect()
}

/// Reads EPOCH, as releases before wrote it, or EPOCH@VERSION:COMMIT.
fn parse_owned(text: &str) -> Option<Owned> {
    let Some((epoch, published)) = text.split_once('@') else {
        return Some(Owned { epoch: text.parse().ok()?, published: None });
    };
    let (version, commit) = published.split_once(':')?;
    let commit = CommitId::from_bytes(Uuid::try_parse(commit).ok()?.into_bytes());
    let published = VersionId::new(version.parse().ok()?, commit);
    Some(Owned { epoch: epoch.parse().ok()?, published: Some(published) })
}

#[cfg(test)]
mod tests {
    use lodestore_store::file_system::Disk;
    use lodestore_store::file_system::crash::{CrashFileSystem, Fault, Neglect, Plan};

    use super::*;

    const A: &str = "s3://a/g";

    fn owned(epoch: u32, version: u32) -> Owned {
        let commit = CommitId::from_bytes([version as u8; 16]);
        Owned { epoch, published: Some(VersionId::new(version, commit)) }
    }

    fn read(fs: &Arc<dyn FileSystem>, dir: &Path, url: &str) -> Epochs {
        Epochs::read_on(Arc::clone(fs), dir, url).unwrap()
    }

    #[test]
    fn epochs_are_kept_by_url_and_a_damaged_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let fs: Arc<dyn FileSystem> = Arc::new(Disk);
        let (fs, dir, b) = (&fs, dir.path(), "file:///with a space");
        let mut epochs = read(fs, dir, A);
        assert_eq!(epochs.of(PartId(0)), None);
        let unknown = Owned { epoch: 0, published: None };
        epochs.own(vec![(PartId(0), unknown), (PartId(3), owned(2, 7))]).unwrap();
        read(fs, dir, b).own(vec![(PartId(3), owned(7, 1))]).unwrap();
        assert_eq!(read(fs, dir, A).of(PartId(0)), Some(unknown));
        assert_eq!(read(fs, dir, A).of(PartId(3)), Some(owned(2, 7)));
        assert_eq!(read(fs, dir, b).of(PartId(0)), None);
        assert_eq!(read(fs, dir, b).of(PartId(3)), Some(owned(7, 1)));
        for text in ["3 x s3://a/g\n", "3 1\n", "70000 1 s3://a/g\n", "3 1@2 s3://a/g\n"] {
            std::fs::write(dir.join(FILE), text).unwrap();
            let error = Epochs::read_on(Arc::clone(fs), dir, A).unwrap_err().to_string();
            assert!(error.contains("expected PARTITION EPOCH@VERSION:COMMIT URL"), "{error}");
        }
        std::fs::write(dir.join(FILE), "# As before.\n3 4 s3://a/g\n").unwrap();
        let of_before = Owned { epoch: 4, published: None };
        assert_eq!(read(fs, dir, A).of(PartId(3)), Some(of_before));
    }

    #[test]
    fn epochs_that_cannot_be_written_are_not_owned() {
        let dir = tempfile::tempdir().unwrap();
        let fs: Arc<dyn FileSystem> = Arc::new(Disk);
        let mut epochs = read(&fs, dir.path(), A);
        std::fs::create_dir(dir.path().join("bucket-epochs.tmp")).unwrap();
        epochs.own(vec![(PartId(1), owned(1, 1))]).unwrap_err();
        assert_eq!(epochs.of(PartId(1)), None);
    }

    #[test]
    fn writers_of_other_partitions_keep_each_others_records() {
        let dir = tempfile::tempdir().unwrap();
        let fs: Arc<dyn FileSystem> = Arc::new(Disk);
        std::thread::scope(|scope| {
            for part in 0..4 {
                let (fs, dir) = (&fs, dir.path());
                scope.spawn(move || {
                    let mut epochs = read(fs, dir, A);
                    for version in 1..=50 {
                        epochs.own(vec![(PartId(part), owned(1, version))]).unwrap();
                        assert_eq!(epochs.of(PartId(part)), Some(owned(1, version)));
                    }
                });
            }
        });
        for part in 0..4 {
            assert_eq!(read(&fs, dir.path(), A).of(PartId(part)), Some(owned(1, 50)));
        }
    }

    /// Writes the file twice, with the power cut after so many operations. Returns the number of
    /// writes that were acknowledged.
    fn write_twice(fs: &CrashFileSystem, after: u64) -> usize {
        let plan = Plan { fault: Fault::PowerLoss, after, sticky: true };
        fs.arm(Some(plan));
        let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let Ok(mut epochs) = Epochs::read_on(shared, Path::new("g"), A) else { return 0 };
        let written =
            (1..=2).map_while(|version| epochs.own(vec![(PartId(0), owned(1, version))]).ok());
        written.count()
    }

    /// Returns the first outcome of a loss of power that contradicts what was acknowledged.
    fn sweep(neglect: Option<Neglect>) -> Option<String> {
        for after in 0..1000 {
            let fs = CrashFileSystem::new(after);
            fs.create_dir(Path::new("g")).unwrap();
            fs.sync(Path::new("")).unwrap();
            neglect.into_iter().for_each(|it| fs.neglect(it));
            let n_acknowledged = write_twice(&fs, after) as u32;
            for seed in 0..20 {
                let left: Arc<dyn FileSystem> = Arc::new(fs.after_loss(seed));
                let found = match Epochs::read_on(left, Path::new("g"), A) {
                    Ok(epochs) => epochs.of(PartId(0)),
                    Err(error) => return Some(format!("after {after}, seed {seed}: {error}")),
                };
                let version = found.and_then(|it| it.published).map_or(0, |it| it.number);
                if version < n_acknowledged || version > n_acknowledged + 1 {
                    return Some(format!("after {after}, seed {seed}: {found:?}"));
                }
            }
            if !fs.has_struck() {
                return None;
            }
        }
        Some("it does not end".to_owned())
    }

    #[test]
    fn an_acknowledged_epoch_is_there_and_the_file_is_whole_wherever_the_power_goes() {
        assert_eq!(sweep(None), None);
    }

    #[test]
    fn the_sweep_finds_skipped_syncs() {
        for neglect in [Neglect::FileSyncs, Neglect::FolderSyncs] {
            println!("{neglect:?}: {}", sweep(Some(neglect)).unwrap());
        }
    }
}
