//! The repository's rules of language and structure, held by counts that may only fall.
//!
//! Each rule returns findings. [`ratchets::ALLOWED`] states how many findings each rule has in each
//! area, for a reason, and a count that differs fails. A higher one is a new violation, a lower one
//! must be written down. `LODE_TIDY=RULE` or `LODE_TIDY=all` prints the findings themselves.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/items.rs"]
mod items;
#[path = "tidy/language.rs"]
mod language;
#[path = "tidy/layout.rs"]
mod layout;
#[path = "tidy/prose.rs"]
mod prose;
#[path = "tidy/ratchets.rs"]
mod ratchets;
#[path = "tidy/rust.rs"]
mod rust;
#[path = "tidy/tree.rs"]
mod tree;

use std::collections::BTreeMap;

use tree::{File, Tree};

/// One violation of a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    rule: &'static str,
    path: String,
    line: usize,
    detail: String,
}

impl Finding {
    fn new(rule: &'static str, file: &File, line: usize, detail: impl Into<String>) -> Self {
        Self { rule, path: file.path.clone(), line, detail: detail.into() }
    }
}

/// Returns all findings of the tree, in order of path and line.
fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        if tree::EXEMPT.iter().all(|(path, _)| !file.path.starts_with(path)) {
            language::check(file, &mut findings);
        }
        layout::check(file, tree, &mut findings);
        documents::check(file, tree, &mut findings);
    }
    items::check(tree, &mut findings);
    circles::check(tree, &mut findings);
    findings.sort_by(|a, b| (&a.path, a.line, a.rule).cmp(&(&b.path, b.line, b.rule)));
    findings
}

/// Returns the number of findings by rule and area.
fn count(findings: &[Finding]) -> BTreeMap<(&str, &str), usize> {
    let mut counts = BTreeMap::new();
    for finding in findings {
        *counts.entry((finding.rule, tree::area(&finding.path))).or_default() += 1;
    }
    counts
}

#[test]
fn each_rule_has_as_many_findings_as_its_ratchet_states() {
    let tree = Tree::read();
    assert!(tree.files.len() > 1000, "found {} files only", tree.files.len());
    let findings = check(&tree);
    if let Ok(wanted) = std::env::var("LODE_TIDY") {
        for Finding { rule, path, line, detail } in &findings {
            if wanted == "all" || wanted == *rule {
                println!("{rule}\t{path}:{line}\t{detail}");
            }
        }
    }
    let found = count(&findings);
    let stated: BTreeMap<_, _> =
        ratchets::ALLOWED.iter().map(|&(rule, area, n)| ((rule, area), n)).collect();
    assert_eq!(stated.len(), ratchets::ALLOWED.len(), "a row of the ratchets is there twice");
    let keys = found.keys().chain(stated.keys()).collect::<std::collections::BTreeSet<_>>();
    let mut wrong = String::new();
    for &&(rule, area) in &keys {
        let of = |counts: &BTreeMap<_, _>| counts.get(&(rule, area)).copied().unwrap_or(0);
        let (found, stated) = (of(&found), of(&stated));
        if found > stated {
            wrong += &format!("    {found} findings, {stated} allowed: mend the new ones:\n");
            let of_row = |f: &&Finding| f.rule == rule && tree::area(&f.path) == area;
            for Finding { path, line, detail, .. } in findings.iter().filter(of_row).take(20) {
                wrong += &format!("        {path}:{line}: {detail}\n");
            }
        }
        if found != stated {
            wrong += &format!("    (\"{rule}\", \"{area}\", {found}), // was {stated}\n");
        }
    }
    assert!(
        wrong.is_empty(),
        "counts differ from tests/tidy/ratchets.rs. Mend what is new; write a lower count into its \
         row. LODE_TIDY=RULE with --nocapture prints every finding.\n{wrong}"
    );
}

#[test]
fn the_ratchets_name_known_rules_and_areas_and_no_empty_row() {
    for &(rule, area, n) in ratchets::ALLOWED {
        assert!(ratchets::RULES.iter().any(|(name, _)| *name == rule), "unknown rule {rule}");
        assert!(tree::AREAS.contains(&area), "unknown area {area}");
        assert!(n > 0, "remove the row ({rule}, {area}): nothing is left");
        let has_reason = ratchets::REASONS.iter().any(|(name, _)| *name == rule);
        assert!(has_reason, "state why {rule} has findings in {area}");
    }
    for (rule, _) in ratchets::REASONS {
        let is_used = ratchets::ALLOWED.iter().any(|(name, ..)| name == rule);
        assert!(is_used, "remove the reason of {rule}: nothing is left");
    }
}

#[test]
fn every_rule_finds_what_is_planted_in_a_small_tree() {
    let source = "//! Gives rows.\n//! What it has.\n// TODO: x\n\
        /// Rows of a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z.\n\
        pub fn f(a: u8, b: u8, c: u8, d: u8, e: u8, f: bool) { unsafe { g() } }\n\
        fn g((a, b): (u8, u8)) { h(\"nobody listens\") }\n";
    let twin = "struct Row;\nimpl Row {}\nuse crate::doors;\nuse crate::Thing;\n\
        struct Wide;\nimpl Wide {}\n";
    let own = "struct Row;\nimpl Row {}\nuse crate::a;\n";
    let tree = Tree::of(&[
        ("store/src/lib.rs", "pub use a::Thing;\n"),
        ("store/src/a.rs", &format!("{source}{twin}")),
        ("store/src/a/b.rs", "impl super::Wide {}\n"),
        ("store/src/a/c.rs", "impl super::Wide {}\n"),
        ("store/src/a/d.rs", "impl super::Wide {}\n"),
        ("store/src/doors.rs", &(own.to_owned() + &"fn f() {}\n".repeat(500))),
        ("store/src/a/wide.rs", &format!("// {}\n", "x".repeat(100))),
        ("store/src/a/home.rs", &format!("// {}\n", ["", "work", "main"].join("/"))),
        ("store/src/a/tests.rs", "#[test]\nfn whoever_asks_is_answered() {}\n"),
        ("README.md", &format!("`store/src/none.rs` {}", "x".repeat(7000))),
    ]);
    let findings = check(&tree);
    for (rule, _) in ratchets::RULES {
        assert!(findings.iter().any(|f| f.rule == *rule), "{rule} finds nothing");
    }
    for Finding { rule, .. } in &findings {
        assert!(ratchets::RULES.iter().any(|(name, _)| name == rule), "unlisted rule {rule}");
    }
}
