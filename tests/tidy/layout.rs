//! Rules of single files: names, lengths, columns, `unsafe`, paths of machines.

use crate::Finding;
use crate::tree::{File, Tree};

/// Most lines of a source file.
const MAX_LINES: usize = 500;

/// Fewest lines of a product file that is no root of a module or program.
const MIN_LINES: usize = 60;

/// Most columns of a comment.
const MAX_COLUMNS: usize = 100;

/// Lines above `unsafe` in which its reason is.
const REASON_LINES: usize = 8;

/// File names that a search for the field's terms does not find.
const NAMES: &[&str] = &[
    "advice",
    "anew",
    "arrivals",
    "ask",
    "at_once",
    "barrier",
    "beat",
    "best",
    "cause",
    "complaints",
    "crew",
    "door",
    "doors",
    "ends",
    "find",
    "guard",
    "hand_over",
    "here",
    "inside",
    "known",
    "lending",
    "lent",
    "misc",
    "modelled",
    "moving",
    "passage",
    "patience",
    "post",
    "pulse",
    "rights",
    "saved",
    "settle",
    "stamped",
    "steady",
    "stub",
    "survey",
    "tail",
    "told",
    "util",
    "utils",
    "watch",
    "words",
    "workshop",
];

/// Beginnings of paths and hosts of one machine or workplace, in pieces, so that no search for them
/// ends here.
const PLACES: &[&[&str]] = &[
    &["/wo", "rk/"],
    &["/ro", "ot/"],
    &["/ho", "me/"],
    &["/Us", "ers/"],
    &["artifact", "ory"],
    &["index.crates", ".io"],
    &["pypi", ".org"],
    &["proxy.golang", ".org"],
    &["bash", "_jobs"],
    &["anth", "ropic"],
    &["cla", "ude"],
    &["sub", "agent"],
];

/// Checks a file's name and form.
pub(crate) fn check(file: &File, tree: &Tree, findings: &mut Vec<Finding>) {
    places(file, findings);
    let Some(source) = &file.rust else { return };
    let n_lines = file.text.lines().count();
    if n_lines > MAX_LINES {
        findings.push(Finding::new("long files", file, 1, format!("{n_lines} lines")));
    }
    let stem = file.path.rsplit('/').next().unwrap_or("").trim_end_matches(".rs");
    let is_root = matches!(stem, "mod" | "lib" | "main");
    if n_lines < MIN_LINES && file.is_product() && !is_root {
        findings.push(Finding::new("short files", file, 1, format!("{n_lines} lines")));
    }
    if NAMES.contains(&stem) {
        findings.push(Finding::new("file names", file, 1, stem));
    }
    let folder = file.path.trim_end_matches(".rs").to_owned() + "/";
    if file.is_product()
        && tree.files.iter().any(|f| f.rust.is_some() && f.path.starts_with(&folder))
    {
        findings.push(Finding::new("module style", file, 1, format!("write {folder}mod.rs")));
    }
    for comment in &source.comments {
        for line in comment.line..comment.end() {
            let text = file.text.lines().nth(line - 1).unwrap_or("");
            if text.chars().count() > MAX_COLUMNS && !text.contains("://") {
                findings.push(Finding::new("columns", file, line, text.trim()));
            }
        }
    }
    unsafe_code(file, tree, findings);
}

/// Finds paths of machines and names of workplaces.
fn places(file: &File, findings: &mut Vec<Finding>) {
    for (at, line) in file.text.lines().enumerate() {
        let lower = line.to_lowercase();
        for place in PLACES.iter().map(|pieces| pieces.concat()) {
            let case = if place.starts_with('/') { line } else { &lower };
            let begins =
                |at: usize| !place.starts_with('/') || !case[..at].ends_with(char::is_alphanumeric);
            if case.match_indices(&place).any(|(at, _)| begins(at)) {
                findings.push(Finding::new("places", file, at + 1, line.trim()));
            }
        }
    }
}

/// Finds `unsafe` outside the modules that docs/where.md lists, and without its reason.
fn unsafe_code(file: &File, tree: &Tree, findings: &mut Vec<Finding>) {
    let Some(source) = &file.rust else { return };
    let is_word =
        |line: &str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == "unsafe");
    for (at, _) in source.code.lines().enumerate().filter(|(_, line)| is_word(line)) {
        let line = at + 1;
        let named = modules(tree).iter().any(|module| file.path.starts_with(module));
        if !named {
            findings.push(Finding::new(
                "unsafe",
                file,
                line,
                "docs/where.md does not list the module",
            ));
        }
        let reasons = line.saturating_sub(REASON_LINES)..=line;
        let reason = source.comments.iter().any(|comment| {
            let near = reasons.contains(&comment.end().saturating_sub(1))
                || reasons.contains(&comment.line);
            near && (comment.text.contains("SAFETY:") || comment.text.contains("# Safety"))
        });
        if !reason {
            findings.push(Finding::new("unsafe", file, line, "no SAFETY comment above"));
        }
    }
}

/// Returns the modules that docs/where.md lists under "Unsafe code".
fn modules(tree: &Tree) -> Vec<&str> {
    let text = tree.get("docs/where.md").map_or("", |file| &file.text);
    let table = text.split_once("## Unsafe code").map_or("", |(_, table)| table);
    let first = table.lines().filter_map(|row| row.strip_prefix("| `")?.split(" |").next());
    first.flat_map(|cell| cell.split('`').filter(|piece| piece.contains('/'))).collect()
}

#[cfg(test)]
fn found(files: &[(&str, &str)]) -> Vec<(&'static str, usize)> {
    let tree = Tree::of(files);
    let mut findings = Vec::new();
    check(&tree.files[0], &tree, &mut findings);
    findings.iter().map(|finding| (finding.rule, finding.line)).collect()
}

#[test]
fn lengths_have_two_bounds_in_product_source_and_one_elsewhere() {
    let file = |path, n| found(&[(path, &*"\n".repeat(n))]);
    assert_eq!(file("a/src/b.rs", 60), []);
    assert_eq!(file("a/src/b.rs", 59), [("short files", 1)]);
    assert_eq!(file("a/src/mod.rs", 1), []);
    assert_eq!(file("a/tests/b.rs", 1), []);
    assert_eq!(file("a/tests/b.rs", 500), []);
    assert_eq!(file("a/tests/b.rs", 501), [("long files", 1)]);
    assert_eq!(file("a.md", 501), []);
}

#[test]
fn names_are_checked_whole() {
    assert_eq!(found(&[("a/tests/doors.rs", "")]), [("file names", 1)]);
    assert_eq!(found(&[("a/tests/outdoors.rs", "")]), []);
}

#[test]
fn a_module_with_a_folder_is_named_mod() {
    let text = "\n".repeat(60);
    assert_eq!(found(&[("a/src/b.rs", &text), ("a/src/b/c.rs", "")]), [("module style", 1)]);
    assert_eq!(found(&[("a/src/b.rs", &text), ("a/src/bc/c.rs", ""), ("a/src/b/x.cu", "")]), []);
}

#[test]
fn comments_have_at_most_100_columns() {
    let comment = |n| found(&[("a.rs", &*format!("// {}", "x".repeat(n)))]);
    assert_eq!(comment(97), []);
    assert_eq!(comment(98), [("columns", 1)]);
}

#[test]
fn unsafe_code_is_in_listed_modules_with_a_reason() {
    let list = ("docs/where.md", "`b/b.rs`\n## Unsafe code\n| `a/b.rs`, `c/` | as in `d/e.rs` |\n");
    let reason = "// SAFETY: x.\nunsafe { f() }\n";
    assert_eq!(found(&[("a/b.rs", reason), list]), []);
    assert_eq!(found(&[("c/d.rs", "unsafe { f() }\n"), list]), [("unsafe", 1)]);
    assert_eq!(found(&[("b/b.rs", reason), list]), [("unsafe", 2)]);
    assert_eq!(found(&[("d/e.rs", reason), list]), [("unsafe", 2)]);
    assert_eq!(
        found(&[("f.rs", "fn not_unsafe() {} // unsafe\n#![deny(unsafe_code)]\n"), list]),
        []
    );
}

#[test]
fn paths_of_machines_are_found_and_paths_of_the_project_are_not() {
    let path = ["", "work", "main"].join("/");
    assert_eq!(found(&[("a.md", &path)]), [("places", 1)]);
    assert_eq!(found(&[("a.md", "homework/a, rework/, target/work")]), []);
    assert_eq!(found(&[("a.toml", &("https://INDEX.crates".to_owned() + ".io"))]), [("places", 1)]);
}
