//! Packed little-endian elements of any type to any other, refusing what the other cannot hold.
//!
//! To a float: rounded to the nearest; a finite number that would become infinite is refused; NaN
//! and infinity stay. To an integer: only integers within its range.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::dtype::Dtype;

/// Elements converted at a time, through buffers on the stack.
const PIECE: usize = 512;

/// An element that the other type cannot hold.
#[derive(Debug, PartialEq)]
pub(crate) struct Unfit {
    /// Its position.
    pub(crate) element: usize,
    /// Its value, for people.
    pub(crate) value: String,
}

/// Converts all elements of `bytes`.
///
/// # Panics
/// When `out` has another number of elements.
pub(crate) fn narrow(from: Dtype, bytes: &[u8], to: Dtype, out: &mut [u8]) -> Result<(), Unfit> {
    let (from_size, to_size) = (from.size_bytes(), to.size_bytes());
    assert_eq!(bytes.len() / from_size, out.len() / to_size, "one element for each");
    if from == to {
        out.copy_from_slice(bytes);
        return Ok(());
    }
    let pieces = bytes.chunks(PIECE * from_size).zip(out.chunks_mut(PIECE * to_size));
    for (no, (bytes, out)) in pieces.enumerate() {
        let fits = match (from, to) {
            (Dtype::F32, Dtype::F16) => from_f32(bytes, out, f16::is_finite, f16::to_le_bytes),
            (Dtype::F32, Dtype::BF16) => from_f32(bytes, out, bf16::is_finite, bf16::to_le_bytes),
            (Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F64, _) => {
                from_floats(from, bytes, to, out)
            }
            _ => from_integers(from, bytes, to, out),
        };
        fits.map_err(|unfit| Unfit { element: unfit.element + no * PIECE, ..unfit })?;
    }
    Ok(())
}

/// Converts the most frequent case, with the processor's own conversion where it has one.
fn from_f32<T: Copy + Default>(
    bytes: &[u8],
    out: &mut [u8],
    is_finite: impl Fn(T) -> bool,
    to_bytes: impl Fn(T) -> [u8; 2],
) -> Result<(), Unfit>
where
    [T]: HalfFloatSliceExt,
{
    let (mut values, mut halves) = ([0f32; PIECE], [T::default(); PIECE]);
    let n = read(bytes, &mut values, f32::from_le_bytes);
    let (values, halves) = (&values[..n], &mut halves[..n]);
    halves.convert_from_f32_slice(values);
    for (out, half) in out.as_chunks_mut::<2>().0.iter_mut().zip(&*halves) {
        *out = to_bytes(*half);
    }
    let overflows = |(value, half): (&f32, &T)| value.is_finite() && !is_finite(*half);
    match values.iter().zip(&*halves).position(overflows) {
        Some(element) => Err(Unfit { element, value: values[element].to_string() }),
        None => Ok(()),
    }
}

/// Returns an f32 that rounds to the same shorter float as `x` does. For an inexact `x` it is the
/// neighbour with an odd last bit (rounding to odd, Boldo and Melquiond 2008).
fn to_odd_f32(x: f64) -> f32 {
    let nearest = x as f32;
    let bits = nearest.to_bits();
    if f64::from(nearest) == x || x.is_nan() || bits % 2 == 1 {
        return nearest;
    }
    let away = f64::from(nearest).abs() > x.abs();
    f32::from_bits(if away { bits - 1 } else { bits + 1 })
}

/// Converts from floats by way of f64, which holds all of them.
fn from_floats(from: Dtype, bytes: &[u8], to: Dtype, out: &mut [u8]) -> Result<(), Unfit> {
    let mut wide = [0f64; PIECE];
    let n = match from {
        Dtype::F16 => read(bytes, &mut wide, |e| f16::from_le_bytes(e).to_f64()),
        Dtype::BF16 => read(bytes, &mut wide, |e| bf16::from_le_bytes(e).to_f64()),
        Dtype::F32 => read(bytes, &mut wide, |e| f64::from(f32::from_le_bytes(e))),
        _ => read(bytes, &mut wide, f64::from_le_bytes),
    };
    let wide = &wide[..n];
    match to {
        Dtype::F64 => write(wide, out, |x| Some(x.to_le_bytes())),
        Dtype::F32 => write(wide, out, |x| {
            let narrow = x as f32;
            (narrow.is_finite() || !x.is_finite()).then(|| narrow.to_le_bytes())
        }),
        Dtype::F16 => write(wide, out, |x| {
            let narrow = f16::from_f32(to_odd_f32(x));
            (narrow.is_finite() || !x.is_finite()).then(|| narrow.to_le_bytes())
        }),
        Dtype::BF16 => write(wide, out, |x| {
            let narrow = bf16::from_f32(to_odd_f32(x));
            (narrow.is_finite() || !x.is_finite()).then(|| narrow.to_le_bytes())
        }),
        // A cast saturates, so only integers in range come back as they were; -0 becomes 0.
        Dtype::U8 => write(wide, out, |x| (f64::from(x as u8) == x).then_some([x as u8])),
        Dtype::I8 => {
            write(wide, out, |x| (f64::from(x as i8) == x).then(|| (x as i8).to_le_bytes()))
        }
        Dtype::I16 => {
            write(wide, out, |x| (f64::from(x as i16) == x).then(|| (x as i16).to_le_bytes()))
        }
        Dtype::I32 => {
            write(wide, out, |x| (f64::from(x as i32) == x).then(|| (x as i32).to_le_bytes()))
        }
        // 2^63 itself saturates to 2^63 - 1, which rounds back to 2^63.
        Dtype::I64 => write(wide, out, |x| {
            let in_range = x < 9_223_372_036_854_775_808.0;
            (in_range && (x as i64) as f64 == x).then(|| (x as i64).to_le_bytes())
        }),
    }
}

/// Converts from integers by way of i64, which holds all of them.
fn from_integers(from: Dtype, bytes: &[u8], to: Dtype, out: &mut [u8]) -> Result<(), Unfit> {
    let mut wide = [0i64; PIECE];
    let n = match from {
        Dtype::U8 => read(bytes, &mut wide, |e: [u8; 1]| i64::from(e[0])),
        Dtype::I8 => read(bytes, &mut wide, |e| i64::from(i8::from_le_bytes(e))),
        Dtype::I16 => read(bytes, &mut wide, |e| i64::from(i16::from_le_bytes(e))),
        Dtype::I32 => read(bytes, &mut wide, |e| i64::from(i32::from_le_bytes(e))),
        _ => read(bytes, &mut wide, i64::from_le_bytes),
    };
    let wide = &wide[..n];
    match to {
        Dtype::F64 => write(wide, out, |x| Some((x as f64).to_le_bytes())),
        Dtype::F32 => write(wide, out, |x| Some((x as f32).to_le_bytes())),
        Dtype::F16 => write(wide, out, |x| {
            let narrow = f16::from_f32(to_odd_f32(x as f64));
            narrow.is_finite().then(|| narrow.to_le_bytes())
        }),
        Dtype::BF16 => {
            write(wide, out, |x| Some(bf16::from_f32(to_odd_f32(x as f64)).to_le_bytes()))
        }
        Dtype::U8 => write(wide, out, |x| u8::try_from(x).ok().map(u8::to_le_bytes)),
        Dtype::I8 => write(wide, out, |x| i8::try_from(x).ok().map(i8::to_le_bytes)),
        Dtype::I16 => write(wide, out, |x| i16::try_from(x).ok().map(i16::to_le_bytes)),
        Dtype::I32 => write(wide, out, |x| i32::try_from(x).ok().map(i32::to_le_bytes)),
        Dtype::I64 => write(wide, out, |x| Some(x.to_le_bytes())),
    }
}

/// Reads all elements of `bytes`; returns their number.
fn read<const N: usize, T>(bytes: &[u8], wide: &mut [T], convert: impl Fn([u8; N]) -> T) -> usize {
    let (elements, _) = bytes.as_chunks::<N>();
    for (element, wide) in elements.iter().zip(wide) {
        *wide = convert(*element);
    }
    elements.len()
}

fn write<const N: usize, T: Copy + ToString>(
    wide: &[T],
    out: &mut [u8],
    convert: impl Fn(T) -> Option<[u8; N]>,
) -> Result<(), Unfit> {
    let places = out.as_chunks_mut::<N>().0.iter_mut();
    for (element, (&value, out)) in wide.iter().zip(places).enumerate() {
        let Some(bytes) = convert(value) else {
            return Err(Unfit { element, value: value.to_string() });
        };
        *out = bytes;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
