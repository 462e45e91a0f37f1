//! The executors of a server's shards: started, waited for, and joined.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use glommio::channels::channel_mesh::MeshBuilder;
use glommio::{ExecutorJoinHandle, LocalExecutorBuilder, Placement};
use rustix::process::{Resource, getrlimit};
use tracing::warn;

use crate::ServerError;
use crate::limits::{IO_BYTES_PER_SHARD, LOCKED_BYTES_PER_SHARD, MAILBOX_LEN};
use crate::shard::{self, Inbox, ShardPlan, Started, Step};
use crate::watch::Deaths;

/// Starts one executor per shard. Where one cannot start, the others give up after
/// `START_TIMEOUT`, since the mesh is never complete.
pub(crate) fn spawn(
    plan: &ShardPlan,
    started: &Started,
    n_shards: u16,
    io_bytes: usize,
    deaths: &Deaths,
) -> Result<Vec<ExecutorJoinHandle<Result<(), String>>>, ServerError> {
    let mesh = MeshBuilder::full(n_shards.into(), MAILBOX_LEN);
    let executor_error =
        |error: glommio::GlommioError<()>| ServerError::Executor { reason: error.to_string() };
    (0..n_shards)
        .map(|i| {
            let (plan, mesh, started) = (plan.clone(), mesh.clone(), started.clone());
            let name = name_of(i.into());
            let lifeline = deaths.lifeline(&name);
            let run = move || {
                lifeline.hold();
                shard::run(plan, mesh, started)
            };
            LocalExecutorBuilder::new(Placement::Unbound)
                .name(&name)
                .io_memory(io_bytes)
                .spawn(run)
                .map_err(executor_error)
        })
        .collect()
}

fn name_of(shard: usize) -> String {
    format!("lode-shard-{shard}")
}

/// Why a server did not start: what the first shard that has died said, rather than that it was not heard
/// of, as where its executor could not be created.
pub(crate) fn why_dead(
    error: ServerError,
    deaths: &Deaths,
    executors: &mut Vec<ExecutorJoinHandle<Result<(), String>>>,
) -> ServerError {
    let Some(name) = deaths.first() else { return error };
    let Some(at) = (0..executors.len()).find(|&at| name_of(at) == name) else { return error };
    // It ends now, if it has not ended.
    match join([executors.swap_remove(at)].into_iter()) {
        Err(ServerError::Executor { reason }) => {
            ServerError::Executor { reason: format!("{name}: {reason}") }
        }
        _ => error,
    }
}

/// Bytes of each shard's buffers for reads, which the kernel locks once for each of three rings. With less
/// than that allowed each executor says so in many lines, and goes on without; this says it in one.
pub(crate) fn io_bytes(n_shards: u16) -> usize {
    let allowed = getrlimit(Resource::Memlock).current;
    let wanted = u64::from(n_shards) * LOCKED_BYTES_PER_SHARD as u64;
    let is_bound = !rustix::process::geteuid().is_root();
    if is_bound && allowed.is_some_and(|allowed| allowed < wanted) {
        warn!(
            allowed_bytes = allowed,
            wanted_bytes = wanted,
            "little locked memory is allowed, and reads from disk take longer; raise `ulimit -l`, or \
             LimitMEMLOCK in the unit"
        );
    }
    IO_BYTES_PER_SHARD
}

/// Waits until every shard is up, and puts their inboxes in the order of shards.
///
/// A shard that has overslept before anybody woke it regularly is left behind: it cannot be joined.
pub(crate) fn collect_inboxes(
    starting: &mpsc::Receiver<Step>,
    n_shards: u16,
    begin_max: Duration,
) -> Result<Vec<Inbox>, ServerError> {
    let mut inboxes: Vec<Option<Inbox>> = (0..n_shards).map(|_| None).collect();
    let mut failed = None;
    let (mut n_pulsed, late) = (0, Instant::now() + begin_max);
    // The channel ends when every shard has reported or died.
    loop {
        let left = late.saturating_duration_since(Instant::now());
        let step = match n_pulsed < n_shards {
            true => starting.recv_timeout(left),
            // What it opens may take long.
            false => starting.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match step {
            Ok(Step::Pulsed) => n_pulsed += 1,
            Ok(Step::Up(shard, inbox)) => inboxes[shard] = Some(inbox),
            Ok(Step::Failed(reason)) => failed = Some(reason),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                failed = Some(format!(
                    "a shard did not begin within {begin_max:?}; try again in a new process, as what the \
                     others have locked in memory stays so in this one"
                ));
                break;
            }
        }
    }
    let complete: Option<Vec<Inbox>> = if failed.is_some() {
        for inbox in inboxes.iter().flatten() {
            inbox.stop();
        }
        None
    } else {
        inboxes.into_iter().collect()
    };
    complete.ok_or_else(|| ServerError::Executor {
        reason: failed.unwrap_or_else(|| "a shard died as it started".into()),
    })
}

/// Waits for all of them; gives the error of the last that has one.
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
    use super::*;

    #[test]
    fn a_shard_that_never_begins_is_not_waited_for() {
        let (started, starting) = mpsc::channel();
        started.send(Step::Pulsed).unwrap();
        // The second lives, as its thread holds a sender, and says nothing.
        let error = collect_inboxes(&starting, 2, Duration::from_millis(20)).err().unwrap();
        assert!(error.to_string().contains("did not begin within 20ms"), "{error}");
        drop(started);
    }

    #[test]
    fn what_a_shard_opens_may_take_longer() {
        let (started, starting) = mpsc::channel();
        started.send(Step::Pulsed).unwrap();
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            started.send(Step::Failed("a row is damaged".into())).unwrap();
        });
        let error = collect_inboxes(&starting, 1, Duration::from_millis(20)).err().unwrap();
        assert!(error.to_string().contains("a row is damaged"), "{error}");
        late.join().unwrap();
    }

    /// Ends as a shard whose executor is created, or else before it is one.
    fn dead(shard: usize, depth: usize, deaths: &Deaths) -> ExecutorJoinHandle<Result<(), String>> {
        let lifeline = deaths.lifeline(name_of(shard));
        let run = move || async move {
            lifeline.hold();
            Err("its disk is gone".to_owned())
        };
        LocalExecutorBuilder::new(Placement::Unbound).ring_depth(depth).spawn(run).unwrap()
    }

    #[test]
    fn what_a_dead_shard_has_said_is_told_rather_than_that_it_was_not_heard_of() {
        // The system makes no ring of so many entries.
        for (depth, told) in [(128, "its disk is gone"), (1 << 24, "lode-shard-1: ")] {
            let deaths = Deaths::default();
            let unheard = || ServerError::Executor { reason: "did not begin".into() };
            let error = why_dead(unheard(), &deaths, &mut Vec::new()).to_string();
            assert!(error.contains("did not begin"), "{error}");
            let first = LocalExecutorBuilder::new(Placement::Unbound).spawn(|| async { Ok(()) });
            let mut executors = vec![first.unwrap(), dead(1, depth, &deaths)];
            assert_eq!(deaths.wait().as_deref(), Some("lode-shard-1"));
            let error = why_dead(unheard(), &deaths, &mut executors).to_string();
            assert!(error.contains(told) && !error.contains("did not begin"), "{error}");
            join(executors.into_iter()).unwrap();
        }
    }
}
