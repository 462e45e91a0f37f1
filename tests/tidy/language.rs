//! Rules of words: comments, strings, test names and Markdown.

use crate::Finding;
use crate::prose::{self, Sentence, bare, sentences};
use crate::rust::{Comment, Source};
use crate::tree::File;

/// Longest sentence of a doc comment or document, in words.
const MAX_WORDS: usize = 25;

/// A banned phrase, the words after it that make it a good one, and what to write.
type Banned = (&'static str, &'static [&'static str], &'static str);

/// Banned phrases.
const BANNED: &[Banned] = &[
    ("anew", &[], "again, re-"),
    ("as what", &[], "the kind, the state"),
    ("at once", &[], "concurrently, immediately"),
    ("everybody", &[], "all clients, all threads"),
    ("for now", &[], "say until when, or nothing"),
    ("gives", &["up"], "returns"),
    ("go on", &[], "continue"),
    ("goes on", &[], "continues"),
    ("hears", &[], "receives"),
    ("is to be had", &[], "is available"),
    ("let go", &[], "dropped, released"),
    ("lets go", &[], "drops, releases"),
    ("lies", &[], "is, is stored"),
    ("nobody", &[], "no client, no thread"),
    ("so many", &[], "n"),
    ("somebody", &[], "a client, another thread"),
    ("stands", &["for"], "is, is stored"),
    ("tells", &[], "reports, returns"),
    ("told", &[], "reported, passed"),
    ("went on", &[], "continued"),
    ("what is asked", &[], "the request"),
    ("whoever", &[], "the caller, the client"),
    ("whom", &[], "the client, the thread"),
];

/// Words that no sentence begins with.
const BEGINNINGS: &[&str] = &["of", "what", "who", "whoever", "whom"];

/// Words that end in `s` and are no verbs in the third person.
const NO_VERBS: &[&str] = &["always", "as", "is", "its", "rows", "this", "was"];

/// Marks of unfinished work.
const UNFINISHED: &[&str] = &["TODO", "FIXME", "XXX", "HACK"];

/// Checks the language of a file.
pub(crate) fn check(file: &File, findings: &mut Vec<Finding>) {
    let Some(source) = &file.rust else {
        document(file, findings);
        return;
    };
    for comment in &source.comments {
        let sentences = sentences(&comment.text);
        let at = |sentence: &Sentence| comment.line + sentence.line;
        for sentence in &sentences {
            phrases(sentence, |detail| Finding::new("words", file, at(sentence), detail), findings);
            unfinished(sentence, file, at(sentence), findings);
            if comment.doc {
                shape(sentence, file, at(sentence), findings);
            }
        }
        if comment.doc && !comment.inner {
            verb(&sentences, comment, source, file, findings);
        }
    }
    for (line, text) in source.strings.iter().filter(|(_, text)| text.contains(' ')) {
        for sentence in sentences(&without_arguments(text)) {
            phrases(&sentence, |detail| Finding::new("messages", file, *line, detail), findings);
        }
    }
    for (line, name) in test_names(source) {
        let words = name.split('_').map(str::to_owned).collect();
        let sentence = Sentence { line: 0, words };
        phrases(&sentence, |detail| Finding::new("test names", file, line, detail), findings);
    }
}

/// Returns a message on one line, with code in the place of its arguments.
fn without_arguments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        out += before;
        out += "``";
        rest = after.split_once('}').map_or("", |(_, rest)| rest);
    }
    (out + rest).replace('\n', " ")
}

/// Checks Markdown, or the comments of another text file.
fn document(file: &File, findings: &mut Vec<Finding>) {
    let is_markdown = file.path.ends_with(".md");
    let comments = || {
        let comment = |line: &str| line.trim_start().strip_prefix('#').unwrap_or("").to_owned();
        file.text.lines().map(comment).collect::<Vec<_>>().join("\n")
    };
    let text = if is_markdown { cells(&file.text) } else { comments() };
    for sentence in sentences(&text) {
        let line = sentence.line + 1;
        phrases(&sentence, |detail| Finding::new("words", file, line, detail), findings);
        unfinished(&sentence, file, line, findings);
        if is_markdown {
            shape(&sentence, file, line, findings);
        }
    }
}

/// Returns Markdown with rows of tables as items of a list, and cells ended by dots.
fn cells(text: &str) -> String {
    let row = |line: &str| match line.strip_prefix('|') {
        Some(row) => format!("- {}", row.trim_end_matches('|').trim().replace(" |", ". ")),
        None => line.to_owned(),
    };
    text.lines().map(row).collect::<Vec<_>>().join("\n")
}

/// Adds a finding for each banned phrase of a sentence.
fn phrases(sentence: &Sentence, finding: impl Fn(String) -> Finding, findings: &mut Vec<Finding>) {
    let words: Vec<_> = sentence.words.iter().map(|word| bare(word)).collect();
    for (phrase, unless, instead) in BANNED {
        let phrase_words: Vec<_> = phrase.split(' ').collect();
        for (at, window) in words.windows(phrase_words.len()).enumerate() {
            let next = words.get(at + phrase_words.len()).map_or("", |next| next);
            if window == phrase_words && !unless.contains(&next) {
                let text = sentence.words.join(" ");
                findings.push(finding(format!("`{phrase}` (write: {instead}) in: {text}")));
            }
        }
    }
}

/// Adds a finding for a mark of unfinished work.
fn unfinished(sentence: &Sentence, file: &File, line: usize, findings: &mut Vec<Finding>) {
    for word in &sentence.words {
        let mark = word.trim_matches(|c: char| !c.is_alphanumeric());
        if UNFINISHED.contains(&mark) {
            findings.push(Finding::new("unfinished", file, line, mark));
        }
    }
}

/// Checks the length and the beginning of a sentence.
fn shape(sentence: &Sentence, file: &File, line: usize, findings: &mut Vec<Finding>) {
    let (length, text) = (sentence.words.len(), sentence.words.join(" "));
    if length > MAX_WORDS {
        findings.push(Finding::new("long sentences", file, line, format!("{length}: {text}")));
    }
    let first = bare(&sentence.words[0]);
    // Heads of tables begin in lower case.
    let begins = text.trim_start_matches(['*', '_', '(', '"']).starts_with(char::is_uppercase);
    if begins && BEGINNINGS.contains(&&*first) && !text.ends_with('?') {
        findings.push(Finding::new("beginnings", file, line, text));
    }
}

/// Checks that the doc comment of a function begins with a verb in the third person.
fn verb(
    sentences: &[Sentence],
    comment: &Comment,
    source: &Source,
    file: &File,
    findings: &mut Vec<Finding>,
) {
    // The doc comment of a test states a promise.
    let mut after = source.code.lines().skip(comment.end() - 1).map(str::trim);
    let next = after
        .find(|line| !line.is_empty() && (!line.starts_with("#[") || line.starts_with("#[test]")));
    let is_function = next.is_some_and(|line| {
        let before = line.split("fn ").next().unwrap_or(line);
        line.contains("fn ") && before.split_whitespace().all(is_qualifier)
    });
    let Some(first) = sentences.first().filter(|_| is_function) else { return };
    let word = bare(&first.words[0]);
    if !word.ends_with('s') || NO_VERBS.contains(&&*word) {
        findings.push(Finding::new("verbs", file, comment.line, first.words.join(" ")));
    }
}

/// Returns whether a word may precede `fn` in a function's declaration.
fn is_qualifier(word: &str) -> bool {
    matches!(word, "pub" | "const" | "async" | "unsafe" | "extern") || word.starts_with("pub(")
}

/// Returns the names of functions with the attribute `test`, and their lines.
fn test_names(source: &Source) -> Vec<(usize, &str)> {
    let mut names = Vec::new();
    let mut attribute = false;
    for (at, line) in source.code.lines().enumerate() {
        let line = line.trim();
        attribute |= line.starts_with("#[test]");
        if let Some((_, name)) = line.split_once("fn ").filter(|_| attribute) {
            names.push((at + 1, name.split(['(', '<']).next().unwrap_or("")));
            attribute = false;
        }
    }
    names
}

/// Returns the rule and detail of each finding in a file of this text.
#[cfg(test)]
fn found(path: &str, text: &str) -> Vec<(&'static str, usize)> {
    let tree = crate::tree::Tree::of(&[(path, text)]);
    let mut findings = Vec::new();
    check(&tree.files[0], &mut findings);
    findings.iter().map(|finding| (finding.rule, finding.line)).collect()
}

#[test]
fn banned_phrases_are_found_across_lines_and_not_inside_words_or_code() {
    assert_eq!(found("a.rs", "// All at\n// once.\n"), [("words", 1)]);
    assert_eq!(found("a.md", "A key that lies.\n"), [("words", 1)]);
    assert_eq!(found("a.md", "| `a` | who told |\n"), [("words", 1)]);
    assert_eq!(found("a.toml", "a = 1\n# Whoever.\n"), [("words", 2)]);
    let near = "// Replies, `anew`, retold. Once at it, a server gives up. It stands for a row.\n";
    assert_eq!(found("a.rs", near), []);
    assert_eq!(found("a.rs", "let told = anew;\n"), []);
    assert_eq!(found("a.toml", "told = 1\n"), []);
}

#[test]
fn messages_are_strings_with_blanks_and_test_names_are_those_of_tests() {
    assert_eq!(found("a.rs", "\n f(\"nobody listens\");\n"), [("messages", 2)]);
    assert_eq!(found("a.rs", "f(\"nobody\");\n"), []);
    assert_eq!(found("a.rs", "f(\"{told} times: {}\");\n"), []);
    assert_eq!(found("a.rs", "f(\"{n} told {x} times\");\n"), [("messages", 1)]);
    assert_eq!(found("a.rs", "#[test]\nfn it_is_told() {}\nfn told() {}\n"), [("test names", 2)]);
}

#[test]
fn sentences_have_at_most_25_words_and_begin_well() {
    let words = |n: usize| format!("/// Returns{}.\nstruct A;\n", " a".repeat(n - 1));
    assert_eq!(found("a.rs", &words(26)), [("long sentences", 1)]);
    assert_eq!(found("a.rs", &words(25)), []);
    assert_eq!(found("a.rs", &words(26).replace("///", "//")), []);
    assert_eq!(found("a.rs", "/// A row.\n/// What is read.\nstruct A;\n"), [("beginnings", 2)]);
    assert_eq!(found("a.md", "What is it? Whose rows?\n\n| what | of |\n"), []);
    assert_eq!(found("a.md", "| a | **Of** it |\n"), [("beginnings", 1)]);
}

#[test]
fn docs_of_functions_begin_with_a_verb() {
    let docs =
        |first: &str| found("a.rs", &format!("/// {first} rows.\n#[inline]\npub fn f() {{}}\n"));
    assert_eq!(docs("Returns"), []);
    assert_eq!(docs("The"), [("verbs", 1)]);
    assert_eq!(docs("Its"), [("verbs", 1)]);
    assert_eq!(found("a.rs", "/// The rows.\nstruct A(fn());\n"), []);
    assert_eq!(found("a.rs", "/// The rows.\n#[test]\nfn rows() {}\n"), []);
}

#[test]
fn marks_of_unfinished_work_are_words() {
    assert_eq!(found("a.rs", "// TODO: x\n"), [("unfinished", 1)]);
    assert_eq!(found("a.rs", "// checksum = xxxxxxxx, XXXL, todo\n"), []);
}

#[test]
fn every_phrase_is_in_lower_case_and_in_order() {
    assert!(BANNED.is_sorted_by_key(|(phrase, ..)| *phrase));
    assert!(
        BANNED.iter().all(|(phrase, ..)| phrase.split(' ').all(|word| prose::bare(word) == word))
    );
}
