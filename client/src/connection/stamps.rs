//! Publications, and the answer to a pull of volatile rows: rows as in any pull, and then their
//! stamps.

use std::time::Instant;

use lodestore_graph::NodeId;
use lodestore_schema::{Reply, Request};

use super::rows::neighbours;
use super::{Connection, Progress};
use crate::error::ClientError;
use crate::read_buffer::Head;

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

    /// Writes the stamps that follow the rows of an answer to their places. Returns whether they
    /// have come.
    pub(super) fn take_stamps(
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
            _ => Err(self.malformed("an answer of another kind")),
        }
    }
}
