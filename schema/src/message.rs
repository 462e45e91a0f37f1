//! Heads as Cap'n Proto messages: reading one under limits, appending one to a buffer.

use capnp::message::{Builder, HeapAllocator, ReaderOptions};
use capnp::serialize::{BufferSegments, write_message};

use crate::error::WireError;
use crate::frame::Prefix;
use crate::limits::{NESTING_MAX, PREFIX_BYTES, TRAVERSAL_PER_WORD, TRAVERSAL_WORDS_MIN};

/// Room for a typical head, so that building one allocates once.
const FIRST_SEGMENT_WORDS: u32 = 32;

/// A reader over a head's bytes; nothing is copied.
pub(crate) type HeadReader<'a> = capnp::message::Reader<BufferSegments<&'a [u8]>>;

pub(crate) fn builder() -> Builder<HeapAllocator> {
    Builder::new(HeapAllocator::new().first_segment_words(FIRST_SEGMENT_WORDS))
}

/// Opens a head and limits its traversal to `words_max` words, and to a few for each word that it
/// has. Otherwise a list of empty elements could claim any length, and memory, without bytes to pay
/// for it. Bytes past the message are not looked at.
pub(crate) fn open<'a>(
    what: &'static str,
    head: &'a [u8],
    words_max: usize,
) -> Result<HeadReader<'a>, WireError> {
    let mut options = ReaderOptions::new();
    let words_max = words_max.min(TRAVERSAL_WORDS_MIN + TRAVERSAL_PER_WORD * (head.len() / 8));
    options.traversal_limit_in_words(Some(words_max)).nesting_limit(NESTING_MAX);
    let segments = BufferSegments::new(head, options).map_err(|e| WireError::malformed(what, e))?;
    Ok(capnp::message::Reader::new(segments, options))
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
