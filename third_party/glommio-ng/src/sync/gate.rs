use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use futures_lite::Future;

use crate::{
    channels::local_channel::{self, LocalReceiver, LocalSender},
    GlommioError, ResourceType, Task, TaskQueueHandle,
};

#[derive(Debug)]
enum State {
    Closing(Vec<LocalSender<bool>>),
    Closed,
    Open,
}

/// A visitor pass which could be acquired when entering a gate, and should be
/// released before the gate is closed.
#[derive(Debug)]
pub struct Pass {
    gate: Rc<GateInner>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.leave()
    }
}

/// Facility to achieve graceful shutdown by waiting for the dependent tasks
/// to complete.
#[derive(Clone, Debug)]
pub struct Gate {
    inner: Rc<GateInner>,
}

impl Gate {
    /// Create a new [`Gate`](crate::sync::Gate)
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self {
            inner: Rc::new(GateInner {
                count: Cell::new(0),
                state: RefCell::new(State::Open),
            }),
        }
    }

    /// Get a visitor pass which will be waited to be released on closing
    pub fn enter(&self) -> Result<Pass, GlommioError<()>> {
        self.inner.enter()?;
        Ok(Pass {
            gate: self.inner.clone(),
        })
    }

    /// Spawn a task for which the gate will wait on closing into the current
    /// task queue.
    pub fn spawn<T: 'static>(
        &self,
        future: impl Future<Output = T> + 'static,
    ) -> Result<Task<T>, GlommioError<()>> {
        self.spawn_into(future, crate::executor().current_task_queue())
    }

    /// Spawn a task for which the gate will wait on closing
    pub fn spawn_into<T: 'static>(
        &self,
        future: impl Future<Output = T> + 'static,
        handle: TaskQueueHandle,
    ) -> Result<Task<T>, GlommioError<()>> {
        let pass = self.enter()?;
        crate::spawn_local_into(
            async move {
                let result = future.await;
                drop(pass);
                result
            },
            handle,
        )
    }

    /// Close the gate, and return a waiter for all spawned tasks to complete. If the gate is currently closing, the
    /// returned future will wait for it to close before returning a success. This is particularly useful if you might
    /// have a timeout on the close - the would otherwise be no safe way to retry & wait for remaining tasks to finish.
    ///
    /// NOTE: After this function returns, [is_open](Self::is_open) returns false and any subsequent attempts to acquire
    /// a pass will fail, even if you drop the future. The future will return an error if and only if the gate is
    /// already fully closed
    pub fn close(&self) -> impl Future<Output = Result<(), GlommioError<()>>> {
        self.inner.close()
    }

    /// Whether the gate is open or not.
    pub fn is_open(&self) -> bool {
        self.inner.is_open()
    }

    /// This returns true only if [Self::close] has been called and all spawned tasks are complete. If it returns false,
    /// you may call [Self::close] without it returning an error and it'll wait for all spawned tasks to complete.
    ///
    /// NOTE: multiple concurrent calls to [Self::close] may be a performance issue since each invocation to close will
    /// allocate some nominal amount of memory for the channel underneath.
    pub fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }
}

type CurrentClosure = LocalReceiver<bool>;

#[derive(Debug)]
struct GateInner {
    count: Cell<usize>,
    state: RefCell<State>,
}

impl GateInner {
    pub(crate) fn try_enter(&self) -> bool {
        let open = self.is_open();
        if open {
            self.count.set(self.count.get() + 1);
        }
        open
    }

    pub(crate) fn enter(&self) -> Result<(), GlommioError<()>> {
        if !self.try_enter() {
            Err(GlommioError::Closed(ResourceType::Gate))
        } else {
            Ok(())
        }
    }

    pub(crate) fn leave(&self) {
        self.count.set(self.count.get() - 1);
        if self.count.get() == 0 && !self.is_open() {
            self.notify_closed()
        }
    }

    async fn wait_for_closure(
        waiter: Result<Option<CurrentClosure>, GlommioError<()>>,
    ) -> Result<(), GlommioError<()>> {
        if let Some(waiter) = waiter? {
            waiter.recv().await;
        }

        Ok(())
    }

    pub(crate) fn close(&self) -> impl Future<Output = Result<(), GlommioError<()>>> {
        match self.state.replace(State::Closed) {
            State::Open => {
                if self.count.get() != 0 {
                    let (sender, receiver) = local_channel::new_bounded(1);
                    self.state.replace(State::Closing(vec![sender]));
                    Self::wait_for_closure(Ok(Some(receiver)))
                } else {
                    Self::wait_for_closure(Ok(None))
                }
            }
            State::Closing(mut previous_closers) => {
                assert!(
                    self.count.get() != 0,
                    "If count is 0 then the state should have been marked as closed"
                );
                assert!(
                    !previous_closers.is_empty(),
                    "Should have at least one closer"
                );
                assert!(
                    !previous_closers[0].is_full(),
                    "Already notified that the gate is closed!"
                );

                let (sender, receiver) = local_channel::new_bounded(1);
                previous_closers.push(sender);
                self.state.replace(State::Closing(previous_closers));

                Self::wait_for_closure(Ok(Some(receiver)))
            }
            State::Closed => Self::wait_for_closure(Err(GlommioError::Closed(ResourceType::Gate))),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(*self.state.borrow(), State::Open)
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(*self.state.borrow(), State::Closed)
    }

    pub(crate) fn notify_closed(&self) {
        if let State::Closing(senders) = self.state.replace(State::Closed) {
            for sender in senders {
                let _ = sender.try_send(true);
            }
        } else {
            unreachable!("It should not happen!");
        }
    }
}
