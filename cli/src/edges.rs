//! Which file holds the edges, as a user names it.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use lodestore_graph::edges::{EdgeFile, EdgeFormat, ExtraColumns};

/// A file of edges.
#[derive(Args)]
pub(crate) struct EdgeArgs {
    /// Edges, source and destination: .npy of shape (E, 2), u32, i32, u64 or i64; bare
    /// little-endian pairs, .u32 or .u64; or text, .txt .csv .tsv .edges .edgelist .el, plain or
    /// .gz or .zst.
    ///
    /// A line of text holds two ids with blanks or a comma between them; blank lines, and lines
    /// that start with # or %, are skipped; there are no column names.
    #[arg(long, value_name = "FILE")]
    edges: PathBuf,
    /// Format of the edges where the file's name does not tell: npy, u32, u64 or text.
    #[arg(long, value_name = "FORMAT")]
    edge_format: Option<EdgeFormat>,
    /// Read two columns of a text of edges and skip the rest of each line, such as weights.
    #[arg(long)]
    ignore_extra_columns: bool,
}

impl EdgeArgs {
    /// Size of the file as it is.
    pub(crate) fn size_bytes(&self) -> Result<u64> {
        let about = || format!("cannot look at {}", self.edges.display());
        Ok(std::fs::metadata(&self.edges).with_context(about)?.len())
    }

    pub(crate) fn file(self) -> EdgeFile {
        let extra_columns = match self.ignore_extra_columns {
            true => ExtraColumns::Ignore,
            false => ExtraColumns::Refuse,
        };
        EdgeFile { path: self.edges, format: self.edge_format, extra_columns }
    }
}
