use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use proptest::prelude::*;

use super::*;
use crate::testing::{TestSource, nodes, rows_of};

const SOON: Duration = Duration::from_secs(10);

fn submit(queue: &GatherQueue, ids: &[u32]) -> Ticket {
    queue.submit_within("x", &mut nodes(ids.iter().copied()), SOON).unwrap().unwrap()
}

/// Submits, and waits until a thread has taken the request.
fn submit_to_thread(queue: &GatherQueue, ids: &[u32]) -> Ticket {
    let ticket = submit(queue, ids);
    while queue.inner.state.lock().ignore_poison().n_pulled == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    ticket
}

fn rows(ticket: &Ticket) -> GatherResult {
    assert!(ticket.wait(SOON).unwrap());
    ticket.take().unwrap()
}

fn queue_of(source: &Arc<TestSource>, window: usize, together: usize) -> GatherQueue {
    let bounds = QueueBounds { window, together, threads: 1 };
    GatherQueue::start(Arc::clone(source) as _, bounds).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_request_gets_its_rows_whatever_goes_together(
        requests in prop::collection::vec(prop::collection::vec(0u32..40, 0..20), 1..30),
        together in 1usize..5,
        threads in 1usize..4,
    ) {
        let source = Arc::new(TestSource::new(Duration::ZERO, u64::MAX));
        let bounds = QueueBounds { window: 64, together, threads };
        let queue = GatherQueue::start(Arc::clone(&source) as _, bounds).unwrap();
        let tickets: Vec<Ticket> = requests.iter().map(|ids| submit(&queue, ids)).collect();
        for (ids, ticket) in requests.iter().zip(&tickets) {
            let expected = rows_of(&nodes(ids.iter().copied()));
            let found = rows(ticket).unwrap();
            prop_assert_eq!(found.bytes(), &expected[..]);
            prop_assert!(ticket.is_done() && ticket.take().is_none(), "rows are taken once");
        }
    }
}

#[test]
fn what_waits_is_pulled_together_and_each_row_once() {
    let source = Arc::new(TestSource::new(Duration::from_millis(200), u64::MAX));
    let queue = queue_of(&source, 8, 3);
    let first = submit_to_thread(&queue, &[9, 9]);
    let others = [&[3, 1, 3][..], &[1, 7], &[7], &[5]].map(|ids| submit(&queue, ids));
    for ticket in others.iter().chain([&first]) {
        rows(ticket).unwrap();
    }
    let pulls = source.pulls.lock().unwrap();
    // The first request is pulled when it arrives; the next three wait meanwhile.
    let ids: Vec<_> = pulls.iter().map(|(ids, _)| ids.clone()).collect();
    assert_eq!(ids, [nodes([9, 9]), nodes([1, 3, 7]), nodes([5])]);
}

#[test]
fn a_full_window_refuses_after_its_time_and_has_room_later() {
    let source = Arc::new(TestSource::new(Duration::from_millis(300), u64::MAX));
    let queue = queue_of(&source, 2, 1);
    let tickets = [submit(&queue, &[1]), submit(&queue, &[2])];
    let mut ids = nodes([3]);
    let refused = queue.submit_within("x", &mut ids, Duration::from_millis(20)).unwrap();
    assert!(refused.is_none() && ids == nodes([3]), "the ids stay with the caller");
    let third = queue.submit_within("x", &mut ids, SOON).unwrap().unwrap();
    assert!(tickets[0].is_done(), "there was room only after the first");
    assert_eq!(rows(&third).unwrap().bytes(), rows_of(&nodes([3])));
}

#[test]
fn one_failed_pull_of_several_fails_those_alone_that_fail_alone() {
    // The first pull succeeds; that of the other two fails, and so does each alone.
    let source = Arc::new(TestSource::new(Duration::from_millis(100), 1));
    let queue = queue_of(&source, 8, 4);
    let first = submit_to_thread(&queue, &[1]);
    let others = [&[2], &[3]].map(|ids| submit(&queue, ids));
    rows(&first).unwrap();
    assert!(others.iter().all(|ticket| rows(ticket).is_err()));
    source.good_pulls.store(u64::MAX, Ordering::SeqCst);
    assert_eq!(rows(&submit(&queue, &[4])).unwrap().bytes(), rows_of(&nodes([4])));
}

#[test]
fn what_is_unknown_is_refused_before_it_waits() {
    let source = Arc::new(TestSource::new(Duration::ZERO, u64::MAX));
    let queue = queue_of(&source, 1, 1);
    let refused = queue.submit_within("y", &mut nodes([1]), SOON).err().unwrap();
    assert!(matches!(refused, ClientError::UnknownTensor { .. }), "{refused}");
    let refused = queue.submit_within("x", &mut nodes([1, 40]), SOON).err().unwrap();
    assert!(matches!(refused, ClientError::UnknownNode { node: NodeId(40), .. }), "{refused}");
    assert_eq!(source.n_pulls(), 0);
}

#[test]
fn a_dropped_queue_still_answers_and_calls_back_once() {
    let source = Arc::new(TestSource::new(Duration::from_millis(50), u64::MAX));
    let queue = queue_of(&source, 8, 1);
    let tickets: Vec<Ticket> = (0..4).map(|id| submit(&queue, &[id])).collect();
    let (sender, receiver) = mpsc::channel();
    let n_calls = Arc::new(AtomicU64::new(0));
    for ticket in &tickets {
        let sender = sender.clone();
        let n_calls = Arc::clone(&n_calls);
        ticket.when_done(Box::new(move || {
            n_calls.fetch_add(1, Ordering::SeqCst);
            sender.send(()).unwrap();
        }));
    }
    drop(queue);
    for ticket in &tickets {
        receiver.recv_timeout(SOON).unwrap();
        rows(ticket).unwrap();
    }
    assert_eq!(n_calls.load(Ordering::SeqCst), 4);
    let n_more = Arc::clone(&n_calls);
    tickets[0].when_done(Box::new(move || {
        n_more.fetch_add(1, Ordering::SeqCst);
    }));
    assert_eq!(n_calls.load(Ordering::SeqCst), 5, "rows that have arrived call back immediately");
}
