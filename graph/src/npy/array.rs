//! An array in a `.npy` file, mapped into memory.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::header::MAX_HEADER_BYTES;
use super::{NpyError, NpyFault, NpyHeader, NpyType};
use crate::file_error::FileError;
use crate::map::map_file;

/// A `.npy` file whose header and length have been checked; its data are paged in when touched.
#[derive(Debug)]
pub struct NpyArray {
    path: PathBuf,
    header: NpyHeader,
    map: Mmap,
}

impl NpyArray {
    /// Maps the array in `path`.
    ///
    /// Fails when the file is no plain C-order little-endian array, or is longer or shorter than
    /// its header says. The file must not shrink while it is mapped.
    pub fn open(path: &Path) -> Result<Self, NpyError> {
        let (file, header) = open_checked(path)?;
        let map = map_file(&file).map_err(FileError::at(path, "map"))?;
        let expected_bytes = header.data_offset as u64 + header.data_bytes;
        let found_bytes = map.len() as u64;
        if found_bytes != expected_bytes {
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
        &self.map[self.header.data_offset..]
    }

    /// Returns the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Opens a file and checks its header against its length.
pub(crate) fn open_checked(path: &Path) -> Result<(File, NpyHeader), NpyError> {
    let file = File::open(path).map_err(FileError::at(path, "open"))?;
    let metadata = file.metadata().map_err(FileError::at(path, "stat"))?;
    let mut head = Vec::new();
    let read = (&file).take(MAX_HEADER_BYTES as u64 + 12).read_to_end(&mut head);
    read.map_err(FileError::at(path, "read"))?;
    let header = NpyHeader::parse(&head).map_err(|f| NpyError::fault(path, f))?;
    header.check_length(metadata.len()).map_err(|fault| NpyError::fault(path, fault))?;
    Ok((file, header))
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
