//! Volatile rows on a connection: claims (which end with the connection), publications and pulls.
//!
//! A pull waits until all of its rows have the requested stamp or its time is up, then sends the
//! rows that are present.

use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_lite::AsyncReadExt;
use lodestore_cache::volatile::{NO_STAMP, VolatileClaim, VolatilePlace};
use lodestore_cache::volatile_store::VolatileTensor;
use lodestore_schema::request::{Publish, PullVolatile};
use lodestore_schema::{Failure, Reply, Versions};

use super::shared::chunk_rows;
use super::{Connection, ConnectionError, RequestError};
use crate::buffers::{Buffers, HEAD_ROOM, body_room, set_len, to_u32};
use crate::deadline::io_timeout;
use crate::limits::{FRAME_TIMEOUT, WAIT_PAUSE_MAX, WAIT_PAUSE_MIN};
use crate::shard::Shard;
use crate::stats::count;
use crate::volatile::volatile_failure;

/// A pause is this fraction of the time waited so far.
const PAUSES: u32 = 8;

/// Ranges of one tensor that a connection publishes; dropping this releases them.
pub(super) struct Claims {
    tensor: Arc<VolatileTensor>,
    claims: Vec<VolatileClaim>,
}

impl Drop for Claims {
    fn drop(&mut self) {
        self.tensor.release(&mut self.claims);
    }
}

/// A pull of volatile rows.
struct Wanted<'a> {
    tensor: &'a VolatileTensor,
    min_stamp: u32,
    /// Until when to wait for missing rows.
    until: Instant,
}

impl Wanted<'_> {
    fn is_over(&self, shard: &Shard) -> bool {
        // After a stop there are no more publications.
        shard.is_ending() || Instant::now() >= self.until
    }
}

impl Connection {
    /// Reads the ranges of a claim, and claims them.
    pub(super) async fn claim(
        &mut self,
        shard: &Rc<Shard>,
        name: &str,
        body_bytes: usize,
    ) -> Result<Reply, RequestError> {
        let admitted = shard.admit_claim(name, body_bytes);
        let (tensor, _room) = self.drain_refused(admitted, body_bytes).await?;
        let mut bounds = vec![0u32; body_bytes / size_of::<u32>()];
        self.read_in_time(bytemuck::cast_slice_mut(&mut bounds)).await?;
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

    /// Reads rows and publishes them chunk by chunk, so that rows are copied from the processor's
    /// cache.
    pub(super) async fn publish(
        &mut self,
        shard: &Rc<Shard>,
        publish: Publish,
        body_bytes: usize,
    ) -> Result<Reply, RequestError> {
        let admitted = shard.admit_publish(&publish, body_bytes);
        let (tensor, _room, mut buffers) = self.drain_refused(admitted, body_bytes).await?;
        set_len(&mut buffers.ids, publish.n_rows as usize);
        let id_bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut buffers.ids);
        let rows_bytes = body_bytes - id_bytes.len();
        self.read_in_time(id_bytes).await?;
        let ids: &[u32] = bytemuck::cast_slice(&buffers.ids);
        let own = self.claims.iter().find(|own| Arc::ptr_eq(&own.tensor, &tensor));
        let claims = own.map_or(&[][..], |own| &own.claims);
        // Checks all ids before any row is written.
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

    pub(super) async fn pull_volatile(
        &mut self,
        shard: &Rc<Shard>,
        pull: PullVolatile,
        n_bytes: usize,
        deadline: Instant,
    ) -> Result<(), RequestError> {
        let admitted = shard.admit_volatile_pull(&pull, n_bytes);
        let (tensor, _room, mut buffers) = self.drain_refused(admitted, n_bytes).await?;
        set_len(&mut buffers.ids, n_bytes / size_of::<u32>());
        self.read_in_time(bytemuck::cast_slice_mut(&mut buffers.ids)).await?;
        let until = deadline.min(Instant::now() + pull.wait);
        let wanted = Wanted { tensor: &tensor, min_stamp: pull.min_stamp, until };
        let sent = self.send_volatile(shard, &wanted, &mut buffers).await;
        shard.take_back(buffers);
        sent
    }

    /// Waits, then sends the rows and their stamps.
    async fn send_volatile(
        &mut self,
        shard: &Rc<Shard>,
        wanted: &Wanted<'_>,
        buffers: &mut Buffers,
    ) -> Result<(), RequestError> {
        let Buffers { ids, frame } = buffers;
        let ids: &[u32] = bytemuck::cast_slice(ids);
        let places = wanted.tensor.rows().locate(ids);
        let places = places.map_err(|error| volatile_failure(wanted.tensor, &error))?;
        self.wait_for_stamps(shard, wanted, &places).await?;
        let mut stamps = vec![NO_STAMP; ids.len()];
        let mut answer = self.chunks(0, ids.len(), wanted.tensor.shape().row_bytes);
        // An empty request receives one empty chunk.
        loop {
            let (rows, out) = self.next_place(shard, &mut answer, frame).await?;
            let (places, stamps) = (&places[rows.clone()], &mut stamps[rows]);
            gather(shard, wanted, places, stamps, out).await?;
            if self.send_chunk(shard, &answer, frame, Versions::default()).await? {
                break;
            }
            self.check_present(shard)?;
            glommio::yield_if_needed().await;
        }
        Ok(self.send_stamps(shard, &stamps, frame).await?)
    }

    async fn send_stamps(
        &mut self,
        shard: &Shard,
        stamps: &[u32],
        frame: &mut Vec<u8>,
    ) -> Result<(), ConnectionError> {
        let n_lacking = stamps.iter().filter(|&&stamp| stamp == NO_STAMP).count();
        count(&shard.counters().volatile_rows, stamps.len() - n_lacking);
        count(&shard.counters().lacking_rows, n_lacking);
        body_room(frame, size_of_val(stamps)).copy_from_slice(bytemuck::cast_slice(stamps));
        let reply = Reply::Stamps { n_rows: to_u32(stamps.len()) };
        self.write_chunk(&reply, &mut frame[..HEAD_ROOM + size_of_val(stamps)]).await
    }

    /// Waits until all rows have the stamp or the time is up. Fails if too many pulls wait.
    async fn wait_for_stamps(
        &mut self,
        shard: &Rc<Shard>,
        wanted: &Wanted<'_>,
        places: &[VolatilePlace],
    ) -> Result<(), RequestError> {
        let Wanted { tensor, min_stamp, .. } = *wanted;
        // A pull that does not wait needs no search.
        if wanted.is_over(shard) {
            return Ok(());
        }
        let look = || tensor.rows().first_lacking(places, min_stamp, 0);
        let (mut seen, lacking) = look_after_count(|| tensor.n_publications(), look);
        let Some(mut first) = lacking else { return Ok(()) };
        let _waiting = shard.wait_for_rows(size_of_val(places))?;
        let begun = Instant::now();
        while !wanted.is_over(shard) {
            glommio::timer::sleep(pause(begun.elapsed(), wanted.until)).await;
            self.check_present(shard)?;
            let now = tensor.n_publications();
            if std::mem::replace(&mut seen, now) == now {
                continue;
            }
            match tensor.rows().first_lacking(places, min_stamp, first) {
                Some(at) => first = at,
                None => break,
            }
        }
        Ok(())
    }
}

/// Returns the number of publications before a search, and the result of the search. A publication
/// during or after the search changes the number.
fn look_after_count<T>(n_publications: impl Fn() -> u64, look: impl FnOnce() -> T) -> (u64, T) {
    let seen = n_publications();
    (seen, look())
}

/// Copies the rows of a chunk. Rows that are being rewritten, or were dropped since the wait, are
/// retried until the deadline.
async fn gather(
    shard: &Shard,
    wanted: &Wanted<'_>,
    places: &[VolatilePlace],
    stamps: &mut [u32],
    out: &mut [u8],
) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        let pulled = wanted.tensor.rows().pull_stamped(places, wanted.min_stamp, out, stamps);
        let n_lacking = pulled.map_err(|error| volatile_failure(wanted.tensor, &error))?;
        if n_lacking == 0 || wanted.is_over(shard) {
            return Ok(());
        }
        glommio::timer::sleep(pause(begun.elapsed(), wanted.until)).await;
    }
}

/// Returns the pause before the next search, after waiting for `waited`. A publication is noticed
/// at most that much later.
fn pause(waited: Duration, until: Instant) -> Duration {
    let left = until.saturating_duration_since(Instant::now());
    (waited / PAUSES).clamp(WAIT_PAUSE_MIN, WAIT_PAUSE_MAX).min(left)
}

const _: () = assert!(WAIT_PAUSE_MIN.as_nanos() < WAIT_PAUSE_MAX.as_nanos());

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A count after the search would include the publication, and the pull would wait for its
    /// deadline.
    #[test]
    fn a_publication_during_a_search_changes_the_next_count() {
        let n_publications = Cell::new(5);
        let count = || n_publications.get();
        let (seen, lacking) = look_after_count(count, || {
            n_publications.set(6);
            Some(0)
        });
        assert_eq!(lacking, Some(0));
        assert_ne!(seen, count(), "the search is repeated");
    }
}
