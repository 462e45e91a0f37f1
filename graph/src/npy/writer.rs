//! Streaming a `.npy` file whose shape is known beforehand.

use std::io::{BufWriter, IntoInnerError, Write};
use std::path::{Path, PathBuf};

use super::{NpyError, NpyFault, NpyType, header};
use crate::file_error::FileError;
use crate::output_file::OutputFile;

const BUFFER_BYTES: usize = 1 << 20;

/// Writes the data of one array front to back, in constant memory.
#[derive(Debug)]
pub struct NpyWriter {
    path: PathBuf,
    file: BufWriter<OutputFile>,
    expected_bytes: u64,
    written_bytes: u64,
}

impl NpyWriter {
    /// Begins the file of `path`, as [`OutputFile`] does, and writes the header; `shape` is slowest
    /// dimension first.
    pub fn create(path: &Path, dtype: NpyType, shape: &[u64]) -> Result<Self, NpyError> {
        let expected_bytes = header::data_bytes(dtype, shape)
            .ok_or_else(|| NpyError::fault(path, NpyFault::Overflow { shape: shape.to_owned() }))?;
        let file = OutputFile::create(path).map_err(FileError::at(path, "create"))?;
        let mut file = BufWriter::with_capacity(BUFFER_BYTES, file);
        let header = header::encode(dtype, shape);
        file.write_all(&header).map_err(FileError::at(path, "write"))?;
        Ok(Self { path: path.to_owned(), file, expected_bytes, written_bytes: 0 })
    }

    /// Creates or replaces `path` with a whole array, whose elements are little-endian.
    pub fn write(path: &Path, dtype: NpyType, shape: &[u64], bytes: &[u8]) -> Result<(), NpyError> {
        let mut writer = Self::create(path, dtype, shape)?;
        writer.write_all(bytes)?;
        writer.finish()
    }

    /// Appends elements, little-endian. More bytes than the shape holds are refused unwritten.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<(), NpyError> {
        let written_bytes = self.written_bytes + bytes.len() as u64;
        if written_bytes > self.expected_bytes {
            return Err(self.wrong_bytes(written_bytes));
        }
        self.file.write_all(bytes).map_err(FileError::at(&self.path, "write"))?;
        self.written_bytes = written_bytes;
        Ok(())
    }

    /// Checks that exactly the promised bytes came, and gives the file its name.
    pub fn finish(self) -> Result<(), NpyError> {
        if self.written_bytes != self.expected_bytes {
            return Err(self.wrong_bytes(self.written_bytes));
        }
        let written = self.file.into_inner().map_err(IntoInnerError::into_error);
        let committed = written.and_then(OutputFile::commit);
        Ok(committed.map_err(FileError::at(&self.path, "write"))?)
    }

    fn wrong_bytes(&self, found_bytes: u64) -> NpyError {
        let (path, expected_bytes) = (self.path.clone(), self.expected_bytes);
        NpyError::WrittenBytes { path, expected_bytes, found_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_numbers_of_bytes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npy");
        let mut writer = NpyWriter::create(&path, NpyType::U32, &[2]).unwrap();
        writer.write_all(&[0; 5]).unwrap();
        let (expected_bytes, found_bytes) = (8, 9);
        let error = writer.write_all(&[0; 4]).unwrap_err();
        assert!(matches!(error, NpyError::WrittenBytes { expected_bytes: e, found_bytes: f, .. }
                if (e, f) == (expected_bytes, found_bytes)));
        let error = writer.finish().unwrap_err();
        assert!(matches!(error, NpyError::WrittenBytes { found_bytes: 5, .. }));
        assert!(NpyWriter::create(&path, NpyType::F64, &[u64::MAX]).is_err());
    }
}
