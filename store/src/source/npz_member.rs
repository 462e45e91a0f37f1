//! Arrays inside `.npz` archives, mapped whether they are stored or deflated.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodestore_graph::npy::{NpyHeader, NpyType};
use zip::{CompressionMethod, ZipArchive};

use super::SourceError;
use crate::map::FileMap;

/// Deflate gains at most about 1032:1; an archive that claims more would fill the disk.
const MAX_DEFLATE_RATIO: u64 = 1100;

/// An open archive of `.npy` members.
#[derive(Debug)]
pub struct Npz {
    path: PathBuf,
    map: Arc<FileMap>,
    archive: ZipArchive<File>,
}

/// One array of an archive: its header has been checked against its length.
#[derive(Debug)]
pub struct NpzMember {
    map: Arc<FileMap>,
    header: NpyHeader,
    /// First byte of the data in the map.
    start: usize,
}

impl NpzMember {
    /// Returns the type of one element.
    #[must_use]
    pub fn dtype(&self) -> NpyType {
        self.header.dtype
    }

    /// Returns the length of each dimension, slowest first.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.header.shape
    }

    /// Returns the elements, exactly as many bytes as the shape asks for; of any alignment.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.map[self.start..self.start + self.header.data_bytes as usize]
    }
}

impl Npz {
    /// Opens an archive; its members are looked at when they are asked for.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let file = File::open(path).map_err(SourceError::io(path, "open"))?;
        let map = FileMap::of(&file).map_err(SourceError::io(path, "map"))?;
        let archive = ZipArchive::new(file).map_err(|error| {
            SourceError::content(path, format!("not a readable .npz archive: {error}"))
        })?;
        Ok(Self { path: path.to_owned(), map: Arc::new(map), archive })
    }

    /// Returns the names of the arrays, without `.npy`, sorted.
    #[must_use]
    pub fn arrays(&self) -> Vec<String> {
        let names = self.archive.file_names().flatten();
        let arrays = names.filter_map(|name| name.strip_suffix(".npy").map(str::to_owned));
        let mut names: Vec<String> = arrays.collect();
        names.sort();
        names
    }

    /// Returns the raw bytes of a small member, if the archive has it.
    pub(super) fn small(&mut self, member: &str, max_bytes: u64) -> Option<Vec<u8>> {
        let file = self.archive.by_name(member).ok()?;
        let mut bytes = Vec::new();
        file.take(max_bytes).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Maps the array called `member`, after checking its zip checksum.
    pub fn array(&mut self, member: &str) -> Result<NpzMember, SourceError> {
        let (map, start, length) = self.locate(member)?;
        let header = NpyHeader::parse(&map[start..start + length])
            .and_then(|header| header.check_length(length as u64).map(|()| header))
            .map_err(|fault| broken(&self.path, member, &fault))?;
        Ok(NpzMember { map, start: start + header.data_offset, header })
    }

    /// Returns the map that holds a member's bytes, and where in it.
    fn locate(&mut self, member: &str) -> Result<(Arc<FileMap>, usize, usize), SourceError> {
        let broken = |reason: String| broken(&self.path, member, &reason);
        let names: Vec<String> = self.archive.file_names().flatten().map(Into::into).collect();
        if !names.iter().any(|name| name == member) {
            let found = names.iter().take(10).map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(broken(format!("missing; the archive has {found}")));
        }
        let mut entry = self.archive.by_name(member).map_err(|e| broken(e.to_string()))?;
        if entry.compression() != CompressionMethod::Stored {
            let map = inflate(&mut entry).map_err(|error| {
                let scratch = std::env::temp_dir();
                broken(format!("cannot unpack it to {} (TMPDIR): {error}", scratch.display()))
            })?;
            let length = map.len();
            return Ok((Arc::new(map), 0, length));
        }
        let start = entry.data_start().unwrap_or(u64::MAX);
        let end = start.checked_add(entry.size()).filter(|&end| end <= self.map.len() as u64);
        let Some(end) = end else {
            return Err(broken("it reaches past the end of the file".to_owned()));
        };
        let bytes = &self.map[start as usize..end as usize];
        if crc32fast::hash(bytes) != entry.crc32() {
            return Err(broken("its checksum is wrong; the archive is damaged".to_owned()));
        }
        Ok((self.map.clone(), start as usize, bytes.len()))
    }
}

fn broken(archive: &Path, member: &str, reason: &dyn Display) -> SourceError {
    SourceError::content(archive, format!("member {member}: {reason}"))
}

/// Unpacks a member into a nameless temporary file and maps that: memory stays bounded, and the
/// archive's reader checks the zip checksum at the end.
fn inflate(entry: &mut zip::read::ZipFile<'_, File>) -> io::Result<FileMap> {
    let claimed = entry.size();
    if claimed / MAX_DEFLATE_RATIO > entry.compressed_size() {
        let packed = entry.compressed_size();
        return Err(io::Error::other(format!("claims {claimed} bytes out of {packed}")));
    }
    let mut file = tempfile::tempfile()?;
    let unpacked = io::copy(&mut entry.take(claimed.saturating_add(1)), &mut file)?;
    if unpacked != claimed {
        return Err(io::Error::other(format!("claims {claimed} bytes, holds {unpacked}")));
    }
    FileMap::of(&file)
}
