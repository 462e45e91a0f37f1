//! Handshakes of TLS, one step of one of them at a time: its arithmetic takes as long as many requests,
//! and whoever comes may begin one.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use glommio::sync::Semaphore;

/// Runs a handshake whose steps wait for their turn among those of the shard. After each the core is
/// the others' for as long as the step took, and the executor looks at what has come meanwhile.
///
/// `turns` has one permit. What is waited for from the peer is waited for without it.
pub(super) async fn in_turn<T>(
    turns: &Semaphore,
    handshake: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let mut handshake = pin!(handshake);
    loop {
        let turn = turns.acquire_permit(1).await;
        let turn = turn.map_err(|error| io::Error::other(error.to_string()))?;
        let (start, mut called) = (Instant::now(), None);
        let step = poll_fn(|cx| {
            let bell = called.insert(Arc::new(Bell::new(cx.waker())));
            let waker = Waker::from(Arc::clone(bell));
            Poll::Ready(handshake.as_mut().poll(&mut Context::from_waker(&waker)))
        });
        let step = step.await;
        glommio::timer::sleep(start.elapsed()).await;
        drop(turn);
        match (step, called) {
            (Poll::Ready(done), _) => return done,
            (Poll::Pending, Some(bell)) => bell.rung().await,
            (Poll::Pending, None) => unreachable!("a step that was taken has a bell"),
        }
    }
}

/// Notes that something has called while its task was busy with something else.
struct Bell {
    has_rung: AtomicBool,
    task: Waker,
}

impl Bell {
    fn new(task: &Waker) -> Self {
        Self { has_rung: AtomicBool::new(false), task: task.clone() }
    }

    /// Waits until it has rung once.
    async fn rung(&self) {
        poll_fn(|_| match self.has_rung.load(Ordering::Acquire) {
            true => Poll::Ready(()),
            // The task that waits is the one that is woken.
            false => Poll::Pending,
        })
        .await;
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_rung.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}
