use proptest::prelude::*;

use super::*;

const ROW_BYTES: usize = 4;

fn key(id: u128) -> PutKey {
    PutKey { id, part: PartId(0) }
}

/// Returns a piece with these ids, whose rows are their ids and `mark`.
fn rows(ids: &[u32], mark: u8) -> Buffers {
    let frame = ids.iter().flat_map(|&id| [id as u8, 0, 0, mark]).collect();
    Buffers { ids: ids.iter().copied().map(NodeId).collect(), frame }
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
    let Ok(Next::Put(all)) = take(2, true, &[9]) else { panic!("the put is complete") };
    assert_eq!(all.ids, [3, 1, 3, 9].map(NodeId));
    assert_eq!(all.frame, [3, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 1, 9, 0, 0, 2]);
    assert_eq!(code(take(2, true, &[9])), FailureCode::Overloaded, "the rows are being written");
    puts.fail(key(7), Some(all));
    let Ok(Next::Put(again)) = take(2, true, &[9]) else { panic!("the put is repeated") };
    assert_eq!(again.ids.len(), 4);
    puts.finish(key(7), 5);
    assert!(matches!(take(0, false, &[3, 1]), Ok(Next::Finished(5))));
    assert!(matches!(take(2, true, &[9]), Ok(Next::Finished(5))));
    assert_eq!((puts.n_staged(), puts.lock().n_bytes), (0, 0));
}

/// The rows use only the memory of their request, which a refusal releases.
#[test]
fn a_refused_single_piece_put_keeps_no_rows() {
    let (puts, now) = (Puts::default(), Instant::now());
    let take = || puts.take(key(7), &push(0, true, 2), &mut rows(&[3, 1], 0), now);
    let Ok(Next::Put(all)) = take() else { panic!("the put is complete") };
    puts.fail(key(7), Some(all));
    assert_eq!(puts.n_staged(), 0);
    assert!(matches!(take(), Ok(Next::Put(_))), "the whole put is repeated");
}

#[test]
fn missing_and_surplus_pieces_are_refused() {
    let (puts, now) = (Puts::default(), Instant::now());
    let take = |id, it: Push, ids: &[u32]| puts.take(key(id), &it, &mut rows(ids, 0), now);
    assert_eq!(code(take(1, push(1, true, 4), &[1])), FailureCode::PutLost);
    assert!(take(1, push(0, false, 4), &[1]).is_ok());
    assert_eq!(code(take(1, push(2, true, 4), &[1])), FailureCode::PutLost);
    assert_eq!(code(take(1, push(1, true, 4), &[1])), FailureCode::Invalid, "two rows are missing");
    assert_eq!(code(take(1, push(1, true, 4), &[1])), FailureCode::PutLost, "the put was dropped");
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
fn a_single_piece_put_needs_no_staging_memory() {
    let (puts, now) = (Puts::default(), Instant::now());
    let max_rows = (PUT_BYTES_MAX / ROW_BYTES as u64) as u32;
    for id in 0..(STAGED_BYTES_MAX / (2 * PUT_BYTES_MAX)).into() {
        puts.take(key(id), &push(0, false, max_rows), &mut rows(&[1], 0), now).unwrap();
    }
    let one = || puts.take(key(99), &push(0, true, 1), &mut rows(&[3], 0), now);
    for _ in 0..2 {
        let Ok(Next::Put(rows)) = one() else { panic!("no memory is needed") };
        assert_eq!(rows.ids, [NodeId(3)]);
        puts.fail(key(99), Some(rows));
    }
    assert!(matches!(one(), Ok(Next::Put(_))));
    puts.finish(key(99), 6);
    assert!(matches!(one(), Ok(Next::Finished(6))));
}

#[test]
fn the_oldest_finished_puts_are_forgotten() {
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
fn puts_without_room_wait_and_abandoned_puts_are_evicted() {
    let (puts, now) = (Puts::default(), Instant::now());
    let most = (PUT_BYTES_MAX / ROW_BYTES as u64) as u32;
    let begin = |id, now| puts.take(key(id), &push(0, false, most), &mut rows(&[1], 0), now);
    let n_fitting = STAGED_BYTES_MAX / (2 * PUT_BYTES_MAX);
    for id in 0..n_fitting.into() {
        begin(id, now).unwrap();
    }
    assert_eq!(code(begin(99, now)), FailureCode::Overloaded);
    let soon = now + STAGED_YIELD + Duration::from_millis(1);
    // A repeated piece, so that this put is not abandoned.
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
    /// However pieces are repeated, the written rows are those of the pieces in order.
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
