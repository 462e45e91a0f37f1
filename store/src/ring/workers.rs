//! Positional reads, for systems that refuse io_uring: by threads, or by the calling one.
//!
//! The threads belong to the process. They are started when reads wait for one, and then stay. A
//! forked child has none of its parent's, and starts its own.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use lodestore_graph::fork::PerProcess;
use lodestore_graph::lock::IgnorePoison;
use rustix::io::Errno;

use super::{Arena, Outcome, Read, ReadFile, ReadQueue};
use crate::file_system::FileReader;
use crate::limits::PAGE_BYTES;

/// Most threads of the process, and so most concurrent reads at the disk.
const MAX_THREADS: usize = 32;

/// Most reads of one queue: every thread finds the next when it has finished one.
const QUEUE_DEPTH: usize = 2 * MAX_THREADS;

/// Reads of one file by the process's threads.
pub(crate) struct WorkerQueue<'a> {
    file: Arc<ReadFile>,
    arena: &'a mut Arena,
    n_in_flight: usize,
    finished: VecDeque<(Read, Outcome)>,
    sender: Sender<(Read, Outcome)>,
    receiver: Receiver<(Read, Outcome)>,
}

/// A read on its way to a thread.
struct Job {
    read: Read,
    file: Arc<ReadFile>,
    finished: Sender<(Read, Outcome)>,
}

/// The threads of a process, and what wakes them.
#[derive(Default)]
struct Workers {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    n_threads: usize,
    n_idle: usize,
}

static WORKERS: PerProcess<Workers> = PerProcess::new();

impl<'a> WorkerQueue<'a> {
    pub(crate) fn new(file: Arc<ReadFile>, arena: &'a mut Arena) -> Self {
        let (sender, receiver) = channel();
        Self { file, arena, n_in_flight: 0, finished: VecDeque::new(), sender, receiver }
    }
}

impl ReadQueue for WorkerQueue<'_> {
    fn arena(&mut self) -> &mut Arena {
        self.arena
    }

    fn depth(&self) -> usize {
        QUEUE_DEPTH
    }

    fn in_flight(&self) -> usize {
        self.n_in_flight
    }

    fn push(&mut self, read: Read) {
        self.n_in_flight += 1;
        let (file, finished) = (Arc::clone(&self.file), self.sender.clone());
        hand_over(Job { read, file, finished });
    }

    fn submit(&mut self, want: usize) -> io::Result<()> {
        let want = want.min(self.n_in_flight);
        while self.finished.len() < want {
            // A sender lives in `self`: there is always an answer to come.
            match self.receiver.recv() {
                Ok(finished) => self.finished.push_back(finished),
                Err(_) => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
        Ok(())
    }

    fn pop(&mut self) -> Option<(Read, Outcome)> {
        let finished = self.finished.pop_front().or_else(|| self.receiver.try_recv().ok())?;
        self.n_in_flight -= 1;
        Some(finished)
    }
}

/// Passes a job to the threads; runs it synchronously where there can be none.
fn hand_over(job: Job) {
    let workers = WORKERS.get_or(|_| Workers::default());
    let mut state = workers.lock();
    state.jobs.push_back(job);
    if state.n_idle < state.jobs.len() && state.n_threads < MAX_THREADS {
        let thread = std::thread::Builder::new().name("lode-read".to_owned());
        match thread.spawn(|| work(workers)) {
            Ok(_) => state.n_threads += 1,
            Err(_) if state.n_threads == 0 => {
                let job = state.jobs.pop_back();
                drop(state);
                job.into_iter().for_each(Job::run);
                return;
            }
            Err(_) => {}
        }
    }
    drop(state);
    workers.wake.notify_one();
}

/// Runs jobs on a thread of the pool.
fn work(workers: &Workers) {
    loop {
        let mut state = workers.lock();
        while state.jobs.is_empty() {
            state.n_idle += 1;
            state = workers.wake.wait(state).ignore_poison();
            state.n_idle -= 1;
        }
        let job = state.jobs.pop_front();
        drop(state);
        job.into_iter().for_each(Job::run);
    }
}

impl Job {
    fn run(mut self) {
        let outcome = read_now(self.file.file(), &mut self.read);
        // The caller may have left; then the memory goes with the read.
        let _ = self.finished.send((self.read, outcome));
    }
}

impl Workers {
    /// Holds the list of jobs, which no panic leaves half-changed.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().ignore_poison()
    }
}

/// Positional reads by the calling thread, one after the other: for a read or two, and where
/// nothing else works.
pub(crate) struct InlineQueue<'a> {
    file: &'a dyn FileReader,
    arena: &'a mut Arena,
    finished: VecDeque<(Read, Outcome)>,
}

impl<'a> InlineQueue<'a> {
    pub(crate) fn new(file: &'a dyn FileReader, arena: &'a mut Arena) -> Self {
        Self { file, arena, finished: VecDeque::new() }
    }
}

impl ReadQueue for InlineQueue<'_> {
    fn arena(&mut self) -> &mut Arena {
        self.arena
    }

    fn depth(&self) -> usize {
        1
    }

    fn in_flight(&self) -> usize {
        self.finished.len()
    }

    fn push(&mut self, mut read: Read) {
        let outcome = read_now(self.file, &mut read);
        self.finished.push_back((read, outcome));
    }

    fn submit(&mut self, _want: usize) -> io::Result<()> {
        Ok(())
    }

    fn pop(&mut self) -> Option<(Read, Outcome)> {
        self.finished.pop_front()
    }
}

/// Does what a read asks for next.
///
/// A device may stop anywhere; direct reads continue at whole pages only, and so does the caller.
fn read_now(file: &dyn FileReader, read: &mut Read) -> Outcome {
    let (offset, range) = read.rest();
    let buffer = &mut read.region_mut().bytes_mut()[range];
    let mut n_done = 0;
    while n_done < buffer.len() {
        match file.read_at(&mut buffer[n_done..], offset + n_done as u64) {
            Ok(0) => break,
            Ok(n) => n_done += n,
            Err(_) if n_done >= PAGE_BYTES as usize => break,
            // A device without numbers for its errors has failed.
            Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }
    Ok(n_done)
}
