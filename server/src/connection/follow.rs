//! Files of a partition for a server that follows this one, behind all pulls.

use std::rc::Rc;
use std::sync::Arc;

use lodestore_graph::PartId;
use lodestore_schema::limits::{CHUNK_BYTES, COPY_PIECE_BYTES};
use lodestore_schema::reply::Followed;
use lodestore_schema::request::FollowStep;
use lodestore_schema::{Failure, FailureCode, Reply};
use lodestore_store::update::PartFiles;

use super::{Connection, ConnectionError};
use crate::error::{failure, store_failure};
use crate::shard::Shard;

/// The reply of a step, and the body that follows it.
type Step = Result<(Followed, Vec<u8>), Failure>;

impl Connection {
    /// Does a step and answers.
    pub(super) async fn follow(
        mut self,
        shard: &Rc<Shard>,
        part: PartId,
        step: FollowStep,
    ) -> Result<Self, ConnectionError> {
        let (mut followed, body) = match self.follow_step(shard, part, step).await {
            Ok(done) => done,
            Err(refusal) => return self.reply_or_refuse(shard, Err(refusal.into())).await,
        };
        followed.crc32 = crc32fast::hash(&body);
        let mut frame = Vec::new();
        Reply::Followed(followed).append_to(body.len(), &mut frame);
        self.write(&frame).await?;
        // A slow reader has time for each part.
        for part in body.chunks(CHUNK_BYTES) {
            self.write(part).await?;
        }
        Ok(self)
    }

    async fn follow_step(&mut self, shard: &Rc<Shard>, part: PartId, step: FollowStep) -> Step {
        match step {
            FollowStep::Manifest => {
                self.following = None;
                let files = shard.call_store(move |live| live.part_files(part)).await?;
                let files = files.map_err(|error| store_failure(&error))?;
                let body = files.manifest().to_bytes();
                if body.len() > COPY_PIECE_BYTES {
                    let message = format!(
                        "the list of its files takes {} bytes, the limit is {COPY_PIECE_BYTES}: compact \
                         it first",
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
                        "partition {part} is not followed over this connection; ask for its manifest"
                    );
                    return Err(failure(FailureCode::Invalid, message));
                };
                let _room = shard.take_piece_room()?;
                let read = shard.call_store(move |_| {
                    let mut piece = Vec::new();
                    let is_last = files.read(file.into(), offset, COPY_PIECE_BYTES, &mut piece)?;
                    Ok((is_last, piece))
                });
                let (is_last, piece) = read.await?.map_err(|error| store_failure(&error))?;
                Ok((Followed { is_last, ..Followed::default() }, piece))
            }
        }
    }
}
