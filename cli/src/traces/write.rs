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
    write(&paths[0], NpyType::U32, ids.len(), bytemuck::cast_slice(ids))?;
    write(&paths[1], NpyType::U64, offsets.len(), bytemuck::cast_slice(offsets))?;
    Ok(paths)
}

fn write(path: &Path, dtype: NpyType, len: usize, bytes: &[u8]) -> Result<()> {
    let mut writer = NpyWriter::create(path, dtype, &[len as u64])?;
    writer.write_all(bytes)?;
    Ok(writer.finish()?)
}
