//! The secret that lets a client in.

use std::fmt;

use subtle::{Choice, ConstantTimeEq};
use thiserror::Error;

use crate::limits::{TOKEN_BYTES_MAX, TOKEN_BYTES_MIN};

/// A token: visible ASCII, so that it fits a line of a file and a header of HTTP alike. It is never
/// printed, and compared in a time that depends on nothing in it.
#[derive(Clone, Copy)]
pub struct Token {
    /// Zero past the end.
    bytes: [u8; TOKEN_BYTES_MAX],
    len: u8,
}

/// Bytes that are no token. It does not tell them.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "a token is {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} letters, digits and signs without spaces, \
     such as `openssl rand -hex 32` gives"
)]
pub struct BadToken;

impl Token {
    /// Takes bytes as a token.
    ///
    /// # Errors
    /// Too few, too many, or something other than visible ASCII.
    pub fn new(token: &[u8]) -> Result<Self, BadToken> {
        let fits = (TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len());
        if !fits || !token.iter().all(u8::is_ascii_graphic) {
            return Err(BadToken);
        }
        let mut bytes = [0; TOKEN_BYTES_MAX];
        bytes[..token.len()].copy_from_slice(token);
        let len = u8::try_from(token.len()).map_err(|_| BadToken)?;
        Ok(Self { bytes, len })
    }

    /// The bytes, to be sent and nothing else.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

impl ConstantTimeEq for Token {
    fn ct_eq(&self, other: &Self) -> Choice {
        self.bytes[..].ct_eq(&other.bytes[..]) & self.len.ct_eq(&other.len)
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.ct_eq(other).into()
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_equal_when_every_byte_is() {
        let token = Token::new(b"0123456789abcdef").unwrap();
        assert_eq!(token, Token::new(b"0123456789abcdef").unwrap());
        for other in ["0123456789abcdeg", "1123456789abcdef", "0123456789abcdef0"] {
            assert_ne!(token, Token::new(other.as_bytes()).unwrap(), "{other}");
        }
        assert_eq!(token.as_bytes(), b"0123456789abcdef");
    }

    #[test]
    fn what_is_no_token_is_refused_and_what_is_one_is_never_printed() {
        for bytes in [
            &b""[..],
            b"short",
            &[b'x'; 129],
            b"0123456789 abcdef",
            b"0123456789abcde\n",
            &[0xff; 20],
        ] {
            assert_eq!(Token::new(bytes).err(), Some(BadToken));
        }
        let token = Token::new(b"hunter2hunter2hunter2").unwrap();
        assert!(!format!("{token:?} {token:#?}").contains("hunter"));
    }
}
