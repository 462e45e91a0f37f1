//! Moves that replace nothing, on file systems that do not know `RENAME_NOREPLACE`.
//!
//! NFS, some FUSE and some parallel file systems refuse the flag. A file then gets its new name by a
//! link, which fails where the name is taken, and loses its old one. A crash in between leaves it
//! both names, which every caller bears: the old one is a temporary name, or one that is moved or
//! removed again. A folder is moved by a plain rename, which replaces a folder only while that is
//! empty, so that nothing is lost either way.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

/// Moves a file or folder to a name that is free.
pub(super) fn move_to_free(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => move_without_flag(from, to),
        moved => Ok(moved?),
    }
}

/// Does the same where the file system refuses the flag.
pub(super) fn move_without_flag(from: &Path, to: &Path) -> io::Result<()> {
    if fs::symlink_metadata(from)?.is_dir() {
        return move_folder(from, to);
    }
    match fs::hard_link(from, to) {
        Err(error) if has_no_links(&error) => {
            let message = format!(
                "the file system knows neither renames that replace nothing nor links ({error})"
            );
            return Err(io::Error::new(ErrorKind::Unsupported, message));
        }
        // A network file system may have made the link and lost its answer.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && are_one(from, to) => {}
        linked => linked?,
    }
    fs::remove_file(from).inspect_err(|_| {
        // The move has failed, so that the file keeps the name that it had.
        let _ = fs::remove_file(to);
    })
}

fn move_folder(from: &Path, to: &Path) -> io::Result<()> {
    if fs::symlink_metadata(to).is_ok() {
        return Err(ErrorKind::AlreadyExists.into());
    }
    // What comes to be there meanwhile stays, unless it is an empty folder.
    match fs::rename(from, to) {
        Err(error)
            if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotADirectory) =>
        {
            Err(ErrorKind::AlreadyExists.into())
        }
        moved => moved,
    }
}

fn has_no_links(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|it| matches!(it, Errno::PERM | Errno::NOSYS | Errno::OPNOTSUPP))
}

/// Returns whether two names are of one file.
fn are_one(a: &Path, b: &Path) -> bool {
    let id = |path| fs::symlink_metadata(path).map(|it| (it.dev(), it.ino())).ok();
    id(a).is_some() && id(a) == id(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_replaces_nothing_with_the_flag_and_without_it() {
        for moved in [move_to_free, move_without_flag] {
            let dir = tempfile::tempdir().unwrap();
            let path = |name: &str| dir.path().join(name);
            for name in ["a", "b"] {
                fs::write(path(name), name).unwrap();
            }
            fs::create_dir(path("d")).unwrap();
            fs::write(path("d/in"), b"in").unwrap();
            fs::create_dir(path("e")).unwrap();
            let kind = |from: &str, to: &str| moved(&path(from), &path(to)).unwrap_err().kind();
            for (from, to) in [("a", "b"), ("a", "d"), ("d", "a"), ("e", "d"), ("d", "e")] {
                assert_eq!(kind(from, to), ErrorKind::AlreadyExists, "{from} {to}");
            }
            assert_eq!(kind("none", "free"), ErrorKind::NotFound);
            moved(&path("a"), &path("c")).unwrap();
            assert_eq!(fs::read(path("c")).unwrap(), b"a");
            moved(&path("d"), &path("f")).unwrap();
            assert_eq!(fs::read(path("f/in")).unwrap(), b"in");
            assert!(!path("a").exists() && !path("d").exists());
        }
    }

    #[test]
    fn a_link_whose_answer_was_lost_is_finished() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::write(&from, b"rows").unwrap();
        fs::hard_link(&from, &to).unwrap();
        move_without_flag(&from, &to).unwrap();
        assert!(!from.exists());
        assert_eq!(fs::read(&to).unwrap(), b"rows");
    }
}
