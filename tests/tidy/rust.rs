//! Splits Rust source into code, comments and strings.

/// Comment lines that belong together: adjacent lines with the same marker in the same column.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Comment {
    /// First line, from 1.
    pub(crate) line: usize,
    /// Whether it begins with `///` or `//!`.
    pub(crate) doc: bool,
    /// Whether it documents the file or module that it is in.
    pub(crate) inner: bool,
    /// Text without markers, one line each.
    pub(crate) text: String,
    column: usize,
}

impl Comment {
    /// Returns the line after the last one.
    pub(crate) fn end(&self) -> usize {
        self.line + self.text.lines().count().max(1)
    }
}

/// A lexed file.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// The text, with a blank for each character of comments, strings and characters.
    pub(crate) code: String,
    /// Comments in order.
    pub(crate) comments: Vec<Comment>,
    /// Strings in order: line of the quote, and text between the quotes as written.
    pub(crate) strings: Vec<(usize, String)>,
}

impl Source {
    /// Lexes a file.
    pub(crate) fn lex(text: &str) -> Self {
        let mut lexer = Lexer {
            chars: text.chars().collect(),
            at: 0,
            line: 1,
            column: 0,
            out: Self::default(),
        };
        while lexer.at < lexer.chars.len() {
            lexer.step();
        }
        lexer.out
    }
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    line: usize,
    column: usize,
    out: Source,
}

impl Lexer {
    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    /// Moves over a character; `keep` copies it into the code.
    fn bump(&mut self, keep: bool) {
        let c = self.chars[self.at];
        self.at += 1;
        self.column += 1;
        if c == '\n' {
            self.line += 1;
            self.column = 0;
        }
        self.out.code.push(if keep || c == '\n' { c } else { ' ' });
    }

    fn skip(&mut self, n: usize) {
        for _ in 0..n {
            if self.at < self.chars.len() {
                self.bump(false);
            }
        }
    }

    fn step(&mut self) {
        match self.peek(0) {
            '/' if self.peek(1) == '/' => self.line_comment(),
            '/' if self.peek(1) == '*' => self.block_comment(),
            '"' => self.string(),
            '\'' => self.quote(),
            c if c.is_alphabetic() || c == '_' => self.word(),
            _ => self.bump(true),
        }
    }

    fn line_comment(&mut self) {
        let (line, column, start) = (self.line, self.column, self.at);
        while self.at < self.chars.len() && self.peek(0) != '\n' {
            self.bump(false);
        }
        let all: String = self.chars[start..self.at].iter().collect();
        let inner = all.starts_with("//!");
        let doc = inner || all.starts_with("///") && !all.starts_with("////");
        let body = all.trim_start_matches('/');
        let body = if inner { &body[1..] } else { body };
        let body = body.strip_prefix(' ').unwrap_or(body).trim_end();
        if let Some(last) = self.out.comments.last_mut()
            && last.end() == line
            && (last.column, last.doc, last.inner) == (column, doc, inner)
        {
            last.text.push('\n');
            // An empty last line would not count as a line.
            last.text.push_str(if body.is_empty() { " " } else { body });
            return;
        }
        let text = if body.is_empty() { " ".to_owned() } else { body.to_owned() };
        self.out.comments.push(Comment { line, doc, inner, text, column });
    }

    fn block_comment(&mut self) {
        let (line, column, start) = (self.line, self.column, self.at);
        let mut depth = 0;
        while self.at < self.chars.len() {
            if self.peek(0) == '/' && self.peek(1) == '*' {
                depth += 1;
                self.skip(2);
            } else if self.peek(0) == '*' && self.peek(1) == '/' {
                depth -= 1;
                self.skip(2);
                if depth == 0 {
                    break;
                }
            } else {
                self.bump(false);
            }
        }
        let text = self.chars[start..self.at].iter().collect();
        self.out.comments.push(Comment { line, doc: false, inner: false, text, column });
    }

    fn string(&mut self) {
        let line = self.line;
        self.skip(1);
        let start = self.at;
        while self.at < self.chars.len() && self.peek(0) != '"' {
            self.skip(if self.peek(0) == '\\' { 2 } else { 1 });
        }
        self.out.strings.push((line, self.chars[start..self.at].iter().collect()));
        self.skip(1);
    }

    fn raw_string(&mut self, hashes: usize) {
        let line = self.line;
        self.skip(hashes + 1);
        let start = self.at;
        let closes = |lexer: &Self| {
            lexer.peek(0) == '"' && (1..=hashes).all(|ahead| lexer.peek(ahead) == '#')
        };
        while self.at < self.chars.len() && !closes(self) {
            self.bump(false);
        }
        self.out.strings.push((line, self.chars[start..self.at].iter().collect()));
        self.skip(hashes + 1);
    }

    /// Moves over a character in quotes, or over the quote of a lifetime.
    fn quote(&mut self) {
        if self.peek(1) == '\\' {
            self.skip(3);
            while self.at < self.chars.len() && self.peek(0) != '\'' {
                self.skip(1);
            }
            self.skip(1);
        } else if self.peek(2) == '\'' {
            self.skip(3);
        } else {
            self.bump(true);
        }
    }

    /// Moves over an identifier, or the prefix of a string with the string.
    fn word(&mut self) {
        let start = self.at;
        while self.peek(0).is_alphanumeric() || self.peek(0) == '_' {
            self.bump(true);
        }
        let word: String = self.chars[start..self.at].iter().collect();
        if matches!(&*word, "r" | "br" | "cr") {
            let hashes = self.chars[self.at..].iter().take_while(|&&c| c == '#').count();
            if self.peek(hashes) == '"' {
                self.raw_string(hashes);
            }
        }
    }
}

#[test]
fn code_comments_and_strings_are_separated() {
    let text = "/// Doc.\n/// More.\nfn f<'a>(x: &'a str) { // Why.\n    g(\"a // \\\" b\", '\"', '\\'');\n}\n";
    let source = Source::lex(text);
    let comments: Vec<_> =
        source.comments.iter().map(|c| (c.line, c.doc, c.text.as_str())).collect();
    assert_eq!(comments, [(1, true, "Doc.\nMore."), (3, false, "Why.")]);
    assert_eq!(source.strings, [(4, "a // \\\" b".to_owned())]);
    assert!(source.code.contains("fn f<'a>(x: &'a str) {"), "{}", source.code);
    assert!(source.code.contains("g(           ,    ,     );"), "{}", source.code);
    assert_eq!(source.code.lines().count(), text.lines().count());
}

#[test]
fn raw_strings_and_nested_comments_end_where_rust_ends_them() {
    let source = Source::lex("let a = r#\"x \" // y\"#; /* a /* b */ c */ let br = b\"z\";");
    assert_eq!(source.strings, [(1, "x \" // y".to_owned()), (1, "z".to_owned())]);
    assert_eq!(source.comments.len(), 1);
    assert!(source.code.trim_end().ends_with("let br = b   ;"), "{}", source.code);
}

#[test]
fn comments_of_two_kinds_or_columns_stay_apart() {
    let source = Source::lex("//! A.\n/// B.\n// C.\n    // D.\n\n    // E.\n");
    assert_eq!(source.comments.iter().map(|c| c.line).collect::<Vec<_>>(), [1, 2, 3, 4, 6]);
}
