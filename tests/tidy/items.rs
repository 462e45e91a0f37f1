//! Rules of a crate's items: parameters, names of types, spread of `impl` blocks.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;
use crate::tree::{File, Tree, area};

/// Most parameters of a function beside `self`.
const MAX_PARAMETERS: usize = 5;

/// Most files with inherent `impl` blocks of one type.
const MAX_IMPL_FILES: usize = 3;

/// Type names that a crate may use in several modules.
const SHARED_NAMES: &[&str] = &["Error", "State"];

/// Checks the items of all product source.
pub(crate) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let mut types: BTreeMap<(&str, String), Vec<(&File, usize)>> = BTreeMap::new();
    let mut impls: BTreeMap<(&str, String), BTreeSet<&str>> = BTreeMap::new();
    for file in tree.files.iter().filter(|file| file.is_product()) {
        let Some(source) = &file.rust else { continue };
        let code = without_tests(&source.code);
        parameters(file, &code, findings);
        for (at, line) in code.lines().enumerate() {
            if let Some(name) = type_name(line).filter(|name| !SHARED_NAMES.contains(&&**name)) {
                types.entry((area(&file.path), name)).or_default().push((file, at + 1));
            }
            if let Some(name) = inherent(line) {
                impls.entry((area(&file.path), name)).or_default().insert(&file.path);
            }
        }
    }
    for ((_, name), places) in &types {
        for (file, line) in places.iter().skip(1) {
            let first = &places[0].0.path;
            findings.push(Finding::new(
                "type names",
                file,
                *line,
                format!("{name} is also in {first}"),
            ));
        }
    }
    for ((area, name), files) in &impls {
        let unique = types.get(&(*area, name.clone())).is_some_and(|places| places.len() == 1);
        if files.len() > MAX_IMPL_FILES && unique {
            let (file, line) = types[&(*area, name.clone())][0];
            let detail = format!("{name} has impl blocks in {} files", files.len());
            findings.push(Finding::new("impl spread", file, line, detail));
        }
    }
}

/// Returns code with blanks for the modules `tests`.
pub(crate) fn without_tests(code: &str) -> String {
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(start) = rest.find("mod tests {") {
        let body = &rest[start..];
        let end = close(body, body.find('{').unwrap_or(0), ('{', '}'));
        out.push_str(&rest[..start]);
        out.extend(body[..end].chars().map(|c| if c == '\n' { c } else { ' ' }));
        rest = &body[end..];
    }
    out + rest
}

/// Returns the end of the group that opens at a byte.
fn close(text: &str, open: usize, (opens, closes): (char, char)) -> usize {
    let mut depth = 0;
    for (at, c) in text[open..].char_indices() {
        depth += i32::from(c == opens) - i32::from(c == closes);
        if depth == 0 {
            return open + at + c.len_utf8();
        }
    }
    text.len()
}

/// Checks the parameters of each function.
fn parameters(file: &File, code: &str, findings: &mut Vec<Finding>) {
    for (at, _) in code.match_indices("fn ") {
        let before = &code[code[..at].rfind('\n').map_or(0, |end| end + 1)..at];
        let name_end = code[at + 3..].find(['(', '<', ';', '{']).map_or(at, |end| at + 3 + end);
        let name = code[at + 3..name_end].trim();
        let is_item = before.chars().last().is_none_or(char::is_whitespace) && !name.is_empty();
        let Some(open) = code[at..].find('(').map(|open| at + open).filter(|_| is_item) else {
            continue;
        };
        let list = &code[open + 1..close(code, open, ('(', ')')) - 1];
        let line = code[..at].matches('\n').count() + 1;
        let parameters = split(list);
        let own = parameters.iter().filter(|p| !p.trim_end().ends_with("self")).count();
        if own > MAX_PARAMETERS {
            findings.push(Finding::new("parameters", file, line, format!("{name} has {own}")));
        }
        if parameters.iter().any(|p| p.trim_start().starts_with('(')) {
            findings.push(Finding::new("tuple parameters", file, line, name));
        }
        let is_public = before.trim_start().starts_with("pub ");
        let is_bool = |p: &&str| p.split_once(':').is_some_and(|(_, kind)| kind.trim() == "bool");
        if is_public && parameters.iter().any(is_bool) {
            findings.push(Finding::new("bare bools", file, line, name));
        }
    }
}

/// Splits a list at its commas, but not inside brackets.
fn split(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    let mut before = ' ';
    for (at, c) in list.char_indices() {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '>' if before != '-' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        before = c;
    }
    parts.push(&list[start..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

/// Returns the name of the type that a line declares.
fn type_name(line: &str) -> Option<String> {
    let mut words = line.split_whitespace().peekable();
    if line.starts_with(char::is_whitespace) {
        return None;
    }
    words.next_if(|word| word.starts_with("pub"));
    matches!(words.next()?, "struct" | "enum" | "trait" | "union")
        .then(|| identifier(words.next()?))?
}

/// Returns the type of an inherent `impl` block that a line begins.
fn inherent(line: &str) -> Option<String> {
    let rest = line.strip_prefix("impl")?;
    let rest = if rest.starts_with('<') { &rest[close(rest, 0, ('<', '>'))..] } else { rest };
    let rest = rest.strip_prefix(' ').filter(|rest| !rest.contains(" for "))?;
    let path = rest.split(['<', ' ', '{']).next()?;
    identifier(path.rsplit("::").next()?)
}

/// Returns the identifier that a text begins with.
fn identifier(text: &str) -> Option<String> {
    let name: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
fn found(files: &[(&str, &str)]) -> Vec<(&'static str, String)> {
    let mut findings = Vec::new();
    check(&Tree::of(files), &mut findings);
    findings.into_iter().map(|finding| (finding.rule, finding.detail)).collect()
}

#[test]
fn parameters_are_counted_without_self_and_types_with_commas() {
    let five =
        "fn f(&self, a: [u8; 2], b: Map<u8, u8>, c: (u8, u8), d: &dyn Fn(u8, u8) -> u8, e: u8) {}";
    assert_eq!(found(&[("a/src/b.rs", five)]), []);
    let six = "fn f(a: u8, b: u8, c: u8, d: u8, e: u8, f: u8) {}";
    assert_eq!(found(&[("a/src/b.rs", six)]), [("parameters", "f has 6".to_owned())]);
    assert_eq!(found(&[("a/src/b/tests.rs", six)]), []);
    assert_eq!(found(&[("a/src/b.rs", &format!("mod tests {{ {six} }}"))]), []);
}

#[test]
fn tuples_and_bools_are_found_as_parameters_alone() {
    let tuple = "fn f((a, b): (u8, u8)) {}";
    assert_eq!(found(&[("a/src/b.rs", tuple)]), [("tuple parameters", "f".to_owned())]);
    assert_eq!(found(&[("a/src/b.rs", "fn f(a: (u8, u8)) { g(|(a, b)| a) }")]), []);
    let public = "pub fn f(a: bool) {}";
    assert_eq!(found(&[("a/src/b.rs", public)]), [("bare bools", "f".to_owned())]);
    assert_eq!(
        found(&[("a/src/b.rs", "fn f(a: bool) {}\npub fn g(a: Option<bool>) -> bool {}")]),
        []
    );
}

#[test]
fn a_name_belongs_to_one_type_of_a_crate() {
    let rule = |a, b| found(&[("store/src/a.rs", a), (b, "pub struct Row<T>;")]).len();
    assert_eq!(rule("enum Row {}", "store/src/b.rs"), 1);
    assert_eq!(rule("enum Row {}", "graph/src/b.rs"), 0);
    assert_eq!(rule("enum RowId {}", "store/src/b.rs"), 0);
}

#[test]
fn inherent_blocks_of_a_type_are_in_three_files_at_most() {
    let names = ["store/src/a.rs", "store/src/b.rs", "store/src/c.rs", "store/src/d.rs"];
    let tree = |block| {
        let files = names.map(|name| (name, block));
        found(&[&[("store/src/row.rs", "struct Row;")], &files[..]].concat())
    };
    assert_eq!(tree("impl<T: A<B>> crate::Row<T> {}").len(), 1);
    assert_eq!(tree("impl Drop for Row {}"), []);
}
