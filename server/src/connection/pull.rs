//! A pull on a connection: ids in, chunk after chunk of rows out.

use std::ops::Range;
use std::rc::Rc;

use futures_lite::AsyncReadExt;
use lodestore_graph::NodeId;
use lodestore_schema::{Reply, Versions};

use super::shared::{Ring, chunk_rows};
use super::stream::has_left;
use super::{Connection, ConnectionError, PendingPull, RequestError};
use crate::buffers::{Buffers, HEAD_ROOM, set_len, to_u32};
use crate::deadline::{io_timeout, with_deadline};
use crate::limits::FRAME_TIMEOUT;
use crate::rows::Want;
use crate::shard::Shard;
use crate::stats::count;

/// The chunks of an answer, and the present one.
pub(super) struct PullAnswer {
    ring: Ring,
    rows: Range<usize>,
    n_rows: usize,
    chunk_rows: usize,
    row_bytes: usize,
    /// Whether chunks come through shared memory, and whether this one does.
    shares: bool,
    is_shared: bool,
}

impl PullAnswer {
    /// Returns where the present chunk ends in a frame.
    fn body_end(&self) -> usize {
        HEAD_ROOM + self.rows.len() * self.row_bytes
    }
}

impl Connection {
    pub(super) async fn pull(
        mut self,
        shard: &Rc<Shard>,
        asked: PendingPull,
    ) -> Result<Self, ConnectionError> {
        let result = match shard.admit_pull(asked.tensor, asked.n_bytes) {
            Err(refusal) => {
                self.drain(asked.n_bytes).await?;
                Err(refusal.into())
            }
            Ok((_room, mut buffers)) => {
                set_len(&mut buffers.ids, asked.n_bytes / size_of::<NodeId>());
                let ids = bytemuck::cast_slice_mut(&mut buffers.ids);
                io_timeout(FRAME_TIMEOUT, self.stream.read_exact(ids)).await?;
                let sent = match shard.check_floors(&buffers.ids, &asked.floors) {
                    Ok(()) => self.send_rows(shard, &asked, &mut buffers).await,
                    Err(refusal) => Err(refusal.into()),
                };
                shard.take_back(buffers);
                sent
            }
        };
        match result {
            Ok(()) => {
                if let (Some(_), Some(shared)) = (&self.lease, &mut self.shared) {
                    shared.n_untaken += 1;
                }
                Ok(self)
            }
            Err(error) => {
                self.lease = None;
                self.reply_or_refuse(shard, Err(error)).await
            }
        }
    }

    /// Gathers and sends chunk after chunk, as long as a pull waits for them.
    async fn send_rows(
        &mut self,
        shard: &Rc<Shard>,
        asked: &PendingPull,
        Buffers { ids, frame }: &mut Buffers,
    ) -> Result<(), RequestError> {
        let &PendingPull { tensor, kind, version, deadline, .. } = asked;
        let row_bytes = shard.row_bytes(tensor);
        // Before rows are lent, too: the version is in use.
        let pinned = with_deadline(deadline, shard.pin(version)).await?;
        let first_row = self.lease_rows(shard, asked, ids, frame).await?;
        if first_row > 0 && first_row == ids.len() {
            return Ok(());
        }
        let mut answer = self.chunks(first_row, ids.len(), row_bytes);
        let turn = shard.read_turn(kind, deadline);
        // An empty list is answered by one empty chunk.
        loop {
            // At a stop we have closed that direction ourselves.
            if !shard.is_ending() && has_left(&self.socket) {
                return Err(ConnectionError::Left.into());
            }
            let (rows, out) = self.next_place(shard, &mut answer, frame).await?;
            turn.set_rows_after(ids.len() - rows.end);
            let want = Want { turn: &turn, pinned: pinned.as_ref() };
            let gather = shard.gather(tensor, want, &ids[rows.clone()], out);
            with_deadline(deadline, gather).await?;
            let is_last = rows.end == ids.len();
            let versions = if is_last { shard.versions(ids) } else { Versions::default() };
            if self.send_chunk(shard, &answer, frame, versions).await? {
                return Ok(());
            }
            glommio::yield_if_needed().await;
        }
    }

    /// Returns the chunks of an answer with the rows from `first_row` on up to `n_rows`.
    pub(super) fn chunks(&self, first_row: usize, n_rows: usize, row_bytes: usize) -> PullAnswer {
        let chunk_rows = chunk_rows(row_bytes);
        let ring = Ring::new(first_row, n_rows, chunk_rows, row_bytes);
        let shares = self.shares(ring);
        PullAnswer {
            ring,
            rows: first_row..first_row,
            n_rows,
            chunk_rows,
            row_bytes,
            shares,
            is_shared: false,
        }
    }

    /// Begins the next chunk: waits for its place in shared memory, if it has one. Returns its
    /// rows, and where these are to be gathered: there, or behind the head room of `frame`.
    pub(super) async fn next_place<'a>(
        &'a mut self,
        shard: &Shard,
        answer: &mut PullAnswer,
        frame: &'a mut Vec<u8>,
    ) -> Result<(Range<usize>, &'a mut [u8]), ConnectionError> {
        let first_row = answer.rows.end;
        answer.rows = first_row..answer.n_rows.min(first_row + answer.chunk_rows);
        answer.shares = answer.shares && self.free_place(shard, answer.ring, first_row).await?;
        let place = if answer.shares { self.place(answer.ring, first_row) } else { None };
        answer.is_shared = place.is_some();
        let body_end = answer.body_end();
        let out = place.unwrap_or_else(|| {
            if frame.len() < body_end {
                set_len(frame, body_end);
            }
            &mut frame[HEAD_ROOM..body_end]
        });
        Ok((answer.rows.clone(), out))
    }

    /// Sends the chunk that was gathered. Returns whether it was the last.
    pub(super) async fn send_chunk(
        &mut self,
        shard: &Shard,
        answer: &PullAnswer,
        frame: &mut [u8],
        versions: Versions,
    ) -> Result<bool, ConnectionError> {
        let (first_row, n_rows) = (to_u32(answer.rows.start), to_u32(answer.rows.len()));
        let n_bytes = answer.rows.len() * answer.row_bytes;
        if answer.is_shared {
            self.write_shared(answer.ring, first_row, n_rows, versions).await?;
            count(&shard.counters().shared_bytes, n_bytes);
        } else {
            let rows = Reply::Rows { first_row, n_rows, versions };
            self.write_chunk(&rows, &mut frame[..answer.body_end()]).await?;
        }
        count(&shard.counters().rows, answer.rows.len());
        count(&shard.counters().bytes, n_bytes);
        Ok(answer.rows.end == answer.n_rows)
    }

    /// Sends a reply whose body is in the frame, behind the room for its head.
    pub(super) async fn write_chunk(
        &mut self,
        reply: &Reply,
        frame: &mut [u8],
    ) -> Result<(), ConnectionError> {
        self.head.clear();
        reply.append_to(frame.len() - HEAD_ROOM, &mut self.head);
        let start = HEAD_ROOM - self.head.len();
        frame[start..HEAD_ROOM].copy_from_slice(&self.head);
        self.write(&frame[start..]).await
    }
}
