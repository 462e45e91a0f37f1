//! The writer epochs that a folder owns: by them a writer that was taken over knows so after a
//! restart.
//!
//! A takeover raises the epoch of a partition in the bucket. A folder publishes only in the epoch
//! that it has published in before, or taken. The file is in the folder of the graph; one that is
//! missing leaves the folder free to continue the history that it has.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use lodestore_graph::PartId;

use crate::error::BucketError;

/// Name of the file.
const FILE: &str = "bucket-epochs";
/// Most bytes of it: URLs are short, and partitions at most 65,536.
const BYTES_MAX: u64 = 64 << 20;

/// The epochs of one folder at one bucket.
#[derive(Debug)]
pub(crate) struct Epochs {
    path: PathBuf,
    url: String,
    /// By URL and partition.
    owned: BTreeMap<(String, u16), u32>,
}

impl Epochs {
    /// Reads those of a graph's folder.
    pub(crate) fn read(dir: &Path, url: &str) -> Result<Self, BucketError> {
        let path = dir.join(FILE);
        let failed = |reason: String| refused(&path, &reason);
        let text = match fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(error.to_string())),
            Ok(it) if it.len() > BYTES_MAX => {
                return Err(failed(format!("{} bytes, of {BYTES_MAX} at most", it.len())));
            }
            Ok(_) => fs::read_to_string(&path).map_err(|error| failed(error.to_string()))?,
        };
        let owned = parse(&text).map_err(failed)?;
        Ok(Self { path, url: url.to_owned(), owned })
    }

    /// Returns the epoch that the folder owns of a partition, if it has published it.
    pub(crate) fn of(&self, part: PartId) -> Option<u32> {
        self.owned.get(&(self.url.clone(), part.0)).copied()
    }

    /// Records epochs, durably.
    pub(crate) fn own(
        &mut self,
        epochs: impl IntoIterator<Item = (PartId, u32)>,
    ) -> Result<(), BucketError> {
        let before = self.owned.clone();
        let epochs = epochs.into_iter();
        self.owned.extend(epochs.map(|(part, epoch)| ((self.url.clone(), part.0), epoch)));
        if self.owned == before {
            return Ok(());
        }
        let mut text = "# Partition, epoch, and URL that this folder publishes to.\n".to_owned();
        for ((url, part), epoch) in &self.owned {
            writeln!(text, "{part} {epoch} {url}").expect("a string has room");
        }
        let temporary = self.path.with_extension("tmp");
        let written = (|| {
            let mut file = File::create(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &self.path)?;
            File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()
        })();
        written.map_err(|error| {
            self.owned = before;
            refused(&self.path, &error.to_string())
        })
    }
}

fn refused(path: &Path, reason: &str) -> BucketError {
    let advice = "without this file any later writer could not fence this folder";
    BucketError::refused_at(path, format!("{reason}; {advice}"))
}

fn parse(text: &str) -> Result<BTreeMap<(String, u16), u32>, String> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let owned = lines.map(|line| {
        let mut fields = line.splitn(3, ' ');
        let mut next = || fields.next().unwrap_or_default();
        let (part, epoch, url) = (next().parse(), next().parse(), next());
        match (part, epoch) {
            (Ok(part), Ok(epoch)) if !url.is_empty() => Ok(((url.to_owned(), part), epoch)),
            _ => Err(format!("expected PARTITION EPOCH URL, found {line:?}")),
        }
    });
    owned.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_kept_by_url_and_a_damaged_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = ("s3://a/g", "file:///with a space");
        let mut epochs = Epochs::read(dir.path(), a).unwrap();
        assert_eq!(epochs.of(PartId(0)), None);
        epochs.own([(PartId(0), 0), (PartId(3), 2)]).unwrap();
        Epochs::read(dir.path(), b).unwrap().own([(PartId(3), 7)]).unwrap();
        let read = |url| Epochs::read(dir.path(), url).unwrap();
        assert_eq!((read(a).of(PartId(0)), read(a).of(PartId(3))), (Some(0), Some(2)));
        assert_eq!((read(b).of(PartId(0)), read(b).of(PartId(3))), (None, Some(7)));
        for text in ["3 x s3://a/g\n", "3 1\n", "70000 1 s3://a/g\n"] {
            fs::write(dir.path().join(FILE), text).unwrap();
            let error = Epochs::read(dir.path(), a).unwrap_err().to_string();
            assert!(error.contains("expected PARTITION EPOCH URL"), "{error}");
        }
    }

    #[test]
    fn epochs_that_cannot_be_written_are_not_owned() {
        let dir = tempfile::tempdir().unwrap();
        let mut epochs = Epochs::read(dir.path(), "s3://a/g").unwrap();
        fs::create_dir(dir.path().join("bucket-epochs.tmp")).unwrap();
        epochs.own([(PartId(1), 1)]).unwrap_err();
        assert_eq!(epochs.of(PartId(1)), None);
    }
}
