use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use lodestore_graph::PartitionBook;
use lodestore_schema::Failure;
use proptest::prelude::*;

use super::*;
use crate::error::FailureCode;
use crate::source::PullStats;
use crate::testing::{TestSource, nodes, rows_of};

const SOON: Duration = Duration::from_secs(10);

fn submit(queue: &GatherQueue, ids: &[u32]) -> Ticket {
    queue.submit_within("x", &mut nodes(ids.iter().copied()), SOON).unwrap().unwrap()
}

/// Submits a request, and waits until a thread has taken it.
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
    let bounds = QueueBounds { window, together, threads: 1, ..QueueBounds::default() };
    GatherQueue::start(Arc::clone(source) as _, bounds).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_request_gets_its_rows_whatever_is_pulled_together(
        requests in prop::collection::vec(prop::collection::vec(0u32..40, 0..20), 1..30),
        together in 1usize..5,
        threads in 1usize..4,
        bytes in prop_oneof![Just(usize::MAX), 0usize..2000],
    ) {
        let source = Arc::new(TestSource::new(Duration::ZERO, u64::MAX));
        let bounds = QueueBounds { window: 64, together, threads, bytes };
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
fn waiting_requests_are_pulled_together_and_each_row_once() {
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
    assert_eq!(queue.n_pulled_rows(), 6);
}

#[test]
fn a_queue_bounds_the_bytes_of_waiting_rows_and_of_rows_pulled_together() {
    let source = Arc::new(TestSource::new(Duration::from_millis(200), u64::MAX));
    let row_bytes = source.tensor("x").unwrap().row_bytes();
    // Room for four rows that wait or are being pulled, and for four that are pulled together.
    let bounds = QueueBounds { window: 64, together: 8, bytes: 8 * row_bytes, threads: 1 };
    let queue = GatherQueue::start(Arc::clone(&source) as _, bounds).unwrap();
    // A single request is accepted whatever its size.
    let large = submit_to_thread(&queue, &[0, 1, 2, 3, 4, 5, 6, 7, 8]);
    let refused = queue.submit_within("x", &mut nodes([1]), Duration::ZERO).unwrap();
    assert!(refused.is_none(), "beside it there is no room");
    rows(&large).unwrap();
    let first = submit_to_thread(&queue, &[1]);
    let others = [&[2, 3][..], &[4]].map(|ids| submit(&queue, ids));
    let beyond = queue.submit_beyond_window("x", nodes([5, 6, 7])).unwrap();
    let tickets = [&others[..], &[first, beyond]].concat();
    assert!(tickets.iter().all(|ticket| ticket.wait(SOON).unwrap()));
    let pulls = source.pulls.lock().unwrap();
    let ids: Vec<_> = pulls.iter().skip(1).map(|(ids, _)| ids.clone()).collect();
    assert_eq!(ids, [nodes([1]), nodes([2, 3, 4]), nodes([5, 6, 7])]);
    // The rows of four requests that were not taken yet, and three rows that were pulled together.
    let memory_of = |n_rows: usize| (n_rows * row_bytes).next_multiple_of(8);
    let not_taken: usize = [1, 2, 1, 3].map(memory_of).iter().sum();
    assert_eq!(queue.peak_bytes(), not_taken + memory_of(3));
    for ticket in &tickets {
        rows(ticket).unwrap();
    }
    assert_eq!(queue.inner.memory.n_bytes(), memory_of(3));
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

/// A source whose pulls fail with `answer`, from the second pull on.
struct FaultySource {
    rows: TestSource,
    answer: fn(&[NodeId]) -> Option<ClientError>,
    /// The start of the deadline of each pull.
    begun: Mutex<Vec<Instant>>,
}

impl RowSource for FaultySource {
    fn book(&self) -> &PartitionBook {
        self.rows.book()
    }

    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
        self.rows.tensor(name)
    }

    fn pull_since(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
        begun: Instant,
    ) -> Result<PullStats, ClientError> {
        let mut all = self.begun.lock().unwrap();
        all.push(begun);
        if all.len() > 1
            && let Some(error) = (self.answer)(ids)
        {
            return Err(error);
        }
        drop(all);
        self.rows.pull(tensor, ids, out, kind)
    }

    fn pull_overlapped(
        &self,
        _: &str,
        _: &[NodeId],
        _: &mut [u8],
        _: PullKind,
        _: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        unreachable!("the queue pulls by a common deadline")
    }
}

/// Returns the results of the requests for rows 2, 3 and 4, which are pulled together, and the
/// starts of their deadlines.
fn pull_three(answer: fn(&[NodeId]) -> Option<ClientError>) -> (Vec<GatherResult>, Vec<Instant>) {
    let source_rows = TestSource::new(Duration::from_millis(100), u64::MAX);
    let source = Arc::new(FaultySource { rows: source_rows, answer, begun: Mutex::default() });
    let bounds = QueueBounds { window: 8, together: 4, threads: 1, ..QueueBounds::default() };
    let queue = GatherQueue::start(Arc::clone(&source) as _, bounds).unwrap();
    let first = submit_to_thread(&queue, &[1]);
    let others = [2, 3, 4].map(|id| submit(&queue, &[id]));
    rows(&first).unwrap();
    let results = others.iter().map(rows).collect();
    let begun = source.begun.lock().ignore_poison().split_off(1);
    (results, begun)
}

fn refused(code: FailureCode) -> ClientError {
    let failure = Failure { code, message: String::new(), retry_after: Duration::ZERO };
    ClientError::Refused { address: "127.0.0.1:1".parse().unwrap(), failure }
}

#[test]
fn a_damaged_row_fails_its_request_alone_within_one_deadline() {
    let (results, begun) =
        pull_three(|ids| ids.contains(&NodeId(3)).then(|| refused(FailureCode::Damaged)));
    let [second, third, fourth] = &results[..] else { panic!("three requests") };
    assert_eq!(second.as_ref().unwrap().bytes(), rows_of(&nodes([2])));
    assert!(third.is_err());
    assert_eq!(fourth.as_ref().unwrap().bytes(), rows_of(&nodes([4])));
    assert_eq!(begun.len(), 4, "a pull of the group, and one of each request");
    assert!(begun.iter().all(|&one| one == begun[0]), "all count from one moment");
}

#[test]
fn a_failure_without_damage_fails_the_group_and_nothing_is_pulled_again() {
    for code in [FailureCode::Overloaded, FailureCode::Deadline, FailureCode::Internal] {
        let answer: fn(&[NodeId]) -> _ = match code {
            FailureCode::Overloaded => |_| Some(refused(FailureCode::Overloaded)),
            FailureCode::Deadline => |_| Some(refused(FailureCode::Deadline)),
            _ => |_| Some(refused(FailureCode::Internal)),
        };
        let (results, begun) = pull_three(answer);
        assert!(results.iter().all(Result::is_err), "{code:?}");
        assert_eq!(begun.len(), 1, "{code:?}");
    }
}

#[test]
fn requests_of_a_pull_that_panics_fail() {
    let (results, _) = pull_three(|_| panic!("the source panics"));
    for result in results {
        let Err(error) = result else { panic!("a pull that panics has no rows") };
        assert!(matches!(*error, ClientError::Panicked { .. }), "{error}");
    }
}

#[test]
fn a_callback_may_submit_to_a_queue_without_room() {
    let source = Arc::new(TestSource::new(Duration::from_millis(20), u64::MAX));
    let queue = Arc::new(queue_of(&source, 1, 1));
    let (sender, receiver) = mpsc::channel();
    // The callback of each request submits the next, besides those of this thread.
    submit_chain(&queue, sender, 4);
    for id in 10..14 {
        rows(&submit(&queue, &[id])).unwrap();
    }
    receiver.recv_timeout(SOON).unwrap();
}

fn submit_chain(queue: &Arc<GatherQueue>, done: mpsc::Sender<()>, n_left: u32) {
    let ticket = submit(queue, &[n_left]);
    let next = Arc::clone(queue);
    ticket.when_done(Box::new(move || match n_left {
        0 => done.send(()).unwrap(),
        n => submit_chain(&next, done, n - 1),
    }));
}

#[test]
fn a_callback_may_wait_for_a_later_request_of_its_group() {
    let source = Arc::new(TestSource::new(Duration::from_millis(50), u64::MAX));
    let queue = queue_of(&source, 8, 4);
    submit_to_thread(&queue, &[1]);
    let group = [2, 3].map(|id| submit(&queue, &[id]));
    let (sender, receiver) = mpsc::channel();
    let last = group[1].clone();
    group[0].when_done(Box::new(move || sender.send(last.wait(SOON).unwrap()).unwrap()));
    assert!(receiver.recv_timeout(2 * SOON).unwrap(), "the callback did not get the rows");
}

#[test]
fn read_ahead_is_bulk_and_a_request_with_a_waiting_caller_is_pulled_before_it() {
    let source = Arc::new(TestSource::new(Duration::from_millis(100), u64::MAX));
    let queue = queue_of(&source, 8, 1);
    let first = submit_to_thread(&queue, &[1]);
    let ahead = submit(&queue, &[2]);
    let awaited = submit(&queue, &[3]);
    assert!(!awaited.wait(Duration::ZERO).unwrap());
    for ticket in [&first, &ahead, &awaited] {
        while !ticket.is_done() {
            thread::sleep(Duration::from_millis(1));
        }
    }
    let pulls = source.pulls.lock().unwrap();
    let (bulk, sync) = (PullKind::Vector, PullKind::Sync);
    assert_eq!(*pulls, [(nodes([1]), bulk), (nodes([3]), sync), (nodes([2]), bulk)]);
}

#[test]
fn a_request_beyond_the_window_waits_for_its_turn_and_its_caller_does_not() {
    let source = Arc::new(TestSource::new(Duration::from_millis(50), u64::MAX));
    let queue = queue_of(&source, 1, 1);
    let first = submit(&queue, &[1]);
    let beyond: Vec<Ticket> =
        (2..5).map(|id| queue.submit_beyond_window("x", nodes([id])).unwrap()).collect();
    assert!(!first.is_done(), "no request was waited for");
    let refused = queue.submit_within("x", &mut nodes([6]), Duration::ZERO).unwrap();
    assert!(refused.is_none(), "others wait for room");
    for (id, ticket) in (2..5).zip(&beyond) {
        assert_eq!(rows(ticket).unwrap().bytes(), rows_of(&nodes([id])));
    }
}

#[test]
fn unknown_tensors_and_nodes_are_refused_before_they_wait() {
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

/// Returns the rows of `n_rows` nodes, 4 KiB each, and their address.
fn gather_large(queue: &GatherQueue, n_rows: u32) -> (GatheredRows, *const u8) {
    let ids: Vec<u32> = (0..n_rows).map(|i| i % 40).collect();
    let found = rows(&submit(queue, &ids)).unwrap();
    let place = found.bytes().as_ptr();
    (found, place)
}

/// A source whose rows are 4 KiB of one byte, the id of their node.
struct Wide(TestSource);

impl RowSource for Wide {
    fn book(&self) -> &PartitionBook {
        self.0.book()
    }

    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
        Ok(TensorInfo { width: 1024, ..self.0.tensor(name)? })
    }

    fn pinned_version(&self) -> Option<crate::source::VersionTag> {
        self.0.pinned_version()
    }

    fn pull_overlapped(
        &self,
        _: &str,
        ids: &[NodeId],
        out: &mut [u8],
        _: PullKind,
        _: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        for (id, row) in ids.iter().zip(out.chunks_exact_mut(4096)) {
            row.fill(id.0 as u8);
        }
        Ok(PullStats::default())
    }
}

fn wide_queue(bytes: usize) -> GatherQueue {
    let source = Wide(TestSource::new(Duration::ZERO, u64::MAX));
    let bounds = QueueBounds { window: 4, together: 1, bytes, threads: 1 };
    GatherQueue::start(Arc::new(source), bounds).unwrap()
}

#[test]
fn dropped_rows_leave_their_memory_to_later_requests() {
    let queue = wide_queue(usize::MAX);
    let (first, first_place) = gather_large(&queue, 512);
    let (second, second_place) = gather_large(&queue, 512);
    assert_ne!(first_place, second_place);
    drop(first);
    let (third, third_place) = gather_large(&queue, 300);
    assert_eq!(third_place, first_place);
    assert!(
        third
            .bytes()
            .chunks_exact(4096)
            .enumerate()
            .all(|(i, row)| { row.iter().all(|&byte| usize::from(byte) == i % 40) })
    );
    drop((second, third));
    let smallest = gather_large(&queue, 260).1;
    assert!([first_place, second_place].contains(&smallest));
    assert_eq!(queue.peak_bytes(), 2 * (512 * 4096));
}

#[test]
fn free_memory_stays_within_the_bound_of_the_queue() {
    let bytes = 600 * 4096;
    let queue = wide_queue(bytes);
    let held: Vec<_> = (0..3).map(|_| gather_large(&queue, 260)).collect();
    drop(held);
    // Of three buffers two are within the bound. One of them is dropped for rows that fit into
    // neither.
    gather_large(&queue, 300);
    assert!(queue.peak_bytes() <= bytes, "{}", queue.peak_bytes());
}
