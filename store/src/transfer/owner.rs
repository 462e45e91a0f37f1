//! Owner of a copy: the user whose graph it goes to, whichever user brings it.

use std::fs;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::Path;

use lodestore_graph::PartId;

use crate::error::StoreError;

/// Hands `staging`, with all that is in it, to the owner of `dir` where that is another.
pub(super) fn give(staging: &Path, dir: &Path, part: PartId) -> Result<(), StoreError> {
    let owner = fs::metadata(dir).map_err(StoreError::io(dir, "look at"))?;
    give_to(staging, owner.uid(), owner.gid(), &|at, error| StoreError::MoveRefused {
        part,
        reason: format!(
            "{} is of another user than {}, which is of user {} and whose server could not open it, and \
             cannot be given to them ({error}); run this as that user (sudo -u), or as root",
            at.display(),
            dir.display(),
            owner.uid()
        ),
    })
}

fn give_to(
    at: &Path,
    user: u32,
    group: u32,
    refused: &dyn Fn(&Path, std::io::Error) -> StoreError,
) -> Result<(), StoreError> {
    let found = fs::symlink_metadata(at).map_err(StoreError::io(at, "look at"))?;
    if found.is_dir() {
        for entry in fs::read_dir(at).map_err(StoreError::io(at, "list"))? {
            let entry = entry.map_err(StoreError::io(at, "list"))?;
            give_to(&entry.path(), user, group, refused)?;
        }
    }
    if found.uid() == user {
        return Ok(());
    }
    lchown(at, Some(user), Some(group)).map_err(|error| refused(at, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_belongs_to_the_owner_of_the_folder_or_a_warning_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let (graph, staging) = (dir.path().join("g"), dir.path().join("g/part-001.copy-7"));
        fs::create_dir_all(staging.join("part-001/catalog")).unwrap();
        let files = ["graph.toml", "part-001/topology", "part-001/catalog/CURRENT"];
        files.iter().for_each(|name| fs::write(staging.join(name), b"x").unwrap());
        let owner_of = |at: &Path| fs::metadata(at).unwrap().uid();
        let ours = owner_of(&staging);
        give(&staging, &graph, PartId(1)).unwrap();
        assert_eq!(owner_of(&staging.join("graph.toml")), ours, "it is theirs already");
        let told = |error: StoreError| error.to_string();
        if ours != 0 {
            // The superuser's folder, to which no other user can give files.
            let refused = told(give(&staging, Path::new("/"), PartId(1)).unwrap_err());
            assert!(refused.contains("sudo -u") && refused.contains("user 0"), "{refused}");
            eprintln!("skipped: only the superuser can change the owner of files");
            return;
        }
        std::os::unix::fs::chown(&graph, Some(4321), Some(4322)).unwrap();
        give(&staging, &graph, PartId(1)).unwrap();
        let all = files.map(|name| staging.join(name));
        for at in all.iter().chain([&staging, &staging.join("part-001/catalog")]) {
            let found = fs::metadata(at).unwrap();
            assert_eq!((found.uid(), found.gid()), (4321, 4322), "{}", at.display());
        }
    }
}
