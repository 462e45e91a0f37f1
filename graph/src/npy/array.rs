//! An array in a `.npy` file, mapped into memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::header::MAX_HEADER_BYTES;
use super::{NpyError, NpyFault, NpyHeader, NpyType};
use crate::map::FileMap;

/// A `.npy` file whose header and length have been checked; its data are paged in when touched.
#[derive(Debug)]
pub struct NpyArray {
    path: PathBuf,
    header: NpyHeader,
    map: FileMap,
}

impl NpyArray {
    /// Maps the array in `path`.
    ///
    /// Fails when the file is no plain C-order little-endian array, or is longer or shorter than
    /// its header says. The file must not shrink while it is mapped.
    pub fn open(path: &Path) -> Result<Self, NpyError> {
        let (file, header) = open_checked(path)?;
        let map = FileMap::of(&file).map_err(|e| NpyError::io(path, "map", e))?;
        let expected_bytes = header.data_offset as u64 + header.data_bytes;
        if map.bytes().len() as u64 != expected_bytes {
            let found_bytes = map.bytes().len() as u64;
            let fault = NpyFault::Truncated { expected_bytes, found_bytes };
            return Err(NpyError::fault(path, fault));
        }
        Ok(Self { path: path.to_owned(), header, map })
    }

    /// Returns the type of one element.
    #[must_use]
    pub fn dtype(&self) -> NpyType {
        self.header.dtype
    }

    /// Returns the length of each dimension, slowest first; empty for a scalar.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.header.shape
    }

    /// Returns the elements: exactly the product of the shape times the element size, in bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.map.bytes()[self.header.data_offset..]
    }

    /// Returns the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Opens a file and checks its header against its length.
pub(crate) fn open_checked(path: &Path) -> Result<(File, NpyHeader), NpyError> {
    let file = File::open(path).map_err(|e| NpyError::io(path, "open", e))?;
    let metadata = file.metadata().map_err(|e| NpyError::io(path, "stat", e))?;
    let mut head = vec![0u8; MAX_HEADER_BYTES + 12];
    let n_read = read_prefix(&file, &mut head).map_err(|e| NpyError::io(path, "read", e))?;
    let header = NpyHeader::parse(&head[..n_read]).map_err(|f| NpyError::fault(path, f))?;
    let found_bytes = metadata.len();
    let offset_bytes = header.data_offset as u64;
    let expected_bytes = offset_bytes
        .checked_add(header.data_bytes)
        .ok_or_else(|| NpyError::fault(path, NpyFault::Overflow { shape: header.shape.clone() }))?;
    if found_bytes < expected_bytes {
        let fault = NpyFault::Truncated { expected_bytes, found_bytes };
        return Err(NpyError::fault(path, fault));
    }
    if found_bytes > expected_bytes {
        let fault = NpyFault::Trailing { extra_bytes: found_bytes - expected_bytes };
        return Err(NpyError::fault(path, fault));
    }
    Ok((file, header))
}

/// Fills `buffer` from the start of the file; the number of bytes read is less at the file's end.
fn read_prefix(file: &File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut n_read = 0;
    while n_read < buffer.len() {
        match file.read_at(&mut buffer[n_read..], n_read as u64) {
            Ok(0) => break,
            Ok(n) => n_read += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n_read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npy::NpyWriter;

    fn written(dir: &tempfile::TempDir) -> PathBuf {
        let path = dir.path().join("a.npy");
        let mut writer = NpyWriter::create(&path, NpyType::U16, &[2, 3]).unwrap();
        writer.write_all(&[1, 0, 2, 0, 3, 0]).unwrap();
        writer.write_all(&[4, 0, 5, 0, 6, 0]).unwrap();
        writer.finish().unwrap();
        path
    }

    #[test]
    fn reads_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let array = NpyArray::open(&written(&dir)).unwrap();
        assert_eq!((array.dtype(), array.shape()), (NpyType::U16, [2u64, 3].as_slice()));
        assert_eq!(bytemuck::cast_slice::<u8, u16>(array.bytes()), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn every_other_length_of_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(&dir);
        let whole = std::fs::read(&path).unwrap();
        for len in 0..whole.len() {
            std::fs::write(&path, &whole[..len]).unwrap();
            let error = NpyArray::open(&path).unwrap_err();
            assert!(
                matches!(error, NpyError::Fault { fault: NpyFault::Truncated { .. }, .. }),
                "{len} bytes: {error}"
            );
        }
        std::fs::write(&path, [whole.as_slice(), &[0]].concat()).unwrap();
        let error = NpyArray::open(&path).unwrap_err().to_string();
        assert!(error.contains("a.npy: 1 bytes follow"), "{error}");
    }

    #[test]
    fn empty_arrays_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty.npy");
        NpyWriter::create(&path, NpyType::U32, &[0, 2]).unwrap().finish().unwrap();
        assert!(NpyArray::open(&path).unwrap().bytes().is_empty());
    }

    #[test]
    fn a_directory_and_a_missing_file_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(NpyArray::open(dir.path()), Err(NpyError::Io { .. })));
        let error = NpyArray::open(&dir.path().join("none.npy")).unwrap_err().to_string();
        assert!(error.contains("none.npy: cannot open"), "{error}");
    }
}
