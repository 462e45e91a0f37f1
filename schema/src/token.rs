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

/// Refusal of bytes that are no token. The error does not contain them.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "a token is {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} letters, digits and signs without spaces, \
     such as `openssl rand -hex 32` prints"
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

    /// Returns the bytes, to be sent and nothing else.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

/// Tokens that a server accepts: one, and while another replaces it the one before too.
#[derive(Clone, Copy, Debug)]
pub struct Tokens {
    /// The one to show.
    first: Token,
    /// The same again where there is no other.
    second: Token,
}

/// Refusal of text that holds no tokens. The error does not contain it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BadTokens {
    /// A line is none.
    #[error("line {line_no}: {source}")]
    Line {
        /// From 1 on.
        line_no: usize,
        /// The form of a token.
        source: BadToken,
    },
    /// There are none, or too many.
    #[error(
        "{found} lines; expected one with a token, or while another replaces it two, of which the first \
         is shown and both are taken"
    )]
    Count {
        /// Lines that are not empty.
        found: usize,
    },
}

impl Tokens {
    /// Reads one or two lines with a token each; white space around them and empty lines do not
    /// count.
    ///
    /// # Errors
    /// Other lines, or another number of them.
    pub fn parse(text: &str) -> Result<Self, BadTokens> {
        let lines =
            || (1..).zip(text.lines().map(str::trim_ascii)).filter(|(_, line)| !line.is_empty());
        let found = lines().count();
        let token = |(line_no, line): (usize, &str)| {
            Token::new(line.as_bytes()).map_err(|source| BadTokens::Line { line_no, source })
        };
        let tokens = lines().take(2).map(token).collect::<Result<Vec<Token>, _>>()?;
        match (found, &*tokens) {
            (1, &[only]) => Ok(only.into()),
            (2, &[first, second]) => Ok(Self { first, second }),
            _ => Err(BadTokens::Count { found }),
        }
    }

    /// Returns the token to show.
    #[must_use]
    pub fn first(&self) -> Token {
        self.first
    }

    /// Returns whether a token is one of them, in a time that does not depend on which.
    #[must_use]
    pub fn take(&self, token: &Token) -> bool {
        (self.first.ct_eq(token) | self.second.ct_eq(token)).into()
    }

    /// Returns whether one of them is one of others.
    #[must_use]
    pub fn overlap(&self, others: &Self) -> bool {
        self.take(&others.first) | self.take(&others.second)
    }
}

impl From<Token> for Tokens {
    fn from(token: Token) -> Self {
        Self { first: token, second: token }
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
    fn one_line_is_a_token_and_two_are_while_one_replaces_the_other() {
        let (new, old) = ("new-new-new-new-new", "old-old-old-old-old");
        let [new_token, old_token] = [new, old].map(|text| Token::new(text.as_bytes()).unwrap());
        let takes = |text: &str| {
            let tokens = Tokens::parse(text).unwrap();
            assert_eq!(tokens.first(), new_token);
            [tokens.take(&new_token), tokens.take(&old_token)]
        };
        assert_eq!(takes(new), [true, false]);
        assert_eq!(takes(&format!(" {new}\r\n\n")), [true, false]);
        assert_eq!(takes(&format!("{new}\n{old}\n")), [true, true]);
        let both = Tokens::parse(&format!("{new}\n{old}")).unwrap();
        assert!(
            both.overlap(&old_token.into()) && !Tokens::from(new_token).overlap(&old_token.into())
        );
        assert_eq!(Tokens::parse(" \n").unwrap_err(), BadTokens::Count { found: 0 });
        let three = format!("{new}\n{old}\n{new}x");
        assert_eq!(Tokens::parse(&three).unwrap_err(), BadTokens::Count { found: 3 });
        let bad = Tokens::parse(&format!("{new}\n\nshort")).unwrap_err();
        assert!(bad.to_string().starts_with("line 3:") && !bad.to_string().contains("short"));
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
