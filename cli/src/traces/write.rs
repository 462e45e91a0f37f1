//! Traces as files that every command here reads.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use lodestore_graph::npy::{NpyType, NpyWriter};

/// Writes `PREFIX.ids.npy` and `PREFIX.offsets.npy`, replaced if they exist; returns their names.
/// `offsets` are where each batch starts, then where the last one ends.
pub fn write_trace(prefix: &Path, ids: &[u32], offsets: &[u64]) -> Result<[PathBuf; 2]> {
    let name = |ending: &str| {
        let mut name = prefix.as_os_str().to_owned();
        name.push(OsStr::new(ending));
        PathBuf::from(name)
    };
    let paths = [name(".ids.npy"), name(".offsets.npy")];
    let (n_ids, n_offsets) = (ids.len() as u64, offsets.len() as u64);
    NpyWriter::write(&paths[0], NpyType::U32, &[n_ids], bytemuck::cast_slice(ids))?;
    NpyWriter::write(&paths[1], NpyType::U64, &[n_offsets], bytemuck::cast_slice(offsets))?;
    Ok(paths)
}
