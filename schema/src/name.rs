//! Short texts as they travel: names of volatile tensors and of element types, addresses of servers.

use std::fmt;

use crate::error::{Decoded, WireError};
use crate::limits::{ADDRESS_BYTES_MAX, NAME_BYTES_MAX};

/// Name of a volatile tensor or of an element type: 1 to 64 printable bytes of ASCII.
pub type Name = ShortText<NAME_BYTES_MAX>;
/// Address of a server as people write it: 1 to 120 printable bytes of ASCII.
pub type ServerAddress = ShortText<ADDRESS_BYTES_MAX>;

/// A text of 1 to `MAX` printable bytes of ASCII without spaces; `MAX` is 255 at most.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ShortText<const MAX: usize> {
    bytes: [u8; MAX],
    len: u8,
}

impl<const MAX: usize> ShortText<MAX> {
    /// Checks a text.
    ///
    /// # Errors
    /// `Malformed` for one that is empty, too long, or has other bytes.
    pub fn new(text: &str) -> Result<Self, WireError> {
        Self::check(text).map_err(|reason| WireError::Malformed { message: "request", reason })
    }

    fn check(text: &str) -> Result<Self, String> {
        let is_valid =
            (1..=MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_valid {
            let shown: String = text.chars().take(MAX).collect();
            return Err(format!(
                "the text {shown:?}; expected 1 to {MAX} printable characters of ASCII"
            ));
        }
        let mut bytes = [0; MAX];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self { bytes, len: text.len() as u8 })
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }

    /// Reads a text of a message.
    pub(crate) fn read(text: capnp::Result<capnp::text::Reader<'_>>) -> Decoded<Self> {
        Ok(Self::check(text?.to_str()?)?)
    }
}

impl<const MAX: usize> fmt::Debug for ShortText<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl<const MAX: usize> fmt::Display for ShortText<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_printable() {
        let longest = "x".repeat(NAME_BYTES_MAX);
        for name in ["h1", "bf16", "h-1_B", &longest] {
            assert_eq!(Name::new(name).unwrap().as_str(), name);
        }
        for name in ["", "a b", "a\n", "\0", "\u{e4}", &"x".repeat(NAME_BYTES_MAX + 1)] {
            let error = Name::new(name).unwrap_err().to_string();
            assert!(error.contains("1 to 64"), "{name:?}: {error}");
        }
    }
}
