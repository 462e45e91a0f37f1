//! Puts that come in pieces. Pieces are kept until the last one, and then put by one write.
//!
//! A put is known by the number that its client has drawn, and its partition. Finished puts are
//! remembered for a while, so that a last piece whose answer was lost is answered as the first
//! time.
//!
//! The rows of a put of one piece have the room of its request. A put of more pieces reserves
//! room for all its rows with the first, so that each put that has begun can end. A client that
//! leaves its put behind keeps that room for [`STAGED_YIELD`] where others want it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lodestore_graph::{NodeId, PartId};
use lodestore_schema::limits::PUT_BYTES_MAX;
use lodestore_schema::request::Push;
use lodestore_schema::{Failure, FailureCode};

use crate::error::failure;
use crate::limits::{
    FINISHED_PUTS_MAX, FRAME_TIMEOUT, STAGED_BYTES_MAX, STAGED_IDLE_MAX, STAGED_PUTS_MAX,
    STAGED_YIELD,
};

/// Key of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PutKey {
    pub(crate) id: u128,
    pub(crate) part: PartId,
}

/// The rows of a put, as far as they have come.
#[derive(Debug, Default)]
pub(crate) struct PutRows {
    pub(crate) ids: Vec<NodeId>,
    pub(crate) bytes: Vec<u8>,
}

/// Outcome of a piece.
#[derive(Debug)]
pub(crate) enum Next {
    /// It is kept, and others follow.
    Wait,
    /// The put was finished before, for this version.
    Finished(u32),
    /// It was the last: these rows are to be put, and [`Puts::finish`] or [`Puts::fail`] follows.
    Put(PutRows),
}

/// The unfinished puts of a server, and those that have ended lately.
#[derive(Debug, Default)]
pub(crate) struct Puts(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    staged: HashMap<PutKey, Staged>,
    /// Bytes that the staged puts of several pieces may come to.
    n_bytes: u64,
    /// Identities and versions.
    finished: HashMap<PutKey, (Identity, u32)>,
    /// The same, oldest first.
    order: VecDeque<PutKey>,
}

/// Properties that two puts with the same number do not share: rows of one would be lost.
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
    /// 0 for a put of one piece.
    n_bytes: u64,
    rows: PutRows,
    touched: Instant,
    /// The rows are being put.
    is_putting: bool,
}

impl Puts {
    /// Takes a piece, whose rows are read out of the lists only where they are kept or put.
    pub(crate) fn take(
        &self,
        key: PutKey,
        push: &Push,
        piece: &mut PutRows,
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

    /// Notes that the rows of a put are durable, for `version`.
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

    /// Notes that the rows of a put were not put; with `rows` its last piece may be sent again.
    pub(crate) fn fail(&self, key: PutKey, rows: Option<PutRows>) {
        let mut state = self.lock();
        match (rows, state.staged.get_mut(&key)) {
            // A put of one piece comes as a whole again.
            (Some(rows), Some(staged)) if staged.n_bytes > 0 => {
                (staged.rows, staged.is_putting, staged.touched) = (rows, false, Instant::now());
            }
            _ => drop(state.drop_staged(key)),
        }
    }

    /// Drops puts whose clients have sent nothing for too long.
    pub(crate) fn forget_idle(&self, now: Instant) {
        self.lock().forget_idle(now);
    }

    /// Returns the number of unfinished puts.
    #[cfg(test)]
    fn n_staged(&self) -> usize {
        self.lock().staged.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Makes a place for a put; all rows of one of several pieces must have room.
    fn begin(
        &mut self,
        key: PutKey,
        push: &Push,
        identity: Identity,
        piece: &PutRows,
        now: Instant,
    ) -> Result<(), Failure> {
        if push.piece > 0 {
            let message = format!(
                "piece {} of a put of which none is here: the server was restarted, or it came too \
                 late; send all of it again",
                push.piece
            );
            return Err(failure(FailureCode::PutLost, message));
        }
        let mut staged = Staged {
            identity,
            n_pieces: 0,
            n_bytes: 0,
            rows: PutRows::default(),
            touched: now,
            is_putting: false,
        };
        if !push.is_last {
            let row_bytes = piece.bytes.len() / piece.ids.len().max(1);
            let n_rows = push.total_rows as usize;
            staged.n_bytes = checked_bytes(key.part, n_rows, row_bytes)?;
            self.make_room(staged.n_bytes, now)?;
            staged.rows = PutRows::with_room(n_rows, row_bytes)?;
            self.n_bytes += staged.n_bytes;
        }
        self.staged.insert(key, staged);
        Ok(())
    }

    /// Makes room for a put of several pieces of `n_bytes`: puts that were left behind go for it.
    fn make_room(&mut self, n_bytes: u64, now: Instant) -> Result<(), Failure> {
        loop {
            let in_pieces = self.staged.iter().filter(|(_, staged)| staged.n_bytes > 0);
            let n_puts = in_pieces.clone().count();
            if n_puts < STAGED_PUTS_MAX && self.n_bytes + n_bytes <= STAGED_BYTES_MAX {
                return Ok(());
            }
            let left_behind = in_pieces
                .filter(|(_, staged)| !staged.is_putting && staged.idle(now) > STAGED_YIELD)
                .min_by_key(|(_, staged)| staged.touched);
            let Some((&key, _)) = left_behind else {
                let message = format!(
                    "{n_puts} puts of several pieces and {} bytes are under way; no room for one \
                     more of {n_bytes}, ask again",
                    self.n_bytes
                );
                return Err(failure(FailureCode::Overloaded, message));
            };
            self.drop_staged(key);
        }
    }

    /// Adds a piece to a put that has a place.
    fn add(
        &mut self,
        key: PutKey,
        push: &Push,
        piece: &mut PutRows,
        now: Instant,
    ) -> Result<Next, Failure> {
        let staged = self.staged.get_mut(&key).expect("it has a place");
        if staged.is_putting {
            let message = "the rows of this put are being written; ask again";
            return Err(failure(FailureCode::Overloaded, message));
        }
        staged.touched = now;
        if push.piece > staged.n_pieces {
            let message = format!(
                "piece {} of a put of which {} are here; send all of it again",
                push.piece, staged.n_pieces
            );
            return Err(failure(FailureCode::PutLost, message));
        }
        if push.piece == staged.n_pieces {
            if staged.n_pieces == 0 && push.is_last {
                staged.rows = std::mem::take(piece);
            } else {
                staged.rows.ids.extend_from_slice(&piece.ids);
                staged.rows.bytes.extend_from_slice(&piece.bytes);
            }
            staged.n_pieces += 1;
        }
        let (expected, found) = (push.total_rows as usize, staged.rows.ids.len());
        let is_whole = push.is_last && push.piece + 1 == staged.n_pieces;
        if found > expected || (is_whole && found < expected) {
            let message = format!("{found} rows have come of a put of {expected}");
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

    /// Drops puts whose clients have sent nothing for too long.
    fn forget_idle(&mut self, now: Instant) {
        // A write that has not ended by then never will: its shard is gone.
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
    /// Fails where a piece is of another put than the one that has its number.
    fn check(self, other: Self, piece: u32) -> Result<(), Failure> {
        let is_same = (self.tensor, self.total_rows) == (other.tensor, other.total_rows)
            && (piece > 0 || self.first_piece == other.first_piece);
        if is_same {
            return Ok(());
        }
        let message = format!(
            "the number of this put of {} rows of tensor {} is that of another put, of {} rows of \
             tensor {}; draw a number of its own for each put",
            other.total_rows, other.tensor, self.total_rows, self.tensor
        );
        Err(failure(FailureCode::Invalid, message))
    }
}

impl Staged {
    /// Returns the time for which nothing has come.
    fn idle(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.touched)
    }
}

impl PutRows {
    /// Takes memory for all rows of a put.
    fn with_room(n_rows: usize, row_bytes: usize) -> Result<Self, Failure> {
        let mut rows = Self::default();
        let reserved = rows.ids.try_reserve_exact(n_rows);
        reserved.and_then(|()| rows.bytes.try_reserve_exact(n_rows * row_bytes)).map_err(
            |error| {
                let message =
                    format!("no memory for the {n_rows} rows of a put: {error}; ask again");
                failure(FailureCode::Overloaded, message)
            },
        )?;
        Ok(rows)
    }
}

/// Returns the bytes of the rows and ids of a put, or fails where they are too many.
fn checked_bytes(part: PartId, n_rows: usize, row_bytes: usize) -> Result<u64, Failure> {
    let n_bytes = n_rows * row_bytes;
    if n_bytes as u64 > PUT_BYTES_MAX {
        let message = format!(
            "a put of {n_bytes} bytes for partition {part}; one may have {PUT_BYTES_MAX}: split it"
        );
        return Err(failure(FailureCode::TooLarge, message));
    }
    Ok((n_bytes + n_rows * size_of::<NodeId>()) as u64)
}

fn checksum(piece: &PutRows) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(bytemuck::cast_slice(&piece.ids));
    hasher.update(&piece.bytes);
    hasher.finalize()
}

const _: () = assert!(STAGED_IDLE_MAX.as_nanos() > Duration::from_secs(30).as_nanos());
const _: () = assert!(STAGED_YIELD.as_nanos() >= FRAME_TIMEOUT.as_nanos(), "a piece may take it");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROW_BYTES: usize = 4;

    fn key(id: u128) -> PutKey {
        PutKey { id, part: PartId(0) }
    }

    /// Returns a piece with these ids, whose rows are their ids and the piece's number.
    fn rows(ids: &[u32], mark: u8) -> PutRows {
        let bytes = ids.iter().flat_map(|&id| [id as u8, 0, 0, mark]).collect();
        PutRows { ids: ids.iter().copied().map(NodeId).collect(), bytes }
    }

    fn push(piece: u32, is_last: bool, total_rows: u32) -> Push {
        Push { tensor: 1, n_rows: 0, put: 0, piece, is_last, total_rows }
    }

    fn code(result: Result<Next, Failure>) -> FailureCode {
        result.unwrap_err().code
    }

    #[test]
    fn pieces_are_put_together_in_order_and_a_repeated_one_counts_once() {
        let (puts, now) = (Puts::default(), Instant::now());
        let take = |piece, is_last, ids: &[u32]| {
            puts.take(key(7), &push(piece, is_last, 4), &mut rows(ids, piece as u8), now)
        };
        assert!(matches!(take(0, false, &[3, 1]), Ok(Next::Wait)));
        assert!(matches!(take(0, false, &[3, 1]), Ok(Next::Wait)));
        assert!(matches!(take(1, false, &[3]), Ok(Next::Wait)));
        let Ok(Next::Put(all)) = take(2, true, &[9]) else { panic!("it is whole") };
        assert_eq!(all.ids, [3, 1, 3, 9].map(NodeId));
        assert_eq!(all.bytes, [3, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 1, 9, 0, 0, 2]);
        assert_eq!(code(take(2, true, &[9])), FailureCode::Overloaded, "it is being put");
        puts.fail(key(7), Some(all));
        let Ok(Next::Put(again)) = take(2, true, &[9]) else { panic!("it is tried again") };
        assert_eq!(again.ids.len(), 4);
        puts.finish(key(7), 5);
        assert!(matches!(take(0, false, &[3, 1]), Ok(Next::Finished(5))));
        assert!(matches!(take(2, true, &[9]), Ok(Next::Finished(5))));
        assert_eq!((puts.n_staged(), puts.lock().n_bytes), (0, 0));
    }

    #[test]
    fn what_is_missing_too_much_or_another_put_is_refused() {
        let (puts, now) = (Puts::default(), Instant::now());
        let take = |id, it: Push, ids: &[u32]| puts.take(key(id), &it, &mut rows(ids, 0), now);
        assert_eq!(code(take(1, push(1, true, 4), &[1])), FailureCode::PutLost);
        assert!(take(1, push(0, false, 4), &[1]).is_ok());
        assert_eq!(code(take(1, push(2, true, 4), &[1])), FailureCode::PutLost);
        assert_eq!(code(take(1, push(1, true, 4), &[1])), FailureCode::Invalid, "two rows miss");
        assert_eq!(code(take(1, push(1, true, 4), &[1])), FailureCode::PutLost, "it is forgotten");
        assert!(take(2, push(0, false, 2), &[1]).is_ok());
        assert_eq!(code(take(2, push(1, false, 2), &[1, 2])), FailureCode::Invalid);
        assert!(take(3, push(0, false, 2), &[1]).is_ok());
        assert!(matches!(take(3, push(1, true, 2), &[1]), Ok(Next::Put(_))));
        puts.finish(key(3), 7);
        let much = (PUT_BYTES_MAX / ROW_BYTES as u64 + 1) as u32;
        assert_eq!(code(take(4, push(0, false, much), &[1])), FailureCode::TooLarge);
        assert_eq!((puts.n_staged(), puts.lock().n_bytes), (0, 0));
    }

    #[test]
    fn another_put_of_the_same_number_is_refused_and_the_first_continues() {
        let (puts, now) = (Puts::default(), Instant::now());
        let take = |it: Push, ids: &[u32]| puts.take(key(1), &it, &mut rows(ids, 0), now);
        let others = || {
            assert_eq!(code(take(push(0, false, 2), &[2])), FailureCode::Invalid, "another row");
            assert_eq!(code(take(push(0, false, 3), &[1])), FailureCode::Invalid, "more rows");
            let of_another = Push { tensor: 2, ..push(1, true, 2) };
            assert_eq!(code(take(of_another, &[1])), FailureCode::Invalid, "of another tensor");
        };
        take(push(0, false, 2), &[1]).unwrap();
        others();
        assert!(matches!(take(push(1, true, 2), &[5]), Ok(Next::Put(_))));
        puts.finish(key(1), 4);
        others();
        assert!(matches!(take(push(1, true, 2), &[5]), Ok(Next::Finished(4))));
    }

    #[test]
    fn a_put_of_one_piece_needs_no_room_of_the_others() {
        let (puts, now) = (Puts::default(), Instant::now());
        let most = (PUT_BYTES_MAX / ROW_BYTES as u64) as u32;
        for id in 0..(STAGED_BYTES_MAX / (2 * PUT_BYTES_MAX)).into() {
            puts.take(key(id), &push(0, false, most), &mut rows(&[1], 0), now).unwrap();
        }
        let one = || puts.take(key(99), &push(0, true, 1), &mut rows(&[3], 0), now);
        for _ in 0..2 {
            let Ok(Next::Put(rows)) = one() else { panic!("it has room") };
            assert_eq!(rows.ids, [NodeId(3)]);
            puts.fail(key(99), Some(rows));
        }
        assert!(matches!(one(), Ok(Next::Put(_))));
        puts.finish(key(99), 6);
        assert!(matches!(one(), Ok(Next::Finished(6))));
    }

    #[test]
    fn the_oldest_of_the_puts_that_have_ended_are_forgotten() {
        let (puts, now) = (Puts::default(), Instant::now());
        let n = FINISHED_PUTS_MAX as u128 + 3;
        let one = |id| puts.take(key(id), &push(0, true, 1), &mut rows(&[3], 0), now).unwrap();
        for id in 0..n {
            assert!(matches!(one(id), Next::Put(_)));
            puts.finish(key(id), 6);
        }
        assert_eq!(puts.lock().finished.len(), FINISHED_PUTS_MAX);
        assert!(matches!(one(2), Next::Put(_)) && matches!(one(3), Next::Finished(6)));
    }

    #[test]
    fn puts_that_have_no_room_wait_and_those_that_are_left_behind_go() {
        let (puts, now) = (Puts::default(), Instant::now());
        let most = (PUT_BYTES_MAX / ROW_BYTES as u64) as u32;
        let begin = |id, now| puts.take(key(id), &push(0, false, most), &mut rows(&[1], 0), now);
        let n_fitting = STAGED_BYTES_MAX / (2 * PUT_BYTES_MAX);
        for id in 0..n_fitting.into() {
            begin(id, now).unwrap();
        }
        assert_eq!(code(begin(99, now)), FailureCode::Overloaded);
        let soon = now + STAGED_YIELD + Duration::from_millis(1);
        // Again, and so not the one that is left behind.
        begin(0, soon).unwrap();
        begin(99, soon).unwrap();
        assert_eq!(puts.n_staged() as u64, n_fitting);
        let second = || puts.take(key(1), &push(1, false, most), &mut rows(&[1], 1), soon);
        assert_eq!(code(second()), FailureCode::PutLost);
        puts.forget_idle(soon + STAGED_IDLE_MAX);
        assert_eq!(puts.n_staged() as u64, 2);
        puts.forget_idle(soon + STAGED_IDLE_MAX + Duration::from_millis(1));
        assert_eq!((puts.n_staged(), puts.lock().n_bytes), (0, 0));
    }

    proptest! {
        /// However pieces are repeated, the rows that are put are those of the pieces in order.
        #[test]
        fn repeats_change_nothing(
            pieces in prop::collection::vec(prop::collection::vec(0u32..50, 1..5), 1..6),
            repeats in prop::collection::vec(0usize..6, 0..12),
        ) {
            let (puts, now) = (Puts::default(), Instant::now());
            let total = pieces.iter().map(Vec::len).sum::<usize>() as u32;
            let expected: Vec<NodeId> = pieces.iter().flatten().copied().map(NodeId).collect();
            let mut repeats = repeats.into_iter();
            let mut put = None;
            for at in 0..pieces.len() {
                let send = |at: usize| {
                    let it = push(at as u32, at + 1 == pieces.len(), total);
                    puts.take(key(1), &it, &mut rows(&pieces[at], 0), now)
                };
                let next = send(at).unwrap();
                if let Next::Put(rows) = next {
                    puts.finish(key(1), 3);
                    put = Some(rows);
                }
                if let Some(repeat) = repeats.next() {
                    let next = send(repeat.min(at)).unwrap();
                    let is_over = at + 1 == pieces.len();
                    prop_assert!(matches!(next, Next::Finished(3)) == is_over);
                }
            }
            prop_assert_eq!(put.unwrap().ids, expected);
        }
    }
}
