//! What the tests of several crates share: real processes, small graphs whose rows are known, mounts,
//! the wire by hand. It knows every crate's public interface and no test. Every wait has a deadline.

#![allow(missing_docs, reason = "only tests use it")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(clippy::should_implement_trait, reason = "numbers that look random have no end")]

pub mod authority;
pub mod child;
pub mod edges;
pub mod features;
pub mod fork;
pub mod graph;
pub mod http;
pub mod memory_limit;
pub mod mount;
pub mod process;
pub mod sample;
pub mod wire;
pub mod workload;

use std::path::Path;

use lodestore_graph::npy::{NpyType, NpyWriter};

/// Numbers that look random and are the same in every run.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    pub fn below(&mut self, bound: u32) -> u32 {
        (self.next() % u64::from(bound)) as u32
    }
}

/// Writes an array of plain numbers.
pub fn write_npy<T: bytemuck::NoUninit>(path: &Path, dtype: NpyType, shape: &[u64], data: &[T]) {
    NpyWriter::write(path, dtype, shape, bytemuck::cast_slice(data)).unwrap();
}

/// Returns the names in a folder, sorted.
pub fn names_in(dir: &Path) -> Vec<String> {
    let names = dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Writes a file with its mode.
pub fn write_file(path: &Path, text: &str, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}
