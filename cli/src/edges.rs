//! Which files hold the edges, as a user names them.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use lodestore_graph::edges::{EdgeFile, EdgeFiles, EdgeFormat, ExtraColumns};

use crate::usage::UsageError;

/// Files of edges.
#[derive(Args)]
pub(crate) struct EdgeArgs {
    /// Files of edges, source and destination. They are .npy of shape (E, 2), u32, i32, u64 or i64;
    /// bare little-endian pairs, .u32 or .u64; or text. Text is .txt .csv .tsv .edges .edgelist
    /// .el, plain or .gz or .zst.
    ///
    /// A line of text holds two ids with blanks or a comma between them; blank lines, and lines
    /// that start with # or %, are skipped. There are no column names. Repeat for several files,
    /// which are read one after the other as one.
    #[arg(long, value_name = "FILE")]
    edges: Vec<PathBuf>,
    /// Format of the edges where the files' names do not say: npy, u32, u64 or text.
    #[arg(long, value_name = "FORMAT")]
    edge_format: Option<EdgeFormat>,
    /// Read two columns of a text of edges and skip the rest of each line, such as weights.
    #[arg(long)]
    ignore_extra_columns: bool,
}

impl EdgeArgs {
    /// Returns the size of all files as they are.
    pub(crate) fn size_bytes(&self) -> Result<u64> {
        let mut sum = 0u64;
        for path in &self.edges {
            let about = || format!("cannot look at {}", path.display());
            sum = sum.saturating_add(std::fs::metadata(path).with_context(about)?.len());
        }
        Ok(sum)
    }

    /// Returns whether no file is named.
    pub(crate) fn is_empty(&self) -> bool {
        self.edges.is_empty()
    }

    /// Returns the files, at least one; fails where a flag is for text and none of them is.
    pub(crate) fn files(self) -> Result<EdgeFiles> {
        if self.is_empty() {
            return Err(UsageError::new("--edges FILE is missing: the edges of the graph").into());
        }
        let ignores = self.ignore_extra_columns;
        let (format, extra_columns) = match self.ignore_extra_columns {
            true => (self.edge_format, ExtraColumns::Ignore),
            false => (self.edge_format, ExtraColumns::Refuse),
        };
        let file = |path| EdgeFile { path, format, extra_columns };
        let files = EdgeFiles { files: self.edges.into_iter().map(file).collect() };
        if ignores && !files.has_text()? {
            let names = files.names();
            let message = format!("--ignore-extra-columns is for text, and {names} is none");
            return Err(UsageError::new(message).into());
        }
        Ok(files)
    }
}
