//! The commit of a source tree, read by the build script for `lode --version`.
//!
//! Reads the files of `.git` directly: no git program has to be there, and one that refuses a
//! folder of another owner (containers) changes nothing. The build script includes this file.

use std::fs;
use std::path::{Path, PathBuf};

/// Digits of a commit that are shown.
const SHOWN: usize = 12;

/// The commit of a tree, and the files whose change means another commit.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceCommit {
    /// Its first digits; none where the tree does not say.
    pub(crate) short: Option<String>,
    /// Paths that exist, for the build script to watch.
    pub(crate) watched: Vec<PathBuf>,
}

impl SourceCommit {
    /// Reads the commit of the tree at `root` from its `.git`, else from `archived`, a text in
    /// which `git archive` has put the commit. A repository that only contains the tree does not
    /// count.
    pub(crate) fn of_tree(root: &Path, archived: &str) -> Self {
        match git_folder(&root.join(".git")) {
            Some(git) => Self::of_git(&git),
            None => Self { short: shortened(archived), watched: Vec::new() },
        }
    }

    fn of_git(git: &Path) -> Self {
        let head = git.join("HEAD");
        let Ok(text) = fs::read_to_string(&head) else { return Self::default() };
        let mut watched = vec![head];
        let Some(name) = text.trim().strip_prefix("ref: ") else {
            return Self { short: shortened(&text), watched };
        };
        // Branches of a linked worktree are in the folder of the repository.
        let common = match fs::read_to_string(git.join("commondir")) {
            Ok(path) => git.join(path.trim()),
            Err(_) => git.to_owned(),
        };
        let loose = common.join(name);
        if let Ok(text) = fs::read_to_string(&loose) {
            watched.push(loose);
            return Self { short: shortened(&text), watched };
        }
        // The next commit makes the loose file: its folder changes then.
        watched.extend(loose.ancestors().skip(1).find(|path| path.is_dir()).map(Path::to_owned));
        let packed = common.join("packed-refs");
        let Ok(text) = fs::read_to_string(&packed) else { return Self { short: None, watched } };
        watched.push(packed);
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        let commit = lines.find(|(_, found)| *found == name).map(|(commit, _)| commit);
        Self { short: commit.and_then(shortened), watched }
    }
}

/// Resolves `.git`: a folder, or the file of a linked worktree that names one.
fn git_folder(path: &Path) -> Option<PathBuf> {
    if path.is_dir() {
        return Some(path.to_owned());
    }
    let text = fs::read_to_string(path).ok()?;
    let git = path.parent()?.join(text.trim().strip_prefix("gitdir: ")?);
    git.is_dir().then_some(git)
}

/// Returns the first digits of a commit (SHA-1 or SHA-256); none for any other text.
pub(crate) fn shortened(text: &str) -> Option<String> {
    let text = text.trim();
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (matches!(text.len(), 40 | 64) && is_hex).then(|| text[..SHOWN].to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "0123456789abcdef0123456789abcdef01234567";
    const SECOND: &str = "fedcba9876543210fedcba9876543210fedcba98";

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn short_of(root: &Path) -> Option<String> {
        let found = SourceCommit::of_tree(root, "$Format:%H$");
        assert!(found.watched.iter().all(|path| path.exists()), "{found:?}");
        found.short
    }

    #[test]
    fn a_branch_is_read_from_its_file_and_from_the_packed_ones() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(short_of(root), None);
        write(root, ".git/HEAD", "ref: refs/heads/topic/main\n");
        assert_eq!(short_of(root), None, "a branch without a commit");
        let packed = format!(
            "# pack-refs with: peeled\n{SECOND} refs/heads/main\n{FIRST} refs/heads/topic/main\n"
        );
        write(root, ".git/packed-refs", &packed);
        assert_eq!(short_of(root).as_deref(), Some(&FIRST[..12]));
        let watched = SourceCommit::of_tree(root, "").watched;
        assert!(watched.contains(&root.join(".git")), "the next commit is noticed: {watched:?}");
        write(root, ".git/refs/heads/topic/main", &format!("{SECOND}\n"));
        assert_eq!(short_of(root).as_deref(), Some(&SECOND[..12]), "a loose file is newer");
        let watched = SourceCommit::of_tree(root, "").watched;
        assert!(watched.contains(&root.join(".git/refs/heads/topic/main")), "{watched:?}");
        write(root, ".git/HEAD", FIRST);
        assert_eq!(short_of(root).as_deref(), Some(&FIRST[..12]), "a detached head");
    }

    #[test]
    fn a_linked_worktree_finds_the_branches_of_its_repository() {
        let dir = tempfile::tempdir().unwrap();
        let (root, git) = (dir.path().join("tree"), "main/.git/worktrees/tree");
        write(dir.path(), "main/.git/refs/heads/side", FIRST);
        write(dir.path(), &format!("{git}/HEAD"), "ref: refs/heads/side\n");
        write(dir.path(), &format!("{git}/commondir"), "../..\n");
        write(&root, ".git", &format!("gitdir: {}\n", dir.path().join(git).display()));
        assert_eq!(short_of(&root).as_deref(), Some(&FIRST[..12]));
    }

    #[test]
    fn a_tree_without_git_has_the_commit_of_its_archive_and_not_of_a_repository_around_it() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), ".git/HEAD", FIRST);
        let root = dir.path().join("vendor/lode");
        fs::create_dir_all(&root).unwrap();
        assert_eq!(short_of(&root), None);
        let archived = SourceCommit::of_tree(&root, &format!("{SECOND}\n"));
        assert_eq!(archived.short.as_deref(), Some(&SECOND[..12]));
        for text in ["", "main", "$Format:%H$", &FIRST[..39], &FIRST.replace('0', "g")] {
            assert_eq!(shortened(text), None, "{text}");
        }
    }
}
