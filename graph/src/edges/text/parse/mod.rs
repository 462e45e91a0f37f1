//! From bytes of text to edges, without I/O; text may come in pieces cut anywhere.

use thiserror::Error;

/// Longest line, its end not counted; a longer one means that the file is no text.
pub const MAX_LINE_BYTES: usize = 1 << 16;

/// Bytes with which some programs begin a text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Digits that fit into 64 bits whatever they are.
const SAFE_DIGITS: usize = 19;

/// Treatment of text after the second id of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraColumns {
    /// It is an error: a third number may mean that this is no list of edges at all.
    Refuse,
    /// It is skipped, such as weights and times.
    Ignore,
}

/// Which line is no edge, and why.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("line {line}: {fault}")]
pub struct EdgeTextError {
    /// The line, counted from 1.
    pub line: u64,
    /// The fault of it.
    pub fault: EdgeTextFault,
}

/// Faults of a line.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum EdgeTextFault {
    /// More bytes than a line may have.
    #[error("longer than {MAX_LINE_BYTES} bytes; is this a text file?")]
    TooLong,
    /// The line ends before the second id.
    #[error("expected two node ids, found one")]
    MissingColumn,
    /// Something comes after the second id.
    #[error(
        "expected two node ids, found more; columns such as weights can be ignored if asked for"
    )]
    ExtraColumn,
    /// Lines of different numbers of columns, where those after the second are skipped.
    #[error(
        "expected {expected} columns, as on the first line with an edge, found {found}; a list of \
         neighbours, such as METIS's, is no list of edges"
    )]
    Columns {
        /// Columns of the first edge.
        expected: u32,
        /// Columns of this line.
        found: u32,
    },
    /// The first line of a MatrixMarket file.
    #[error(
        "a MatrixMarket file: it begins with the sizes of the matrix, and its ids begin with 1; \
         convert it, for example by `scipy.io.mmread`, and save the pairs of ids as .npy"
    )]
    MatrixMarket,
    /// A name where an id must be.
    #[error(
        "expected node ids, found a word; remove a header with names of columns, and number \
         nodes that have names"
    )]
    Word,
    /// An id in quotes.
    #[error("node ids are in quotes; write them without")]
    Quoted,
    /// A number with a fraction or an exponent.
    #[error(
        "node ids are whole numbers, found one with a fraction or an exponent; `numpy.savetxt` \
         writes whole numbers with fmt='%d'"
    )]
    Fraction,
    /// Another separator than blanks and a comma.
    #[error("expected blanks or a comma between two node ids, found the separator `{}`",
        char::from(*found))]
    Separator {
        /// The separator.
        found: u8,
    },
    /// Text of two bytes a character.
    #[error("the text is UTF-16; save it as UTF-8")]
    Utf16,
    /// A minus sign.
    #[error("node ids are not negative")]
    Negative,
    /// An id past the last node.
    #[error(
        "names node {found}{}, but ids must be from 0 to below {n_nodes}",
        if *found == u64::MAX { " or above" } else { "" }
    )]
    OutOfRange {
        /// The id; 2⁶⁴ − 1 for one that is larger.
        found: u64,
        /// Number of nodes.
        n_nodes: u32,
    },
    /// A byte where none of its kind can be.
    #[error("expected a node id, `,`, a blank or the end of the line, found byte {found:#04x} ({})",
        found.escape_ascii())]
    Byte {
        /// The byte.
        found: u8,
    },
}

/// Takes text in pieces and returns the edges of all lines that are whole.
#[derive(Debug)]
pub struct EdgeParser {
    n_nodes: u32,
    extra_columns: ExtraColumns,
    /// Columns of the first edge, where further columns are skipped.
    n_columns: Option<u32>,
    /// The start of a line whose end has not come yet; [`MAX_LINE_BYTES`] at most.
    begun: Vec<u8>,
    n_lines: u64,
}

impl EdgeParser {
    /// Returns a parser of edges whose ids are all below `n_nodes`.
    #[must_use]
    pub fn new(n_nodes: u32, extra_columns: ExtraColumns) -> Self {
        Self { n_nodes, extra_columns, n_columns: None, begun: Vec::new(), n_lines: 0 }
    }

    /// Lines that were whole and good so far.
    #[must_use]
    pub fn n_lines(&self) -> u64 {
        self.n_lines
    }

    /// Appends the edges of all lines that end in `bytes`, the next piece of the text.
    ///
    /// After an error the parser is of no more use.
    pub fn feed(&mut self, bytes: &[u8], edges: &mut Vec<[u32; 2]>) -> Result<(), EdgeTextError> {
        let mut bytes = bytes;
        if !self.begun.is_empty() {
            let end = bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |n| n + 1);
            let (rest_of_line, others) = bytes.split_at(end);
            self.begin_line(rest_of_line)?;
            if self.begun.last() != Some(&b'\n') {
                return Ok(());
            }
            bytes = others;
            let mut line = std::mem::take(&mut self.begun);
            self.whole_lines(&line, edges)?;
            line.clear();
            self.begun = line;
        }
        let end = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |n| n + 1);
        let (lines, begun) = bytes.split_at(end);
        self.whole_lines(lines, edges)?;
        self.begin_line(begun)
    }

    /// Appends the edge of a last line that has no end.
    pub fn finish(mut self, edges: &mut Vec<[u32; 2]>) -> Result<(), EdgeTextError> {
        if self.begun.is_empty() {
            return Ok(());
        }
        let mut line = std::mem::take(&mut self.begun);
        line.push(b'\n');
        self.whole_lines(&line, edges)
    }

    /// Keeps a part of a line until the rest of it comes.
    fn begin_line(&mut self, bytes: &[u8]) -> Result<(), EdgeTextError> {
        let with_end = usize::from(bytes.last() == Some(&b'\n'));
        if self.begun.len() + bytes.len() - with_end > MAX_LINE_BYTES {
            return Err(EdgeTextError { line: self.n_lines + 1, fault: EdgeTextFault::TooLong });
        }
        self.begun.extend_from_slice(bytes);
        Ok(())
    }

    /// Lines with their ends.
    fn whole_lines(
        &mut self,
        lines: &[u8],
        edges: &mut Vec<[u32; 2]>,
    ) -> Result<(), EdgeTextError> {
        let has_mark = self.n_lines == 0 && lines.starts_with(BYTE_ORDER_MARK);
        let mut start = if has_mark { BYTE_ORDER_MARK.len() } else { 0 };
        if self.n_lines == 0 && is_matrix_market(&lines[start..]) {
            return Err(self.error(lines, start, EdgeTextFault::MatrixMarket));
        }
        while start < lines.len() {
            match self.line(lines, start, edges) {
                // Comments and ignored columns may be of any length; ids hardly ever are.
                Ok(end) if end - start <= MAX_LINE_BYTES + 1 => start = end,
                Ok(_) => return Err(self.error(lines, start, EdgeTextFault::TooLong)),
                Err(fault) => return Err(self.error(lines, start, fault)),
            }
            self.n_lines += 1;
        }
        Ok(())
    }

    /// Parses the line from `at`; returns where the next one starts. There is a line end ahead.
    #[inline]
    fn line(
        &mut self,
        lines: &[u8],
        at: usize,
        edges: &mut Vec<[u32; 2]>,
    ) -> Result<usize, EdgeTextFault> {
        let at = blanks(lines, at);
        match lines[at] {
            b'#' | b'%' => return skip_line(lines, at),
            b'\n' | b'\r' => return line_end(lines, at),
            _ => {}
        }
        let (source, at) = self.node(lines, at)?;
        let at = match separator(lines, at)? {
            at if matches!(lines[at], b'\n' | b'\r') => {
                line_end(lines, at)?;
                return Err(EdgeTextFault::MissingColumn);
            }
            at => at,
        };
        let (destination, at) = self.node(lines, at)?;
        edges.push([source, destination]);
        if self.extra_columns == ExtraColumns::Ignore {
            return self.further_columns(lines, at);
        }
        if lines[at] == b'\n' {
            return Ok(at + 1);
        }
        match blanks(lines, at) {
            end if matches!(lines[end], b'\n' | b'\r') => line_end(lines, end),
            third if third == at && lines[at] != b',' => {
                Err(EdgeTextFault::Byte { found: lines[at] })
            }
            _ => Err(EdgeTextFault::ExtraColumn),
        }
    }

    /// Skips what follows the second id, which ends at `at`. Each line has as many columns as the
    /// first; a comment or an attribute list in their place may be of any form.
    fn further_columns(&mut self, lines: &[u8], at: usize) -> Result<usize, EdgeTextFault> {
        let third = blanks(lines, at);
        if third == at && !matches!(lines[at], b',' | b'\n' | b'\r') {
            return Err(EdgeTextFault::Byte { found: lines[at] });
        }
        let end = skip_line(lines, third)?;
        let Some(found) = columns(&lines[third..end]) else { return Ok(end) };
        let expected = *self.n_columns.get_or_insert(found);
        if found == expected { Ok(end) } else { Err(EdgeTextFault::Columns { expected, found }) }
    }

    /// Returns the node id at `at`, and where it ends.
    #[inline]
    fn node(&self, lines: &[u8], at: usize) -> Result<(u32, usize), EdgeTextFault> {
        let (mut id, mut end) = (0u64, at);
        loop {
            let digit = lines[end].wrapping_sub(b'0');
            if digit > 9 {
                break;
            }
            id = id.wrapping_mul(10).wrapping_add(u64::from(digit));
            end += 1;
        }
        match end - at {
            0 if lines[at] == b'-' => return Err(EdgeTextFault::Negative),
            0 => return Err(EdgeTextFault::Byte { found: lines[at] }),
            1..=SAFE_DIGITS => {}
            _ => id = saturated(&lines[at..end]),
        }
        match u32::try_from(id) {
            Ok(id) if id < self.n_nodes => Ok((id, end)),
            _ => Err(EdgeTextFault::OutOfRange { found: id, n_nodes: self.n_nodes }),
        }
    }

    /// Returns the error of the line from `start`: its length comes first, so that a line cut into
    /// pieces fails as a whole one does.
    #[cold]
    fn error(&self, lines: &[u8], start: usize, fault: EdgeTextFault) -> EdgeTextError {
        let len = lines[start..].iter().position(|&byte| byte == b'\n');
        let line = &lines[start..len.map_or(lines.len(), |len| start + len)];
        let too_long = line.len() > MAX_LINE_BYTES;
        let fault = if too_long { EdgeTextFault::TooLong } else { explained(line, fault) };
        EdgeTextError { line: self.n_lines + 1, fault }
    }
}

/// Returns all edges of a text that is in memory; extra columns are refused.
pub fn parse_edges(text: &[u8]) -> Result<Vec<[u32; 2]>, EdgeTextError> {
    let mut edges = Vec::new();
    let mut parser = EdgeParser::new(u32::MAX, ExtraColumns::Refuse);
    parser.feed(text, &mut edges)?;
    parser.finish(&mut edges)?;
    Ok(edges)
}

/// Returns whether a text begins as files of the MatrixMarket format do.
fn is_matrix_market(text: &[u8]) -> bool {
    const BANNER: &[u8] = b"%%MatrixMarket";
    text.get(..BANNER.len()).is_some_and(|start| start.eq_ignore_ascii_case(BANNER))
}

/// Counts the columns of a line whose first two are not in `rest`; `None` where no columns follow,
/// but a comment or a list of attributes.
fn columns(rest: &[u8]) -> Option<u32> {
    let mut n_columns = 2;
    let mut in_column = false;
    let mut commas = 0;
    for &byte in rest {
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => in_column = false,
            b',' => {
                in_column = false;
                commas += 1;
            }
            b'{' | b'#' | b'%' if n_columns == 2 && !in_column => return None,
            // A comma that no column follows ends the line, as some programs write it.
            _ if !in_column => {
                n_columns += commas.max(1);
                in_column = true;
                commas = 0;
            }
            _ => {}
        }
    }
    Some(n_columns)
}

/// Returns the fault of a line in the words of who knows such files, where a byte says what it is.
fn explained(line: &[u8], fault: EdgeTextFault) -> EdgeTextFault {
    let EdgeTextFault::Byte { found } = fault else { return fault };
    let at = line.iter().position(|&byte| byte == found).unwrap_or(0);
    let follows_digit = at > 0 && line[at - 1].is_ascii_digit();
    let precedes_digit =
        line.get(at + 1).is_some_and(|next| next.is_ascii_digit() || matches!(next, b'+' | b'-'));
    match found {
        0xfe | 0xff if at == 0 => EdgeTextFault::Utf16,
        b'"' | b'\'' if precedes_digit => EdgeTextFault::Quoted,
        b'"' | b'\'' => EdgeTextFault::Word,
        b'.' => EdgeTextFault::Fraction,
        b'e' | b'E' if follows_digit && precedes_digit => EdgeTextFault::Fraction,
        b';' | b'|' | b':' => EdgeTextFault::Separator { found },
        _ if (found.is_ascii_alphabetic() || found == b'_') && !follows_digit => {
            EdgeTextFault::Word
        }
        _ => fault,
    }
}

/// Skips blanks.
#[inline]
fn blanks(lines: &[u8], mut at: usize) -> usize {
    while matches!(lines[at], b' ' | b'\t') {
        at += 1;
    }
    at
}

/// Moves past the separator of two ids: blanks with at most one comma among them.
#[inline]
fn separator(lines: &[u8], at: usize) -> Result<usize, EdgeTextFault> {
    let after = blanks(lines, at);
    match lines[after] {
        b',' => Ok(blanks(lines, after + 1)),
        b'\n' | b'\r' => Ok(after),
        found if after == at => Err(EdgeTextFault::Byte { found }),
        _ => Ok(after),
    }
}

/// Skips `\n` or `\r\n`; one of both bytes is at `at`. A `\r` alone is an error: otherwise a file
/// with such line ends would pass as one line.
#[inline]
fn line_end(lines: &[u8], at: usize) -> Result<usize, EdgeTextFault> {
    let end = at + usize::from(lines[at] == b'\r');
    if lines[end] == b'\n' { Ok(end + 1) } else { Err(EdgeTextFault::Byte { found: b'\r' }) }
}

/// Skips the rest of the line, which may be any text.
fn skip_line(lines: &[u8], at: usize) -> Result<usize, EdgeTextFault> {
    let stop = |byte: &u8| matches!(byte, b'\n' | b'\r' | 0);
    let end = lines[at..].iter().position(stop).map_or(lines.len() - 1, |n| at + n);
    if lines[end] == 0 { Err(EdgeTextFault::Byte { found: 0 }) } else { line_end(lines, end) }
}

/// Returns a number of many digits; 2⁶⁴ − 1 if it is larger.
#[cold]
fn saturated(digits: &[u8]) -> u64 {
    digits.iter().fold(0u64, |id, digit| {
        id.saturating_mul(10).saturating_add(u64::from(digit.wrapping_sub(b'0')))
    })
}

#[cfg(test)]
mod tests;
