//! Files from inputs: zeros spelled short, checksums made right again, and paths in memory.
//!
//! Files of ours are mostly zeros; inputs spell them short, so that mutations hit what matters. A
//! zero byte is followed by a count `n`: below 128 it is `n + 1` zeros, else `64 * (n - 127)`. All
//! other bytes are themselves. Mutated files are not refused for their checksums alone.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, memfd_create};

/// Bytes of a page of any file of ours.
pub const PAGE: usize = 4096;

/// Longer files than this are not made.
const MAX_BYTES: usize = 256 << 10;

/// A nameless file with a path of this process.
pub struct Scratch {
    file: File,
    path: PathBuf,
    /// Target of a link with another name.
    _dir: Option<tempfile::TempDir>,
}

impl Scratch {
    /// Returns an empty file.
    pub fn new() -> Self {
        let file = File::from(memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a memory file"));
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Self { file, path, _dir: None }
    }

    /// Returns an empty file whose path ends with `name`.
    pub fn named(name: &str) -> Self {
        let (scratch, dir) = (Self::new(), tempfile::tempdir().expect("a folder"));
        let path = dir.path().join(name);
        std::os::unix::fs::symlink(&scratch.path, &path).expect("a link");
        Self { path, _dir: Some(dir), ..scratch }
    }

    /// Returns the path, at which the file now holds nothing but `bytes`.
    pub fn with(&mut self, bytes: &[u8]) -> &std::path::Path {
        let written = self.file.rewind().and_then(|()| self.file.write_all(bytes));
        let cut = written.and_then(|()| self.file.set_len(bytes.len() as u64));
        cut.expect("room in memory");
        &self.path
    }
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

pub fn put_u32(bytes: &mut [u8], at: usize, word: u32) {
    if let Some(bytes) = bytes.get_mut(at..at + 4) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

/// Seals a page that ends with the CRC-32 of its other bytes.
pub fn seal_page(page: &mut [u8]) {
    if page.len() == PAGE {
        let crc = crc32fast::hash(&page[..PAGE - 4]);
        put_u32(page, PAGE - 4, crc);
    }
}

/// Returns the CRC-32 of some bytes, started from another.
pub fn crc_from(start: u32, parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(start);
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

/// Returns the file that an input spells.
pub fn expand(input: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), input.iter());
    while let Some(&byte) = rest.next() {
        if bytes.len() >= MAX_BYTES {
            break;
        }
        match (byte, rest.as_slice().first()) {
            (0, Some(&n)) => {
                rest.next();
                bytes.resize(bytes.len() + n_zeros(n), 0);
            }
            _ => bytes.push(byte),
        }
    }
    bytes
}

/// Returns the input that spells a file.
pub fn squeeze(bytes: &[u8]) -> Vec<u8> {
    let (mut input, mut rest) = (Vec::new(), bytes);
    while let Some(&byte) = rest.first() {
        if byte != 0 {
            input.push(byte);
            rest = &rest[1..];
            continue;
        }
        let found = rest.iter().take_while(|&&byte| byte == 0).count();
        let n = (0..=255u8).filter(|&n| n_zeros(n) <= found).max_by_key(|&n| n_zeros(n));
        let n = n.expect("one zero is there");
        input.extend([0, n]);
        rest = &rest[n_zeros(n)..];
    }
    assert_eq!(expand(&input), bytes);
    input
}

fn n_zeros(n: u8) -> usize {
    if n < 128 { usize::from(n) + 1 } else { 64 * (usize::from(n) - 127) }
}
