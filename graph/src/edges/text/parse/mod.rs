//! From bytes of text to edges, without I/O; text may come in pieces cut anywhere.

use thiserror::Error;

/// Longest line, its end not counted; a longer one means that the file is no text.
pub const MAX_LINE_BYTES: usize = 1 << 16;

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
    /// The start of a line whose end has not come yet; [`MAX_LINE_BYTES`] at most.
    begun: Vec<u8>,
    n_lines: u64,
}

impl EdgeParser {
    /// Returns a parser of edges whose ids are all below `n_nodes`.
    #[must_use]
    pub fn new(n_nodes: u32, extra_columns: ExtraColumns) -> Self {
        Self { n_nodes, extra_columns, begun: Vec::new(), n_lines: 0 }
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
        let mut start = 0;
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
        &self,
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
        if lines[at] == b'\n' {
            return Ok(at + 1);
        }
        match blanks(lines, at) {
            end if matches!(lines[end], b'\n' | b'\r') => line_end(lines, end),
            third if third == at && lines[at] != b',' => {
                Err(EdgeTextFault::Byte { found: lines[at] })
            }
            third if self.extra_columns == ExtraColumns::Ignore => skip_line(lines, third),
            _ => Err(EdgeTextFault::ExtraColumn),
        }
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
        let too_long = len.is_some_and(|len| len > MAX_LINE_BYTES);
        let fault = if too_long { EdgeTextFault::TooLong } else { fault };
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
