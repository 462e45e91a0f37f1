//! Files of ours are mostly zeros; inputs spell them short, so that mutations hit what matters.
//!
//! A zero byte is followed by a count `n`: below 128 it stands for `n + 1` zeros, else for
//! `64 * (n - 127)`. All other bytes stand for themselves.

/// Longer files than this are not made.
const MAX_BYTES: usize = 256 << 10;

/// Returns the file that an input spells.
pub fn expand(input: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), input.iter());
    while let Some(&byte) = rest.next() {
        if bytes.len() >= MAX_BYTES {
            break;
        }
        match (byte, rest.as_slice().first()) {
            (0, Some(&n)) => {
                rest.next();
                bytes.resize(bytes.len() + n_zeros(n), 0);
            }
            _ => bytes.push(byte),
        }
    }
    bytes
}

/// Returns the input that spells a file.
pub fn squeeze(bytes: &[u8]) -> Vec<u8> {
    let (mut input, mut rest) = (Vec::new(), bytes);
    while let Some(&byte) = rest.first() {
        if byte != 0 {
            input.push(byte);
            rest = &rest[1..];
            continue;
        }
        let found = rest.iter().take_while(|&&byte| byte == 0).count();
        let n = (0..=255u8).filter(|&n| n_zeros(n) <= found).max_by_key(|&n| n_zeros(n));
        let n = n.expect("one zero is there");
        input.extend([0, n]);
        rest = &rest[n_zeros(n)..];
    }
    assert_eq!(expand(&input), bytes);
    input
}

fn n_zeros(n: u8) -> usize {
    if n < 128 { usize::from(n) + 1 } else { 64 * (usize::from(n) - 127) }
}
