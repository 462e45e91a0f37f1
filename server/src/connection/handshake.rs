//! Handshakes of TLS, one step of one of them at a time: its arithmetic takes as long as many requests,
//! and whoever comes may begin one.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

/// Who waits for a turn, the longest first; the first has it. It is handed over: whoever comes as one
/// ends stands behind all that wait.
#[derive(Default)]
pub(crate) struct Turns {
    /// Numbers, which ascend, and who is called.
    queue: RefCell<VecDeque<(u64, Waker)>>,
    n_given: Cell<u64>,
}

impl Turns {
    /// Stands in line until it is its turn, which lasts as long as what comes back.
    async fn next(&self) -> Turn<'_> {
        let number = self.n_given.replace(self.n_given.get() + 1);
        let (turn, mut has_come) = (Turn { turns: self, number }, false);
        poll_fn(|cx| {
            let mut queue = self.queue.borrow_mut();
            if !std::mem::replace(&mut has_come, true) {
                queue.push_back((number, cx.waker().clone()));
            }
            let at = queue.binary_search_by_key(&number, |&(number, _)| number);
            let at = at.expect("it stands there until it is dropped");
            queue[at].1.clone_from(cx.waker());
            if at == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        turn
    }
}

/// A place in the line, and at its head the turn.
struct Turn<'a> {
    turns: &'a Turns,
    number: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.turns.queue.borrow_mut();
        if let Ok(at) = queue.binary_search_by_key(&self.number, |&(number, _)| number) {
            queue.remove(at);
            if at == 0
                && let Some((_, next)) = queue.front()
            {
                next.wake_by_ref();
            }
        }
    }
}

/// Runs a handshake whose steps wait for their turn among those of the shard. After each the core is
/// the others' for as long as the step took, and the executor looks at what has come meanwhile.
///
/// What is waited for from the peer is waited for without a turn.
pub(super) async fn in_turn<T>(
    turns: &Turns,
    handshake: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let mut handshake = pin!(handshake);
    loop {
        let turn = turns.next().await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_the_order_in_which_they_were_asked_for_whoever_gives_up() {
        let turns = Turns::default();
        let mut cx = Context::from_waker(Waker::noop());
        let mut line: Vec<_> = (0..4).map(|_| Box::pin(turns.next())).collect();
        let mut first = None;
        for waiting in &mut line {
            if let Poll::Ready(turn) = waiting.as_mut().poll(&mut cx) {
                assert!(first.replace(turn).is_none(), "one at a time");
            }
        }
        // The second gives up, the first is done, and a fifth comes before the third is woken.
        drop(line.remove(1));
        drop(first.expect("nobody was there"));
        let mut late = Box::pin(turns.next());
        assert!(late.as_mut().poll(&mut cx).is_pending());
        assert!(line[2].as_mut().poll(&mut cx).is_pending());
        let Poll::Ready(third) = line[1].as_mut().poll(&mut cx) else { panic!("it is its turn") };
        drop(third);
        assert!(late.as_mut().poll(&mut cx).is_pending());
        drop(line);
        assert!(late.as_mut().poll(&mut cx).is_ready());
        drop(late);
        assert!(turns.queue.borrow().is_empty());
    }
}
