use std::time::Instant;

use futures_util::future::{join, join_all};
use futures_util::stream::{self, TryStreamExt};
use glommio::sync::Semaphore;
use glommio::timer::sleep;
use glommio::{LocalExecutorBuilder, Placement};

use super::*;

const PAGE: usize = 4096;
const MINUTE: Duration = Duration::from_secs(60);

fn run<F: Future<Output = ()> + 'static>(work: impl FnOnce() -> F + Send + 'static) {
    LocalExecutorBuilder::new(Placement::Unbound).spawn(work).unwrap().join().unwrap();
}

fn admission() -> Rc<ReadAdmission> {
    let counters = Arc::from([Counters::default()]);
    Rc::new(ReadAdmission::new(DiskProfile::default(), counters, 0))
}

fn turn_of(admission: &Rc<ReadAdmission>, kind: PullKind, arrived: Instant) -> ReadTurn {
    let (deadline, progress) = (arrived + MINUTE, Progress::New);
    admission.turn(&PullOrder { kind, arrived, deadline, progress })
}

/// Takes all read slots.
async fn take_all(turn: &ReadTurn) -> Vec<Permit> {
    let mut permits = Vec::new();
    for _ in 0..READS_PER_SHARD {
        permits.push(turn.take_read(PAGE).await.unwrap());
    }
    permits
}

/// Runs other tasks until they wait.
async fn settle() {
    for _ in 0..10 {
        glommio::executor().yield_now().await;
    }
}

#[test]
fn reads_start_in_order_of_arrival_and_latency_passes_bulk() {
    run(|| async {
        let (admission, now) = (admission(), Instant::now());
        let first = turn_of(&admission, PullKind::Sync, now);
        let permits = take_all(&first).await;
        let order: Rc<RefCell<Vec<(PullKind, u64)>>> = Rc::default();
        for (kind, ms) in [
            (PullKind::Vector, 3),
            (PullKind::Vector, 1),
            (PullKind::Sync, 5),
            (PullKind::Vector, 2),
            (PullKind::Sync, 4),
        ] {
            let turn = turn_of(&admission, kind, now + Duration::from_millis(ms));
            let order = Rc::clone(&order);
            let read = async move {
                let _permit = turn.take_read(PAGE).await.unwrap();
                order.borrow_mut().push((kind, ms));
            };
            glommio::spawn_local(read).detach();
        }
        settle().await;
        assert!(order.borrow().is_empty() && admission.n_waiting() == 5);
        drop(permits);
        while admission.n_waiting() > 0 || order.borrow().len() < 5 {
            settle().await;
        }
        let expected = [(PullKind::Sync, 4), (PullKind::Sync, 5)];
        assert_eq!(order.borrow()[..2], expected);
        assert_eq!(order.borrow()[2..], [1, 2, 3].map(|ms| (PullKind::Vector, ms)));
        assert_eq!(admission.bytes_in_flight(), 0);
    });
}

#[test]
fn a_cancelled_pull_keeps_neither_its_turn_nor_its_grant() {
    run(|| async {
        let (admission, now) = (admission(), Instant::now());
        let first = turn_of(&admission, PullKind::Sync, now);
        let mut permits = take_all(&first).await;
        let after = |ms| turn_of(&admission, PullKind::Sync, now + Duration::from_millis(ms));
        let (second, third) = (after(1), after(2));
        let mut waits = Box::pin(second.take_read(PAGE));
        assert!(futures_lite::future::poll_once(waits.as_mut()).await.is_none());
        let mut behind = Box::pin(third.take_read(PAGE));
        assert!(futures_lite::future::poll_once(behind.as_mut()).await.is_none());
        assert_eq!(admission.n_waiting(), 2);
        // The first waiting pull is granted a slot, and never polls for it.
        permits.pop();
        assert_eq!(admission.n_waiting(), 1);
        drop(waits);
        assert_eq!(admission.n_waiting(), 0, "the next pull has the slot");
        let _permit = behind.await.unwrap();
        let mut waits = Box::pin(second.take_read(PAGE));
        assert!(futures_lite::future::poll_once(waits.as_mut()).await.is_none());
        drop(waits);
        assert_eq!(admission.n_waiting(), 0);
        assert_eq!(admission.bytes_in_flight(), READS_PER_SHARD * PAGE as u64);
    });
}

#[test]
fn a_gather_beyond_the_budget_runs_alone() {
    run(|| async {
        let admission = admission();
        let turn = turn_of(&admission, PullKind::Vector, Instant::now());
        let lists = turn.take_lists(1 << 20, 1 << 20, 1).await.unwrap();
        let bytes = 2 * READ_BYTES_PER_SHARD as usize;
        for _ in 0..3 {
            let permit = turn.take_read(bytes).await.unwrap();
            assert_eq!(admission.bytes_in_flight(), bytes as u64);
            drop(permit);
        }
        drop(lists);
        assert_eq!(admission.state.borrow().lists.taken, Amount::default());
    });
}

/// A disk that does one read at a time, each in a little over a millisecond.
struct SlowDisk {
    place: Semaphore,
    n_done: Cell<u64>,
}

const READS_OF_A_PULL: usize = 20;

impl SlowDisk {
    fn new() -> Self {
        Self { place: Semaphore::new(1), n_done: Cell::new(0) }
    }

    /// Reads a pull in two chunks.
    async fn pull(&self, turn: &ReadTurn) -> Result<(), Failure> {
        let n_rows = READS_OF_A_PULL / 2;
        let cost = turn.admission.cost_of(PAGE);
        for n_rows_after in [n_rows, 0] {
            turn.n_rows_after.set(n_rows_after);
            let _lists = turn.take_lists(n_rows, n_rows, cost).await?;
            turn.set_cost(cost * n_rows as u64, n_rows);
            let reads = stream::iter(0..n_rows).then(|_| async {
                let permit = turn.take_read(PAGE).await?;
                Ok(async move {
                    let _place = self.place.acquire_permit(1).await.unwrap();
                    sleep(Duration::from_millis(1)).await;
                    self.n_done.set(self.n_done.get() + 1);
                    drop(permit);
                    Ok::<(), Failure>(())
                })
            });
            let mut reads = std::pin::pin!(reads.try_buffer_unordered(64));
            while reads.try_next().await?.is_some() {}
            turn.end_chunk();
        }
        Ok(())
    }
}

/// Tests that fail where other programs slow the machine.
mod timing {
    use super::*;

    /// 200 clients with pulls that need at least 4 s together, each with a deadline of 1 s.
    #[test]
    #[ignore = "measures time: ./x test runs it by itself"]
    fn under_overload_most_reads_are_useful_and_other_pulls_get_a_retry_hint() {
        const TIME: Duration = Duration::from_secs(1);
        run(|| async {
            let (admission, disk) = (admission(), Rc::new(SlowDisk::new()));
            let (in_time, refused) = (Rc::new(Cell::new(0u64)), Rc::new(Cell::new(0u64)));
            let end = Instant::now() + Duration::from_secs(4);
            let clients = (0..200).map(|_| {
                let (admission, disk) = (Rc::clone(&admission), Rc::clone(&disk));
                let (in_time, refused) = (Rc::clone(&in_time), Rc::clone(&refused));
                async move {
                    while Instant::now() < end {
                        let (arrived, progress) = (Instant::now(), Progress::New);
                        let (kind, deadline) = (PullKind::Vector, arrived + TIME);
                        let turn = admission.turn(&PullOrder { kind, arrived, deadline, progress });
                        let pull = crate::deadline::with_deadline(deadline, disk.pull(&turn));
                        match pull.await {
                            Ok(()) => in_time.set(in_time.get() + 1),
                            Err(failure) if failure.code == FailureCode::Overloaded => {
                                assert!(failure.retry_after >= RETRY_AFTER);
                                assert!(failure.retry_after <= RETRY_AFTER_MAX);
                                refused.set(refused.get() + 1);
                                sleep(failure.retry_after).await;
                            }
                            Err(failure) => assert_eq!(failure.code, FailureCode::Deadline),
                        }
                    }
                }
            });
            join_all(clients).await;
            let useful = in_time.get() * READS_OF_A_PULL as u64;
            let share = useful as f64 / disk.n_done.get() as f64;
            println!("{share} of {} reads, {} refused", disk.n_done.get(), refused.get());
            assert!(share > 0.7, "{share} of {} reads were of use", disk.n_done.get());
            assert!(refused.get() > 0);
            assert_eq!((admission.n_waiting(), admission.bytes_in_flight()), (0, 0));
            assert_eq!(admission.state.borrow().forecast.backlog(), Duration::ZERO);
        });
    }

    #[test]
    #[ignore = "measures time: ./x test runs it by itself"]
    fn a_pull_that_has_begun_is_not_refused_here_or_at_another_shard() {
        run(|| async {
            let (admission, disk) = (admission(), SlowDisk::new());
            let now = Instant::now();
            // Enough pulls that the disk's rate is known.
            let turns = (0..40).map(|_| turn_of(&admission, PullKind::Vector, now));
            let turns: Vec<ReadTurn> = turns.collect();
            let pulls = join_all(turns.iter().map(|turn| disk.pull(turn)));
            let ask = async {
                sleep(Duration::from_millis(300)).await;
                let (kind, arrived) = (PullKind::Vector, Instant::now());
                let deadline = arrived + Duration::from_millis(50);
                let ask = |progress| {
                    let turn = admission.turn(&PullOrder { kind, arrived, deadline, progress });
                    async move {
                        let lists = turn.take_lists(READS_OF_A_PULL, READS_OF_A_PULL, 11_000);
                        lists.await.map(drop)
                    }
                };
                let refusal = ask(Progress::New).await.unwrap_err();
                assert_eq!(refusal.code, FailureCode::Overloaded);
                assert!(arrived.elapsed() < Duration::from_millis(40), "immediately");
                assert!(ask(Progress::Begun).await.is_ok());
            };
            let (all, ()) = join(pulls, ask).await;
            assert!(all.into_iter().all(|pull| pull.is_ok()));
        });
    }
}
