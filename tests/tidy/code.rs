//! Removes comments and strings from Rust source.

/// Returns the source with a blank for each character of comments, strings and characters.
pub(crate) fn code(text: &str) -> String {
    let mut lexer = Lexer { chars: text.chars().collect(), at: 0, code: String::new() };
    while lexer.at < lexer.chars.len() {
        lexer.step();
    }
    lexer.code
}

/// Returns the identifiers, keywords and numbers of a text.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !is_word(c)).filter(|word| !word.is_empty())
}

/// Returns whether a character may be in an identifier.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns code with blanks for the modules `tests`.
pub(crate) fn without_tests(code: &str) -> String {
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(start) = rest.find("mod tests {") {
        let body = &rest[start..];
        let end = block_end(body);
        out.push_str(&rest[..start]);
        out.extend(body[..end].chars().map(|c| if c == '\n' { c } else { ' ' }));
        rest = &body[end..];
    }
    out + rest
}

/// Returns the end of the first block of a text.
fn block_end(text: &str) -> usize {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        if c == '{' {
            depth += 1;
        } else if c == '}' {
            depth -= 1;
            if depth == 0 {
                return at + 1;
            }
        }
    }
    text.len()
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    code: String,
}

impl Lexer {
    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn is_at(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(ahead, c)| self.peek(ahead) == c)
    }

    /// Copies one character into the code.
    fn keep(&mut self) {
        self.code.push(self.chars[self.at]);
        self.at += 1;
    }

    /// Writes blanks for the next `n` characters.
    fn blank(&mut self, n: usize) {
        for _ in 0..n.min(self.chars.len() - self.at) {
            self.code.push(if self.chars[self.at] == '\n' { '\n' } else { ' ' });
            self.at += 1;
        }
    }

    /// Writes blanks up to a text, or to the end of the file.
    fn blank_until(&mut self, end: &str) {
        while self.at < self.chars.len() && !self.is_at(end) {
            self.blank(1);
        }
    }

    fn step(&mut self) {
        if self.is_at("//") {
            self.blank_until("\n");
        } else if self.is_at("/*") {
            self.block_comment();
        } else if self.peek(0) == '"' {
            self.string();
        } else if self.peek(0) == '\'' {
            self.quote();
        } else if is_word(self.peek(0)) {
            self.word();
        } else {
            self.keep();
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while self.at < self.chars.len() {
            if self.is_at("/*") {
                depth += 1;
                self.blank(2);
            } else if self.is_at("*/") {
                depth -= 1;
                self.blank(2);
                if depth == 0 {
                    return;
                }
            } else {
                self.blank(1);
            }
        }
    }

    fn string(&mut self) {
        self.blank(1);
        while self.at < self.chars.len() && self.peek(0) != '"' {
            self.blank(if self.peek(0) == '\\' { 2 } else { 1 });
        }
        self.blank(1);
    }

    /// Writes blanks for a character, or copies the quote of a lifetime.
    fn quote(&mut self) {
        if self.peek(1) == '\\' {
            self.blank(3);
            self.blank_until("'");
            self.blank(1);
        } else if self.peek(2) == '\'' {
            self.blank(3);
        } else {
            self.keep();
        }
    }

    /// Copies a word. After the prefix of a raw string, writes blanks for the string.
    fn word(&mut self) {
        let start = self.at;
        while is_word(self.peek(0)) {
            self.keep();
        }
        let word: String = self.chars[start..self.at].iter().collect();
        if !matches!(&*word, "r" | "br" | "cr") {
            return;
        }
        let n_hashes = self.chars[self.at..].iter().take_while(|&&c| c == '#').count();
        if self.peek(n_hashes) == '"' {
            self.blank(n_hashes + 1);
            self.blank_until(&format!("\"{}", "#".repeat(n_hashes)));
            self.blank(n_hashes + 1);
        }
    }
}

#[test]
fn comments_strings_and_characters_become_blanks() {
    let text =
        "/// Doc.\nfn f<'a>(x: &'a str) { // Why.\n    g(\"a // \\\" b\", '\"', '\\'');\n}\n";
    let code = code(text);
    assert!(code.contains("fn f<'a>(x: &'a str) {        \n"), "{code}");
    assert!(code.contains("g(           ,    ,     );"), "{code}");
    assert!(!code.contains("Doc"), "{code}");
    assert_eq!(code.lines().count(), text.lines().count());
}

#[test]
fn raw_strings_and_nested_comments_end_where_rust_ends_them() {
    let code = code("let a = r#\"x \" // y\"#; /* a /* b */ c */ let br = b\"z\";");
    assert_eq!(words(&code).collect::<Vec<_>>(), ["let", "a", "r", "let", "br", "b"]);
    assert!(code.trim_end().ends_with("let br = b   ;"), "{code}");
}

#[test]
fn modules_of_tests_become_blanks() {
    let code = without_tests("a\nmod tests {\n    { b }\n}\nc");
    assert_eq!(words(&code).collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!(code.lines().count(), 5);
}
