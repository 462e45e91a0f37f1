//! Background compactions, and the removal of replaced files once no reader needs them. One thread
//! does both, one run at a time. A follower's thread only removes files.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lodestore_graph::lock::IgnorePoison;
use lodestore_schema::stats::UpdateStats;
use lodestore_store::StoreError;
use lodestore_store::update::{Folding, TensorHandle};
use tracing::{info, warn};

use crate::error::ServerError;
use crate::limits::{QUICK_SWEEPS, SWEEP_EVERY, SWEEP_PAUSE};
use crate::mailbox::{Event, Mailbox};
use crate::partitions::Partitions;

/// Compaction runs: requested by any thread, executed by the compactor's.
pub(crate) struct Runs {
    state: Mutex<State>,
    changed: Condvar,
    stop: AtomicBool,
    bytes: AtomicU64,
    bytes_total: AtomicU64,
}

/// The next action of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Run(Folding),
    /// Remove files that pinned versions no longer hold.
    Sweep,
    End,
}

struct State {
    /// Runs are numbered from 1; these count the runs requested, started and ended.
    asked: u64,
    started: u64,
    ended: u64,
    /// Folding of the run that waits to start.
    what: Folding,
    /// Error of the last run; empty if it succeeded.
    failure: String,
}

/// The compacting thread, which ends when this is dropped.
pub(crate) struct Compactor {
    runs: Arc<Runs>,
    thread: Option<JoinHandle<()>>,
}

impl Runs {
    pub(crate) fn new() -> Self {
        let what = Folding::WherePays;
        let state = State { asked: 0, started: 0, ended: 0, what, failure: String::new() };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            bytes_total: AtomicU64::new(0),
        }
    }

    /// Requests a run that starts after this call, or joins one that has not started; returns its
    /// number.
    pub(crate) fn ask(&self, what: Folding) -> u64 {
        let mut state = self.lock();
        let is_first = state.asked == state.started;
        if is_first {
            state.asked += 1;
            self.changed.notify_all();
        }
        if is_first || what == Folding::All {
            state.what = what;
        }
        state.asked
    }

    /// Writes the state of compactions to `stats`.
    pub(crate) fn tell(&self, stats: &mut UpdateStats) {
        let state = self.lock();
        stats.runs_asked = state.asked;
        stats.runs_ended = state.ended;
        stats.run_bytes = self.bytes.load(Ordering::Relaxed);
        stats.run_bytes_total = self.bytes_total.load(Ordering::Relaxed);
        stats.run_failure.clone_from(&state.failure);
    }

    /// Waits for a requested run, or for the next sweep.
    fn next(&self, pause: Duration) -> Work {
        let state = self.lock();
        let is_idle = |state: &mut State| state.asked == state.started && !self.is_stopping();
        let waited = self.changed.wait_timeout_while(state, pause, is_idle);
        let mut state = waited.ignore_poison().0;
        if self.is_stopping() {
            return Work::End;
        }
        if state.asked == state.started {
            return Work::Sweep;
        }
        state.started = state.asked;
        Work::Run(state.what)
    }

    fn ended(&self, failure: String) {
        self.bytes.store(0, Ordering::Relaxed);
        self.bytes_total.store(0, Ordering::Relaxed);
        let mut state = self.lock();
        state.ended = state.started;
        state.failure = failure;
    }

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        // Locked, so that the notification does not fall between the check and the wait of `next`.
        let _state = self.lock();
        self.stop.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().ignore_poison()
    }
}

impl Compactor {
    /// Starts the thread. It notifies the shards through `mailboxes` of every folded segment.
    pub(crate) fn start(
        runs: Arc<Runs>,
        partitions: Arc<Partitions>,
        mailboxes: Arc<[Mailbox]>,
    ) -> Result<Self, ServerError> {
        let of_thread = Arc::clone(&runs);
        let work = move || {
            let mut quick_sweeps = 0usize;
            loop {
                let pause = if quick_sweeps > 0 { SWEEP_PAUSE } else { SWEEP_EVERY };
                let what = match of_thread.next(pause) {
                    Work::End => return,
                    Work::Run(what) => what,
                    Work::Sweep => {
                        quick_sweeps = quick_sweeps.saturating_sub(1);
                        if !sweep(&partitions) {
                            quick_sweeps = 0;
                        }
                        // A version that was kept for a time may have expired, which allows a fold
                        // without a commit.
                        if partitions.live.takes_writes() && partitions.live.pays_to_fold() {
                            of_thread.ask(Folding::WherePays);
                        }
                        continue;
                    }
                };
                let failure = match run(&of_thread, &partitions, &mailboxes, what) {
                    Ok(()) | Err(StoreError::Stopped) => String::new(),
                    Err(error) => {
                        warn!(%error, "compaction failed; some layers are not folded");
                        error.to_string()
                    }
                };
                of_thread.ended(failure);
                // Gathers may still read the folded layers, and versions may be kept. Sweeps remove
                // the files later, so no run waits.
                quick_sweeps = QUICK_SWEEPS;
            }
        };
        let thread = std::thread::Builder::new().name("lode-compact".into()).spawn(work);
        Ok(Self { runs, thread: Some(thread.map_err(ServerError::Thread)?) })
    }
}

impl Drop for Compactor {
    /// Ends the thread, and aborts a running compaction.
    fn drop(&mut self) {
        self.runs.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!("the compactor thread panicked");
        }
    }
}

/// Compacts one tensor of one partition after the other.
fn run(
    runs: &Runs,
    partitions: &Partitions,
    mailboxes: &[Mailbox],
    what: Folding,
) -> Result<(), StoreError> {
    let kept = partitions.live.kept_versions();
    let is_chosen = |tensor: &TensorHandle| match what == Folding::All {
        true => !tensor.current().is_plain(),
        false => tensor.pays_to_fold(&kept),
    };
    partitions.keep_newest();
    let chosen = partitions.live_tensors().filter(|(_, _, tensor)| is_chosen(tensor));
    // Holds no handles of tensors, which would block a partition's release.
    let chosen = chosen.map(|(part, position, tensor)| {
        (part, position, tensor.current().base().segment().layout().data_bytes())
    });
    let chosen: Vec<_> = chosen.collect();
    let bytes = chosen.iter().map(|&(_, _, n_bytes)| n_bytes);
    runs.bytes_total.store(bytes.sum(), Ordering::Relaxed);
    let (mut done, mut outcome) = (0, Ok(()));
    for (part, position, _) in chosen {
        let name = &partitions.tensors[position].description.name;
        if partitions.live.tensor(part, position).is_none() {
            // The partition was released meanwhile.
            continue;
        }
        let mut of_this = 0;
        let mut progress = |bytes: u64, _| {
            of_this = bytes;
            runs.bytes.store(done + bytes, Ordering::Relaxed);
            if runs.is_stopping() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let folded = partitions.live.compact(Some(part), Some(name), what, &mut progress);
        done += of_this;
        match folded {
            Ok(_) => info!(%part, tensor = name, "compacted"),
            Err(StoreError::Stopped) => return Err(StoreError::Stopped),
            // A damaged tensor does not stop the compaction of the others; some of its own deltas
            // may be folded.
            Err(error) => outcome = outcome.and(Err(error)),
        }
        // One shard switches all shards to the folded layers.
        mailboxes[0].send(|| Event::Folded(part));
    }
    outcome.and(partitions.live.sweep().map(drop))
}

/// Removes unused files that no kept version needs, and idle puts. Returns whether some files are
/// left.
fn sweep(partitions: &Partitions) -> bool {
    partitions.pins.expire(Instant::now());
    partitions.puts.forget_idle(Instant::now());
    match partitions.live.sweep() {
        Ok(n_left) => n_left > 0,
        Err(error) => {
            warn!(%error, "cannot remove files of folded layers");
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_run_is_joined_and_a_started_one_is_not() {
        let runs = Runs::new();
        assert_eq!(runs.ask(Folding::WherePays), 1);
        assert_eq!(runs.ask(Folding::All), 1);
        assert_eq!(runs.next(Duration::MAX), Work::Run(Folding::All));
        assert_eq!(runs.ask(Folding::WherePays), 2);
        runs.ended("no room".into());
        let mut stats = UpdateStats::default();
        runs.tell(&mut stats);
        assert_eq!((stats.runs_asked, stats.runs_ended), (2, 1));
        assert_eq!(stats.run_failure, "no room");
        assert_eq!(runs.next(Duration::MAX), Work::Run(Folding::WherePays));
        assert_eq!(runs.next(Duration::ZERO), Work::Sweep);
        runs.ended(String::new());
        runs.tell(&mut stats);
        assert_eq!((stats.runs_asked, stats.runs_ended), (2, 2));
        assert_eq!(stats.run_failure, "");
        runs.ask(Folding::All);
        runs.stop();
        assert_eq!(runs.next(Duration::MAX), Work::End);
    }
}
