//! A partition that is moved over a connection, step by step; its files come as for a follower.

use std::rc::Rc;

use lodestore_graph::PartId;
use lodestore_schema::limits::COPY_PIECE_BYTES;
use lodestore_schema::reply::Copied;
use lodestore_schema::request::CopyStep;
use lodestore_schema::{Failure, FailureCode, Reply};
use lodestore_store::StoreError;
use lodestore_store::update::PartCopy;

use super::{Connection, ConnectionError};
use crate::error::{failure, store_failure};
use crate::shard::Shard;

/// The copy of a connection; it ends with it.
pub(super) struct Copying {
    copy: PartCopy,
    /// Number of the move.
    id: u64,
}

/// The reply of a step, and the piece that follows it.
type Step = Result<(Copied, Vec<u8>), Failure>;

impl Connection {
    /// Does a step and answers. Steps have no deadline of their own: a client that has left is
    /// noticed at the next.
    pub(super) async fn copy(
        mut self,
        shard: &Rc<Shard>,
        part: PartId,
        step: CopyStep,
    ) -> Result<Self, ConnectionError> {
        let copied = self.copy_step(shard, part, step).await;
        let (mut copied, piece) = match copied {
            Ok(done) => done,
            Err(refusal) => return self.reply_or_refuse(shard, Err(refusal.into())).await,
        };
        copied.crc32 = crc32fast::hash(&piece);
        let mut frame = Vec::new();
        Reply::Copied(copied).append_to(piece.len(), &mut frame);
        self.write(&frame).await?;
        // A slow reader has time for each part.
        for part in piece.chunks(lodestore_schema::limits::CHUNK_BYTES) {
            self.write(part).await?;
        }
        Ok(self)
    }

    async fn copy_step(&mut self, shard: &Rc<Shard>, part: PartId, step: CopyStep) -> Step {
        self.permissions.check_moves()?;
        match step {
            CopyStep::Adopt => {
                let version = shard.open_received(part).await?;
                return Ok((Copied { version, ..Copied::default() }, Vec::new()));
            }
            CopyStep::Expect { id } => {
                shard.check_arrives(part, id).await?;
                return Ok(Default::default());
            }
            CopyStep::Open { id } => return self.open_copy(shard, part, id).await,
            _ => {}
        }
        let copying = self.copying.take().filter(|copying| copying.copy.part() == part);
        let Some(Copying { mut copy, id }) = copying else {
            let message = format!("partition {part} is not copied over this connection; open it");
            return Err(failure(FailureCode::Invalid, message));
        };
        if step == CopyStep::Release && id == 0 {
            self.copying = Some(Copying { copy, id });
            let message = "this copy takes nothing away; open it under the number of a move";
            return Err(failure(FailureCode::Invalid, message));
        }
        if step == CopyStep::Release {
            shard.release(copy, id).await?;
            return Ok(Default::default());
        }
        let _room = shard.take_piece_room()?;
        let done = shard.call_store(move |_| {
            let done = step_of(&mut copy, step);
            (copy, done)
        });
        let (copy, done) = done.await?;
        self.copying = Some(Copying { copy, id });
        done.map_err(|error| store_failure(&error))
    }

    async fn open_copy(&mut self, shard: &Rc<Shard>, part: PartId, id: u64) -> Step {
        // One at a time: the one before ends here.
        self.copying = None;
        let opened = shard.begin_copy(part, id).await?;
        let is_given_up = opened.is_none();
        self.copying = opened.map(|copy| Copying { copy, id });
        Ok((Copied { is_given_up, ..Copied::default() }, Vec::new()))
    }
}

/// Returns a step that seals, or reads pending rows. Blocks.
fn step_of(copy: &mut PartCopy, step: CopyStep) -> Result<(Copied, Vec<u8>), StoreError> {
    let (mut copied, mut piece) = (Copied::default(), Vec::new());
    match step {
        CopyStep::Pending => copied.is_last = copy.next_pending(COPY_PIECE_BYTES, &mut piece)?,
        CopyStep::Seal => copied.version = copy.seal()?,
        // A connection that takes these steps does not come here.
        CopyStep::Open { .. } | CopyStep::Release | CopyStep::Adopt | CopyStep::Expect { .. } => {}
    }
    Ok((copied, piece))
}
