//! Splits Markdown, also that of comments, into sentences of words.

/// A sentence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sentence {
    /// Line of its first word, from 0 at the text's first line.
    pub(crate) line: usize,
    /// Words as written. Code, links and paths count as one word each, code without its text.
    pub(crate) words: Vec<String>,
}

/// Character that replaces code with its backquotes.
pub(crate) const CODE: char = '`';

/// Abbreviations whose dot does not end a sentence.
const ABBREVIATIONS: &[&str] =
    &["e.g.", "i.e.", "cf.", "al.", "vs.", "Fig.", "Sec.", "resp.", "no."];

/// Returns the sentences of a text. Code blocks and rows of tables are left out.
pub(crate) fn sentences(text: &str) -> Vec<Sentence> {
    let mut all = Vec::new();
    let mut paragraph: Vec<(usize, &str)> = Vec::new();
    let mut fenced = false;
    for (line, content) in text.lines().enumerate() {
        let trimmed = content.trim();
        let fence = trimmed.starts_with("```");
        let indented = content.starts_with("    ") && paragraph.is_empty();
        let is_item = item(trimmed);
        if fence || fenced || indented || trimmed.is_empty() || trimmed.starts_with(['|', '#']) {
            end(&mut paragraph, &mut all);
        } else {
            if is_item.is_some() {
                end(&mut paragraph, &mut all);
            }
            paragraph.push((line, is_item.unwrap_or(trimmed)));
        }
        fenced ^= fence;
    }
    end(&mut paragraph, &mut all);
    all
}

/// Returns the text of a list's item.
fn item(line: &str) -> Option<&str> {
    let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let numbered = if digits.len() < line.len() { digits.strip_prefix(". ") } else { None };
    numbered.or_else(|| line.strip_prefix("- ")).or_else(|| line.strip_prefix("* "))
}

/// Ends a paragraph: adds its sentences.
fn end(paragraph: &mut Vec<(usize, &str)>, all: &mut Vec<Sentence>) {
    let words = words(&std::mem::take(paragraph));
    let mut sentence = Sentence { line: 0, words: Vec::new() };
    for (at, (line, word)) in words.iter().enumerate() {
        if sentence.words.is_empty() {
            sentence.line = *line;
        }
        sentence.words.push(word.clone());
        let bare = word.trim_end_matches([')', '"', '*', '_', ']', '\'']);
        let next = words.get(at + 1).map_or("", |(_, next)| next);
        let begins = next.trim_start_matches(['(', '"', '*', '_', '[']);
        let ends = bare.ends_with(['.', '?', '!'])
            && !ABBREVIATIONS.contains(&bare)
            && !begins.starts_with(|c: char| c.is_lowercase());
        if ends || next.is_empty() {
            all.push(std::mem::replace(&mut sentence, Sentence { line: 0, words: Vec::new() }));
        }
    }
}

/// Returns the words of lines, with [`CODE`] in the place of code.
fn words(lines: &[(usize, &str)]) -> Vec<(usize, String)> {
    let mut words: Vec<(usize, String)> = Vec::new();
    let mut in_code = false;
    for &(line, text) in lines {
        let mut new_word = true;
        for c in text.chars() {
            let quote = c == CODE;
            in_code ^= quote;
            if c.is_whitespace() && !in_code {
                new_word = true;
            } else if !in_code || quote {
                // The closing quote alone is written, as a part of its word.
                if new_word {
                    words.push((line, String::new()));
                }
                new_word = false;
                if !(quote && in_code) {
                    words.last_mut().unwrap().1.push(c);
                }
            }
        }
    }
    words.retain(|(_, word)| word.contains(|c: char| c.is_alphanumeric() || c == CODE));
    words
}

/// Returns a word in lower case without the marks around it.
pub(crate) fn bare(word: &str) -> String {
    word.trim_matches(|c: char| !c.is_alphanumeric() && c != CODE).to_lowercase()
}

#[test]
fn sentences_end_at_dots_but_not_at_abbreviations_and_numbers() {
    let found = sentences("One, e.g. 1.5 or `a. B`.\nTwo? Three: x; y\n\n- four\n- five");
    let words: Vec<_> = found.iter().map(|s| (s.line, s.words.join(" "))).collect();
    let expected =
        [(0, "One, e.g. 1.5 or `."), (1, "Two?"), (1, "Three: x; y"), (3, "four"), (4, "five")];
    assert_eq!(words, expected.map(|(line, text)| (line, text.to_owned())));
}

#[test]
fn code_blocks_tables_and_headings_are_no_sentences() {
    assert_eq!(sentences("# Head\n\n```\nlet a;\n```\n| a | b |\n\n    code"), []);
}

#[test]
fn code_counts_as_one_word_whatever_is_in_it() {
    let found = sentences("Calls `a b c`s, (`d e`) and x-`f`.");
    assert_eq!(found[0].words, ["Calls", "`s,", "(`)", "and", "x-`."]);
}
