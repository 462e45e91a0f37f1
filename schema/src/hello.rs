//! The first 16 bytes in each direction: they tell a stranger from a peer, and one version from
//! another, before any length is believed.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `LODESTOR` |
//! | 8 | 2 | wire version, little-endian |
//! | 10 | 6 | zero, reserved |

use crate::WireError;
use crate::limits::{HELLO_BYTES, WIRE_VERSION};

const MAGIC: [u8; 8] = *b"LODESTOR";

/// The hello that this crate sends.
#[must_use]
pub fn hello() -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&WIRE_VERSION.to_le_bytes());
    bytes
}

/// Checks the peer's hello.
///
/// # Errors
/// `Magic` when the peer speaks something else, `Version` when it speaks another version of ours,
/// `Reserved` when it sets bits that mean nothing yet.
pub fn check_hello(bytes: &[u8; HELLO_BYTES]) -> Result<(), WireError> {
    let (magic, rest) = bytes.split_at(8);
    if magic != MAGIC {
        let mut found = [0; 8];
        found.copy_from_slice(magic);
        return Err(WireError::Magic { found });
    }
    let version = u16::from_le_bytes([rest[0], rest[1]]);
    if version != WIRE_VERSION {
        return Err(WireError::Version { found: version });
    }
    if rest[2..].iter().any(|&byte| byte != 0) {
        return Err(WireError::Reserved);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_bit_is_refused() {
        assert_eq!(check_hello(&hello()), Ok(()));
        for bit in 0..HELLO_BYTES * 8 {
            let mut bytes = hello();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(check_hello(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_newer_version_is_named() {
        let mut bytes = hello();
        bytes[8] = 9;
        assert_eq!(check_hello(&bytes), Err(WireError::Version { found: 9 }));
    }
}
