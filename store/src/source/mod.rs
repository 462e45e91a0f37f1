//! Where the rows of an import come from: arrays in files, one row per node in the input's order.

mod dense;
mod error;
mod npz_csr;
mod npz_member;

use std::path::Path;

use lodestore_graph::is_stream;
use lodestore_graph::npy::NpyType;

pub use dense::DenseSource;
pub use error::SourceError;
pub use npz_csr::NpzCsrSource;
pub use npz_member::{Npz, NpzMember};

use crate::convert::{Unfit, narrow};
use crate::dtype::Dtype;
use crate::tensor::TensorSpec;

/// Rows of one tensor by external node id; random access, nothing held in memory.
pub trait TensorSource: Send + Sync {
    /// Returns the element type.
    fn dtype(&self) -> Dtype;

    /// Elements per row.
    fn width(&self) -> u64;

    /// Returns the number of rows.
    fn n_rows(&self) -> u64;

    /// Returns the file, for messages.
    fn path(&self) -> &Path;

    /// Returns whether the file has booleans, which are stored as u8.
    fn is_bool(&self) -> bool {
        false
    }

    /// Copies `rows` to `out`, which has as many rows of `width` elements; every byte is written.
    ///
    /// Fails for a row past the last one.
    fn copy_rows(&self, rows: &[u32], out: &mut [u8]) -> Result<(), SourceError>;
}

/// Opens a source by its file name's ending: `.npy` (dense), `.npz` (CSR, or one dense array) or
/// `.safetensors` (one tensor). `FILE.npz:NAME` and `FILE.safetensors:NAME` name one of several.
pub fn open_source(path: &Path) -> Result<Box<dyn TensorSource>, SourceError> {
    let (path, member) = file_and_member(path);
    if is_stream(path) {
        let reason = "a pipe or a device; rows are read in any order: save them to a file";
        return Err(SourceError::content(path, reason));
    }
    let extension = path.extension().map(|end| end.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        Some("npy") => Ok(Box::new(DenseSource::open_npy(path)?)),
        Some("npz") => open_npz(path, member),
        Some("safetensors") => Ok(Box::new(DenseSource::open_safetensors(path, member)?)),
        _ => Err(SourceError::content(
            path,
            "unknown kind of file; expected .npy, .npz (CSR or dense) or .safetensors; of packed \
             rows without a header name the type and width too",
        )),
    }
}

/// Splits `FILE:NAME` where the file's ending is that of an archive; a path of a file that exists
/// is a path.
fn file_and_member(path: &Path) -> (&Path, Option<&str>) {
    let whole = (path, None);
    if path.exists() {
        return whole;
    }
    let Some(text) = path.to_str() else { return whole };
    // Names may have colons, as those of TensorFlow's variables do.
    for (at, _) in text.match_indices(':') {
        let (file, member) = (&text[..at], &text[at + 1..]);
        let lower = file.to_lowercase();
        let is_archive = lower.ends_with(".npz") || lower.ends_with(".safetensors");
        if is_archive && !member.is_empty() {
            return (Path::new(file), Some(member));
        }
    }
    whole
}

fn open_npz(path: &Path, member: Option<&str>) -> Result<Box<dyn TensorSource>, SourceError> {
    let mut npz = Npz::open(path)?;
    let names = npz.arrays();
    let name = match (member, &names[..]) {
        (Some(member), _) => member,
        (None, names) if names.iter().any(|name| name == "indptr") => {
            return Ok(Box::new(NpzCsrSource::open(path)?));
        }
        (None, [only]) => only,
        (None, names)
            if ["data", "format", "shape"].iter().all(|it| names.contains(&(*it).to_owned())) =>
        {
            let reason = "a sparse matrix that is not in CSR format; convert it with .tocsr()";
            return Err(SourceError::content(path, reason));
        }
        (None, _) => {
            return Err(SourceError::content(path, listed("arrays", "FILE.npz:NAME", &names)));
        }
    };
    let array = npz.array(&format!("{name}.npy"))?;
    Ok(Box::new(DenseSource::from_npz(path, array)?))
}

/// Returns the sentence that lists the first of `names` and says how to name one.
fn listed(kind: &str, form: &str, names: &[String]) -> String {
    let first: Vec<&str> = names.iter().take(10).map(String::as_str).collect();
    let more = if names.len() > first.len() { ", …" } else { "" };
    format!("the file has {} {kind}: {}{more}; name one as {form}", names.len(), first.join(", "))
}

/// Returns the type of a tensor with the elements of an array.
fn tensor_dtype(file: &Path, found: NpyType) -> Result<Dtype, SourceError> {
    Dtype::from_npy(found)
        .ok_or_else(|| SourceError::Dtype { file: file.to_owned(), found: found.to_string() })
}

/// Returns the tensor that `source` makes in a graph of `n_nodes` nodes.
///
/// Fails, before anything is written, when the name or the width is out of bounds or when there is
/// not exactly one row per node.
pub fn check_source(
    name: &str,
    source: &dyn TensorSource,
    n_nodes: u32,
) -> Result<TensorSpec, SourceError> {
    if source.n_rows() != u64::from(n_nodes) {
        let (file, found) = (source.path().to_owned(), source.n_rows());
        return Err(SourceError::RowCount { file, expected: n_nodes, found });
    }
    let file = || source.path().to_owned();
    let width = u32::try_from(source.width()).map_err(|_| {
        let reason = format!("{} columns are more than a row can have", source.width());
        SourceError::Content { file: file(), reason }
    })?;
    TensorSpec::new(name, source.dtype(), width)
        .map_err(|source| SourceError::Spec { file: file(), source })
}

/// A source whose elements are converted as they are copied.
///
/// To a float, elements are rounded to the nearest, and a finite one that would become infinite is
/// an error. To an integer, only integers within its range pass. Errors name row and column.
pub struct ConvertedSource {
    source: Box<dyn TensorSource>,
    to: Dtype,
}

impl ConvertedSource {
    /// Returns the rows of `source` with elements of type `to`.
    #[must_use]
    pub fn new(source: Box<dyn TensorSource>, to: Dtype) -> Self {
        Self { source, to }
    }
}

impl TensorSource for ConvertedSource {
    fn dtype(&self) -> Dtype {
        self.to
    }

    fn width(&self) -> u64 {
        self.source.width()
    }

    fn n_rows(&self) -> u64 {
        self.source.n_rows()
    }

    fn path(&self) -> &Path {
        self.source.path()
    }

    fn is_bool(&self) -> bool {
        self.source.is_bool()
    }

    fn copy_rows(&self, rows: &[u32], out: &mut [u8]) -> Result<(), SourceError> {
        let from = self.source.dtype();
        let mut bytes = vec![0; out.len() / self.to.size_bytes() * from.size_bytes()];
        self.source.copy_rows(rows, &mut bytes)?;
        narrow(from, &bytes, self.to, out).map_err(|Unfit { element, value }| {
            let width = self.width() as usize;
            SourceError::Unfit {
                file: self.path().to_owned(),
                row: rows[element / width],
                column: element % width,
                value,
                dtype: self.to,
            }
        })
    }
}

#[cfg(test)]
mod tests;
