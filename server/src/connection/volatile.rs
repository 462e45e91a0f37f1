//! Volatile rows on a connection: claims, which end with it, and publications.

use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use futures_lite::AsyncReadExt;
use lodestore_cache::volatile::VolatileClaim;
use lodestore_cache::volatile_store::VolatileTensor;
use lodestore_schema::Reply;
use lodestore_schema::request::Publish;

use super::shared::chunk_rows;
use super::{Connection, RequestError};
use crate::buffers::set_len;
use crate::deadline::io_timeout;
use crate::limits::FRAME_TIMEOUT;
use crate::shard::Shard;
use crate::stats::count;
use crate::volatile::volatile_failure;

/// The ranges of one tensor that a connection publishes; they are free for others when it is
/// dropped.
pub(super) struct Claims {
    tensor: Arc<VolatileTensor>,
    claims: Vec<VolatileClaim>,
}

impl Drop for Claims {
    fn drop(&mut self) {
        self.tensor.release(&mut self.claims);
    }
}

impl Connection {
    /// Reads the ranges that are to be claimed, and claims them.
    pub(super) async fn claim(
        &mut self,
        shard: &Rc<Shard>,
        name: &str,
        body_bytes: usize,
    ) -> Result<Reply, RequestError> {
        let (tensor, _room) = match shard.admit_claim(name, body_bytes) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                self.drain(body_bytes).await?;
                return Err(refusal.into());
            }
        };
        let mut bounds = vec![0u32; body_bytes / size_of::<u32>()];
        let bytes = bytemuck::cast_slice_mut(&mut bounds);
        io_timeout(FRAME_TIMEOUT, self.stream.read_exact(bytes)).await?;
        let (pairs, _) = bounds.as_chunks::<2>();
        let ids: Vec<Range<u32>> = pairs.iter().map(|&[start, end]| start..end).collect();
        let known = self.claims.iter_mut().find(|known| Arc::ptr_eq(&known.tensor, &tensor));
        let claimed = match known {
            Some(known) => tensor.claim_more(&ids, &mut known.claims),
            None => {
                let mut added = Claims { tensor: Arc::clone(&tensor), claims: Vec::new() };
                let claimed = tensor.claim_more(&ids, &mut added.claims);
                if claimed.is_ok() {
                    self.claims.push(added);
                }
                claimed
            }
        };
        let claimed = claimed.map(|n_rows| Reply::Claimed { n_rows });
        Ok(claimed.map_err(|error| volatile_failure(&tensor, &error))?)
    }

    /// Reads rows and publishes them, a chunk at a time: what is in the processor's cache is copied
    /// from there.
    pub(super) async fn publish(
        &mut self,
        shard: &Rc<Shard>,
        publish: Publish,
        body_bytes: usize,
    ) -> Result<Reply, RequestError> {
        let (tensor, _room, mut buffers) = match shard.admit_publish(&publish, body_bytes) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                self.drain(body_bytes).await?;
                return Err(refusal.into());
            }
        };
        set_len(&mut buffers.ids, publish.n_rows as usize);
        let id_bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut buffers.ids);
        let rows_bytes = body_bytes - id_bytes.len();
        io_timeout(FRAME_TIMEOUT, self.stream.read_exact(id_bytes)).await?;
        let ids: &[u32] = bytemuck::cast_slice(&buffers.ids);
        let own = self.claims.iter().find(|own| Arc::ptr_eq(&own.tensor, &tensor));
        let claims = own.map_or(&[][..], |own| &own.claims);
        // All of them, before a row is written.
        let checked = match tensor.rows().check_publication(claims, ids, publish.stamp) {
            Ok(checked) => checked,
            Err(error) => {
                shard.take_back(buffers);
                self.drain(rows_bytes).await?;
                return Err(volatile_failure(&tensor, &error).into());
            }
        };
        let (row_bytes, mut older) = (tensor.shape().row_bytes, None);
        let (chunk_rows, rows) = (chunk_rows(row_bytes), &mut buffers.frame);
        set_len(rows, chunk_rows.min(ids.len()) * row_bytes);
        let stream = &mut self.stream;
        let read = async {
            for (number, ids) in ids.chunks(chunk_rows).enumerate() {
                let rows = &mut rows[..ids.len() * row_bytes];
                stream.read_exact(rows).await?;
                if let Err(error) = tensor.publish_checked(&checked, ids, number * chunk_rows, rows)
                {
                    older.get_or_insert(error);
                }
                glommio::yield_if_needed().await;
            }
            Ok::<(), io::Error>(())
        };
        io_timeout(FRAME_TIMEOUT, read).await?;
        shard.take_back(buffers);
        count(&shard.counters().published_rows, publish.n_rows as usize);
        match older {
            None => Ok(Reply::Published { n_rows: publish.n_rows }),
            Some(error) => Err(volatile_failure(&tensor, &error).into()),
        }
    }
}
