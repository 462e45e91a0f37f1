//! Real processes and small graphs for the end-to-end tests. Every wait has a deadline.

#![allow(dead_code, reason = "each test file uses its part of it")]

pub(crate) mod authority;
pub(crate) mod bucket;
pub(crate) mod fork;
pub(crate) mod graph;
pub(crate) mod http;
pub(crate) mod memory_limit;
pub(crate) mod mount;
pub(crate) mod process;
pub(crate) mod wire;
pub(crate) mod workload;

use std::path::Path;

use lodestore_graph::npy::{NpyType, NpyWriter};

/// Numbers that look random and are the same in every run.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        (self.next() % u64::from(bound)) as u32
    }
}

/// Writes an array of plain numbers.
pub(crate) fn write_npy<T: bytemuck::NoUninit>(
    path: &Path,
    dtype: NpyType,
    shape: &[u64],
    data: &[T],
) {
    NpyWriter::write(path, dtype, shape, bytemuck::cast_slice(data)).unwrap();
}

/// Returns the names in a folder, sorted.
pub(crate) fn names_in(dir: &Path) -> Vec<String> {
    let names = dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Writes a file with its mode.
pub(crate) fn write_file(path: &Path, text: &str, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}
