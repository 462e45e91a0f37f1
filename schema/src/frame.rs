//! Frames: an 8-byte prefix, a head, a body.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | bytes of the head, u32 little-endian |
//! | 4 | 4 | bytes of the body, u32 little-endian |
//! | 8 | … | head: one Cap'n Proto message, standard stream framing |
//! | … | … | body: bulk bytes |

use capnp::message::{Builder, HeapAllocator, ReaderOptions};
use capnp::serialize::{BufferSegments, write_message};

use crate::error::{Decoded, WireError};
use crate::limits::{
    NESTING_MAX, PREFIX_BYTES, REPLY_BODY_BYTES_MAX, REPLY_HEAD_BYTES_MAX, REQUEST_BODY_BYTES_MAX,
    REQUEST_HEAD_BYTES_MAX, TRAVERSAL_PER_WORD, TRAVERSAL_WORDS_MIN,
};

/// The two lengths of a frame, checked against the limits of its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Bytes of the head.
    pub head_bytes: usize,
    /// Bytes of the body.
    pub body_bytes: usize,
}

impl Prefix {
    /// Reads the prefix of a frame that came from a client.
    ///
    /// # Errors
    /// `FrameTooLarge` when a length passes its limit.
    pub fn of_request(bytes: [u8; PREFIX_BYTES]) -> Result<Self, WireError> {
        Self::checked(bytes, REQUEST_HEAD_BYTES_MAX, REQUEST_BODY_BYTES_MAX)
    }

    /// Reads the prefix of a frame that came from a server.
    ///
    /// # Errors
    /// `FrameTooLarge` when a length passes its limit.
    pub fn of_reply(bytes: [u8; PREFIX_BYTES]) -> Result<Self, WireError> {
        Self::checked(bytes, REPLY_HEAD_BYTES_MAX, REPLY_BODY_BYTES_MAX)
    }

    /// Returns the bytes to send.
    #[must_use]
    pub fn to_bytes(self) -> [u8; PREFIX_BYTES] {
        let mut bytes = [0; PREFIX_BYTES];
        bytes[..4].copy_from_slice(&length(self.head_bytes));
        bytes[4..].copy_from_slice(&length(self.body_bytes));
        bytes
    }

    fn checked(
        bytes: [u8; PREFIX_BYTES],
        head_bytes_max: usize,
        body_bytes_max: usize,
    ) -> Result<Self, WireError> {
        let [a, b, c, d, e, f, g, h] = bytes;
        let head_bytes = u32::from_le_bytes([a, b, c, d]) as usize;
        let body_bytes = u32::from_le_bytes([e, f, g, h]) as usize;
        for (part, found, limit) in
            [("head", head_bytes, head_bytes_max), ("body", body_bytes, body_bytes_max)]
        {
            if found > limit {
                return Err(WireError::FrameTooLarge { part, found, limit });
            }
        }
        Ok(Self { head_bytes, body_bytes })
    }
}

/// Lengths are built by this crate under the limits, which fit 32 bits.
fn length(n_bytes: usize) -> [u8; 4] {
    u32::try_from(n_bytes).expect("frame lengths are bounded by limits.rs").to_le_bytes()
}

/// Room for a typical head, so that building one allocates once.
const FIRST_SEGMENT_WORDS: u32 = 32;

/// A reader over a head's bytes; nothing is copied.
type HeadReader<'a> = capnp::message::Reader<BufferSegments<&'a [u8]>>;

pub(crate) fn builder() -> Builder<HeapAllocator> {
    Builder::new(HeapAllocator::new().first_segment_words(FIRST_SEGMENT_WORDS))
}

/// Decodes a head by `read` and limits its traversal to `words_max` words, and to a few for each
/// word that it has. Otherwise a list of empty elements could claim any length, and memory, without
/// bytes to pay for it. Bytes past the message are not looked at.
pub(crate) fn decode<T>(
    message: &'static str,
    head: &[u8],
    words_max: usize,
    read: impl FnOnce(&HeadReader<'_>) -> Decoded<T>,
) -> Result<T, WireError> {
    let mut options = ReaderOptions::new();
    let words_max = words_max.min(TRAVERSAL_WORDS_MIN + TRAVERSAL_PER_WORD * (head.len() / 8));
    options.traversal_limit_in_words(Some(words_max)).nesting_limit(NESTING_MAX);
    let decode =
        || -> Decoded<T> { read(&HeadReader::new(BufferSegments::new(head, options)?, options)) };
    decode().map_err(|reason| WireError::Malformed { message, reason: reason.to_string() })
}

/// Appends a whole frame less its body: prefix and head. The caller appends `body_bytes` bytes.
pub(crate) fn append_frame(message: &Builder<HeapAllocator>, body_bytes: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX_BYTES]);
    write_message(&mut *out, message).expect("writing to a Vec cannot fail");
    let head_bytes = out.len() - start - PREFIX_BYTES;
    let prefix = Prefix { head_bytes, body_bytes };
    out[start..start + PREFIX_BYTES].copy_from_slice(&prefix.to_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_survive_the_trip() {
        let prefix = Prefix { head_bytes: 40, body_bytes: REQUEST_BODY_BYTES_MAX };
        assert_eq!(Prefix::of_request(prefix.to_bytes()), Ok(prefix));
    }

    #[test]
    fn one_byte_past_a_limit_is_refused() {
        let limit = REQUEST_HEAD_BYTES_MAX;
        let prefix = Prefix { head_bytes: limit + 1, body_bytes: 0 };
        let error = WireError::FrameTooLarge { part: "head", found: limit + 1, limit };
        assert_eq!(Prefix::of_request(prefix.to_bytes()), Err(error));
        let prefix = Prefix { head_bytes: 0, body_bytes: REPLY_BODY_BYTES_MAX + 1 };
        assert!(Prefix::of_reply(prefix.to_bytes()).is_err());
        assert!(Prefix::of_request([0xff; 8]).is_err());
    }
}
