//! Imports inside a crate: circles between its top modules, and names taken from its root.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;
use crate::code::{is_word, without_tests, words};
use crate::tree::{File, Tree};

/// The top modules of a crate that each top module imports from.
type Edges<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Checks the imports of each crate's product code.
pub(crate) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let mut crates: BTreeMap<&str, Vec<&File>> = BTreeMap::new();
    for file in tree.files.iter().filter(|file| file.is_product()) {
        if let Some((name, below)) = file.path.split_once("/src/")
            && !name.contains('/')
            && !below.starts_with("bin/")
        {
            crates.entry(name).or_default().push(file);
        }
    }
    for (name, files) in crates {
        check_crate(name, &files, findings);
    }
}

fn check_crate(name: &str, files: &[&File], findings: &mut Vec<Finding>) {
    let tops: BTreeSet<&str> = files.iter().filter_map(|file| module(file).next()).collect();
    let root = files.iter().find(|file| module(file).next().is_none());
    let reexports = root.map_or_else(BTreeSet::new, |root| reexports(root));
    let mut edges = Edges::new();
    for file in files {
        let code = without_tests(file.code.as_deref().unwrap_or(""));
        for (line, target) in root_names(&code, module(file).count()) {
            if let Some(&target) = tops.get(target) {
                if let Some(top) = module(file).next().filter(|top| *top != target) {
                    edges.entry(top).or_default().insert(target);
                }
            } else if reexports.contains(target) {
                let detail = format!("import {target} from the module that defines it");
                findings.push(Finding::new("root imports", &file.path, line, detail));
            }
        }
    }
    for circle in circles(&edges) {
        let detail = circle.into_iter().collect::<Vec<_>>().join(" ");
        findings.push(Finding::new("circles", &format!("{name}/src"), 1, detail));
    }
}

/// Returns the names of the modules from a crate's root down to the one in a file.
fn module(file: &File) -> impl Iterator<Item = &str> {
    let below = file.path.split_once("/src/").map_or("", |(_, below)| below);
    let below = below.trim_end_matches(".rs").trim_end_matches("/mod");
    below.split('/').filter(|name| !matches!(*name, "lib" | "main"))
}

/// Returns the names that a crate's root only re-exports.
fn reexports(root: &File) -> BTreeSet<&str> {
    let code = root.code.as_deref().unwrap_or("");
    let mut names = BTreeSet::new();
    let mut rest = code;
    while let Some((_, after)) = rest.split_once("pub use ") {
        let (import, after) = after.split_once(';').unwrap_or((after, ""));
        names.extend(words(import));
        rest = after;
    }
    names
}

/// Returns the names that code takes from its crate's root, in paths that begin with `crate` or
/// `super`, and their lines. `depth` is the number of modules from the root to the code.
fn root_names(code: &str, depth: usize) -> Vec<(usize, &str)> {
    let mut names = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            if code[..at].ends_with(|c: char| is_word(c) || c == ':' || c == '$') {
                continue;
            }
            let mut path = &code[at..];
            let mut above = 0;
            if start == "crate::" {
                path = &path[start.len()..];
                above = depth;
            }
            while let Some(rest) = path.strip_prefix("super::") {
                path = rest;
                above += 1;
            }
            if above >= depth {
                let line = code[..at].matches('\n').count() + 1;
                names.extend(first_names(path).into_iter().map(|name| (line, name)));
            }
        }
    }
    names
}

/// Returns the first name of a path, or of each path in a group.
fn first_names(path: &str) -> Vec<&str> {
    let Some(group) = path.strip_prefix('{') else { return words(path).take(1).collect() };
    let mut names = Vec::new();
    let mut depth = 0;
    let mut start = 0;
    for (at, c) in group.char_indices() {
        if depth == 0 && (c == ',' || c == '}') {
            names.extend(words(&group[start..at]).next());
            start = at + 1;
        }
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            _ => {}
        }
    }
    names
}

/// Returns the sets of two and more modules that reach each other.
fn circles<'a>(edges: &Edges<'a>) -> BTreeSet<BTreeSet<&'a str>> {
    let mut reached = Edges::new();
    for &module in edges.keys() {
        reached.insert(module, reachable(module, edges));
    }
    let mut circles = BTreeSet::new();
    for (module, others) in &reached {
        let mut circle = others.clone();
        circle.retain(|other| reached.get(other).is_some_and(|back| back.contains(module)));
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles
}

/// Returns the modules that a module imports, directly or through others.
fn reachable<'a>(from: &'a str, edges: &Edges<'a>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut stack = vec![from];
    while let Some(module) = stack.pop() {
        for &next in edges.get(module).into_iter().flatten() {
            if seen.insert(next) {
                stack.push(next);
            }
        }
    }
    seen
}

#[cfg(test)]
fn found(files: &[(&str, &str)]) -> Vec<(&'static str, String)> {
    let mut findings = Vec::new();
    check(&Tree::of(files), &mut findings);
    findings.into_iter().map(|finding| (finding.rule, finding.detail)).collect()
}

#[test]
fn circles_are_found_through_groups_and_supers_and_not_in_tests() {
    let b = ("a/src/b.rs", "use crate::{x::{y, z}, c::{self, C}};\n");
    assert_eq!(
        found(&[b, ("a/src/c/mod.rs", "fn f() { super::b::g() }\n")]),
        [("circles", "b c".to_owned())]
    );
    assert_eq!(
        found(&[b, ("a/src/c/d.rs", "use super::super::b;\n")]),
        [("circles", "b c".to_owned())]
    );
    assert_eq!(found(&[b, ("a/src/c/mod.rs", "// crate::b\nmod tests { use crate::b; }\n")]), []);
    assert_eq!(found(&[b, ("a/src/c/mod.rs", "use super::bb;\nuse other_crate::b;\n")]), []);
    assert_eq!(found(&[b, ("a/src/c/d.rs", "use super::b;\n")]), []);
}

#[test]
fn circles_inside_a_top_module_and_through_the_root_are_allowed() {
    let inside = [("a/src/c/d.rs", "use super::e::E;\n"), ("a/src/c/e.rs", "use crate::c::d;\n")];
    assert_eq!(found(&inside), []);
    let root =
        [("a/src/lib.rs", "use crate::b::f;\nstruct Own;\n"), ("a/src/b.rs", "use super::Own;\n")];
    assert_eq!(found(&root), []);
}

#[test]
fn a_circle_may_pass_through_several_modules() {
    let files = [
        ("a/src/b/mod.rs", "use crate::c::f;\n"),
        ("a/src/c.rs", "use crate::d::f;\n"),
        ("a/src/d/e.rs", "use crate::b::f;\n"),
        ("a/src/f.rs", "use crate::b::f;\n"),
    ];
    assert_eq!(found(&files), [("circles", "b c d".to_owned())]);
}

#[test]
fn names_that_the_root_reexports_are_imported_from_their_modules() {
    let root = ("a/src/lib.rs", "pub use b::{\n    Row,\n};\npub struct Own;\nmod b;\n");
    let rule = |text| found(&[root, ("a/src/c.rs", text), ("a/src/b.rs", "")]).len();
    assert_eq!(rule("use crate::Row;"), 1);
    assert_eq!(rule("use crate::{Own, b::Row};"), 0);
    assert_eq!(rule("use crate::b;"), 0);
}
