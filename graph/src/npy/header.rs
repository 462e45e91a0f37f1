//! The header of a `.npy` file: magic, version, length, and a dictionary of three keys.
//!
//! Source: NumPy's `numpy.lib.format`, versions 1.0, 2.0 and 3.0.

use thiserror::Error;

use super::NpyType;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// NumPy itself refuses longer headers unless told otherwise.
pub(super) const MAX_HEADER_BYTES: usize = 10_000;
/// NumPy's limit on dimensions is 64 since version 2.
const MAX_DIMENSIONS: usize = 64;

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

/// What is wrong with the bytes of a `.npy` file.
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
        /// What should stand there.
        expected: &'static str,
    },
    /// An element type that is not read here.
    #[error("element type {found:?} is not supported; convert the array, e.g. to float32 or int64")]
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

impl NpyHeader {
    /// Reads a header from the first bytes of a file, which may be followed by anything.
    ///
    /// Whether the data are all there is for the caller to check, against `data_bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, NpyFault> {
        let text_start = text_start(bytes)?;
        let data_offset = data_offset(bytes, text_start)?;
        let mut text = Cursor { bytes: &bytes[..data_offset], at: text_start };
        let (dtype, shape) = text.dictionary()?;
        let data_bytes = data_bytes(dtype, &shape)
            .ok_or_else(|| NpyFault::Overflow { shape: shape.clone() })?;
        Ok(Self { dtype, shape, data_offset, data_bytes })
    }

    /// Length of the first dimension; 1 for a scalar.
    #[must_use]
    pub fn n_rows(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }
}

/// Bytes of an array, unless they pass 2⁶⁴ − 1.
pub(super) fn data_bytes(dtype: NpyType, shape: &[u64]) -> Option<u64> {
    // An empty array may have other dimensions of any size.
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(dtype.size_bytes() as u64, |bytes, &n| bytes.checked_mul(n))
}

/// The header that `numpy.save` writes: version 1.0, padded so that the data start at 64 bytes.
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

/// A position in the header's dictionary.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn dictionary(&mut self) -> Result<(NpyType, Vec<u64>), NpyFault> {
        let (mut dtype, mut fortran_order, mut shape) = (None, None, None);
        self.expect(b'{', "'{'")?;
        while !self.accept(b'}') {
            let key = self.string("one of the keys 'descr', 'fortran_order', 'shape'")?;
            self.expect(b':', "':'")?;
            match key {
                b"descr" => dtype = Some(self.dtype()?),
                b"fortran_order" => fortran_order = Some(self.boolean()?),
                b"shape" => shape = Some(self.shape()?),
                _ => return Err(self.fault("one of the keys 'descr', 'fortran_order', 'shape'")),
            }
            if !self.accept(b',') {
                self.expect(b'}', "',' or '}'")?;
                break;
            }
        }
        self.skip_spaces();
        if self.at != self.bytes.len() {
            return Err(self.fault("nothing but spaces after '}'"));
        }
        match (dtype, fortran_order, shape) {
            (Some(dtype), Some(false), Some(shape)) => Ok((dtype, shape)),
            // With one dimension or none, both orders are the same bytes.
            (Some(dtype), Some(true), Some(shape)) if shape.len() < 2 => Ok((dtype, shape)),
            (Some(_), Some(true), Some(_)) => Err(NpyFault::FortranOrder),
            _ => Err(self.fault("the keys 'descr', 'fortran_order' and 'shape'")),
        }
    }

    fn dtype(&mut self) -> Result<NpyType, NpyFault> {
        if self.peek() == Some(b'[') {
            return Err(NpyFault::Type { found: "structured".to_owned() });
        }
        let descr = String::from_utf8_lossy(self.string("a type such as '<f4'")?);
        NpyType::from_descr(&descr).ok_or_else(|| NpyFault::Type { found: descr.into_owned() })
    }

    fn boolean(&mut self) -> Result<bool, NpyFault> {
        self.skip_spaces();
        let rest = &self.bytes[self.at..];
        let (value, word) = if rest.starts_with(b"True") { (true, 4) } else { (false, 5) };
        if !value && !rest.starts_with(b"False") {
            return Err(self.fault("True or False"));
        }
        self.at += word;
        Ok(value)
    }

    fn shape(&mut self) -> Result<Vec<u64>, NpyFault> {
        let mut shape = Vec::new();
        self.expect(b'(', "'('")?;
        while !self.accept(b')') {
            if shape.len() == MAX_DIMENSIONS {
                return Err(self.fault("at most 64 dimensions"));
            }
            shape.push(self.integer()?);
            if !self.accept(b',') {
                self.expect(b')', "',' or ')'")?;
                break;
            }
        }
        Ok(shape)
    }

    fn integer(&mut self) -> Result<u64, NpyFault> {
        self.skip_spaces();
        let start = self.at;
        let mut value = 0u64;
        while let Some(digit) = self.bytes.get(self.at).filter(|b| b.is_ascii_digit()) {
            value = value
                .checked_mul(10)
                .and_then(|v| v.checked_add(u64::from(digit - b'0')))
                .ok_or_else(|| self.fault("a dimension that fits 64 bits"))?;
            self.at += 1;
        }
        if self.at == start {
            return Err(self.fault("a dimension"));
        }
        Ok(value)
    }

    fn string(&mut self, expected: &'static str) -> Result<&'a [u8], NpyFault> {
        let quote = self.peek().filter(|b| matches!(b, b'\'' | b'"'));
        let quote = quote.ok_or_else(|| self.fault(expected))?;
        let rest = &self.bytes[self.at + 1..];
        let len = rest.iter().position(|&b| b == quote).ok_or_else(|| self.fault(expected))?;
        self.at += len + 2;
        Ok(&rest[..len])
    }

    fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), NpyFault> {
        if self.accept(byte) { Ok(()) } else { Err(self.fault(expected)) }
    }

    fn accept(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn peek(&mut self) -> Option<u8> {
        self.skip_spaces();
        self.bytes.get(self.at).copied()
    }

    fn skip_spaces(&mut self) {
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }

    fn fault(&self, expected: &'static str) -> NpyFault {
        NpyFault::Syntax { offset_bytes: self.at, expected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header_of(text: &str) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }

    fn parse_text(text: &str) -> Result<NpyHeader, NpyFault> {
        NpyHeader::parse(&header_of(text))
    }

    #[test]
    fn writes_what_numpy_writes() {
        let header = encode(NpyType::U32, &[4552, 2]);
        assert_eq!(header.len(), 128);
        assert!(header[10..].starts_with(
            b"{'descr': '<u4', 'fortran_order': False, 'shape': (4552, 2), }   "
        ));
        assert!(encode(NpyType::I64, &[7])[10..].starts_with(
            b"{'descr': '<i8', 'fortran_order': False, 'shape': (7,), }  "
        ));
        assert_eq!(NpyHeader::parse(&encode(NpyType::U8, &[])).unwrap().shape, Vec::<u64>::new());
    }

    #[test]
    fn reads_other_spellings_of_the_same_dictionary() {
        let header = parse_text("{\"shape\":(3,2),'fortran_order':False,'descr':'<f4'}\n").unwrap();
        assert_eq!((header.dtype, header.shape), (NpyType::F32, vec![3, 2]));
        let column = parse_text("{'descr': '<f8', 'fortran_order': True, 'shape': (3,), }");
        assert_eq!(column.unwrap().shape, [3]);
    }

    #[test]
    fn refuses_what_it_does_not_read() {
        let of = |descr: &str| {
            parse_text(&format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (1, 2)}}"))
        };
        for descr in ["'>f4'", "'<c8'", "'|O'", "'<U3'", "[('a', '<f4')]"] {
            assert!(matches!(of(descr), Err(NpyFault::Type { .. })), "{descr}");
        }
        assert!(of("'<b1'").is_ok());
        let fortran = parse_text("{'descr': '<f4', 'fortran_order': True, 'shape': (1, 2)}");
        assert_eq!(fortran, Err(NpyFault::FortranOrder));
        for shape in ["(4294967296, 4294967296)", "(18446744073709551615, 3)"] {
            let huge =
                parse_text(&format!("{{'descr':'<f4','fortran_order':False,'shape':{shape}}}"));
            assert!(matches!(huge, Err(NpyFault::Overflow { .. })), "{shape}");
        }
        for shape in ["(18446744073709551616,)", "(-1,)", "((1,),)", "3", "(1,", "(,)"] {
            let bad =
                parse_text(&format!("{{'descr':'<f4','fortran_order':False,'shape':{shape}}}"));
            assert!(matches!(bad, Err(NpyFault::Syntax { .. })), "{shape}");
        }
        assert_eq!(NpyHeader::parse(b"\x93NUMPY\x04\x00"), Err(NpyFault::Version {
            major: 4,
            minor: 0
        }));
        let long = [b"\x93NUMPY\x02\x00".as_slice(), &u32::MAX.to_le_bytes()].concat();
        assert!(matches!(NpyHeader::parse(&long), Err(NpyFault::HeaderTooLong { .. })));
    }

    #[test]
    fn deep_nesting_is_an_error_and_no_stack_overflow() {
        let text = format!("{{'descr':'<f4','fortran_order':False,'shape':{}", "(".repeat(9_000));
        assert!(matches!(parse_text(&text), Err(NpyFault::Syntax { .. })));
    }

    #[test]
    fn every_truncation_is_an_error() {
        let header = encode(NpyType::F32, &[5, 3]);
        for len in 0..header.len() {
            assert!(
                matches!(NpyHeader::parse(&header[..len]), Err(NpyFault::Truncated { .. })),
                "{len} bytes"
            );
        }
    }

    #[test]
    fn no_flipped_bit_panics() {
        let header = encode(NpyType::F32, &[5, 3]);
        for bit in 0..header.len() * 8 {
            let mut damaged = header.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let _ = NpyHeader::parse(&damaged);
        }
    }

    proptest! {
        #[test]
        fn reads_back_every_shape(
            shape in prop::collection::vec(0u64..1 << 40, 0..4),
            dtype in prop::sample::select(NpyType::ALL.to_vec()),
        ) {
            let bytes = encode(dtype, &shape);
            match NpyHeader::parse(&bytes) {
                Ok(header) => {
                    prop_assert_eq!(header.dtype, dtype);
                    prop_assert_eq!(header.data_offset, bytes.len());
                    prop_assert_eq!(header.data_offset % 64, 0);
                    let product: u128 = shape.iter().map(|&n| u128::from(n)).product();
                    let data_bytes = product * dtype.size_bytes() as u128;
                    prop_assert_eq!(u128::from(header.data_bytes), data_bytes);
                    prop_assert_eq!(header.shape, shape);
                }
                Err(fault) => prop_assert_eq!(fault, NpyFault::Overflow { shape }),
            }
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = NpyHeader::parse(&bytes);
            let _ = NpyHeader::parse(&header_of(&String::from_utf8_lossy(&bytes)));
        }
    }
}
