//! Finding NaN in rows of bytes, without looking at one element at a time where there is none.

use crate::dtype::Dtype;

/// Treatment of NaN in rows that come from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NanPolicy {
    /// A NaN is an error that names row and column.
    #[default]
    Refuse,
    /// Rows are stored byte for byte, whatever they hold.
    Keep,
}

/// Returns the position of the first NaN among packed little-endian elements; integers have none.
#[must_use]
pub fn first_nan(dtype: Dtype, bytes: &[u8]) -> Option<usize> {
    // The largest magnitude bits that are not NaN are those of infinity.
    match dtype {
        Dtype::F32 => position::<4>(bytes, |e| u32::from_le_bytes(e) << 1 > 0xff00_0000),
        Dtype::F64 => position::<8>(bytes, |e| u64::from_le_bytes(e) << 1 > 0xffe0 << 48),
        Dtype::F16 => position::<2>(bytes, |e| u16::from_le_bytes(e) << 1 > 0xf800),
        Dtype::BF16 => position::<2>(bytes, |e| u16::from_le_bytes(e) << 1 > 0xff00),
        Dtype::U8 | Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => None,
    }
}

/// Looks for any first, which the compiler can do many elements at a time.
fn position<const N: usize>(bytes: &[u8], is_nan: impl Fn([u8; N]) -> bool) -> Option<usize> {
    let (elements, _) = bytes.as_chunks::<N>();
    if !elements.iter().fold(false, |any, &element| any | is_nan(element)) {
        return None;
    }
    elements.iter().position(|&element| is_nan(element))
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_is_nan(bits in any::<u64>()) {
            let f = |dtype, bytes: &[u8]| first_nan(dtype, bytes) == Some(0);
            let (word, short) = (bits as u32, bits as u16);
            prop_assert_eq!(f(Dtype::F64, &bits.to_le_bytes()), f64::from_bits(bits).is_nan());
            prop_assert_eq!(f(Dtype::F32, &word.to_le_bytes()), f32::from_bits(word).is_nan());
            prop_assert_eq!(f(Dtype::F16, &short.to_le_bytes()), f16::from_bits(short).is_nan());
            prop_assert_eq!(f(Dtype::BF16, &short.to_le_bytes()), bf16::from_bits(short).is_nan());
        }
    }

    #[test]
    fn edges_of_nan_and_the_place_of_the_first() {
        let row = [f32::INFINITY, -0.0, f32::MIN_POSITIVE, f32::NAN, f32::NAN];
        let bytes: Vec<u8> = row.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(first_nan(Dtype::F32, &bytes), Some(3));
        assert_eq!(first_nan(Dtype::F32, &bytes[..12]), None);
        assert_eq!(first_nan(Dtype::I32, &bytes), None);
        let wide =
            [f64::NEG_INFINITY.to_le_bytes(), f64::from_bits(0x7ff0 << 48 | 1).to_le_bytes()];
        assert_eq!(first_nan(Dtype::F64, wide.as_flattened()), Some(1));
    }
}
