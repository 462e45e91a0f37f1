//! Rules of documents: their lengths, and that what they name exists.

use crate::Finding;
use crate::tree::{File, Tree, root};

/// Most bytes of documents.
const LENGTHS: &[(&str, usize)] = &[
    ("README.md", 6 << 10),
    ("ARCHITECTURE.md", 12 << 10),
    ("CHANGELOG.md", 3 << 10),
    ("CONTRIBUTING.md", 4 << 10),
    ("benches/RESULTS.md", 15 << 10),
    ("docs/guide.md", 12 << 10),
    ("docs/operations.md", 15 << 10),
    ("docs/replication.md", 8 << 10),
    ("docs/protocol.md", 7 << 10),
    ("docs/glossary.md", 4 << 10),
    ("docs/decisions/0", 4 << 10),
];

/// Beginnings of paths of the repository.
const FOLDERS: &[&str] = &[
    "benches/", "bucket/", "cache/", "cli/", "client/", "docs/", "fuzz/", "graph/", "import/",
    "python/", "schema/", "server/", "store/", "tests/", "trainer/",
];

/// Checks a document.
pub(crate) fn check(file: &File, tree: &Tree, findings: &mut Vec<Finding>) {
    if !file.path.ends_with(".md") {
        return;
    }
    let limit = LENGTHS.iter().find(|(path, _)| file.path.starts_with(path));
    if let Some((_, limit)) = limit.filter(|(_, limit)| file.text.len() > *limit) {
        let detail = format!("{} bytes, at most {limit}", file.text.len());
        findings.push(Finding::new("document lengths", file, 1, detail));
    }
    for (at, line) in file.text.lines().enumerate() {
        let mut last = None;
        for name in line.split('`').skip(1).step_by(2) {
            if is_path(name) {
                last = Some(name);
                if tree.get(name).is_none() && !root().join(name).exists() {
                    findings.push(Finding::new("dead paths", file, at + 1, name));
                }
            } else if let Some(target) =
                last.and_then(|path| tree.get(path)).filter(|_| is_table(file))
            {
                let item = name.rsplit("::").next().unwrap_or(name);
                if is_item(item) && !target.text.contains(item) {
                    let detail = format!("{name} is not in {}", target.path);
                    findings.push(Finding::new("dead paths", file, at + 1, detail));
                }
            }
        }
    }
}

/// Returns whether a document names functions beside their files.
fn is_table(file: &File) -> bool {
    file.path == "ARCHITECTURE.md"
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
fn found(path: &str, text: &str) -> Vec<&'static str> {
    let tree = Tree::of(&[(path, text), ("store/src/a.rs", "fn plan() {}")]);
    let mut findings = Vec::new();
    check(&tree.files[0], &tree, &mut findings);
    findings.iter().map(|finding| finding.rule).collect()
}

#[test]
fn documents_have_lengths() {
    assert_eq!(found("README.md", &"x".repeat(6145)), ["document lengths"]);
    assert_eq!(found("README.md", &"x".repeat(6144)), [""; 0]);
    assert_eq!(found("docs/decisions/0001-a.md", &"x".repeat(4097)), ["document lengths"]);
}

#[test]
fn what_documents_name_exists() {
    assert_eq!(
        found("docs/a.md", "`store/src/a.rs`, `store/none`, `other/b.rs`, `store/*.rs`"),
        [""; 0]
    );
    assert_eq!(found("docs/a.md", "`store/src/b.rs`"), ["dead paths"]);
    assert_eq!(found("ARCHITECTURE.md", "`store/src/a.rs`: `Row::plan`"), [""; 0]);
    assert_eq!(found("ARCHITECTURE.md", "`store/src/a.rs`: `read`"), ["dead paths"]);
}
