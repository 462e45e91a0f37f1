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
    assert!(
        header[10..]
            .starts_with(b"{'descr': '<u4', 'fortran_order': False, 'shape': (4552, 2), }   ")
    );
    assert!(
        encode(NpyType::I64, &[7])[10..]
            .starts_with(b"{'descr': '<i8', 'fortran_order': False, 'shape': (7,), }  ")
    );
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
        let huge = parse_text(&format!("{{'descr':'<f4','fortran_order':False,'shape':{shape}}}"));
        assert!(matches!(huge, Err(NpyFault::Overflow { .. })), "{shape}");
    }
    for shape in ["(18446744073709551616,)", "(-1,)", "((1,),)", "3", "(1,", "(,)"] {
        let bad = parse_text(&format!("{{'descr':'<f4','fortran_order':False,'shape':{shape}}}"));
        assert!(matches!(bad, Err(NpyFault::Syntax { .. })), "{shape}");
    }
    assert_eq!(
        NpyHeader::parse(b"\x93NUMPY\x04\x00"),
        Err(NpyFault::Version { major: 4, minor: 0 })
    );
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
