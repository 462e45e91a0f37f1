//! Steps of moving a partition over a connection. Its files are fetched as by a follower.

use std::rc::Rc;
use std::sync::Arc;

use lodestore_graph::PartId;
use lodestore_schema::limits::COPY_PIECE_BYTES;
use lodestore_schema::reply::{Copied, Followed, FollowerState};
use lodestore_schema::request::{CopyStep, FollowStep};
use lodestore_schema::{Failure, FailureCode, Reply};
use lodestore_store::StoreError;
use lodestore_store::update::{PartCopy, PartFiles};

use super::{Connection, ConnectionError};
use crate::error::{failure, store_failure};
use crate::shard::Shard;

/// The copy that runs on a connection; it ends with the connection.
pub(super) struct Copying {
    copy: PartCopy,
    /// Number of the move.
    id: u64,
}

/// The reply to a step, and its body.
type Step<T> = Result<(T, Vec<u8>), Failure>;

impl Connection {
    /// Runs a step of a move and replies. Steps have no deadline of their own; a client that has
    /// disconnected is noticed at its next step.
    pub(super) async fn copy(
        mut self,
        shard: &Rc<Shard>,
        part: PartId,
        step: CopyStep,
    ) -> Result<Self, ConnectionError> {
        match self.copy_step(shard, part, step).await {
            Ok((copied, piece)) => {
                let copied = Copied { crc32: crc32fast::hash(&piece), ..copied };
                self.reply_with(&Reply::Copied(copied), &piece).await
            }
            Err(refusal) => self.reply_or_refuse(shard, Err(refusal.into())).await,
        }
    }

    async fn copy_step(&mut self, shard: &Rc<Shard>, part: PartId, step: CopyStep) -> Step<Copied> {
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
            let message =
                format!("partition {part} is not copied over this connection; open a copy");
            return Err(failure(FailureCode::Invalid, message));
        };
        if let CopyStep::Release { to } = step {
            if id == 0 {
                self.copying = Some(Copying { copy, id });
                let message = "this copy releases nothing; open it with the number of a move";
                return Err(failure(FailureCode::Invalid, message));
            }
            shard.release(copy, id, to).await?;
            return Ok(Default::default());
        }
        let _room = shard.take_piece_room()?;
        let done = shard.call_store(move |_| {
            let done = step_of(&mut copy, step);
            (copy, done)
        });
        let (copy, done) = done.await?;
        self.copying = Some(Copying { copy, id });
        done.map_err(store_failure)
    }

    async fn open_copy(&mut self, shard: &Rc<Shard>, part: PartId, id: u64) -> Step<Copied> {
        // One copy at a time: opening another ends the previous one.
        self.copying = None;
        let opened = shard.begin_copy(part, id).await?;
        let is_given_up = opened.is_none();
        self.copying = opened.map(|copy| Copying { copy, id });
        Ok((Copied { is_given_up, ..Copied::default() }, Vec::new()))
    }

    /// Runs a step of following a partition at low priority and replies.
    pub(super) async fn follow(
        mut self,
        shard: &Rc<Shard>,
        part: PartId,
        step: FollowStep,
    ) -> Result<Self, ConnectionError> {
        match self.follow_step(shard, part, step).await {
            Ok((followed, body)) => {
                let followed = Followed { crc32: crc32fast::hash(&body), ..followed };
                self.reply_with(&Reply::Followed(followed), &body).await
            }
            Err(refusal) => self.reply_or_refuse(shard, Err(refusal.into())).await,
        }
    }

    async fn follow_step(
        &mut self,
        shard: &Rc<Shard>,
        part: PartId,
        step: FollowStep,
    ) -> Step<Followed> {
        match step {
            FollowStep::Serves { version, instance } => {
                let follower = FollowerState { part: part.0, version, instance };
                let followers = &shard.plan.partitions.followers;
                self.follower.get_or_insert_with(|| followers.enter()).say(follower);
                shard.plan.partitions.has_changed();
                Ok((Followed { version: version.number, ..Followed::default() }, Vec::new()))
            }
            FollowStep::Manifest => {
                self.following = None;
                let files = shard.call_store(move |live| live.part_files(part)).await?;
                let files = files.map_err(store_failure)?;
                let body = files.manifest().to_bytes();
                if body.len() > COPY_PIECE_BYTES {
                    let message = format!(
                        "the list of the partition's files has {} bytes, the limit is \
                         {COPY_PIECE_BYTES}; compact the partition first",
                        body.len()
                    );
                    return Err(failure(FailureCode::TooLarge, message));
                }
                let list = files.files().map(|(name, n_bytes)| (name.to_owned(), n_bytes));
                let (version, list) = (files.manifest().version(), list.collect());
                self.following = Some(Arc::new(files));
                Ok((Followed { version, files: list, ..Followed::default() }, body))
            }
            FollowStep::Read { file, offset } => {
                let is_of = |files: &&Arc<PartFiles>| files.manifest().part() == part;
                let Some(files) = self.following.as_ref().filter(is_of).map(Arc::clone) else {
                    let message = format!(
                        "partition {part} is not followed on this connection; ask for its manifest"
                    );
                    return Err(failure(FailureCode::Invalid, message));
                };
                let _room = shard.take_piece_room()?;
                let read = shard.call_store(move |_| {
                    let mut piece = Vec::new();
                    let is_last = files.read(file.into(), offset, COPY_PIECE_BYTES, &mut piece)?;
                    Ok((is_last, piece))
                });
                let (is_last, piece) = read.await?.map_err(store_failure)?;
                Ok((Followed { is_last, ..Followed::default() }, piece))
            }
        }
    }
}

/// Seals a copy or reads its pending rows. Blocks.
fn step_of(copy: &mut PartCopy, step: CopyStep) -> Result<(Copied, Vec<u8>), StoreError> {
    let (mut copied, mut piece) = (Copied::default(), Vec::new());
    match step {
        CopyStep::Pending => copied.is_last = copy.next_pending(COPY_PIECE_BYTES, &mut piece)?,
        CopyStep::Seal => copied.version = copy.seal()?,
        // The connection handles these steps itself.
        CopyStep::Open { .. }
        | CopyStep::Release { .. }
        | CopyStep::Adopt
        | CopyStep::Expect { .. } => {}
    }
    Ok((copied, piece))
}
