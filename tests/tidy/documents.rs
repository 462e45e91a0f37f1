//! Paths and functions that documents name exist.

use crate::Finding;
use crate::tree::{File, Tree, root};

/// Folders whose paths are checked.
const FOLDERS: &[&str] = &[
    "benches/", "bucket/", "cache/", "cli/", "client/", "comm/", "deploy/", "docs/", "fuzz/",
    "graph/", "import/", "lab/", "models/", "python/", "schema/", "server/", "store/", "testing/",
    "tests/", "trainer/",
];

/// The document that names functions beside their files.
const MAP: &str = "ARCHITECTURE.md";

/// Checks each document.
pub(crate) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (at, line) in file.text.lines().enumerate() {
            for detail in dead_names(line, file, tree) {
                findings.push(Finding::new("dead paths", &file.path, at + 1, detail));
            }
        }
    }
}

/// Returns the paths of a line that do not exist. In the map, also the items that the file named
/// before them does not have.
fn dead_names(line: &str, document: &File, tree: &Tree) -> Vec<String> {
    let mut dead = Vec::new();
    let mut source = None;
    for name in line.split('`').skip(1).step_by(2) {
        if is_path(name) {
            source = tree.get(name);
            if source.is_none() && !root().join(name).exists() {
                dead.push(name.to_owned());
            }
        } else if let Some(source) = source.filter(|_| document.path == MAP) {
            let item = name.rsplit("::").next().unwrap_or(name);
            if is_item(item) && !source.text.contains(item) {
                dead.push(format!("{name} is not in {}", source.path));
            }
        }
    }
    dead
}

fn is_path(name: &str) -> bool {
    FOLDERS.iter().any(|folder| name.starts_with(folder))
        && name.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c))
        && (name.ends_with('/') || name.rsplit('/').next().is_some_and(|last| last.contains('.')))
}

fn is_item(name: &str) -> bool {
    name.contains(char::is_alphabetic) && name.chars().all(|c| c.is_alphanumeric() || c == '_')
}

#[cfg(test)]
fn found(path: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    check(&Tree::of(&[(path, text), ("store/src/a.rs", "fn plan() {}")]), &mut findings);
    findings.into_iter().map(|finding| finding.detail).collect()
}

#[test]
fn paths_in_documents_exist() {
    let good = "`store/src/a.rs`, `store/none`, `other/b.rs`, `store/*.rs`";
    assert_eq!(found("docs/a.md", good), [""; 0]);
    assert_eq!(found("docs/a.md", "`store/src/b.rs`"), ["store/src/b.rs"]);
}

#[test]
fn the_map_names_items_of_files() {
    assert_eq!(found(MAP, "`store/src/a.rs`: `Row::plan`"), [""; 0]);
    assert_eq!(found(MAP, "`store/src/a.rs`: `read`"), ["read is not in store/src/a.rs"]);
    assert_eq!(found("docs/a.md", "`store/src/a.rs`: `read`"), [""; 0]);
}
