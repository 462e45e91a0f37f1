//! Rules of imports: no circles between concepts, no imports through a crate's root.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;
use crate::items::without_tests;
use crate::tree::{File, Tree, area};

/// A module's path from its crate's root, with `::`.
type Module = String;

/// Checks the imports inside each crate.
pub(crate) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let mut crates: BTreeMap<&str, Vec<&File>> = BTreeMap::new();
    for file in tree.files.iter().filter(|file| file.is_product() && top(file).is_some()) {
        crates.entry(area(&file.path)).or_default().push(file);
    }
    for files in crates.values() {
        check_crate(files, findings);
    }
}

/// Returns the path of a file below its crate's `src`, without examples and other programs.
fn top(file: &File) -> Option<&str> {
    let (before, below) = file.path.split_once("/src/")?;
    (!before.contains('/') && !below.starts_with("bin/")).then_some(below)
}

fn check_crate(files: &[&File], findings: &mut Vec<Finding>) {
    let modules: BTreeMap<Module, &File> = files.iter().map(|file| (module(file), *file)).collect();
    let mut edges: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, file) in &modules {
        let Some(source) = &file.rust else { continue };
        for (line, path) in paths(&without_tests(&source.code), name) {
            let target = resolve(&path, &modules);
            if target.is_empty() && !path.is_empty() {
                if is_reexport(&path, modules.get("")) {
                    let detail = format!("crate::{path} is imported through the root");
                    findings.push(Finding::new("root imports", file, line, detail));
                }
            } else if target != name {
                edges.entry(name).or_default().insert(target);
            }
        }
    }
    for circle in circles(&edges) {
        let concepts: BTreeSet<_> = circle.iter().map(|name| concept(name)).collect();
        if concepts.len() > 1 {
            let file = modules[*circle.first().unwrap_or(&"")];
            let paths: Vec<_> = circle.iter().map(|name| modules[*name].path.as_str()).collect();
            findings.push(Finding::new("circles", file, 1, paths.join(" ")));
        }
    }
}

/// Returns the module of a file.
fn module(file: &File) -> Module {
    let below = top(file).unwrap_or("").trim_end_matches(".rs");
    let below = below.strip_suffix("/mod").unwrap_or(below);
    if matches!(below, "lib" | "main") { String::new() } else { below.replace('/', "::") }
}

/// Returns the part of a crate that a module belongs to: its first name.
fn concept(module: &str) -> &str {
    module.split("::").next().unwrap_or("")
}

/// Returns the longest module that a path begins with.
fn resolve<'a>(path: &str, modules: &'a BTreeMap<Module, &File>) -> &'a str {
    let mut names: Vec<_> = path.split("::").collect();
    while !names.is_empty() {
        if let Some((module, _)) = modules.get_key_value(&names.join("::")) {
            return module;
        }
        names.pop();
    }
    ""
}

/// Returns whether the root has a name by `pub use` alone.
fn is_reexport(path: &str, root: Option<&&File>) -> bool {
    let name = path.split("::").next().unwrap_or("");
    let Some(source) = root.and_then(|file| file.rust.as_ref()) else { return false };
    let words: Vec<_> = source
        .code
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|w| !w.is_empty())
        .collect();
    let declared = |pair: &[&str]| {
        matches!(
            pair[0],
            "struct"
                | "enum"
                | "trait"
                | "fn"
                | "const"
                | "static"
                | "type"
                | "mod"
                | "macro_rules"
        ) && pair[1] == name
    };
    words.contains(&name) && !words.windows(2).any(declared)
}

/// Returns the paths that begin with `crate` or `super`, from the crate's root, and their lines.
fn paths(code: &str, module: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].trim_end_matches("super::");
            let inner =
                before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '$');
            if inner || start == "super::" && before.len() < at {
                continue;
            }
            let line = code[..at].matches('\n').count() + 1;
            let mut rest = &code[at..];
            let mut base: Vec<_> = module.split("::").filter(|name| !name.is_empty()).collect();
            if let Some(path) = rest.strip_prefix("crate::") {
                rest = path;
                base.clear();
            }
            while let Some(path) = rest.strip_prefix("super::") {
                rest = path;
                base.pop();
            }
            let mut leaves = Vec::new();
            expand(&mut rest, base.join("::"), &mut leaves);
            found.extend(leaves.into_iter().map(|path| (line, path)));
        }
    }
    found
}

/// Adds the paths of one branch of a tree of imports, and moves past it.
fn expand(rest: &mut &str, prefix: String, leaves: &mut Vec<String>) {
    *rest = rest.trim_start();
    if let Some(group) = rest.strip_prefix('{') {
        *rest = group;
        loop {
            *rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
            match rest.strip_prefix('}') {
                Some(after) => break *rest = after,
                None if rest.is_empty() => break,
                None => expand(rest, prefix.clone(), leaves),
            }
        }
        return;
    }
    let end =
        rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '*').unwrap_or(rest.len());
    let name = &rest[..end];
    *rest = &rest[end..];
    let path = match name {
        "*" | "self" | "" => prefix,
        _ if prefix.is_empty() => name.to_owned(),
        _ => format!("{prefix}::{name}"),
    };
    if let Some(after) = rest.strip_prefix("::").filter(|after| !after.starts_with('<')) {
        *rest = after;
        expand(rest, path, leaves);
        return;
    }
    if rest.starts_with(" as ") {
        *rest = rest.trim_start_matches(|c: char| c != ',' && c != ';' && c != '}');
    } else if end == 0 {
        // What no import has: the caller's loop must move on all the same.
        *rest = rest.get(1..).unwrap_or("");
    }
    leaves.push(path);
}

/// Returns the sets of two and more nodes that reach each other.
fn circles<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<BTreeSet<&'a str>> {
    let reach = |from: &'a str| {
        let (mut seen, mut stack) = (BTreeSet::new(), vec![from]);
        while let Some(node) = stack.pop() {
            for &next in edges.get(node).into_iter().flatten() {
                if seen.insert(next) {
                    stack.push(next);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<_, _> = edges.keys().map(|&node| (node, reach(node))).collect();
    let mut circles = BTreeSet::new();
    for (&node, nodes) in &reached {
        let circle: BTreeSet<_> = nodes
            .iter()
            .copied()
            .filter(|next| reached.get(next).is_some_and(|r| r.contains(node)))
            .collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

#[cfg(test)]
fn found(files: &[(&str, &str)]) -> Vec<(&'static str, String)> {
    let mut findings = Vec::new();
    check(&Tree::of(files), &mut findings);
    findings.into_iter().map(|finding| (finding.rule, finding.detail)).collect()
}

#[test]
fn circles_are_found_through_groups_and_supers_and_not_in_tests() {
    let b = ("a/src/b.rs", "use crate::{x, c::{self, C}};\n");
    let circle = ("circles", "a/src/b.rs a/src/c/mod.rs".to_owned());
    assert_eq!(found(&[b, ("a/src/c/mod.rs", "fn f() { super::b::g() }\n")]), [circle]);
    assert_eq!(found(&[b, ("a/src/c/mod.rs", "// crate::b\nmod tests { use crate::b; }\n")]), []);
    assert_eq!(found(&[b, ("a/src/c/mod.rs", "use super::bb;\nuse other_crate::b;\n")]), []);
}

#[test]
fn a_circle_inside_one_concept_is_allowed() {
    let inside = [("a/src/c/d.rs", "use super::e::E;\n"), ("a/src/c/e.rs", "use crate::c::d;\n")];
    assert_eq!(found(&inside), []);
    let across =
        [("a/src/c/d.rs", "use super::super::e;\n"), ("a/src/e.rs", "use crate::c::d::D as E;\n")];
    assert_eq!(found(&across).len(), 1);
}

#[test]
fn imports_through_the_root_are_those_of_its_reexports() {
    let root = ("a/src/lib.rs", "pub use b::Row;\npub struct Own;\nmod b;\n");
    let rule = |text| found(&[root, ("a/src/c.rs", text), ("a/src/b.rs", "")]).len();
    assert_eq!(rule("use crate::Row;"), 1);
    assert_eq!(rule("use crate::{Own, b::Row};"), 0);
    assert_eq!(rule("use crate::b;"), 0);
}
