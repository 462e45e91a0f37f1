//! Sending rows, and receiving the reply to a pull as it arrives. Bytes that have arrived are put
//! in place without waiting, so that several replies can arrive concurrently. Stamps follow the
//! rows of a reply if these are volatile.

use std::io::{self, Read};
use std::ops::Range;
use std::time::Instant;

use lodestore_graph::NodeId;
use lodestore_schema::limits::PREFIX_BYTES;
use lodestore_schema::{Reply, Request, Versions};

use super::Connection;
use crate::buffer::scatter;
use crate::error::ClientError;
use crate::read_buffer::Head;

/// Reads of one connection before the others get their turn.
const READS_MAX: usize = 8;

/// Fewer bytes of rows than these are copied behind their ids: a second write costs more.
const UNCOPIED_MIN: usize = 64 << 10;

/// Destination of the rows of a reply: row `i` goes to row `positions[i]` of `out`. Positions
/// ascend.
pub(crate) struct Place<'a> {
    pub(crate) positions: &'a [u32],
    pub(crate) row_bytes: usize,
    pub(crate) out: &'a mut [u8],
    /// The stamp of each row of `out`, if the rows are volatile: stamps follow them.
    pub(crate) stamps: Option<&'a mut [u32]>,
}

/// How much of a reply has arrived.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Rows in place.
    done: usize,
    /// Rows up to the end of the current chunk.
    chunk_end: usize,
    /// Bytes of `out` that the rest of the chunk fills, if its rows are adjacent there.
    straight: Option<Range<usize>>,
    has_begun: bool,
    /// Whether the current chunk is lent: slots follow instead of rows.
    is_lent: bool,
    /// Whether any chunk was lent.
    was_lent: bool,
    /// Whether the bytes that were buffered before the reply have been used.
    has_looked: bool,
    /// Bytes that must be buffered before anything can be done.
    needed: usize,
    /// Versions in the head of the last chunk.
    versions: Versions,
    /// Whether the head of the stamps has arrived.
    has_stamps_head: bool,
}

impl Progress {
    /// Returns the state of a reply of which nothing has arrived.
    pub(crate) fn new() -> Self {
        Self { needed: PREFIX_BYTES, ..Self::default() }
    }

    /// Returns the versions that the server's partitions have reached, once the reply is complete.
    pub(crate) fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Returns whether the head of the first chunk has arrived.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }
}

impl Connection {
    /// Sends a request with the ids and the rows at `positions` of `ids` and of `rows`. Positions
    /// ascend. Many adjacent rows are sent without a copy.
    pub(crate) fn send_rows(
        &mut self,
        request: &Request,
        ids: &[NodeId],
        rows: &[u8],
        positions: &[u32],
        deadline: Instant,
    ) -> Result<(), ClientError> {
        let row_bytes = rows.len() / ids.len().max(1);
        let body_bytes = positions.len() * (size_of::<NodeId>() + row_bytes);
        let adjacent = neighbours(positions, row_bytes).filter(|rows| rows.len() >= UNCOPIED_MIN);
        let body = |frame: &mut Vec<u8>| {
            if adjacent.is_some() {
                let first = positions.first().map_or(0, |&first| first as usize);
                let ids = &ids[first..first + positions.len()];
                return frame.extend_from_slice(bytemuck::cast_slice(ids));
            }
            for &position in positions {
                frame.extend_from_slice(&ids[position as usize].0.to_le_bytes());
            }
            for &position in positions {
                frame.extend_from_slice(&rows[position as usize * row_bytes..][..row_bytes]);
            }
        };
        self.send_frame(request, body_bytes, body, deadline)?;
        self.write(&rows[adjacent.unwrap_or_default()])
            .map_err(|error| self.refusal().unwrap_or(error))
    }

    /// Returns whether bytes of a reply are buffered that polling the socket does not show. One
    /// such reply is the refusal of an overloaded server, sent with the hello.
    pub(crate) fn has_buffered(&self, progress: &Progress) -> bool {
        !progress.has_looked && self.read_buffer.len() > 0
    }

    /// Writes the rows that have arrived to their places, without waiting for more. Returns whether
    /// the reply is complete. Acknowledgements to the server are sent by `deadline`.
    pub(crate) fn take_rows(
        &mut self,
        progress: &mut Progress,
        place: &mut Place<'_>,
        deadline: Instant,
    ) -> Result<bool, ClientError> {
        self.check_process()?;
        self.stream.set_deadline(deadline, false);
        if !std::mem::replace(&mut progress.has_looked, true) && self.use_up(progress, place)? {
            return Ok(true);
        }
        // Polling the socket does not show bytes that TLS has decrypted and still buffers.
        let n_reads_max = if self.stream.is_tls() { usize::MAX } else { READS_MAX };
        for _ in 0..n_reads_max {
            let read = match &mut progress.straight {
                // The buffer is used up.
                Some(range) => self.stream.read(&mut place.out[range.clone()]).inspect(|n_bytes| {
                    range.start += n_bytes;
                }),
                None => {
                    self.read_buffer.read_more(|buffer| self.stream.read(buffer), progress.needed)
                }
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                read => self.has_read(read)?,
            }
            if self.use_up(progress, place)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Uses heads and rows as far as they have arrived; returns whether the reply is complete.
    fn use_up(
        &mut self,
        progress: &mut Progress,
        place: &mut Place<'_>,
    ) -> Result<bool, ClientError> {
        loop {
            if let Some(range) = &mut progress.straight {
                let n_bytes = range.len().min(self.read_buffer.len());
                place.out[range.start..][..n_bytes].copy_from_slice(self.read_buffer.take(n_bytes));
                range.start += n_bytes;
                if range.start < range.end {
                    return Ok(false);
                }
                (progress.straight, progress.done) = (None, progress.chunk_end);
            }
            if progress.is_lent {
                let n_bytes = (progress.chunk_end - progress.done) * size_of::<u32>();
                if self.read_buffer.len() < n_bytes {
                    progress.needed = n_bytes;
                    return Ok(false);
                }
                let positions = &place.positions[progress.done..progress.chunk_end];
                self.take_lent(positions, place.row_bytes, place.out)?;
                (progress.is_lent, progress.done) = (false, progress.chunk_end);
            }
            if progress.done < progress.chunk_end {
                let left = &place.positions[progress.done..progress.chunk_end];
                let n_rows = left.len().min(self.read_buffer.len() / place.row_bytes);
                let rows = self.read_buffer.take(n_rows * place.row_bytes);
                scatter(rows, place.row_bytes, &left[..n_rows], place.out);
                progress.done += n_rows;
                if progress.done < progress.chunk_end {
                    progress.needed = place.row_bytes;
                    return Ok(false);
                }
            }
            if progress.has_begun && progress.done == place.positions.len() {
                if std::mem::take(&mut progress.was_lent) {
                    self.say_taken()?;
                }
                return match &mut place.stamps {
                    Some(stamps) => self.take_stamps(progress, place.positions, stamps),
                    None => Ok(true),
                };
            }
            match self.read_buffer.head().map_err(|source| self.wire(source))? {
                Head::Needs(n_bytes) => {
                    progress.needed = n_bytes;
                    return Ok(false);
                }
                Head::Whole(reply, body_bytes) => {
                    self.begin_chunk(reply, body_bytes, progress, place)?;
                }
            }
        }
    }

    /// Checks the head of a chunk. Its rows arrive next, or are copied at once.
    fn begin_chunk(
        &mut self,
        reply: Reply,
        body_bytes: usize,
        progress: &mut Progress,
        place: &mut Place<'_>,
    ) -> Result<(), ClientError> {
        let (first_row, n_rows, shared) = match reply {
            Reply::Rows { first_row, n_rows, versions } => {
                progress.versions = versions;
                (first_row, n_rows, None)
            }
            Reply::SharedRows { first_row, n_rows, offset, awaited, versions } => {
                progress.versions = versions;
                (first_row, n_rows, Some((offset as usize, awaited)))
            }
            Reply::LentRows { first_row, n_rows, versions } => {
                (progress.is_lent, progress.was_lent) = (true, true);
                progress.versions = versions;
                (first_row, n_rows, None)
            }
            Reply::Failure(failure) => {
                return Err(ClientError::Refused { address: self.address.clone(), failure });
            }
            _ => return Err(self.malformed("a reply of the wrong type")),
        };
        let (n_rows, done, row_bytes) = (n_rows as usize, progress.done, place.row_bytes);
        let in_body = match (&shared, progress.is_lent) {
            (Some(_), _) => Some(0),
            (None, true) => n_rows.checked_mul(size_of::<u32>()),
            (None, false) => n_rows.checked_mul(row_bytes),
        };
        let fits = first_row as usize == done
            && n_rows <= place.positions.len() - done
            && (n_rows > 0 || place.positions.is_empty())
            && Some(body_bytes) == in_body;
        if !fits {
            let message = format!(
                "rows {first_row} + {n_rows} in {body_bytes} bytes; expected from {done} on, at most {}, \
                 in {in_body:?} bytes",
                place.positions.len()
            );
            return Err(self.malformed(message));
        }
        self.declined = None;
        (progress.has_begun, progress.chunk_end) = (true, done + n_rows);
        let positions = &place.positions[done..done + n_rows];
        match shared {
            None if progress.is_lent => {}
            None => progress.straight = neighbours(positions, row_bytes),
            Some((offset, awaited)) => {
                self.take_shared(offset, awaited, positions, row_bytes, place.out)?;
                progress.done = progress.chunk_end;
            }
        }
        Ok(())
    }

    /// Writes the stamps that follow the rows of a reply to their places. Returns whether they have
    /// arrived.
    fn take_stamps(
        &mut self,
        progress: &mut Progress,
        positions: &[u32],
        stamps: &mut [u32],
    ) -> Result<bool, ClientError> {
        if !progress.has_stamps_head {
            match self.read_buffer.head().map_err(|source| self.wire(source))? {
                Head::Needs(n_bytes) => {
                    progress.needed = n_bytes;
                    return Ok(false);
                }
                Head::Whole(reply, body_bytes) => {
                    self.check_stamps(reply, positions.len(), body_bytes)?;
                    progress.has_stamps_head = true;
                }
            }
        }
        progress.needed = size_of_val(positions);
        if self.read_buffer.len() < progress.needed {
            return Ok(false);
        }
        let (found, _) = self.read_buffer.take(progress.needed).as_chunks::<4>();
        for (&position, stamp) in positions.iter().zip(found) {
            stamps[position as usize] = u32::from_le_bytes(*stamp);
        }
        Ok(true)
    }

    fn check_stamps(
        &self,
        reply: Reply,
        n_rows: usize,
        body_bytes: usize,
    ) -> Result<(), ClientError> {
        match reply {
            Reply::Stamps { n_rows: found }
                if found as usize == n_rows && body_bytes == n_rows * size_of::<u32>() =>
            {
                Ok(())
            }
            Reply::Failure(failure) => {
                Err(ClientError::Refused { address: self.address.clone(), failure })
            }
            Reply::Stamps { n_rows: found } => Err(self.malformed(format!(
                "stamps of {found} rows in {body_bytes} bytes; expected those of {n_rows} rows"
            ))),
            _ => Err(self.malformed("a reply of the wrong type")),
        }
    }
}

/// Returns the bytes of the rows if they are adjacent. Positions ascend.
pub(super) fn neighbours(positions: &[u32], row_bytes: usize) -> Option<Range<usize>> {
    debug_assert!(positions.is_sorted(), "splitting keeps the order of positions");
    let (Some(&first), Some(&last)) = (positions.first(), positions.last()) else {
        return Some(0..0);
    };
    let is_whole = last.checked_sub(first).map(|gap| gap as usize) == Some(positions.len() - 1);
    let start = first as usize * row_bytes;
    is_whole.then(|| start..start + positions.len() * row_bytes)
}
