//! Names as they travel: of volatile tensors and of element types.

use std::fmt;

use crate::error::{Decoded, WireError};
use crate::limits::NAME_BYTES_MAX;

/// Name of a volatile tensor or of an element type: 1 to 64 printable bytes of ASCII.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name {
    bytes: [u8; NAME_BYTES_MAX],
    len: u8,
}

impl Name {
    /// Checks a name.
    ///
    /// # Errors
    /// `Malformed` for one that is empty, too long, or has other bytes.
    pub fn new(text: &str) -> Result<Self, WireError> {
        Self::check(text).map_err(|reason| WireError::Malformed { message: "request", reason })
    }

    fn check(text: &str) -> Result<Self, String> {
        let is_name = (1..=NAME_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_name {
            let shown: String = text.chars().take(NAME_BYTES_MAX).collect();
            return Err(format!(
                "the name {shown:?}; expected 1 to {NAME_BYTES_MAX} printable characters of ASCII"
            ));
        }
        let mut bytes = [0; NAME_BYTES_MAX];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self { bytes, len: text.len() as u8 })
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }

    /// Reads a name of a message.
    pub(crate) fn read(text: capnp::Result<capnp::text::Reader<'_>>) -> Decoded<Self> {
        Ok(Self::check(text?.to_str()?)?)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Name {
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
