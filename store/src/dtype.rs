//! The element types of a tensor.

use std::str::FromStr;

use bytemuck::Pod;
use half::{bf16, f16};
use lodestore_graph::npy::NpyType;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Element type of a tensor; rows are packed little-endian elements of it. The position of a type
/// here is its code in a segment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// bfloat16: the upper half of an `f32`.
    BF16,
    /// IEEE 754 double precision.
    F64,
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
}

/// A word that names none of the values of a type.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("unknown {kind} `{found}`; expected {expected}")]
pub struct UnknownName {
    /// The word.
    pub found: String,
    /// The type, for people.
    pub kind: &'static str,
    /// Its names.
    pub expected: &'static str,
}

impl UnknownName {
    pub(crate) fn new(found: &str, kind: &'static str, expected: &'static str) -> Self {
        Self { found: found.to_owned(), kind, expected }
    }
}

impl Dtype {
    /// Every element type, in the order of the codes.
    pub const ALL: [Self; 9] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::F64,
        Self::U8,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
    ];

    const NAMES: [&str; 9] = ["f32", "f16", "bf16", "f64", "u8", "i8", "i16", "i32", "i64"];

    /// Returns the bytes of one element.
    #[must_use]
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::F16 | Self::BF16 | Self::I16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// Returns the name that users write, for example `f32`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Returns the number that stands for this type in a segment header.
    #[must_use]
    pub(crate) fn code(self) -> u32 {
        self as u32
    }

    /// Returns the type that `code` stands for.
    #[must_use]
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        Self::ALL.get(code as usize).copied()
    }

    /// Returns the type that holds elements of an `.npy` file unchanged; booleans become 0 and 1 in
    /// `u8`.
    ///
    /// `None` for unsigned integers wider than a byte, which tensors do not have.
    #[must_use]
    pub fn from_npy(npy: NpyType) -> Option<Self> {
        match npy {
            NpyType::F16 => Some(Self::F16),
            NpyType::F32 => Some(Self::F32),
            NpyType::F64 => Some(Self::F64),
            NpyType::U8 | NpyType::Bool => Some(Self::U8),
            NpyType::I8 => Some(Self::I8),
            NpyType::I16 => Some(Self::I16),
            NpyType::I32 => Some(Self::I32),
            NpyType::I64 => Some(Self::I64),
            NpyType::U16 | NpyType::U32 | NpyType::U64 => None,
        }
    }
}

/// A type of Rust whose values are the elements of tensors of one [`Dtype`].
pub trait Element: Pod {
    /// The type of the tensors.
    const DTYPE: Dtype;
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
}

impl Element for f16 {
    const DTYPE: Dtype = Dtype::F16;
}

impl Element for bf16 {
    const DTYPE: Dtype = Dtype::BF16;
}

impl Element for f64 {
    const DTYPE: Dtype = Dtype::F64;
}

impl Element for u8 {
    const DTYPE: Dtype = Dtype::U8;
}

impl Element for i8 {
    const DTYPE: Dtype = Dtype::I8;
}

impl Element for i16 {
    const DTYPE: Dtype = Dtype::I16;
}

impl Element for i32 {
    const DTYPE: Dtype = Dtype::I32;
}

impl Element for i64 {
    const DTYPE: Dtype = Dtype::I64;
}

impl FromStr for Dtype {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let known = Self::ALL.into_iter().find(|dtype| dtype.name() == name);
        let expected = "one of f32 f16 bf16 f64 u8 i8 i16 i32 i64";
        known.ok_or_else(|| UnknownName::new(name, "dtype", expected))
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_lead_back() {
        for dtype in Dtype::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
            assert_eq!(Dtype::from_code(dtype.code()), Some(dtype));
        }
        assert_eq!(Dtype::from_code(9), None);
        let unknown = "f31".parse::<Dtype>().unwrap_err();
        assert_eq!((unknown.kind, &*unknown.found), ("dtype", "f31"));
    }
}
