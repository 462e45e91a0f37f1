//! Which format a file of edges has, and opening it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

use super::text::Compression;
use super::{ArrayEdges, EdgeError, EdgeStream, ExtraColumns, IdWidth, ReadAhead, TextEdges};
use crate::output_file::is_stream;

/// How edges are written in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeFormat {
    /// NumPy's `.npy`, shape (E, 2), integers of 32 or 64 bits.
    Npy,
    /// Bare little-endian pairs of u32.
    U32,
    /// Bare little-endian pairs of u64.
    U64,
    /// Lines of text with two numbers each; plain, or compressed by gzip or zstd.
    Text,
}

/// A name of no format.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("edge format {found:?} is not known; npy, u32, u64 and text are")]
pub struct EdgeFormatError {
    /// The name given.
    pub found: String,
}

/// A file of edges, and how to read it.
#[derive(Clone, Debug)]
pub struct EdgeFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its format, if the name does not tell.
    pub format: Option<EdgeFormat>,
    /// Meaning of a third column of text.
    pub extra_columns: ExtraColumns,
}

impl EdgeFile {
    /// Returns a file whose suffix is its format.
    #[must_use]
    pub fn at(path: PathBuf) -> Self {
        Self { path, format: None, extra_columns: ExtraColumns::Refuse }
    }

    /// Returns the format given, else that of the name.
    ///
    /// Text has the extension `.txt`, `.csv`, `.tsv`, `.edges`, `.edgelist` or `.el`; arrays have
    /// `.npy`, `.u32` or `.u64`. A file with `.gz` or `.zst` is compressed text, unless the
    /// extension before it is that of an array.
    pub fn format(&self) -> Result<EdgeFormat, EdgeError> {
        if let Some(format) = self.format {
            return Ok(format);
        }
        let named = match Compression::of(&self.path) {
            Compression::None => of_extension(&self.path),
            // What is compressed is text, unless the name within says that it is not.
            _ => of_extension(Path::new(self.path.file_stem().unwrap_or_default()))
                .or(Some(EdgeFormat::Text)),
        };
        named.ok_or_else(|| EdgeError::UnknownFormat { path: self.path.clone() })
    }

    /// Opens the file and reads it once to check every id. Ids are below `n_nodes`, or without it
    /// in proportion to the number of edges (see [`ArrayEdges::open_npy`]). Passes read ahead.
    pub fn open(&self, n_nodes: Option<u32>) -> Result<Box<dyn EdgeStream>, EdgeError> {
        let path = &self.path;
        if is_stream(path) {
            return Err(EdgeError::Stream { path: path.clone() });
        }
        let format = self.format()?;
        let compression = Compression::of(path);
        if format != EdgeFormat::Text && compression != Compression::None {
            return Err(EdgeError::Compressed { path: path.clone() });
        }
        let edges = match format {
            EdgeFormat::Npy => ArrayEdges::open_npy(path, n_nodes)?,
            EdgeFormat::U32 => ArrayEdges::open_raw(path, IdWidth::U32, n_nodes)?,
            EdgeFormat::U64 => ArrayEdges::open_raw(path, IdWidth::U64, n_nodes)?,
            EdgeFormat::Text => {
                let edges = TextEdges::open(path, self.extra_columns, n_nodes)?;
                return Ok(Box::new(ReadAhead::new(edges)));
            }
        };
        // Without a number of nodes, the search for the largest id was such a pass.
        if n_nodes.is_some() {
            edges.for_each_chunk(&mut |_| Ok(()))?;
        }
        Ok(Box::new(ReadAhead::new(edges)))
    }
}

fn of_extension(path: &Path) -> Option<EdgeFormat> {
    match path.extension()?.to_str()?.to_lowercase().as_str() {
        "npy" => Some(EdgeFormat::Npy),
        "u32" => Some(EdgeFormat::U32),
        "u64" => Some(EdgeFormat::U64),
        "txt" | "csv" | "tsv" | "edges" | "edgelist" | "el" => Some(EdgeFormat::Text),
        _ => None,
    }
}

impl fmt::Display for EdgeFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Npy => "npy",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::Text => "text",
        })
    }
}

impl FromStr for EdgeFormat {
    type Err = EdgeFormatError;

    fn from_str(name: &str) -> Result<Self, EdgeFormatError> {
        let all = [Self::Npy, Self::U32, Self::U64, Self::Text];
        let found = all.into_iter().find(|format| format.to_string() == name);
        found.ok_or_else(|| EdgeFormatError { found: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(name: &str) -> Option<EdgeFormat> {
        EdgeFile::at(name.into()).format().ok()
    }

    #[test]
    fn names_tell_the_format() {
        for name in ["a.txt", "a.csv", "b.tsv.gz", "a.edges", "a.el.zst", "soc.gz", ".x.zst"] {
            assert_eq!(format(name), Some(EdgeFormat::Text), "{name}");
        }
        assert_eq!(format("d.csv/a.npy"), Some(EdgeFormat::Npy));
        assert_eq!(format("a.u32"), Some(EdgeFormat::U32));
        assert_eq!(format("E.TXT"), Some(EdgeFormat::Text));
        assert_eq!(format("A.NPY"), Some(EdgeFormat::Npy));
        assert_eq!(format("E.CSV.GZ"), Some(EdgeFormat::Text));
        assert_eq!(format("a.u64.gz"), Some(EdgeFormat::U64));
        for name in ["a.bin", "edges", "a.npz", "", "gz", ".npy"] {
            assert_eq!(format(name), None, "{name}");
        }
    }

    #[test]
    fn what_is_given_goes_before_the_name() {
        let format = Some(EdgeFormat::U64);
        let file = EdgeFile { format, ..EdgeFile::at("a.npy".into()) };
        assert_eq!(file.format().unwrap(), EdgeFormat::U64);
    }

    #[test]
    fn formats_are_read_back_by_name() {
        for name in ["npy", "u32", "u64", "text"] {
            assert_eq!(name.parse::<EdgeFormat>().unwrap().to_string(), name);
        }
        let error = "csv".parse::<EdgeFormat>().unwrap_err().to_string();
        assert!(error.contains("npy, u32, u64 and text"), "{error}");
    }

    #[test]
    fn only_text_may_be_compressed() {
        for name in ["a.u32.gz", "a.npy.zst"] {
            let opened = EdgeFile::at(name.into()).open(None);
            assert!(matches!(opened, Err(EdgeError::Compressed { .. })), "{name}");
        }
    }
}
