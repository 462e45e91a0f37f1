//! Received bytes that were not used yet. Does no I/O: the owner of the socket reads.

use std::io;

use lodestore_schema::limits::PREFIX_BYTES;
use lodestore_schema::{Prefix, Reply, WireError};

/// Bytes requested from the socket at a time: a chunk of rows with its head.
const BUFFER_BYTES: usize = 272 << 10;

/// A buffer of received bytes, in order.
pub(crate) struct ReadBuffer {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

/// The next reply in the buffer.
#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack")]
pub(crate) enum Head {
    /// The head was consumed; this many bytes of body follow.
    Whole(Reply, usize),
    /// This many bytes must be buffered before the head can be read.
    Needs(usize),
}

impl ReadBuffer {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; BUFFER_BYTES], start: 0, end: 0 }
    }

    /// Returns the number of unused bytes.
    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    /// Consumes the next `n_bytes`, which must be buffered.
    pub(crate) fn take(&mut self, n_bytes: usize) -> &[u8] {
        let start = self.start;
        self.start += n_bytes;
        &self.buffer[start..start + n_bytes]
    }

    /// Reads once, as much as fits; the buffer has room for at least `n_bytes` in all. Returns 0 at
    /// the end of the stream.
    pub(crate) fn read_more(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
        n_bytes: usize,
    ) -> io::Result<usize> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.buffer.len() < n_bytes {
            self.buffer.resize(n_bytes, 0);
        }
        let n_read = read(&mut self.buffer[self.end..])?;
        self.end += n_read;
        Ok(n_read)
    }

    /// Returns the head of the next reply, if it is buffered.
    pub(crate) fn head(&mut self) -> Result<Head, WireError> {
        let waiting = &self.buffer[self.start..self.end];
        let Some((&prefix, rest)) = waiting.split_first_chunk::<PREFIX_BYTES>() else {
            return Ok(Head::Needs(PREFIX_BYTES));
        };
        let prefix = Prefix::of_reply(prefix)?;
        let Some(head) = rest.get(..prefix.head_bytes) else {
            return Ok(Head::Needs(PREFIX_BYTES + prefix.head_bytes));
        };
        let reply = Reply::decode(head)?;
        self.start += PREFIX_BYTES + prefix.head_bytes;
        Ok(Head::Whole(reply, prefix.body_bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use lodestore_schema::Versions;

    use super::*;

    #[test]
    fn heads_and_bodies_are_whole_however_they_arrive() {
        let mut bytes = Vec::new();
        for first_row in 0..40 {
            Reply::Rows { first_row, n_rows: 1, versions: Versions::default() }
                .append_to(first_row as usize, &mut bytes);
            bytes.extend(std::iter::repeat_n(first_row as u8, first_row as usize));
        }
        for piece in [1, 7, 64, bytes.len()] {
            let (mut read_buffer, mut left, mut found) = (ReadBuffer::new(), &bytes[..], 0);
            while found < 40 {
                match read_buffer.head().unwrap() {
                    Head::Needs(n_bytes) => read(&mut read_buffer, &mut left, piece, n_bytes),
                    Head::Whole(reply, body_bytes) => {
                        let versions = Versions::default();
                        assert_eq!(reply, Reply::Rows { first_row: found, n_rows: 1, versions });
                        assert_eq!(body_bytes, found as usize);
                        while read_buffer.len() < body_bytes {
                            read(&mut read_buffer, &mut left, piece, body_bytes);
                        }
                        assert!(
                            read_buffer.take(body_bytes).iter().all(|&b| u32::from(b) == found)
                        );
                        found += 1;
                    }
                }
            }
            assert_eq!((read_buffer.len(), left.len()), (0, 0));
        }
    }

    fn read(read_buffer: &mut ReadBuffer, left: &mut &[u8], piece: usize, n_bytes: usize) {
        assert!(
            read_buffer.read_more(|buffer| left.take(piece as u64).read(buffer), n_bytes).unwrap()
                > 0
        );
    }

    #[test]
    fn a_length_past_its_limit_is_rejected_before_memory_is_allocated() {
        let mut read_buffer = ReadBuffer::new();
        read_buffer.read_more(|buffer| (&[0xff; 8][..]).read(buffer), 8).unwrap();
        assert!(matches!(read_buffer.head(), Err(WireError::FrameTooLarge { .. })));
        assert_eq!(read_buffer.buffer.len(), BUFFER_BYTES);
    }
}
