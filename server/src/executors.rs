//! Executors of a server's shards: start, readiness and join.

use std::sync::mpsc;

use glommio::channels::channel_mesh::MeshBuilder;
use glommio::{ExecutorJoinHandle, LocalExecutorBuilder, Placement};
use rustix::process::{Resource, getrlimit};
use tracing::warn;

use crate::error::ServerError;
use crate::limits::{IO_BYTES_PER_SHARD, LOCKED_BYTES_PER_SHARD, MAILBOX_LEN, TURN};
use crate::mailbox::{Event, Mailbox};
use crate::shard::plan::ShardPlan;
use crate::shard::{self, Started, Step};
use crate::supervisor::ThreadSupervisor;

/// Starts one executor per shard. If one cannot start, the others end after `START_TIMEOUT`,
/// because the mesh stays incomplete.
pub(crate) fn spawn(
    plan: &ShardPlan,
    started: &Started,
    n_shards: u16,
    supervisor: &ThreadSupervisor,
) -> Result<Vec<ExecutorJoinHandle<Result<(), String>>>, ServerError> {
    warn_of_little_locked_memory(n_shards);
    let mesh = MeshBuilder::full(n_shards.into(), MAILBOX_LEN);
    let executor_error =
        |error: glommio::GlommioError<()>| ServerError::Executor { reason: error.to_string() };
    (0..n_shards)
        .map(|i| {
            let (plan, mesh, started) = (plan.clone(), mesh.clone(), started.clone());
            let name = name_of(i.into());
            let guard = supervisor.thread_guard(&name);
            let run = move || {
                guard.hold();
                shard::run(plan, mesh, started)
            };
            LocalExecutorBuilder::new(Placement::Unbound)
                .name(&name)
                .io_memory(IO_BYTES_PER_SHARD)
                .preempt_timer(TURN)
                .spawn(run)
                .map_err(executor_error)
        })
        .collect()
}

fn name_of(shard: usize) -> String {
    format!("lode-shard-{shard}")
}

/// Returns the error of the first dead shard, which is more precise than `error`. Returns `error`
/// if no shard died, or if the dead shard ended without an error.
pub(crate) fn why_dead(
    error: ServerError,
    supervisor: &ThreadSupervisor,
    executors: &mut Vec<ExecutorJoinHandle<Result<(), String>>>,
) -> ServerError {
    let Some(name) = supervisor.first() else { return error };
    let Some(at) = (0..executors.len()).find(|&at| name_of(at) == name) else { return error };
    // The join returns soon: the guard is dropped as the thread ends.
    match join([executors.swap_remove(at)].into_iter()) {
        Err(ServerError::Executor { reason }) => {
            ServerError::Executor { reason: format!("{name}: {reason}") }
        }
        _ => error,
    }
}

/// Logs a single line if the kernel allows less locked memory than the shards want for the buffers
/// of three rings each. Each executor logs this in many lines, and continues with unlocked memory.
fn warn_of_little_locked_memory(n_shards: u16) {
    let allowed = getrlimit(Resource::Memlock).current;
    let wanted = u64::from(n_shards) * LOCKED_BYTES_PER_SHARD as u64;
    let is_bound = !rustix::process::geteuid().is_root();
    if is_bound && allowed.is_some_and(|allowed| allowed < wanted) {
        warn!(
            allowed_bytes = allowed,
            wanted_bytes = wanted,
            "the limit on locked memory is low, which slows disk reads; raise `ulimit -l`, or \
             LimitMEMLOCK in the unit"
        );
    }
}

/// Waits until every shard is up; returns their mailboxes in the order of shards.
pub(crate) fn collect_inboxes(
    starting: &mpsc::Receiver<Step>,
    n_shards: u16,
) -> Result<Vec<Mailbox>, ServerError> {
    let mut mailboxes: Vec<Option<Mailbox>> = (0..n_shards).map(|_| None).collect();
    let mut failed = None;
    // The channel closes when every shard has reported or died.
    for step in starting {
        match step {
            Step::Up(shard, mailbox) => mailboxes[shard] = Some(mailbox),
            Step::Failed(reason) => failed = Some(reason),
        }
    }
    if let Some(reason) = failed {
        mailboxes.iter().flatten().for_each(|mailbox| mailbox.send(|| Event::Stop));
        return Err(ServerError::Executor { reason });
    }
    let reason = || "a shard died as it started".to_owned();
    let all: Option<Vec<Mailbox>> = mailboxes.into_iter().collect();
    all.ok_or_else(|| ServerError::Executor { reason: reason() })
}

/// Joins all executors; returns the last error.
pub(crate) fn join(
    executors: impl Iterator<Item = ExecutorJoinHandle<Result<(), String>>>,
) -> Result<(), ServerError> {
    let mut result = Ok(());
    for executor in executors {
        let ended = executor.join().map_err(|error| error.to_string());
        if let Err(reason) = ended.and_then(|inner| inner) {
            result = Err(ServerError::Executor { reason });
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::pin::pin;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::task::{Context, Wake, Waker};
    use std::time::{Duration, Instant};

    use futures_lite::future::zip;
    use futures_lite::{AsyncReadExt, AsyncWriteExt};
    use futures_util::future::join_all;
    use glommio::channels::shared_channel;
    use glommio::net::TcpStream;
    use glommio::{Latency, Shares, TaskQueueHandle};

    use super::*;

    /// Returns the slowest reply of an executor with this timer to one of `n` messages. The
    /// messages arrive at different moments of its way to sleep.
    fn slowest_answer(timer: Duration, n: u64) -> Duration {
        let (answers, answered) = mpsc::channel();
        let (mailboxes, mailbox) = mpsc::channel();
        let answer = move || async move {
            let (sender, receiver) = shared_channel::new_bounded(1);
            let (sender, receiver) = zip(sender.connect(), receiver.connect()).await;
            mailboxes.send(sender.into_foreign()).unwrap();
            while let Some(message) = receiver.recv().await {
                // Another task replies, which is runnable when the executor polls its rings.
                let answers = answers.clone();
                let task = async move { answers.send(message).unwrap() };
                glommio::spawn_local_into(task, TaskQueueHandle::default()).unwrap().await;
            }
        };
        let builder = LocalExecutorBuilder::new(Placement::Unbound).preempt_timer(timer);
        let executor = builder.spawn(answer).unwrap();
        let overslept = "an executor sleeps although a task is runnable";
        let mailbox = mailbox.recv_timeout(Duration::from_secs(10)).expect(overslept);
        let mut slowest = Duration::ZERO;
        for message in 0..n {
            let start = Instant::now();
            while start.elapsed() < Duration::from_nanos(message * 7919 % 50_000) {}
            let sent = Instant::now();
            mailbox.try_send(message).unwrap();
            assert_eq!(answered.recv_timeout(Duration::from_secs(10)).expect(overslept), message);
            slowest = slowest.max(sent.elapsed());
        }
        drop(mailbox);
        executor.join().unwrap();
        slowest
    }

    #[test]
    fn an_executor_does_not_sleep_while_a_task_is_runnable() {
        for micros in [1, 5, 20] {
            let slowest = slowest_answer(Duration::from_micros(micros), 20_000);
            println!("timer {micros} µs: slowest answer {slowest:?}");
        }
    }

    struct CountedWaker;

    impl Wake for CountedWaker {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn a_timer_that_is_polled_often_is_registered_once() {
        let executor = LocalExecutorBuilder::new(Placement::Unbound).make().unwrap();
        executor.run(async {
            let counted = Arc::new(CountedWaker);
            let waker = Waker::from(Arc::clone(&counted));
            let mut timer = pin!(glommio::timer::sleep(Duration::from_secs(3600)));
            for _ in 0..100 {
                let polled = timer.as_mut().poll(&mut Context::from_waker(&waker));
                assert!(polled.is_pending());
            }
            // The references of `counted`, `waker` and the registration.
            assert_eq!(Arc::strong_count(&counted), 3);
        });
    }

    #[test]
    fn timers_fire_in_the_order_of_their_ends() {
        let executor = LocalExecutorBuilder::new(Placement::Unbound).make().unwrap();
        let fired = executor.run(async {
            let fired = Rc::new(RefCell::new(Vec::new()));
            let tasks = [30, 10, 20, 10].into_iter().enumerate().map(|(timer, millis)| {
                let fired = Rc::clone(&fired);
                glommio::spawn_local(async move {
                    glommio::timer::sleep(Duration::from_millis(millis)).await;
                    fired.borrow_mut().push(timer);
                })
            });
            join_all(tasks.collect::<Vec<_>>()).await;
            fired.take()
        });
        assert_eq!(fired, [1, 3, 2, 0]);
    }

    /// Keeps the core busy, and yields only if another queue wants it.
    async fn run_bulk(is_over: Rc<Cell<bool>>) {
        while !is_over.get() {
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(50) {}
            glommio::yield_if_needed().await;
        }
    }

    async fn echo(socket: OwnedFd, is_over: Rc<Cell<bool>>) {
        let mut stream = TcpStream::from(socket2::Socket::from(socket));
        let mut byte = [0; 1];
        while stream.read(&mut byte).await.unwrap() > 0 {
            stream.write_all(&byte).await.unwrap();
        }
        is_over.set(true);
    }

    #[test]
    fn an_arrival_for_a_latency_bound_queue_ends_the_turn_of_bulk() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let timer = Duration::from_millis(200);
        let run = move || async move {
            let queue = |shares, latency| {
                glommio::executor().create_task_queue(Shares::Static(shares), latency, "")
            };
            // The timer is as long as a turn: a shorter one would also notice the byte.
            let sync = queue(1000, Latency::Matters(timer));
            let bulk = queue(100, Latency::NotImportant);
            let is_over = Rc::new(Cell::new(false));
            let echo = glommio::spawn_local_into(echo(theirs.into(), is_over.clone()), sync);
            let bulk = glommio::spawn_local_into(run_bulk(is_over), bulk);
            zip(echo.unwrap(), bulk.unwrap()).await;
        };
        let builder = LocalExecutorBuilder::new(Placement::Unbound).preempt_timer(timer);
        let executor = builder.spawn(run).unwrap();
        let mut times: Vec<_> = (0..15)
            .map(|_| {
                let start = Instant::now();
                ours.write_all(&[1]).unwrap();
                ours.read_exact(&mut [0]).unwrap();
                start.elapsed()
            })
            .collect();
        drop(ours);
        executor.join().unwrap();
        times.sort();
        assert!(times[7] < timer / 4, "an echo takes {:?}, a turn {timer:?}", times[7]);
    }

    /// Ends with an error after the executor was created, or before if `depth` is too large.
    fn dead(
        shard: usize,
        depth: usize,
        supervisor: &ThreadSupervisor,
    ) -> ExecutorJoinHandle<Result<(), String>> {
        let guard = supervisor.thread_guard(name_of(shard));
        let run = move || async move {
            guard.hold();
            Err("its disk is gone".to_owned())
        };
        LocalExecutorBuilder::new(Placement::Unbound).ring_depth(depth).spawn(run).unwrap()
    }

    #[test]
    fn the_error_of_a_dead_shard_is_reported_rather_than_a_timeout() {
        // The kernel refuses a ring of 2^24 entries.
        for (depth, expected) in [(128, "its disk is gone"), (1 << 24, "lode-shard-1: ")] {
            let supervisor = ThreadSupervisor::default();
            let unheard = || ServerError::Executor { reason: "did not begin".into() };
            let error = why_dead(unheard(), &supervisor, &mut Vec::new()).to_string();
            assert!(error.contains("did not begin"), "{error}");
            let first = LocalExecutorBuilder::new(Placement::Unbound).spawn(|| async { Ok(()) });
            let mut executors = vec![first.unwrap(), dead(1, depth, &supervisor)];
            assert_eq!(supervisor.wait().as_deref(), Some("lode-shard-1"));
            let error = why_dead(unheard(), &supervisor, &mut executors).to_string();
            assert!(error.contains(expected) && !error.contains("did not begin"), "{error}");
            join(executors.into_iter()).unwrap();
        }
    }
}
