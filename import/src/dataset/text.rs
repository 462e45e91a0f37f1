//! Lines of numbers in text, plain or compressed by gzip.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use lodestore_graph::Gunzip;

use crate::error::{Error, refused};

/// Bytes of a line at most; a longer one is no line of numbers.
const MAX_LINE_BYTES: u64 = 1 << 24;
/// Bytes read at a time.
const BUFFER_BYTES: usize = 1 << 18;

/// A file of lines with numbers between commas.
pub(super) struct Lines {
    path: PathBuf,
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
    n_lines: u64,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(Error::io(path, "open"))?;
        let plain = BufReader::with_capacity(BUFFER_BYTES, file);
        let reader: Box<dyn BufRead> = match path.extension().is_some_and(|end| end == "gz") {
            true => {
                let unpacked = Gunzip::new(plain);
                Box::new(BufReader::with_capacity(BUFFER_BYTES, unpacked))
            }
            false => Box::new(plain),
        };
        Ok(Self { path: path.to_owned(), reader, line: Vec::new(), n_lines: 0 })
    }

    /// Returns the next line that is not blank.
    pub(super) fn next(&mut self) -> Result<Option<&str>, Error> {
        loop {
            self.line.clear();
            let mut limited = (&mut self.reader).take(MAX_LINE_BYTES);
            let n_bytes = limited.read_until(b'\n', &mut self.line);
            let n_bytes = n_bytes.map_err(Error::io(&self.path, "read"))? as u64;
            if n_bytes == 0 {
                return Ok(None);
            }
            self.n_lines += 1;
            if n_bytes == MAX_LINE_BYTES {
                return Err(self.refused(&format!("is longer than {MAX_LINE_BYTES} bytes")));
            }
            if !self.line.trim_ascii().is_empty() {
                break;
            }
        }
        match std::str::from_utf8(self.line.trim_ascii()) {
            Ok(line) => Ok(Some(line)),
            Err(_) => Err(refused(&self.path, format!("line {} is no text", self.n_lines))),
        }
    }

    /// Returns an error about the line read last.
    pub(super) fn refused(&self, reason: &str) -> Error {
        refused(&self.path, format!("line {} {reason}", self.n_lines))
    }
}
