//! Text files, plain or compressed, as plain bytes.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

/// Compressed bytes that are read at a time.
const COMPRESSED_BYTES: usize = 1 << 17;

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    /// Members of gzip, one after another.
    Gzip,
    /// Frames of zstd, one after another, with windows of 128 MiB at most.
    Zstd,
}

impl Compression {
    /// Returns the compression that the end of the name says.
    pub(crate) fn of(path: &Path) -> Self {
        match path.extension().and_then(std::ffi::OsStr::to_str) {
            Some("gz") => Self::Gzip,
            Some("zst") => Self::Zstd,
            _ => Self::None,
        }
    }

    /// Returns the plain bytes of `file` from its start; readers of one file do not disturb each
    /// other.
    pub(super) fn reader<'a>(self, file: &'a File) -> io::Result<Box<dyn Read + 'a>> {
        let file = FromStart { file, offset: 0 };
        let buffered = |file| BufReader::with_capacity(COMPRESSED_BYTES, file);
        Ok(match self {
            Self::None => Box::new(file),
            Self::Gzip => Box::new(MultiGzDecoder::new(buffered(file))),
            Self::Zstd => Box::new(zstd::Decoder::with_buffer(buffered(file))?),
        })
    }
}

/// A file from its start, whatever else reads it.
struct FromStart<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let n_read = self.file.read_at(bytes, self.offset)?;
        self.offset += n_read as u64;
        Ok(n_read)
    }
}
