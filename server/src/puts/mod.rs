//! Puts that arrive in pieces. Pieces are staged until the last one, then written at once.
//!
//! A put is identified by the number that its client has drawn, and by its partition. Finished puts
//! are remembered for a while, so that a repeated last piece, whose reply was lost, receives the
//! same reply.
//!
//! The rows of a single-piece put use the memory of its request. A multi-piece put reserves memory
//! for all its rows with the first piece, so that every put that has begun can finish. An abandoned
//! put keeps its memory for [`STAGED_YIELD`] before another put may evict it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::{NodeId, PartId};
use lodestore_schema::limits::PUT_BYTES_MAX;
use lodestore_schema::request::Push;
use lodestore_schema::{Failure, FailureCode};

use crate::buffers::Buffers;
use crate::error::failure;
use crate::limits::{
    FINISHED_PUTS_MAX, FRAME_TIMEOUT, STAGED_BYTES_MAX, STAGED_IDLE_MAX, STAGED_PUTS_MAX,
    STAGED_YIELD,
};

/// Identifies a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PutKey {
    pub(crate) id: u128,
    pub(crate) part: PartId,
}

/// Outcome of a piece.
#[derive(Debug)]
pub(crate) enum Next {
    /// The piece is staged, and more follow.
    Wait,
    /// The put was finished before, for this version.
    Finished(u32),
    /// The put is complete: the caller writes these rows, then calls [`Puts::finish`] or
    /// [`Puts::fail`].
    Put(Buffers),
}

/// Unfinished puts of a server, and recently finished ones.
#[derive(Debug, Default)]
pub(crate) struct Puts(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    staged: HashMap<PutKey, Staged>,
    /// Bytes reserved by staged multi-piece puts.
    n_bytes: u64,
    /// Identity and version of each finished put.
    finished: HashMap<PutKey, (Identity, u32)>,
    /// The finished puts, oldest first.
    order: VecDeque<PutKey>,
}

/// Properties in which two puts of the same number differ, so that the rows of neither are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    tensor: u16,
    total_rows: u32,
    /// Checksum of the first piece.
    first_piece: u32,
}

#[derive(Debug)]
struct Staged {
    identity: Identity,
    n_pieces: u32,
    /// 0 for a single-piece put.
    n_bytes: u64,
    /// Rows received so far.
    rows: Buffers,
    touched: Instant,
    /// The rows are being written.
    is_putting: bool,
}

impl Puts {
    /// Adds a piece. Its buffers are emptied only if its rows are staged or written at once.
    pub(crate) fn take(
        &self,
        key: PutKey,
        push: &Push,
        piece: &mut Buffers,
        now: Instant,
    ) -> Result<Next, Failure> {
        let first_piece = if push.piece == 0 { checksum(piece) } else { 0 };
        let Push { tensor, total_rows, .. } = *push;
        let identity = Identity { tensor, total_rows, first_piece };
        let mut state = self.lock();
        state.forget_idle(now);
        if let Some(&(finished, version)) = state.finished.get(&key) {
            finished.check(identity, push.piece)?;
            return Ok(Next::Finished(version));
        }
        match state.staged.get(&key) {
            Some(staged) => staged.identity.check(identity, push.piece)?,
            None => state.begin(key, push, identity, piece, now)?,
        }
        let taken = state.add(key, push, piece, now);
        if let Err(refusal) = &taken
            && refusal.code == FailureCode::Invalid
        {
            state.drop_staged(key);
        }
        taken
    }

    /// Records that the rows of a put are durable, for `version`.
    pub(crate) fn finish(&self, key: PutKey, version: u32) {
        let mut state = self.lock();
        let Some(staged) = state.drop_staged(key) else { return };
        if state.finished.insert(key, (staged.identity, version)).is_none() {
            state.order.push_back(key);
        }
        if state.order.len() > FINISHED_PUTS_MAX
            && let Some(oldest) = state.order.pop_front()
        {
            state.finished.remove(&oldest);
        }
    }

    /// Records that the rows of a put were not written; with `rows` the client may repeat the last
    /// piece.
    pub(crate) fn fail(&self, key: PutKey, rows: Option<Buffers>) {
        let mut state = self.lock();
        match (rows, state.staged.get_mut(&key)) {
            // A single-piece put is repeated as a whole.
            (Some(rows), Some(staged)) if staged.n_bytes > 0 => {
                (staged.rows, staged.is_putting, staged.touched) = (rows, false, Instant::now());
            }
            _ => drop(state.drop_staged(key)),
        }
    }

    /// Drops puts that received nothing for too long.
    pub(crate) fn forget_idle(&self, now: Instant) {
        self.lock().forget_idle(now);
    }

    /// Returns the number of unfinished puts.
    #[cfg(test)]
    fn n_staged(&self) -> usize {
        self.lock().staged.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().ignore_poison()
    }
}

impl State {
    /// Begins a put. A multi-piece put reserves memory for all its rows.
    fn begin(
        &mut self,
        key: PutKey,
        push: &Push,
        identity: Identity,
        piece: &Buffers,
        now: Instant,
    ) -> Result<(), Failure> {
        if push.piece > 0 {
            let message = format!(
                "piece {} of an unknown put: the server was restarted, or the piece came too late; \
                 send the whole put again",
                push.piece
            );
            return Err(failure(FailureCode::PutLost, message));
        }
        let mut staged = Staged {
            identity,
            n_pieces: 0,
            n_bytes: 0,
            rows: Buffers::default(),
            touched: now,
            is_putting: false,
        };
        if !push.is_last {
            let row_bytes = piece.frame.len() / piece.ids.len().max(1);
            let n_rows = push.total_rows as usize;
            staged.n_bytes = checked_bytes(key.part, n_rows, row_bytes)?;
            self.make_room(staged.n_bytes, now)?;
            staged.rows = with_room(n_rows, row_bytes)?;
            self.n_bytes += staged.n_bytes;
        }
        self.staged.insert(key, staged);
        Ok(())
    }

    /// Makes room for a multi-piece put of `n_bytes` by evicting abandoned puts.
    fn make_room(&mut self, n_bytes: u64, now: Instant) -> Result<(), Failure> {
        loop {
            let in_pieces = self.staged.iter().filter(|(_, staged)| staged.n_bytes > 0);
            let n_puts = in_pieces.clone().count();
            if n_puts < STAGED_PUTS_MAX && self.n_bytes + n_bytes <= STAGED_BYTES_MAX {
                return Ok(());
            }
            let abandoned = in_pieces
                .filter(|(_, staged)| !staged.is_putting && staged.idle(now) > STAGED_YIELD)
                .min_by_key(|(_, staged)| staged.touched);
            let Some((&key, _)) = abandoned else {
                let message = format!(
                    "{n_puts} puts in pieces hold {} bytes, no room for another of {n_bytes}; ask \
                     again",
                    self.n_bytes
                );
                return Err(failure(FailureCode::Overloaded, message));
            };
            self.drop_staged(key);
        }
    }

    /// Adds a piece to a put that has begun.
    fn add(
        &mut self,
        key: PutKey,
        push: &Push,
        piece: &mut Buffers,
        now: Instant,
    ) -> Result<Next, Failure> {
        let staged = self.staged.get_mut(&key).expect("the put has begun");
        if staged.is_putting {
            let message = "the rows of this put are being written; ask again";
            return Err(failure(FailureCode::Overloaded, message));
        }
        staged.touched = now;
        if push.piece > staged.n_pieces {
            let message = format!(
                "expected piece {1} or an earlier one, found piece {0}; send the whole put again",
                push.piece, staged.n_pieces
            );
            return Err(failure(FailureCode::PutLost, message));
        }
        if push.piece == staged.n_pieces {
            if staged.n_pieces == 0 && push.is_last {
                staged.rows = std::mem::take(piece);
            } else {
                staged.rows.ids.extend_from_slice(&piece.ids);
                staged.rows.frame.extend_from_slice(&piece.frame);
            }
            staged.n_pieces += 1;
        }
        let (expected, found) = (push.total_rows as usize, staged.rows.ids.len());
        let is_whole = push.is_last && push.piece + 1 == staged.n_pieces;
        if found > expected || (is_whole && found < expected) {
            let message = format!("expected {expected} rows of this put, found {found}");
            return Err(failure(FailureCode::Invalid, message));
        }
        if !is_whole {
            return Ok(Next::Wait);
        }
        staged.is_putting = true;
        Ok(Next::Put(std::mem::take(&mut staged.rows)))
    }

    fn drop_staged(&mut self, key: PutKey) -> Option<Staged> {
        let staged = self.staged.remove(&key)?;
        self.n_bytes -= staged.n_bytes;
        Some(staged)
    }

    /// Drops puts that received nothing for too long.
    fn forget_idle(&mut self, now: Instant) {
        // A write that takes this long never ends: its shard is gone.
        let is_idle = |staged: &Staged| {
            let most = if staged.is_putting { 10 * STAGED_IDLE_MAX } else { STAGED_IDLE_MAX };
            staged.idle(now) > most
        };
        if self.staged.values().any(is_idle) {
            self.staged.retain(|_, staged| !is_idle(staged));
            self.n_bytes = self.staged.values().map(|staged| staged.n_bytes).sum();
        }
    }
}

impl Identity {
    /// Fails if a piece belongs to another put with the same number.
    fn check(self, other: Self, piece: u32) -> Result<(), Failure> {
        let is_same = (self.tensor, self.total_rows) == (other.tensor, other.total_rows)
            && (piece > 0 || self.first_piece == other.first_piece);
        if is_same {
            return Ok(());
        }
        let message = format!(
            "the number of this put of {} rows of tensor {} is taken by another put, of {} rows of \
             tensor {}; draw a new number for each put",
            other.total_rows, other.tensor, self.total_rows, self.tensor
        );
        Err(failure(FailureCode::Invalid, message))
    }
}

impl Staged {
    /// Returns the time since the last piece.
    fn idle(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.touched)
    }
}

/// Allocates memory for all rows of a put.
fn with_room(n_rows: usize, row_bytes: usize) -> Result<Buffers, Failure> {
    let mut rows = Buffers::default();
    let ids = rows.ids.try_reserve_exact(n_rows);
    ids.and_then(|()| rows.frame.try_reserve_exact(n_rows * row_bytes)).map_err(|error| {
        let message = format!("no memory for the {n_rows} rows of a put: {error}; ask again");
        failure(FailureCode::Overloaded, message)
    })?;
    Ok(rows)
}

/// Returns the bytes of the rows and ids of a put; fails if they exceed the limit.
fn checked_bytes(part: PartId, n_rows: usize, row_bytes: usize) -> Result<u64, Failure> {
    let n_bytes = n_rows * row_bytes;
    if n_bytes as u64 > PUT_BYTES_MAX {
        let message = format!(
            "a put of {n_bytes} bytes for partition {part}, the limit is {PUT_BYTES_MAX}; split it"
        );
        return Err(failure(FailureCode::TooLarge, message));
    }
    Ok((n_bytes + n_rows * size_of::<NodeId>()) as u64)
}

fn checksum(piece: &Buffers) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(bytemuck::cast_slice(&piece.ids));
    hasher.update(&piece.frame);
    hasher.finalize()
}

const _: () = assert!(STAGED_IDLE_MAX.as_nanos() > Duration::from_secs(30).as_nanos());
const _: () = assert!(STAGED_YIELD.as_nanos() >= FRAME_TIMEOUT.as_nanos(), "a piece may take it");

#[cfg(test)]
mod tests;
