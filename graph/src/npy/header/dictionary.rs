//! The Python dictionary of a header, of which only the three keys that NumPy writes are read.

use super::NpyFault;
use crate::npy::NpyType;

/// NumPy's limit on dimensions since its version 2.
const MAX_DIMENSIONS: usize = 64;

/// A position in the header's dictionary.
pub(super) struct Cursor<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Cursor<'a> {
    /// Reads `{'descr': …, 'fortran_order': …, 'shape': …}` up to the end of the bytes.
    pub(super) fn dictionary(&mut self) -> Result<(NpyType, Vec<u64>), NpyFault> {
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
