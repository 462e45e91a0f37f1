//! A pull on a connection: ids in, chunk after chunk of rows out.

use std::ops::Range;
use std::rc::Rc;

use lodestore_graph::NodeId;
use lodestore_schema::{Reply, Versions};

use super::shared::Ring;
use super::{Connection, ConnectionError, PendingPull, RequestError};
use crate::buffers::{Buffers, HEAD_ROOM, body_room, set_len, to_u32};
use crate::deadline::with_deadline;
use crate::rows::Want;
use crate::shard::{Asked, Shard};
use crate::stats::count;

/// Chunks of a reply, and the current one.
pub(super) struct PullAnswer {
    ring: Ring,
    rows: Range<usize>,
    /// Whether chunks may use shared memory, and whether the current one does.
    shares: bool,
    is_shared: bool,
}

impl Connection {
    pub(super) async fn pull(
        mut self,
        shard: &Rc<Shard>,
        asked: PendingPull,
    ) -> Result<Self, ConnectionError> {
        let sent = self.answer_pull(shard, &asked).await;
        if sent.is_err() {
            self.lease = None;
        } else if let (Some(_), Some(shared)) = (&self.lease, &mut self.shared) {
            shared.n_untaken += 1;
        }
        self.end_answer(shard, sent).await
    }

    async fn answer_pull(
        &mut self,
        shard: &Rc<Shard>,
        asked: &PendingPull,
    ) -> Result<(), RequestError> {
        let admitted = shard.admit_pull(asked.tensor, asked.kind, asked.n_bytes);
        let (_room, mut buffers) = self.drain_refused(admitted, asked.n_bytes).await?;
        set_len(&mut buffers.ids, asked.n_bytes / size_of::<NodeId>());
        self.read_in_time(bytemuck::cast_slice_mut(&mut buffers.ids)).await?;
        let sent = self.send_rows(shard, asked, &mut buffers).await;
        shard.take_back(buffers);
        sent
    }

    /// Gathers and sends the chunks of one cut, unless the client disconnects.
    async fn send_rows(
        &mut self,
        shard: &Rc<Shard>,
        asked: &PendingPull,
        Buffers { ids, frame }: &mut Buffers,
    ) -> Result<(), RequestError> {
        let &PendingPull { tensor, kind, version, exactly, deadline, .. } = asked;
        let row_bytes = shard.row_bytes(tensor);
        // Resolved before rows are leased, too: this marks the version as in use.
        let wanted = Asked { version, floors: &asked.floors, exactly };
        let cut = &with_deadline(deadline, shard.cut_of(wanted, ids)).await?;
        let first_row = self.lease_rows(shard, asked, cut, ids, frame).await?;
        if first_row > 0 && first_row == ids.len() {
            return Ok(());
        }
        let mut answer = self.chunks(first_row, ids.len(), row_bytes);
        let turn = shard.read_turn(kind, deadline);
        // An empty request receives one empty chunk.
        loop {
            self.check_present(shard)?;
            let (rows, out) = self.next_place(shard, &mut answer, frame).await?;
            turn.n_rows_after.set(ids.len() - rows.end);
            let want = Want { turn: &turn, cut: Some(cut) };
            let gather = shard.gather(tensor, want, &ids[rows.clone()], out);
            with_deadline(deadline, gather).await?;
            let is_last = rows.end == ids.len();
            let versions = match is_last {
                true => cut.versions(&shard.plan.partitions.book, ids),
                false => Versions::default(),
            };
            let is_sent = self.send_chunk(shard, &answer, frame, versions).await?;
            count(shard.counters().tensor_rows.at(usize::from(tensor)), rows.len());
            if is_sent {
                return Ok(());
            }
            glommio::yield_if_needed().await;
        }
    }

    /// Returns the chunks of a reply with the rows `first_row..n_rows`.
    pub(super) fn chunks(&self, first_row: usize, n_rows: usize, row_bytes: usize) -> PullAnswer {
        let ring = Ring::new(first_row, n_rows, row_bytes);
        PullAnswer { ring, rows: first_row..first_row, shares: self.shares(ring), is_shared: false }
    }

    /// Begins the next chunk; waits for its slot in shared memory, if it uses one. Returns its
    /// rows, and the buffer to gather them into: the slot, or `frame` behind the head room.
    pub(super) async fn next_place<'a>(
        &'a mut self,
        shard: &Shard,
        answer: &mut PullAnswer,
        frame: &'a mut Vec<u8>,
    ) -> Result<(Range<usize>, &'a mut [u8]), ConnectionError> {
        let (ring, first_row) = (answer.ring, answer.rows.end);
        answer.rows = first_row..ring.n_rows.min(first_row + ring.chunk_rows);
        answer.shares = answer.shares && self.free_place(shard, ring, first_row).await?;
        let place = if answer.shares { self.place(ring, first_row) } else { None };
        answer.is_shared = place.is_some();
        let n_bytes = answer.rows.len() * ring.row_bytes;
        Ok((answer.rows.clone(), place.unwrap_or_else(|| body_room(frame, n_bytes))))
    }

    /// Sends the gathered chunk. Returns whether it was the last one.
    pub(super) async fn send_chunk(
        &mut self,
        shard: &Shard,
        answer: &PullAnswer,
        frame: &mut [u8],
        versions: Versions,
    ) -> Result<bool, ConnectionError> {
        let (first_row, n_rows) = (to_u32(answer.rows.start), to_u32(answer.rows.len()));
        let n_bytes = answer.rows.len() * answer.ring.row_bytes;
        if answer.is_shared {
            self.write_shared(answer.ring, first_row, n_rows, versions).await?;
            count(&shard.counters().shared_bytes, n_bytes);
        } else {
            let rows = Reply::Rows { first_row, n_rows, versions };
            self.write_chunk(&rows, &mut frame[..HEAD_ROOM + n_bytes]).await?;
        }
        count(&shard.counters().rows, answer.rows.len());
        count(&shard.counters().bytes, n_bytes);
        Ok(answer.rows.end == answer.ring.n_rows)
    }

    /// Sends a reply whose body is in `frame`, behind the head room.
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
