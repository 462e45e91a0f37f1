//! Publications, and the answer to a pull of volatile rows: rows as in any pull, and then their
//! stamps.

use std::io::{self, Read};
use std::time::Instant;

use lodestore_graph::NodeId;
use lodestore_schema::{Reply, Request};

use super::rows::neighbours;
use super::{Connection, Place, Progress};
use crate::error::ClientError;
use crate::read_buffer::Head;

/// How far the answer to a pull of volatile rows has come.
pub(crate) struct VolatileProgress {
    pub(crate) rows: Progress,
    /// Whether all rows are in place.
    has_rows: bool,
    /// Whether the head of the stamps has come.
    has_head: bool,
}

impl VolatileProgress {
    /// Returns the state of an awaited answer.
    pub(crate) fn new() -> Self {
        Self { rows: Progress::new(), has_rows: false, has_head: false }
    }
}

impl Connection {
    /// Sends a request with ids and rows: those at `positions` of `ids` and of `rows`. Adjacent
    /// rows are sent without a copy.
    pub(crate) fn send_publication(
        &mut self,
        request: &Request,
        ids: &[NodeId],
        rows: &[u8],
        positions: &[u32],
        deadline: Instant,
    ) -> Result<(), ClientError> {
        let row_bytes = rows.len() / ids.len().max(1);
        let Some(range) = neighbours(positions, row_bytes) else {
            return self.send_push(request, ids, rows, positions, deadline);
        };
        let body_bytes = positions.len() * size_of::<NodeId>() + range.len();
        let append = |frame: &mut Vec<u8>| {
            let first = positions.first().map_or(0, |&first| first as usize);
            let ids = &ids[first..first + positions.len()];
            frame.extend_from_slice(bytemuck::cast_slice(ids));
        };
        self.send_frame(request, body_bytes, append, deadline)?;
        self.write(&rows[range]).map_err(|error| self.refusal().unwrap_or(error))
    }

    /// Writes the rows of an answer that have arrived to their places, without waiting for more.
    /// Returns whether these are all. `stamps` has a place for each row of the pull.
    pub(crate) fn take_volatile(
        &mut self,
        progress: &mut VolatileProgress,
        place: &mut Place<'_>,
        stamps: &mut [u32],
        deadline: Instant,
    ) -> Result<bool, ClientError> {
        if !progress.has_rows {
            progress.has_rows = self.take_rows(&mut progress.rows, place, deadline)?;
            if !progress.has_rows {
                return Ok(false);
            }
        }
        self.stream.set_deadline(deadline, false);
        let n_rows = place.positions.len();
        let n_bytes = size_of_val(place.positions);
        loop {
            let needed = if progress.has_head {
                if self.read_buffer.len() >= n_bytes {
                    break;
                }
                n_bytes
            } else {
                match self.read_buffer.head().map_err(|source| self.wire(source))? {
                    Head::Needs(needed) => needed,
                    Head::Whole(reply, body_bytes) => {
                        self.check_stamps(reply, n_rows, body_bytes)?;
                        progress.has_head = true;
                        continue;
                    }
                }
            };
            match self.read_buffer.read_more(|buffer| self.stream.read(buffer), needed) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                read => self.has_read(read)?,
            }
        }
        let (found, _) = self.read_buffer.take(n_bytes).as_chunks::<4>();
        for (&position, stamp) in place.positions.iter().zip(found) {
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
            _ => Err(self.malformed("an answer of another kind")),
        }
    }
}
