//! Rules of single files: lengths, unfinished work, places, modules with `unsafe`.

use crate::Finding;
use crate::code::words;
use crate::tree::{File, Tree};

/// Most lines of a source file.
const MAX_LINES: usize = 800;

/// Marks of unfinished work.
const UNFINISHED: &[&str] = &["TODO", "FIXME", "XXX", "HACK"];

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

/// Checks each file.
pub(crate) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let unsafe_modules = unsafe_modules(tree);
    for file in &tree.files {
        length(file, findings);
        unsafe_code(file, &unsafe_modules, findings);
        for (at, line) in file.text.lines().enumerate() {
            unfinished(file, at + 1, line, findings);
            places(file, at + 1, line, findings);
        }
    }
}

fn length(file: &File, findings: &mut Vec<Finding>) {
    let n_lines = file.text.lines().count();
    if file.code.is_some() && n_lines > MAX_LINES {
        let detail = format!("{n_lines} lines, at most {MAX_LINES}");
        findings.push(Finding::new("long files", &file.path, 1, detail));
    }
}

/// Reports marks of unfinished work. The files of this test hold the marks.
fn unfinished(file: &File, line: usize, text: &str, findings: &mut Vec<Finding>) {
    if file.path.starts_with("tests/tidy/") {
        return;
    }
    for word in words(text).filter(|word| UNFINISHED.contains(word)) {
        findings.push(Finding::new("unfinished", &file.path, line, word));
    }
}

/// Reports paths of one machine and hosts of one workplace.
fn places(file: &File, line: usize, text: &str, findings: &mut Vec<Finding>) {
    let lower = text.to_lowercase();
    for pieces in PLACES {
        let place = pieces.concat();
        let is_found = if place.starts_with('/') {
            text.match_indices(&place).any(|(at, _)| !text[..at].ends_with(char::is_alphanumeric))
        } else {
            lower.contains(&place)
        };
        if is_found {
            findings.push(Finding::new("places", &file.path, line, text.trim()));
        }
    }
}

/// Reports `unsafe` outside the listed modules.
fn unsafe_code(file: &File, modules: &[&str], findings: &mut Vec<Finding>) {
    if modules.iter().any(|module| file.path.starts_with(module)) {
        return;
    }
    for (at, line) in file.code.as_deref().unwrap_or("").lines().enumerate() {
        if words(line).any(|word| word == "unsafe") {
            let detail = "docs/where.md does not list the module";
            findings.push(Finding::new("unsafe", &file.path, at + 1, detail));
        }
    }
}

/// Returns the modules that docs/where.md lists under "Unsafe code".
fn unsafe_modules(tree: &Tree) -> Vec<&str> {
    let text = tree.get("docs/where.md").map_or("", |file| &file.text);
    let table = text.split_once("## Unsafe code").map_or("", |(_, table)| table);
    let mut modules = Vec::new();
    for row in table.lines() {
        if let Some(row) = row.strip_prefix("| `") {
            let cell = row.split(" |").next().unwrap_or("");
            modules.extend(cell.split('`').filter(|piece| piece.contains('/')));
        }
    }
    modules
}

#[cfg(test)]
fn found(files: &[(&str, &str)]) -> Vec<(&'static str, usize)> {
    let mut findings = Vec::new();
    check(&Tree::of(files), &mut findings);
    findings.iter().map(|finding| (finding.rule, finding.line)).collect()
}

#[test]
fn source_files_have_at_most_800_lines() {
    assert_eq!(found(&[("a/tests/b.rs", &"\n".repeat(800))]), []);
    assert_eq!(found(&[("a/tests/b.rs", &"\n".repeat(801))]), [("long files", 1)]);
    assert_eq!(found(&[("a.md", &"\n".repeat(801))]), []);
}

#[test]
fn marks_of_unfinished_work_are_words() {
    assert_eq!(found(&[("a.rs", "\n// TODO: x\n")]), [("unfinished", 2)]);
    assert_eq!(found(&[("a.md", "FIXME")]), [("unfinished", 1)]);
    assert_eq!(found(&[("a.rs", "// checksum = xxxxxxxx, XXXL, todo\n")]), []);
}

#[test]
fn unsafe_code_is_in_listed_modules() {
    let list = ("docs/where.md", "`b/b.rs`\n## Unsafe code\n| `a/b.rs`, `c/` | as in `d/e.rs` |\n");
    let block = "// A reason.\nunsafe { f() }\n";
    assert_eq!(found(&[("a/b.rs", block), list]), []);
    assert_eq!(found(&[("c/d.rs", block), list]), []);
    assert_eq!(found(&[("b/b.rs", block), list]), [("unsafe", 2)]);
    assert_eq!(found(&[("d/e.rs", block), list]), [("unsafe", 2)]);
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
