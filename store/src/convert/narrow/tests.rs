use proptest::prelude::*;

use super::*;

/// A value of any type, exactly.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Float(f64),
    Integer(i64),
}

fn value(dtype: Dtype, e: &[u8]) -> Value {
    match dtype {
        Dtype::F32 => Value::Float(f32::from_le_bytes(e.try_into().unwrap()).into()),
        Dtype::F16 => Value::Float(f16::from_le_bytes(e.try_into().unwrap()).to_f64_const()),
        Dtype::BF16 => Value::Float(bf16::from_le_bytes(e.try_into().unwrap()).to_f64_const()),
        Dtype::F64 => Value::Float(f64::from_le_bytes(e.try_into().unwrap())),
        Dtype::U8 => Value::Integer(e[0].into()),
        Dtype::I8 => Value::Integer((e[0] as i8).into()),
        Dtype::I16 => Value::Integer(i16::from_le_bytes(e.try_into().unwrap()).into()),
        Dtype::I32 => Value::Integer(i32::from_le_bytes(e.try_into().unwrap()).into()),
        Dtype::I64 => Value::Integer(i64::from_le_bytes(e.try_into().unwrap())),
    }
}

/// Returns every value of a 16-bit float type that is not NaN, ascending, as f64.
fn halves(to: Dtype) -> Vec<f64> {
    let all = (0..=u16::MAX).map(|bits| match value(to, &bits.to_le_bytes()) {
        Value::Float(x) => x,
        Value::Integer(_) => unreachable!("halves are floats"),
    });
    let mut all: Vec<f64> = all.filter(|x| !x.is_nan()).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// Returns the nearest 16-bit float by search; of two that are equally near, the even one.
fn nearest_half(x: f64, to: Dtype, sorted: &[f64]) -> Option<f64> {
    if !x.is_finite() {
        return Some(x);
    }
    let largest = sorted[sorted.len() - 2];
    // Half a step past the largest number is where infinity is nearest.
    let step = largest - sorted[sorted.len() - 3];
    if x.abs() >= largest + step / 2.0 {
        return None;
    }
    let finite = &sorted[1..sorted.len() - 1];
    let above = finite.partition_point(|&half| half < x).min(finite.len() - 1);
    let (low, high) = (finite[above.saturating_sub(1)], finite[above]);
    let bits = |half: f64| match to {
        Dtype::F16 => f16::from_f64_const(half).to_bits(),
        _ => bf16::from_f64_const(half).to_bits(),
    };
    match (x - low).abs().partial_cmp(&(high - x).abs()).unwrap() {
        std::cmp::Ordering::Less => Some(low),
        std::cmp::Ordering::Greater => Some(high),
        std::cmp::Ordering::Equal if bits(low).is_multiple_of(2) => Some(low),
        std::cmp::Ordering::Equal => Some(high),
    }
}

/// Returns what one element must become; `None` where it must be refused.
fn expected(from: Value, to: Dtype, sorted: &[f64]) -> Option<Value> {
    let integer = |range: std::ops::RangeInclusive<i64>| match from {
        Value::Integer(x) => range.contains(&x).then_some(Value::Integer(x)),
        Value::Float(x) => {
            let fits = x.trunc() == x && x >= -(2f64.powi(63)) && x < 2f64.powi(63);
            (fits && range.contains(&(x as i64))).then_some(Value::Integer(x as i64))
        }
    };
    let float = match from {
        Value::Float(x) => x,
        Value::Integer(x) => x as f64,
    };
    match to {
        Dtype::F64 => Some(Value::Float(float)),
        Dtype::F32 => {
            let narrow = match from {
                Value::Float(x) => x as f32,
                Value::Integer(x) => x as f32,
            };
            let fits = narrow.is_finite() || !float.is_finite();
            fits.then_some(Value::Float(narrow.into()))
        }
        Dtype::F16 | Dtype::BF16 => nearest_half(float, to, sorted).map(Value::Float),
        Dtype::U8 => integer(0..=255),
        Dtype::I8 => integer(-128..=127),
        Dtype::I16 => integer(i16::MIN.into()..=i16::MAX.into()),
        Dtype::I32 => integer(i32::MIN.into()..=i32::MAX.into()),
        Dtype::I64 => integer(i64::MIN..=i64::MAX),
    }
}

fn same(a: Value, b: Value) -> bool {
    match (a, b) {
        (Value::Float(a), Value::Float(b)) => a == b || a.is_nan() && b.is_nan(),
        (a, b) => a == b,
    }
}

/// Checks each element on its own, then all up to the first that is refused.
fn check(from: Dtype, bytes: &[u8], to: Dtype, sorted: &[f64]) {
    let (size, to_size) = (from.size_bytes(), to.size_bytes());
    let elements: Vec<&[u8]> = bytes.chunks_exact(size).collect();
    let expected: Vec<Option<Value>> =
        elements.iter().map(|e| expected(value(from, e), to, sorted)).collect();
    for (element, expected) in elements.iter().zip(&expected) {
        let mut out = vec![0xaa; to_size];
        let found = narrow(from, element, to, &mut out).ok().map(|()| value(to, &out));
        let agrees = match (found, *expected) {
            (Some(found), Some(expected)) => same(found, expected),
            (found, expected) => found.is_none() && expected.is_none(),
        };
        let element = value(from, element);
        assert!(agrees, "{from} to {to}: {element:?} became {found:?}, not {expected:?}");
    }
    let mut out = vec![0xaa; elements.len() * to_size];
    let all = narrow(from, &bytes[..elements.len() * size], to, &mut out);
    let refused = expected.iter().position(Option::is_none);
    assert_eq!(all.as_ref().err().map(|unfit| unfit.element), refused, "{from} to {to}");
    for (i, expected) in expected.iter().enumerate().take(refused.unwrap_or(usize::MAX)) {
        // Pieces before the refused element are whole; its own piece need not be.
        if refused.is_none_or(|refused| i / PIECE < refused / PIECE) {
            let found = value(to, &out[i * to_size..(i + 1) * to_size]);
            assert!(expected.is_some_and(|expected| same(found, expected)), "{from} to {to} {i}");
        }
    }
}

/// Numbers at which conversions go wrong.
fn edges() -> Vec<f64> {
    let powers = [-149, -133, -126, -25, -24, -14, 0, 7, 8, 11, 15, 16, 24, 31, 53, 63, 64, 127];
    let near = powers.iter().flat_map(|&power| {
        let x = 2f64.powi(power);
        let step = |half_ulp: i32| x + 2f64.powi(power - half_ulp);
        [x, x - 1.0, x + 1.0, x.next_down(), x.next_up(), step(8), step(11), step(12), step(9)]
    });
    let special = [0.0, 0.5, 65504.0, 65519.99, 65520.0, 3.39e38, 3.41e38, 1e300, 5e-324, f64::MAX];
    let ties = near.clone().flat_map(|x| [x.next_up(), x.next_down()]);
    let all: Vec<f64> = near.chain(special).chain(ties).collect();
    let negative: Vec<f64> = all.iter().map(|x| -x).collect();
    let infinite = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    all.into_iter().chain(negative).chain(infinite).collect()
}

#[test]
fn edges_become_the_nearest_or_are_refused() {
    for to in Dtype::ALL {
        let sorted = if matches!(to, Dtype::F16 | Dtype::BF16) { halves(to) } else { Vec::new() };
        let doubles = edges();
        check(
            Dtype::F64,
            &doubles.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>(),
            to,
            &sorted,
        );
        let floats = doubles.iter().flat_map(|&x| (x as f32).to_le_bytes());
        check(Dtype::F32, &floats.collect::<Vec<u8>>(), to, &sorted);
        // Above 2^53 an i64 is not an f64.
        let longs = doubles.iter().filter(|x| x.abs() <= 2f64.powi(53) || to != Dtype::BF16);
        let longs: Vec<u8> = longs.flat_map(|&x| (x as i64).to_le_bytes()).collect();
        check(Dtype::I64, &longs, to, &sorted);
        let ints = doubles.iter().flat_map(|&x| (x as i32).to_le_bytes());
        check(Dtype::I32, &ints.collect::<Vec<u8>>(), to, &sorted);
        let all: Vec<u8> = (0..=u16::MAX).step_by(7).flat_map(u16::to_le_bytes).collect();
        for from in [Dtype::F16, Dtype::BF16, Dtype::I16, Dtype::U8, Dtype::I8] {
            check(from, &all, to, &sorted);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bits_become_the_nearest_or_are_refused(words in prop::collection::vec(any::<u64>(), 0..700)) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let sorted = [halves(Dtype::F16), halves(Dtype::BF16)];
        for to in Dtype::ALL {
            let sorted = &sorted[usize::from(to == Dtype::BF16)];
            for from in [Dtype::F64, Dtype::F32, Dtype::I16, Dtype::U8] {
                check(from, &bytes, to, sorted);
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let values = [1.0f32, 2.0, 70_000.0];
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let unfit = narrow(Dtype::F32, &bytes, Dtype::F16, &mut [0; 6]).unwrap_err();
    assert_eq!(unfit, Unfit { element: 2, value: "70000".into() });
    let unfit = narrow(Dtype::F32, &1.5f32.to_le_bytes(), Dtype::U8, &mut [0]).unwrap_err();
    assert_eq!(unfit, Unfit { element: 0, value: "1.5".into() });
    let unfit = narrow(Dtype::I64, &256i64.to_le_bytes(), Dtype::U8, &mut [0]).unwrap_err();
    assert_eq!(unfit, Unfit { element: 0, value: "256".into() });
}
