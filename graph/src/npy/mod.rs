//! NumPy's `.npy` files: plain C-order little-endian arrays, mapped for reading and streamed for
//! writing.
//!
//! The header is not read by a parser of Python literals, because a header is hostile input. Three
//! keys of known form leave no room for deep nesting or for a size that overflows.

mod array;
mod header;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::file_error::FileError;

pub use array::NpyArray;
pub(crate) use array::open_checked;
pub use header::{NpyFault, NpyHeader};
pub use writer::NpyWriter;

/// The element types that are read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NpyType {
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// One byte, 0 or 1.
    Bool,
}

impl NpyType {
    const ALL: [Self; 12] = [
        Self::F16,
        Self::F32,
        Self::F64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::Bool,
    ];

    /// Returns the bytes of one element.
    #[must_use]
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::F16 | Self::U16 | Self::I16 => 2,
            Self::F32 | Self::U32 | Self::I32 => 4,
            Self::F64 | Self::U64 | Self::I64 => 8,
        }
    }

    /// NumPy's type string, such as `<f4`.
    #[must_use]
    pub const fn descr(self) -> &'static str {
        match self {
            Self::F16 => "<f2",
            Self::F32 => "<f4",
            Self::F64 => "<f8",
            Self::U8 => "|u1",
            Self::U16 => "<u2",
            Self::U32 => "<u4",
            Self::U64 => "<u8",
            Self::I8 => "|i1",
            Self::I16 => "<i2",
            Self::I32 => "<i4",
            Self::I64 => "<i8",
            Self::Bool => "|b1",
        }
    }

    /// Returns the type of a type string; one-byte types may carry any byte order.
    fn from_descr(descr: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|t| {
            descr == t.descr()
                || (t.size_bytes() == 1
                    && descr.strip_prefix(['<', '>', '=']) == t.descr().strip_prefix('|'))
        })
    }
}

impl fmt::Display for NpyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.descr())
    }
}

/// Why a `.npy` file could not be read or written.
#[derive(Debug, Error)]
pub enum NpyError {
    /// The file cannot be opened, mapped or written.
    #[error(transparent)]
    Io(#[from] FileError),
    /// The file opens, and is no array that is read here.
    #[error("{}: {fault}", path.display())]
    Fault {
        /// The file.
        path: PathBuf,
        /// The fault of it.
        fault: NpyFault,
    },
    /// More or fewer bytes were written than the header promises.
    #[error(
        "{}: the header promises {expected_bytes} bytes of data, {found_bytes} were written",
        path.display()
    )]
    WrittenBytes {
        /// The file.
        path: PathBuf,
        /// Bytes that type and shape ask for.
        expected_bytes: u64,
        /// Bytes given to `write_all`, the refused ones included.
        found_bytes: u64,
    },
}

impl NpyError {
    pub(crate) fn fault(path: &Path, fault: NpyFault) -> Self {
        Self::Fault { path: path.to_owned(), fault }
    }
}
