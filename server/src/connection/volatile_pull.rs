//! Pulls of volatile rows. A pull waits until all of its rows have the requested stamp, or its time
//! is up, and then sends the rows that are there.

use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_lite::AsyncReadExt;
use lodestore_cache::volatile::{NO_STAMP, VolatilePlace};
use lodestore_cache::volatile_store::VolatileTensor;
use lodestore_schema::request::PullVolatile;
use lodestore_schema::{Failure, Reply, Versions};

use super::stream::has_left;
use super::{Connection, ConnectionError, RequestError};
use crate::buffers::{Buffers, HEAD_ROOM, set_len, to_u32};
use crate::deadline::io_timeout;
use crate::limits::{FRAME_TIMEOUT, WAIT_PAUSE_MAX, WAIT_PAUSE_MIN};
use crate::shard::Shard;
use crate::stats::count;
use crate::volatile::volatile_failure;

/// A pause is so small a part of the time that has been waited.
const PAUSES: u32 = 8;

/// The rows of a tensor that a pull requests.
struct Wanted<'a> {
    tensor: &'a VolatileTensor,
    min_stamp: u32,
    /// Until when rows that are not there are waited for.
    until: Instant,
}

impl Wanted<'_> {
    fn is_over(&self, shard: &Shard) -> bool {
        // After a stop no publication comes any more.
        shard.is_ending() || Instant::now() >= self.until
    }
}

impl Connection {
    pub(super) async fn pull_volatile(
        mut self,
        shard: &Rc<Shard>,
        pull: PullVolatile,
        n_bytes: usize,
        deadline: Instant,
    ) -> Result<Self, ConnectionError> {
        let (tensor, _room, mut buffers) = match shard.admit_volatile_pull(&pull, n_bytes) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                self.drain(n_bytes).await?;
                return self.reply_or_refuse(shard, Err(refusal.into())).await;
            }
        };
        set_len(&mut buffers.ids, n_bytes / size_of::<u32>());
        let bytes = bytemuck::cast_slice_mut(&mut buffers.ids);
        io_timeout(FRAME_TIMEOUT, self.stream.read_exact(bytes)).await?;
        let until = deadline.min(Instant::now() + pull.wait);
        let wanted = Wanted { tensor: &tensor, min_stamp: pull.min_stamp, until };
        let sent = self.send_volatile(shard, &wanted, &mut buffers).await;
        shard.take_back(buffers);
        match sent {
            Ok(()) => Ok(self),
            Err(error) => self.reply_or_refuse(shard, Err(error)).await,
        }
    }

    /// Waits, and sends rows and then their stamps.
    async fn send_volatile(
        &mut self,
        shard: &Rc<Shard>,
        wanted: &Wanted<'_>,
        buffers: &mut Buffers,
    ) -> Result<(), RequestError> {
        let Buffers { ids, frame } = buffers;
        let ids: &[u32] = bytemuck::cast_slice(ids);
        let places = match wanted.tensor.rows().locate(ids) {
            Ok(places) => places,
            Err(error) => return Err(volatile_failure(wanted.tensor, &error).into()),
        };
        self.wait_for_stamps(shard, wanted, &places).await?;
        let mut stamps = vec![NO_STAMP; ids.len()];
        let mut answer = self.chunks(0, ids.len(), wanted.tensor.shape().row_bytes);
        // An empty list is answered by one empty chunk.
        loop {
            let (rows, out) = self.next_place(shard, &mut answer, frame).await?;
            let (places, stamps) = (&places[rows.clone()], &mut stamps[rows]);
            gather(shard, wanted, places, stamps, out).await?;
            if self.send_chunk(shard, &answer, frame, Versions::default()).await? {
                break;
            }
            if !shard.is_ending() && has_left(&self.socket) {
                return Err(ConnectionError::Left.into());
            }
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
        let body_end = HEAD_ROOM + size_of_val(stamps);
        if frame.len() < body_end {
            set_len(frame, body_end);
        }
        frame[HEAD_ROOM..body_end].copy_from_slice(bytemuck::cast_slice(stamps));
        let reply = Reply::Stamps { n_rows: to_u32(stamps.len()) };
        self.write_chunk(&reply, &mut frame[..body_end]).await
    }

    /// Waits until all rows have the stamp, or the time is up: then whatever is there is sent.
    /// Refuses where too many wait.
    async fn wait_for_stamps(
        &mut self,
        shard: &Rc<Shard>,
        wanted: &Wanted<'_>,
        places: &[VolatilePlace],
    ) -> Result<(), RequestError> {
        let Wanted { tensor, min_stamp, .. } = *wanted;
        // Before the rows are looked at: what is published after that changes it.
        let mut seen = tensor.n_publications();
        // A pull that does not wait is spared the look.
        let is_over = wanted.is_over(shard);
        let look = || tensor.rows().first_lacking(places, min_stamp, 0);
        let Some(mut first) = (!is_over).then(look).flatten() else { return Ok(()) };
        let _waiting = shard.wait_for_rows(size_of_val(places))?;
        let begun = Instant::now();
        while !wanted.is_over(shard) {
            glommio::timer::sleep(pause(begun.elapsed(), wanted.until)).await;
            if !shard.is_ending() && has_left(&self.socket) {
                return Err(ConnectionError::Left.into());
            }
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

/// Copies a chunk's rows. Rows that are being rewritten, or were dropped since they were awaited,
/// are tried again within the deadline.
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

/// Returns how long to wait before the next look, after this wait. A publication is seen at most
/// that much later.
fn pause(waited: Duration, until: Instant) -> Duration {
    let left = until.saturating_duration_since(Instant::now());
    (waited / PAUSES).clamp(WAIT_PAUSE_MIN, WAIT_PAUSE_MAX).min(left)
}

const _: () = assert!(WAIT_PAUSE_MIN.as_nanos() < WAIT_PAUSE_MAX.as_nanos());
