//! A push: its body is read once it has room, and then put.

use std::rc::Rc;
use std::time::Instant;

use futures_lite::AsyncReadExt;
use lodestore_schema::request::Push;

use super::{Connection, RequestError};
use crate::buffers::set_len;
use crate::deadline::{io_timeout, with_deadline};
use crate::limits::FRAME_TIMEOUT;
use crate::shard::Shard;

impl Connection {
    /// Reads the body of a push and has it put.
    pub(super) async fn push(
        &mut self,
        shard: &Rc<Shard>,
        push: Push,
        body_bytes: usize,
        deadline: Instant,
    ) -> Result<u32, RequestError> {
        let (room, mut buffers) = match shard.admit_push(&push, body_bytes) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                self.drain(body_bytes).await?;
                return Err(refusal.into());
            }
        };
        set_len(&mut buffers.ids, push.n_rows as usize);
        let ids = bytemuck::cast_slice_mut(&mut buffers.ids);
        set_len(&mut buffers.frame, body_bytes - ids.len());
        let stream = &mut self.stream;
        let read = async {
            stream.read_exact(ids).await?;
            stream.read_exact(&mut buffers.frame).await
        };
        io_timeout(FRAME_TIMEOUT, read).await?;
        Ok(with_deadline(deadline, shard.push(push, buffers, room)).await?)
    }
}
