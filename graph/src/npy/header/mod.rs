//! The header of a `.npy` file: magic, version, length, and a dictionary of three keys.
//!
//! Source: NumPy's `numpy.lib.format`, versions 1.0, 2.0 and 3.0.

mod dictionary;

use thiserror::Error;

use super::NpyType;
use dictionary::Cursor;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// NumPy itself refuses longer headers by default.
pub(super) const MAX_HEADER_BYTES: usize = 10_000;

/// Type and shape of an array, and where its data starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpyHeader {
    /// Type of one element.
    pub dtype: NpyType,
    /// Length of each dimension, slowest first; empty for a scalar.
    pub shape: Vec<u64>,
    /// Bytes from the start of the file to the first element.
    pub data_offset: usize,
    /// Bytes of all elements; the product of shape and element size fits by construction.
    pub data_bytes: u64,
}

/// Faults in the bytes of a `.npy` file.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NpyFault {
    /// The first bytes are those of another format.
    #[error("not a .npy file: it must start with \\x93NUMPY; save it with numpy.save")]
    Magic,
    /// A format version that is not known here.
    #[error(".npy format version {major}.{minor} is not known; 1.0, 2.0 and 3.0 are")]
    Version {
        /// Major version found.
        major: u8,
        /// Minor version found.
        minor: u8,
    },
    /// The header announces more bytes than any plain array needs.
    #[error("the header claims {found_bytes} bytes; at most {MAX_HEADER_BYTES} are accepted")]
    HeaderTooLong {
        /// Bytes claimed.
        found_bytes: u64,
    },
    /// The file ends before its data does.
    #[error("truncated: {expected_bytes} bytes are needed, {found_bytes} are there")]
    Truncated {
        /// Bytes of a whole file, as far as known.
        expected_bytes: u64,
        /// Bytes there are.
        found_bytes: u64,
    },
    /// Bytes are left over after the data.
    #[error("{extra_bytes} bytes follow the data; the file does not hold the array it announces")]
    Trailing {
        /// Bytes after the data.
        extra_bytes: u64,
    },
    /// The header is no dictionary of `descr`, `fortran_order` and `shape`.
    #[error("the header is damaged at byte {offset_bytes}: expected {expected}")]
    Syntax {
        /// Bytes from the start of the file.
        offset_bytes: usize,
        /// The expected text.
        expected: &'static str,
    },
    /// An element type that is not read here.
    #[error("element type {found:?} is not supported; {}", remedy(found))]
    Type {
        /// NumPy's type string.
        found: String,
    },
    /// Column-major data.
    #[error("the array is in Fortran order; save numpy.ascontiguousarray of it")]
    FortranOrder,
    /// The product of the dimensions does not fit 64 bits.
    #[error("shape {shape:?} asks for more bytes than 64 bits can count")]
    Overflow {
        /// Shape found.
        shape: Vec<u64>,
    },
}

/// Returns what to do about an element type that is not read.
fn remedy(found: &str) -> &'static str {
    match found.starts_with('>') {
        true => {
            "its bytes are in big-endian order; save array.astype(array.dtype.newbyteorder(\"<\"))"
        }
        false => "convert the array, e.g. to float32 or int64",
    }
}

impl NpyHeader {
    /// Reads a header from the first bytes of a file, which may be followed by anything.
    ///
    /// Whether the data are all there is for the caller to check: [`NpyHeader::check_length`].
    pub fn parse(bytes: &[u8]) -> Result<Self, NpyFault> {
        let text_start = text_start(bytes)?;
        let data_offset = data_offset(bytes, text_start)?;
        let mut text = Cursor { bytes: &bytes[..data_offset], at: text_start };
        let (dtype, shape) = text.dictionary()?;
        let data_bytes =
            data_bytes(dtype, &shape).ok_or_else(|| NpyFault::Overflow { shape: shape.clone() })?;
        Ok(Self { dtype, shape, data_offset, data_bytes })
    }

    /// Checks that a file of `found_bytes` bytes has header and data, and nothing else.
    pub fn check_length(&self, found_bytes: u64) -> Result<(), NpyFault> {
        let expected_bytes = (self.data_offset as u64)
            .checked_add(self.data_bytes)
            .ok_or_else(|| NpyFault::Overflow { shape: self.shape.clone() })?;
        match found_bytes.checked_sub(expected_bytes) {
            None => Err(NpyFault::Truncated { expected_bytes, found_bytes }),
            Some(0) => Ok(()),
            Some(extra_bytes) => Err(NpyFault::Trailing { extra_bytes }),
        }
    }

    /// Returns the length of the first dimension; 1 for a scalar.
    #[must_use]
    pub fn n_rows(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }
}

/// Returns the bytes of an array, unless they pass 2⁶⁴ − 1.
pub(super) fn data_bytes(dtype: NpyType, shape: &[u64]) -> Option<u64> {
    // An empty array may have other dimensions of any size.
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(dtype.size_bytes() as u64, |bytes, &n| bytes.checked_mul(n))
}

/// Returns the header that `numpy.save` writes: version 1.0, padded so that the data start at 64
/// bytes.
pub(super) fn encode(dtype: NpyType, shape: &[u64]) -> Vec<u8> {
    let dims: String = shape.iter().map(|n| format!("{n}, ")).collect();
    // NumPy writes `(3, 2)` and `(3,)`: the comma stays only on a lone dimension.
    let dims = if shape.len() == 1 { dims.trim_end() } else { dims.trim_end_matches(", ") };
    let descr = dtype.descr();
    let mut text =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}").into_bytes();
    let total = (10 + text.len() + 1).next_multiple_of(64);
    text.resize(total - 11, b' ');
    text.push(b'\n');
    let mut header = Vec::with_capacity(total);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&[1, 0]);
    header.extend_from_slice(&(text.len() as u16).to_le_bytes());
    header.append(&mut text);
    header
}

fn text_start(bytes: &[u8]) -> Result<usize, NpyFault> {
    if bytes.len() < 8 && MAGIC.starts_with(&bytes[..bytes.len().min(6)]) {
        return Err(NpyFault::Truncated { expected_bytes: 10, found_bytes: bytes.len() as u64 });
    }
    match bytes {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, 0, ..] => Ok(10),
        [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, 0, ..] => Ok(12),
        [0x93, b'N', b'U', b'M', b'P', b'Y', major, minor, ..] => {
            Err(NpyFault::Version { major: *major, minor: *minor })
        }
        _ => Err(NpyFault::Magic),
    }
}

fn data_offset(bytes: &[u8], text_start: usize) -> Result<usize, NpyFault> {
    let found_bytes = bytes.len() as u64;
    let text_bytes = match bytes.get(8..text_start) {
        Some(&[a, b]) => u32::from(u16::from_le_bytes([a, b])),
        Some(&[a, b, c, d]) => u32::from_le_bytes([a, b, c, d]),
        _ => return Err(NpyFault::Truncated { expected_bytes: text_start as u64, found_bytes }),
    };
    if text_bytes as usize > MAX_HEADER_BYTES {
        return Err(NpyFault::HeaderTooLong { found_bytes: u64::from(text_bytes) });
    }
    let end = text_start + text_bytes as usize;
    if end > bytes.len() {
        return Err(NpyFault::Truncated { expected_bytes: end as u64, found_bytes });
    }
    Ok(end)
}

#[cfg(test)]
mod tests;
