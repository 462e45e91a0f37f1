//! Positional reads by threads: for systems that refuse io_uring.
//!
//! The threads belong to the process. They are started when reads wait for one, and then stay.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::inline::read_now;
use super::{Arena, Outcome, Read, ReadFile, ReadQueue};

/// Most threads of the process: as many reads are at the disk at once.
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

#[derive(Default)]
struct Workers {
    jobs: VecDeque<Job>,
    n_threads: usize,
    n_idle: usize,
}

static WORKERS: Mutex<Workers> =
    Mutex::new(Workers { jobs: VecDeque::new(), n_threads: 0, n_idle: 0 });
static WAKE: Condvar = Condvar::new();

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
        let finished = match self.finished.pop_front() {
            Some(finished) => finished,
            None => match self.receiver.try_recv() {
                Ok(finished) => finished,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return None,
            },
        };
        self.n_in_flight -= 1;
        Some(finished)
    }
}

/// Gives a job to the threads; does it at once where there can be none.
fn hand_over(job: Job) {
    let mut workers = lock();
    workers.jobs.push_back(job);
    if workers.n_idle < workers.jobs.len() && workers.n_threads < MAX_THREADS {
        let started = std::thread::Builder::new().name("lode-read".to_owned()).spawn(work);
        match started {
            Ok(_) => workers.n_threads += 1,
            Err(_) if workers.n_threads == 0 => {
                let job = workers.jobs.pop_back();
                drop(workers);
                job.into_iter().for_each(Job::run);
                return;
            }
            Err(_) => {}
        }
    }
    drop(workers);
    WAKE.notify_one();
}

/// What a thread does for ever.
fn work() {
    loop {
        let mut workers = lock();
        while workers.jobs.is_empty() {
            workers.n_idle += 1;
            workers = WAKE.wait(workers).unwrap_or_else(PoisonError::into_inner);
            workers.n_idle -= 1;
        }
        let job = workers.jobs.pop_front();
        drop(workers);
        job.into_iter().for_each(Job::run);
    }
}

impl Job {
    fn run(mut self) {
        let outcome = read_now(self.file.file(), &mut self.read);
        // Whoever asked may have left; then the memory goes with the read.
        let _ = self.finished.send((self.read, outcome));
    }
}

/// Holds the list of jobs, which no panic leaves half-changed.
fn lock() -> MutexGuard<'static, Workers> {
    WORKERS.lock().unwrap_or_else(PoisonError::into_inner)
}
