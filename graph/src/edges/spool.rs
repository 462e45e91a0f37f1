//! Edges that are dear to read, kept in a form that is cheap to read.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use super::{EdgeError, EdgeStream, IdWidth, RawEdges};

/// Copies `edges` to a new file at `path` as pairs of u32, 8 bytes an edge, and opens that file.
/// Later passes then need not parse or decompress text.
pub fn spool(edges: &dyn EdgeStream, path: &Path) -> Result<RawEdges, EdgeError> {
    let failed = |source| EdgeError::Spool { path: path.to_owned(), source };
    let mut file = File::create_new(path).map_err(failed)?;
    edges
        .for_each_chunk(&mut |chunk| file.write_all(bytemuck::cast_slice(chunk)).map_err(failed))?;
    RawEdges::open(path, IdWidth::U32, Some(edges.n_nodes()))
}
