//! The repository's rules that a compiler does not check. Style is for the reader of a diff.
//!
//! Each rule returns findings. [`ALLOWED`] lists the findings that are accepted, with the reason.
//! Every other finding fails the test, and so does an entry that no longer matches.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "tidy/code.rs"]
mod code;
#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/files.rs"]
mod files;
#[path = "tidy/imports.rs"]
mod imports;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/tree.rs"]
mod tree;

use std::fmt;

use tree::Tree;

/// Accepted findings: rule, path, detail, reason.
const ALLOWED: &[(&str, &str, &str, &str)] = &[
    (
        "circles",
        "bucket/src",
        "epochs head",
        "a folder records the head of each partition, and a head is compared with that record",
    ),
    (
        "circles",
        "python/src",
        "batches gather graph handle open_graph put queue sampler schedule spec tensor volatile \
         writer",
        "a class of Python and the objects that it makes name each other",
    ),
    (
        "circles",
        "client/src",
        "error source",
        "a source returns errors, and one of them is of a source without a version",
    ),
    (
        "circles",
        "schema/src",
        "reply tags",
        "a description has the tags of its tensors, and a tag is derived from a declaration",
    ),
    (
        "circles",
        "server/src",
        "acceptor compactor connection executors http installer memory_budget metrics partitions \
         preload rows server shard volatile",
        "a shard accepts connections, a connection passes requests to other shards, and both look at \
         the partitions that an installer changes",
    ),
    (
        "circles",
        "store/src",
        "codec reader segment",
        "codecs are chosen for a kind of reader, readers read segments, and segments have a codec",
    ),
    (
        "circles",
        "store/src",
        "compact embedded follow import repair transfer update verify",
        "update has a method of the open graph for each kind of write, and each kind uses its lock; \
         what is written is read back by verify, which describes files as repair does",
    ),
    (
        "circles",
        "store/src",
        "catalog graph new_file",
        "a graph opens catalogs, a catalog records files, and a new file is checked by its record",
    ),
    (
        "circles",
        "trainer/src",
        "checkpoint config evaluate labels layerwise process_group record replica report run \
         run_model setup sources strategy worker workers",
        "the configuration has the settings that lie in the folders of strategies, strategies read \
         the state of the run, and a run calls its strategy",
    ),
];

/// One violation of a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    rule: &'static str,
    detail: String,
}

impl Finding {
    fn new(rule: &'static str, path: &str, line: usize, detail: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule, detail: detail.into() }
    }

    fn matches(&self, allowed: &(&str, &str, &str, &str)) -> bool {
        let (rule, path, detail, _) = *allowed;
        self.rule == rule && self.path == path && self.detail == detail
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.detail)
    }
}

/// Returns all findings of the tree, sorted by path and line.
fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    documents::check(tree, &mut findings);
    files::check(tree, &mut findings);
    imports::check(tree, &mut findings);
    names::check(tree, &mut findings);
    findings.sort();
    findings
}

#[test]
fn the_repository_breaks_no_rule() {
    let tree = Tree::read();
    assert!(tree.files.len() > 1000, "found {} files only", tree.files.len());
    let findings = check(&tree);
    let mut wrong = String::new();
    for finding in &findings {
        if !ALLOWED.iter().any(|allowed| finding.matches(allowed)) {
            wrong += &format!("{finding}\n");
        }
    }
    for allowed in ALLOWED {
        if !findings.iter().any(|finding| finding.matches(allowed)) {
            wrong += &format!("remove {allowed:?} from ALLOWED: no finding matches it\n");
        }
    }
    assert!(wrong.is_empty(), "the rules are in CONTRIBUTING.md; fix:\n{wrong}");
}
