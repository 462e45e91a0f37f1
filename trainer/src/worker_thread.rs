//! Threads of workers, and their shares of the cores.

use std::{
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{Scope, ScopedJoinHandle, available_parallelism},
};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::TrainError;

/// A worker as a thread, which returns an outcome for each order.
pub(crate) struct WorkerThread<'scope, O, T> {
    pub(crate) worker: u32,
    orders: SyncSender<O>,
    outcomes: Receiver<Result<T, TrainError>>,
    thread: ScopedJoinHandle<'scope, ()>,
}

impl<'scope, O: Send + 'scope, T: Send + 'scope> WorkerThread<'scope, O, T> {
    /// Starts the thread of `worker`, in a pool of its own. It calls `work` for each order until
    /// the orders end or one fails.
    pub(crate) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        worker: u32,
        pool: ThreadPool,
        mut work: impl FnMut(O) -> Result<T, TrainError> + Send + 'scope,
    ) -> Self {
        let (orders, inbox) = sync_channel(1);
        let (outbox, outcomes) = sync_channel(1);
        let run = move || {
            while let Ok(order) = inbox.recv() {
                let outcome = work(order);
                let failed = outcome.is_err();
                if outbox.send(outcome).is_err() || failed {
                    return;
                }
            }
        };
        let thread = scope.spawn(move || pool.install(run));
        Self { worker, orders, outcomes, thread }
    }

    /// Sends an order to the worker. If the thread has ended, `outcome` reports it.
    pub(crate) fn order(&self, order: O) {
        let _ = self.orders.send(order);
    }

    /// Waits for the outcome of the last order.
    pub(crate) fn outcome(&self) -> Result<T, TrainError> {
        let worker = self.worker;
        self.outcomes.recv().map_err(|_| TrainError::WorkerPanicked { worker })?
    }
}

impl<O, T> WorkerThread<'_, O, T> {
    /// Ends the orders and waits for the thread, which ends after the present one.
    pub(crate) fn end(self) {
        drop((self.orders, self.outcomes));
        // A missing outcome has reported a panic already; the scope would raise it again.
        let _ = self.thread.join();
    }
}

/// Starts one of `n_pools` pools of compute threads that share the cores equally.
pub(crate) fn thread_pool(n_pools: usize) -> Result<ThreadPool, TrainError> {
    let n_cores = available_parallelism().map_or(1, usize::from);
    let n_threads = (n_cores / n_pools.max(1)).max(1);
    Ok(ThreadPoolBuilder::new().num_threads(n_threads).build()?)
}
