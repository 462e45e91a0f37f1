//! Public names that no code uses.

use std::collections::BTreeMap;

use crate::Finding;
use crate::code::words;
use crate::tree::{File, Tree};

/// Keywords between `pub` and the name of an item.
const KEYWORDS: &[&str] = &[
    "fn", "struct", "enum", "union", "trait", "type", "const", "static", "async", "unsafe", "mut",
];

/// Reports public items of product code whose name is only declared and re-exported.
///
/// The rule compares names, not paths. It misses an unused item if another item of this name is
/// used. Tests, benches, examples and documents are users.
pub(crate) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
    let texts: Vec<String> = tree.files.iter().map(text_of_users).collect();
    for word in texts.iter().flat_map(|text| words(text)) {
        *uses.entry(word).or_default() += 1;
    }
    let mut declared: BTreeMap<&str, Vec<(&File, usize)>> = BTreeMap::new();
    for file in tree.files.iter().filter(|file| file.is_product()) {
        let code = file.code.as_deref().unwrap_or("");
        for (at, line) in code.lines().enumerate() {
            if let Some(name) = public_name(line) {
                declared.entry(name).or_default().push((file, at + 1));
            }
        }
    }
    for (name, places) in declared {
        if uses.get(name).copied().unwrap_or(0) <= places.len() {
            for (file, line) in places {
                findings.push(Finding::new("public names", &file.path, line, name));
            }
        }
    }
}

/// Returns the text of a file in which a word is a use: code without re-exports, or a document.
fn text_of_users(file: &File) -> String {
    let Some(code) = &file.code else { return file.text.clone() };
    let mut kept = String::with_capacity(code.len());
    let mut in_reexport = false;
    for line in code.lines() {
        let trimmed = line.trim_start();
        in_reexport |= trimmed.starts_with("pub use ") || trimmed.starts_with("pub(crate) use ");
        if !in_reexport {
            kept += line;
            kept.push('\n');
        }
        in_reexport &= !line.contains(';');
    }
    kept
}

/// Returns the name of the public item that a line declares.
fn public_name(line: &str) -> Option<&str> {
    let declaration = line.trim_start().strip_prefix("pub ")?;
    let mut words = words(declaration).peekable();
    words.next_if(|word| KEYWORDS.contains(word))?;
    words.find(|word| !KEYWORDS.contains(word))
}

#[cfg(test)]
fn found(files: &[(&str, &str)]) -> Vec<String> {
    let mut findings = Vec::new();
    check(&Tree::of(files), &mut findings);
    findings.into_iter().map(|finding| finding.detail).collect()
}

#[test]
fn a_public_name_needs_a_use_beside_its_declaration_and_reexport() {
    let declared = ("a/src/b.rs", "pub const fn f() {} // f\npub struct S;\n");
    let reexport = ("a/src/lib.rs", "pub use b::{\n    S,\n    f,\n};\n");
    assert_eq!(found(&[declared, reexport]), ["S", "f"]);
    assert_eq!(found(&[declared, reexport, ("a/tests/t.rs", "use a::{S, f};")]), [""; 0]);
    assert_eq!(found(&[declared, reexport, ("README.md", "let s: S = f();")]), [""; 0]);
}

#[test]
fn only_public_items_of_product_code_need_users() {
    let others = "fn f() {}\npub(crate) fn g() {}\npub mod m;\nstruct T { pub field: u8 }\n";
    assert_eq!(found(&[("a/src/b.rs", others)]), [""; 0]);
    assert_eq!(found(&[("a/tests/b.rs", "pub fn f() {}")]), [""; 0]);
}
