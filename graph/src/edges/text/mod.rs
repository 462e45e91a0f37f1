//! Edges as lines of text, plain or compressed.
//!
//! A line holds two node ids, decimal, between 0 and 2³² − 2, with blanks (spaces, tabs) or one
//! comma between them. Blank lines, and lines that start with `#` or `%`, are skipped. Lines end
//! with `\n` or `\r\n`; the last one may lack its end. Text after the second id is an error, or, on
//! request, ignored to the end of the line; then each line has as many columns. There are no column
//! names. A byte order mark at the start is skipped.

mod parse;

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{CHUNK_EDGES, EdgeError, EdgeStream, VisitChunk, believed_nodes};
use crate::file_error::FileError;
use crate::gunzip::Gunzip;

pub use parse::{
    EdgeParser, EdgeTextError, EdgeTextFault, ExtraColumns, MAX_LINE_BYTES, parse_edges,
};

/// Bytes of text that are parsed at a time.
const TEXT_BYTES: usize = 1 << 18;
/// Compressed bytes that are read at a time.
const COMPRESSED_BYTES: usize = 1 << 17;

/// Edges in a text file; each pass parses it again, in about 1 MiB of memory.
#[derive(Debug)]
pub struct TextEdges {
    path: PathBuf,
    file: File,
    compression: Compression,
    extra_columns: ExtraColumns,
    n_edges: u64,
    n_nodes: u32,
}

impl TextEdges {
    /// Opens `path` and reads it once to check every line and count the edges. Without `n_nodes` it
    /// also finds the largest id. Text that is compressed by gzip or zstd is known by its first
    /// bytes.
    ///
    /// Fails, naming the line, where a line is no edge or has an id not below `n_nodes`. Without
    /// `n_nodes` it fails when an id is out of proportion, as [`super::ArrayEdges::open_npy`] does.
    pub fn open(
        path: &Path,
        extra_columns: ExtraColumns,
        n_nodes: Option<u32>,
    ) -> Result<Self, EdgeError> {
        let failed = || FileError::at(path, "open");
        let file = File::open(path).map_err(failed())?;
        let named = Compression::of(path);
        let compression = Compression::of_content(&file).map_err(failed())?.unwrap_or(named);
        if named != Compression::None && file.metadata().map_err(failed())?.len() == 0 {
            // A decompressor may take nothing for a whole, empty text.
            return Err(failed()(ErrorKind::UnexpectedEof.into()).into());
        }
        if named != Compression::None && compression != named {
            return Err(EdgeError::NotCompressed { path: path.to_owned() });
        }
        let (path, bound) = (path.to_owned(), n_nodes.unwrap_or(u32::MAX));
        let mut edges = Self { path, file, compression, extra_columns, n_edges: 0, n_nodes: bound };
        let mut end = 0;
        let n_edges = edges.pass(&mut |chunk| {
            let max = chunk.as_flattened().iter().fold(0, |max, &id| max.max(id));
            end = end.max(max + 1);
            Ok(())
        })?;
        edges.n_edges = n_edges;
        if n_nodes.is_none() {
            edges.n_nodes = believed_nodes(&edges.path, end, n_edges)?;
        }
        Ok(edges)
    }

    /// Makes one pass; returns the number of edges seen.
    fn pass(&self, f: &mut VisitChunk<'_>) -> Result<u64, EdgeError> {
        let text = self.compression.reader(&self.file);
        let mut text = text.map_err(FileError::at(&self.path, "open"))?;
        let mut parser = EdgeParser::new(self.n_nodes, self.extra_columns);
        let in_file = |error| EdgeError::Text { path: self.path.clone(), error };
        let mut bytes = vec![0; TEXT_BYTES];
        // An edge takes four bytes of text at least: no more come on top than a chunk has.
        let mut chunk = Vec::with_capacity(2 * CHUNK_EDGES);
        let mut n_edges = 0;
        loop {
            let n_read = match text.read(&mut bytes) {
                Ok(0) => break,
                Ok(n_read) => n_read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    let action = format!("read on after line {}", parser.n_lines());
                    return Err(FileError::at(&self.path, action)(error).into());
                }
            };
            parser.feed(&bytes[..n_read], &mut chunk).map_err(in_file)?;
            if chunk.len() >= CHUNK_EDGES {
                n_edges += chunk.len() as u64;
                f(&chunk)?;
                chunk.clear();
            }
        }
        parser.finish(&mut chunk).map_err(in_file)?;
        n_edges += chunk.len() as u64;
        if !chunk.is_empty() {
            f(&chunk)?;
        }
        Ok(n_edges)
    }
}

impl EdgeStream for TextEdges {
    fn n_edges(&self) -> u64 {
        self.n_edges
    }

    fn n_nodes(&self) -> u32 {
        self.n_nodes
    }

    fn for_each_chunk(&self, f: &mut VisitChunk<'_>) -> Result<(), EdgeError> {
        let (path, expected) = (&self.path, self.n_edges);
        match self.pass(f)? {
            found if found == expected => Ok(()),
            found => Err(EdgeError::Changed { path: path.clone(), expected, found }),
        }
    }
}

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    /// Members of gzip, one after another.
    Gzip,
    /// Frames of zstd, one after another, with windows of 128 MiB at most.
    Zstd,
}

impl Compression {
    /// Returns the compression that the end of the name says.
    pub(in crate::edges) fn of(path: &Path) -> Self {
        match path.extension().map(|end| end.to_string_lossy().to_lowercase()).as_deref() {
            Some("gz") => Self::Gzip,
            Some("zst") => Self::Zstd,
            _ => Self::None,
        }
    }

    /// Returns the compression that the first bytes of `file` say, which no text begins with; `None`
    /// where there are too few.
    fn of_content(file: &File) -> io::Result<Option<Self>> {
        let mut start = Vec::new();
        FromStart { file, offset: 0 }.take(4).read_to_end(&mut start)?;
        Ok(match start[..] {
            [0x1f, 0x8b, _, _] => Some(Self::Gzip),
            // A frame, or one that decompressors skip.
            [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => Some(Self::Zstd),
            [_, _, _, _] => Some(Self::None),
            _ => None,
        })
    }

    /// Returns the plain bytes of `file` from its start; readers of one file do not disturb each
    /// other.
    fn reader<'a>(self, file: &'a File) -> io::Result<Box<dyn Read + 'a>> {
        let file = FromStart { file, offset: 0 };
        let buffered = |file| BufReader::with_capacity(COMPRESSED_BYTES, file);
        Ok(match self {
            Self::None => Box::new(file),
            Self::Gzip => Box::new(Gunzip::new(buffered(file))),
            Self::Zstd => Box::new(zstd::Decoder::with_buffer(buffered(file))?),
        })
    }
}

/// A file from its start, whatever else reads it.
struct FromStart<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let n_read = self.file.read_at(bytes, self.offset)?;
        self.offset += n_read as u64;
        Ok(n_read)
    }
}

#[cfg(test)]
mod tests;
