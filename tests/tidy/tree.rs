//! Files that the rules read.

use std::path::{Path, PathBuf};

use crate::code::code;

/// Source that a tool wrote. It is read as a document, so no rule of code applies.
const GENERATED: &str = "schema/src/lodestore_capnp.rs";

/// Folders that hold no source of the project: builds, other people's code, inputs of fuzzers.
const SKIPPED: &[&str] = &["target", "third_party", "corpus", "artifacts", "proptest-regressions"];

/// One file with its text.
pub(crate) struct File {
    /// Path from the repository's root, with `/`.
    pub(crate) path: String,
    /// Whole text.
    pub(crate) text: String,
    /// Code of a Rust file, with blanks for comments and strings.
    pub(crate) code: Option<String>,
}

impl File {
    fn new(path: &str, text: String) -> Self {
        let is_rust = path.ends_with(".rs") && path != GENERATED;
        Self { path: path.to_owned(), code: is_rust.then(|| code(&text)), text }
    }

    /// Returns whether the file is product source: in a crate's `src`, and no test.
    pub(crate) fn is_product(&self) -> bool {
        let Some((_, below)) = self.path.split_once("/src/") else { return false };
        self.code.is_some()
            && !["tests/", "testing/"].iter().any(|folder| self.path.starts_with(folder))
            && !below.split(['/', '.']).any(|part| part == "tests" || part.ends_with("_tests"))
    }
}

/// All files that the rules read.
pub(crate) struct Tree {
    /// The files, sorted by path.
    pub(crate) files: Vec<File>,
}

impl Tree {
    /// Reads the repository.
    pub(crate) fn read() -> Self {
        let root = root();
        let mut files = Vec::new();
        walk(&root, &root, &mut files);
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Self { files }
    }

    /// Returns a tree of these files.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        Self {
            files: files.iter().map(|(path, text)| File::new(path, (*text).to_owned())).collect(),
        }
    }

    /// Returns the file at a path.
    pub(crate) fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }
}

/// Returns the repository's root: the folder above this crate's.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn walk(root: &Path, dir: &Path, files: &mut Vec<File>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with('.') || SKIPPED.contains(&name) {
            continue;
        }
        if path.is_dir() {
            walk(root, &path, files);
        } else if name == "x" || [".rs", ".md", ".toml", ".capnp"].iter().any(|e| name.ends_with(e))
        {
            let below = path.strip_prefix(root).unwrap().to_str().unwrap();
            files.push(File::new(below, std::fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn only_files_below_src_that_are_no_tests_are_product_source() {
    let is_product = |path| Tree::of(&[(path, "")]).files[0].is_product();
    assert!(is_product("store/src/plan/mod.rs"));
    for path in ["store/tests/plan.rs", "store/src/plan/tests.rs", "store/src/x_tests.rs", "x.md"] {
        assert!(!is_product(path), "{path}");
    }
}
