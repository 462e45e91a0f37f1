use super::*;
use proptest::prelude::*;

use EdgeTextFault::{
    Byte, Columns, ExtraColumn, Fraction, MatrixMarket, MissingColumn, Negative, OutOfRange,
    Quoted, Separator, TooLong, Utf16, Word,
};

/// Returns the same by splitting: lines, then fields.
fn naive(
    text: &[u8],
    n_nodes: u32,
    extra_columns: ExtraColumns,
) -> Result<Vec<[u32; 2]>, EdgeTextError> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let (mut edges, mut n_columns) = (Vec::new(), None);
    let mut lines: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
    // What comes after the last line end is a line only if there is something.
    lines.pop_if(|last| last.is_empty());
    for (line, text) in (1..).zip(lines) {
        let found = naive_line(text, n_nodes, extra_columns, &mut n_columns);
        let found = found.map_err(|fault| explained(text, fault));
        let fault = if text.len() > MAX_LINE_BYTES { Err(TooLong) } else { found };
        edges.extend(fault.map_err(|fault| EdgeTextError { line, fault })?);
    }
    Ok(edges)
}

fn naive_line(
    line: &[u8],
    n_nodes: u32,
    extra_columns: ExtraColumns,
    n_columns: &mut Option<usize>,
) -> Result<Option<[u32; 2]>, EdgeTextFault> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut left = trim_blanks(line);
    if left.is_empty() {
        return Ok(None);
    }
    if matches!(left[0], b'#' | b'%') {
        return rest(left).map(|()| None);
    }
    let source = naive_node(&mut left, n_nodes)?;
    let after_blanks = trim_blanks(left);
    match after_blanks.first() {
        None => return Err(MissingColumn),
        Some(b',') => left = trim_blanks(&after_blanks[1..]),
        Some(b'\r') => return Err(Byte { found: b'\r' }),
        Some(&found) if after_blanks.len() == left.len() => return Err(Byte { found }),
        _ => left = after_blanks,
    }
    match left.first() {
        None => return Err(MissingColumn),
        Some(b'\r') => return Err(Byte { found: b'\r' }),
        _ => {}
    }
    let destination = naive_node(&mut left, n_nodes)?;
    let after_blanks = trim_blanks(left);
    match after_blanks.first() {
        None => {}
        Some(b'\r') => return Err(Byte { found: b'\r' }),
        Some(&found) if after_blanks.len() == left.len() && found != b',' => {
            return Err(Byte { found });
        }
        _ if extra_columns == ExtraColumns::Ignore => rest(after_blanks)?,
        _ => return Err(ExtraColumn),
    }
    if extra_columns == ExtraColumns::Ignore
        && let Some(found) = naive_columns(after_blanks)
    {
        let expected = *n_columns.get_or_insert(found);
        if found != expected {
            return Err(Columns { expected: expected as u32, found: found as u32 });
        }
    }
    Ok(Some([source, destination]))
}

/// Counts the columns of a line with `rest` after the second one.
fn naive_columns(rest: &[u8]) -> Option<usize> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let first = rest.iter().find(|byte| !is_blank(byte) && **byte != b',');
    if first.is_some_and(|first| matches!(first, b'{' | b'#' | b'%')) {
        return None;
    }
    let words = |part: &[u8]| part.split(is_blank).filter(|word| !word.is_empty()).count();
    let mut parts: Vec<usize> = rest.split(|&byte| byte == b',').map(words).collect();
    while parts.pop_if(|last| *last == 0).is_some() {}
    let after_comma = parts.iter().skip(1).map(|&n_words| n_words.max(1));
    Some(2 + parts.first().copied().unwrap_or(0) + after_comma.sum::<usize>())
}

fn trim_blanks(text: &[u8]) -> &[u8] {
    let blank = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    &text[blank..]
}

/// Checks that the skipped text holds neither NUL nor a `\r` of its own.
fn rest(text: &[u8]) -> Result<(), EdgeTextFault> {
    match text.iter().find(|byte| matches!(byte, b'\r' | 0)) {
        Some(&found) => Err(Byte { found }),
        None => Ok(()),
    }
}

fn naive_node(left: &mut &[u8], n_nodes: u32) -> Result<u32, EdgeTextFault> {
    let n_digits = left.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, others) = left.split_at(n_digits);
    if digits.is_empty() {
        // At the end of a line there is always its end.
        let found = others.first().copied().unwrap_or(b'\n');
        return Err(if found == b'-' { Negative } else { Byte { found } });
    }
    *left = others;
    let digits = str::from_utf8(digits).unwrap().trim_start_matches('0');
    let found = format!("0{digits}")
        .parse::<u128>()
        .map_or(u64::MAX, |id| u64::try_from(id).unwrap_or(u64::MAX));
    let id = u32::try_from(found).ok().filter(|&id| id < n_nodes);
    id.ok_or(OutOfRange { found, n_nodes })
}

fn parse(
    text: &[u8],
    piece_lens: &[usize],
    n_nodes: u32,
    extra_columns: ExtraColumns,
) -> Result<Vec<[u32; 2]>, EdgeTextError> {
    let mut edges = Vec::new();
    let mut parser = EdgeParser::new(n_nodes, extra_columns);
    let mut left = text;
    for &len in piece_lens {
        let (piece, others) = left.split_at(len.min(left.len()));
        parser.feed(piece, &mut edges)?;
        left = others;
    }
    parser.feed(left, &mut edges)?;
    parser.finish(&mut edges)?;
    Ok(edges)
}

fn fault(text: &[u8]) -> (u64, EdgeTextFault) {
    let EdgeTextError { line, fault } = parse_edges(text).unwrap_err();
    (line, fault)
}

#[test]
fn all_that_is_allowed() {
    let text = b"# from to\n1 2\n\n3\t4\r\n  5 , 6  \n%x\n7,8\n\t# a\xc3\xa9 \r\n0009 \t 10\r\n\r\n  \n11 12";
    let expected = [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10], [11, 12]];
    assert_eq!(parse_edges(text).unwrap(), expected);
    for nothing in [b"".as_slice(), b"\n", b"#", b"\r\n\r\n", b" \t", b"%\n"] {
        assert_eq!(parse_edges(nothing).unwrap(), [[0; 2]; 0]);
    }
    assert_eq!(parse_edges(b"0 4294967294").unwrap(), [[0, u32::MAX - 1]]);
    assert_eq!(parse_edges(b"1 2\r").unwrap(), [[1, 2]]);
}

#[test]
fn every_fault_is_named_with_its_line() {
    assert_eq!(fault(b"1 2\n3\n"), (2, MissingColumn));
    assert_eq!(fault(b"1,\n"), (1, MissingColumn));
    assert_eq!(fault(b"#\n\n1 2 3\n"), (3, ExtraColumn));
    assert_eq!(fault(b"1,2,"), (1, ExtraColumn));
    assert_eq!(fault(b"1 -2"), (1, Negative));
    assert_eq!(fault(b"-1 2"), (1, Negative));
    assert_eq!(fault(b"+1 2"), (1, Byte { found: b'+' }));
    assert_eq!(fault(b"1;2"), (1, Separator { found: b';' }));
    assert_eq!(fault(b"1,,2"), (1, Byte { found: b',' }));
    assert_eq!(fault(b",1 2"), (1, Byte { found: b',' }));
    assert_eq!(fault(b"1x 2"), (1, Byte { found: b'x' }));
    assert_eq!(fault(b"1 2\n\0\0\0"), (2, Byte { found: 0 }));
    assert_eq!(fault(b"1 2\n# \0"), (2, Byte { found: 0 }));
    let error = parse_edges(b"1 +").unwrap_err().to_string();
    assert!(error.starts_with("line 1: ") && error.contains("0x2b (+)"), "{error}");
}

#[test]
fn texts_of_other_programs_are_read_or_named() {
    assert_eq!(parse_edges(b"\xef\xbb\xbf1 2\n3 4").unwrap(), [[1, 2], [3, 4]]);
    assert_eq!(parse_edges(b"\xef\xbb\xbf").unwrap(), [[0; 2]; 0]);
    assert_eq!(fault(b"1 2\n\xef\xbb\xbf3 4"), (2, Byte { found: 0xef }));
    for header in [b"src,dst\n1,2".as_slice(), b"\"src\",\"dst\"\n", b"_id to\n", b"1,target\n"] {
        assert_eq!(fault(header), (1, Word), "{}", header.escape_ascii());
    }
    for quoted in [b"\"0\",\"1\"".as_slice(), b"0 '1'", b"\"-1\" 2"] {
        assert_eq!(fault(quoted), (1, Quoted), "{}", quoted.escape_ascii());
    }
    for float in [b"0.0 1.0".as_slice(), b"0 1.", b"1e3 2", b"0 1E+02", b".5 1"] {
        assert_eq!(fault(float), (1, Fraction), "{}", float.escape_ascii());
    }
    assert_eq!(fault(b"0|1"), (1, Separator { found: b'|' }));
    assert_eq!(fault(b"\xff\xfe0\0 \x001\0"), (1, Utf16));
    let market = b"%%matrixmarket matrix coordinate pattern general\n% c\n4 4 3\n1 2\n";
    assert_eq!(fault(market), (1, MatrixMarket));
    assert_eq!(parse(market, &[5], 9, ExtraColumns::Ignore).unwrap_err().fault, MatrixMarket);
    assert_eq!(parse_edges(b"% a comment\n%%MatrixMarket\n1 2").unwrap(), [[1, 2]]);
}

#[test]
fn lines_that_end_with_a_carriage_return_alone_are_not_taken_for_one_line() {
    for text in [b"1 2\r3 4\r".as_slice(), b"# x\r1 2\r", b"1\r2\r", b"\r1 2\n", b"1 2 \r 3\n"] {
        assert_eq!(fault(text), (1, Byte { found: b'\r' }), "{}", text.escape_ascii());
    }
}

#[test]
fn ids_out_of_range_are_named() {
    let of = |found| (1, OutOfRange { found, n_nodes: u32::MAX });
    assert_eq!(fault(b"0 4294967295"), of(u64::from(u32::MAX)));
    assert_eq!(fault(b"4294967296 0"), of(1 << 32));
    assert_eq!(fault(b"18446744073709551615 0"), of(u64::MAX));
    assert_eq!(fault(b"18446744073709551616 0"), of(u64::MAX));
    assert_eq!(fault(b"9999999999999999999 0"), of(9_999_999_999_999_999_999));
    assert_eq!(fault(&[b'9'; 5000]), of(u64::MAX));
    let mut padded = vec![b'0'; 5000];
    padded.extend(b"7 1");
    assert_eq!(parse_edges(&padded).unwrap(), [[7, 1]]);
    let error = parse(b"1 2\n2 3", &[], 3, ExtraColumns::Refuse).unwrap_err().to_string();
    assert_eq!(error, "line 2: names node 3, but ids must be from 0 to below 3");
    let error = parse_edges(&[b'9'; 30]).unwrap_err().to_string();
    assert!(error.contains("or above, but"), "{error}");
}

#[test]
fn extra_columns_are_ignored_if_asked_for() {
    let ignore = |text: &[u8]| parse(text, &[], 100, ExtraColumns::Ignore);
    let text = b"1 2 0.5\n3,4,x\r\n5 6\t7,\n7 8, a\n9 10 # why";
    assert_eq!(ignore(text).unwrap(), [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]);
    let attributes = b"1 2 {}\n3 4 {'weight': 0.5, 'at': 3}\n5 6\t \n7 8, \n";
    assert_eq!(ignore(attributes).unwrap(), [[1, 2], [3, 4], [5, 6], [7, 8]]);
    // METIS: the numbers of nodes and edges, then the neighbours of each node.
    let (expected, found) = (2, 3);
    let error = ignore(b"4 3\n2 3\n1 3 4\n1 2\n2\n").unwrap_err();
    assert_eq!(error, EdgeTextError { line: 3, fault: Columns { expected, found } });
    assert_eq!(ignore(b"1,2,,x\n3,4,y\n").unwrap_err().fault, Columns { expected: 4, found: 3 });
    assert_eq!(ignore(b"1 2x").unwrap_err().fault, Byte { found: b'x' });
    assert_eq!(ignore(b"1 2 \0").unwrap_err().fault, Byte { found: 0 });
    assert_eq!(ignore(b"1 2 3\r4 5").unwrap_err().fault, Byte { found: b'\r' });
}

#[test]
fn lines_may_have_their_greatest_length_and_no_more() {
    for start in ["#", "", "1 2", "x", "1 2 3"] {
        let line = |len| format!("5 6\n{start}{}\n7 8", " ".repeat(len - start.len())).into_bytes();
        let (longest, longer) = (line(MAX_LINE_BYTES), line(MAX_LINE_BYTES + 1));
        let expected = EdgeTextError { line: 2, fault: TooLong };
        for piece_lens in [&[][..], &[4, 9], &[MAX_LINE_BYTES + 4], &[MAX_LINE_BYTES + 5]] {
            let whole = parse(&longest, piece_lens, 99, ExtraColumns::Refuse);
            assert_eq!(whole.is_ok(), !matches!(start, "x" | "1 2 3"), "{start} {whole:?}");
            let cut = parse(&longer, piece_lens, 99, ExtraColumns::Refuse);
            assert_eq!(cut, Err(expected), "{start}");
        }
    }
}

/// Returns text that is nearly right, so that parsing gets somewhere.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let edge = (0u32..30, 0u32..30);
    let piece = prop_oneof![
        8 => edge.clone().prop_map(|(u, v)| format!("{u} {v}\n")),
        2 => edge.clone().prop_map(|(u, v)| format!("\t{u} ,{v} \r\n")),
        1 => edge.clone().prop_map(|(u, v)| format!("{u}\t{v} {u}\n")),
        2 => prop::sample::select(vec![
            "#", "%", "\n", "\r\n", "\r", " ", ",", "-1", "1", "4294967295", "99999999999999999999",
            "\0", "x", "é", "000000000000000000000001 2\n",
        ]).prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn agrees_with_splitting_wherever_the_text_is_cut(
        text in text(),
        piece_lens in prop::collection::vec(0usize..9, 0..20),
        n_nodes in prop_oneof![Just(u32::MAX), 15u32..30],
        ignore: bool,
    ) {
        let extra_columns = if ignore { ExtraColumns::Ignore } else { ExtraColumns::Refuse };
        let expected = naive(&text, n_nodes, extra_columns);
        prop_assert_eq!(&parse(&text, &piece_lens, n_nodes, extra_columns), &expected);
        for cut in 0..=text.len() {
            prop_assert_eq!(&parse(&text, &[cut], n_nodes, extra_columns), &expected, "{}", cut);
        }
        if n_nodes == u32::MAX && !ignore {
            prop_assert_eq!(parse_edges(&text), expected);
        }
    }

    #[test]
    fn agrees_with_splitting_on_any_bytes(
        bytes in prop::collection::vec(
            prop_oneof![6 => prop::sample::select(b"0123456789 ,\t\n\r#%-.{;\"e".to_vec()), 1 => any::<u8>()],
            0..60,
        ),
        piece_lens in prop::collection::vec(0usize..9, 0..20),
        ignore: bool,
    ) {
        let extra_columns = if ignore { ExtraColumns::Ignore } else { ExtraColumns::Refuse };
        let expected = naive(&bytes, 1000, extra_columns);
        prop_assert_eq!(parse(&bytes, &piece_lens, 1000, extra_columns), expected);
    }
}
