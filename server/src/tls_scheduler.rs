//! TLS handshakes, one step of one handshake at a time. A handshake's arithmetic costs as much as
//! many requests, and any stranger may begin one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

/// The queue of handshakes. A handshake at its second step runs first, because that step completes
/// it; new handshakes may be a flood. Among equals the longest wait decides. Only the second step
/// has this priority, because a client that sends single bytes can have any number of steps. At the
/// end of a turn the next waiting handshake is called, so a newcomer cannot overtake it.
#[derive(Default)]
pub(crate) struct TlsScheduler(RefCell<Queue>);

#[derive(Default)]
struct Queue {
    waiting: BTreeMap<Place, Waker>,
    /// The handshake whose turn it is.
    called: Option<Place>,
    n_given: u64,
}

/// Rank in the queue: whether others have priority, then the order of arrival.
type Place = (bool, u64);

impl TlsScheduler {
    /// Waits for a turn, which lasts until the returned value is dropped.
    async fn next(&self, can_wait: bool) -> TlsTurn<'_> {
        let place = {
            let mut queue = self.0.borrow_mut();
            queue.n_given += 1;
            (can_wait, queue.n_given)
        };
        let turn = TlsTurn { scheduler: self, place };
        poll_fn(|cx| {
            let mut queue = self.0.borrow_mut();
            // The end of a turn calls the next handshake, so no handshake is called only if none
            // waits.
            if *queue.called.get_or_insert(place) == place {
                return Poll::Ready(());
            }
            queue.waiting.insert(place, cx.waker().clone());
            Poll::Pending
        })
        .await;
        turn
    }
}

/// A waiting handshake, or the turn.
struct TlsTurn<'a> {
    scheduler: &'a TlsScheduler,
    place: Place,
}

impl Drop for TlsTurn<'_> {
    fn drop(&mut self) {
        let mut queue = self.scheduler.0.borrow_mut();
        queue.waiting.remove(&self.place);
        if queue.called == Some(self.place) {
            let next = queue.waiting.pop_first();
            queue.called = next.as_ref().map(|&(place, _)| place);
            if let Some((_, waker)) = next {
                waker.wake();
            }
        }
    }
}

/// Runs a handshake whose steps wait for their turns on this shard. After each step the core is
/// left to other tasks for as long as the step took, and the executor polls for arrivals meanwhile.
///
/// Waiting for the peer's bytes needs no turn.
pub(crate) async fn in_turn<T>(
    scheduler: &TlsScheduler,
    handshake: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let (mut handshake, mut step_no) = (pin!(handshake), 0u64);
    loop {
        let turn = scheduler.next(step_no != 1).await;
        step_no += 1;
        let start = Instant::now();
        let step = poll_fn(|cx| {
            let flag = WakeFlag { is_woken: AtomicBool::new(false), task: cx.waker().clone() };
            let flag = Arc::new(flag);
            let waker = Waker::from(Arc::clone(&flag));
            let step = handshake.as_mut().poll(&mut Context::from_waker(&waker));
            Poll::Ready((step, flag))
        });
        let (step, flag) = step.await;
        glommio::timer::sleep(start.elapsed()).await;
        drop(turn);
        match step {
            Poll::Ready(done) => return done,
            Poll::Pending => flag.woken().await,
        }
    }
}

/// Records a wake-up that happens while its task is busy.
struct WakeFlag {
    is_woken: AtomicBool,
    task: Waker,
}

impl WakeFlag {
    /// Waits for the wake-up.
    async fn woken(&self) {
        poll_fn(|_| match self.is_woken.load(Ordering::Acquire) {
            true => Poll::Ready(()),
            // `wake` wakes the task that awaits this.
            false => Poll::Pending,
        })
        .await;
    }
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::Pin;

    use super::*;

    /// Returns the turns that waiting handshakes have now.
    fn called<'a>(queue: &mut [(u32, Waiting<'a>)]) -> Vec<(u32, TlsTurn<'a>)> {
        let mut cx = Context::from_waker(Waker::noop());
        let polled = queue.iter_mut().map(|(name, next)| (*name, next.as_mut().poll(&mut cx)));
        polled.filter_map(|(name, turn)| Some((name, ready(turn)?))).collect()
    }

    type Waiting<'a> = Pin<Box<dyn Future<Output = TlsTurn<'a>> + 'a>>;

    fn ready<T>(poll: Poll<T>) -> Option<T> {
        match poll {
            Poll::Ready(ready) => Some(ready),
            Poll::Pending => None,
        }
    }

    /// Removes the handshake whose turn it is, and ends its turn.
    fn pass(queue: &mut Vec<(u32, Waiting<'_>)>) -> u32 {
        let [(name, turn)] =
            <[_; 1]>::try_from(called(queue)).map_err(drop).expect("one at a time");
        queue.retain(|&(waiting, _)| waiting != name);
        drop(turn);
        name
    }

    #[test]
    fn turns_are_in_order_of_arrival_even_if_one_is_cancelled() {
        let scheduler = TlsScheduler::default();
        let mut queue: Vec<(u32, Waiting<'_>)> =
            (0..4).map(|name| (name, Box::pin(scheduler.next(true)) as _)).collect();
        // The first has the turn. The second is cancelled, and a fifth arrives as the first ends.
        let mut first = called(&mut queue);
        assert_eq!(first.len(), 1, "one at a time");
        queue.retain(|&(name, _)| name > 1);
        drop(first.pop());
        queue.push((4, Box::pin(scheduler.next(true))));
        queue.rotate_right(1);
        assert_eq!([(); 3].map(|()| pass(&mut queue)), [2, 3, 4]);
        let queue = scheduler.0.borrow();
        assert!(queue.waiting.is_empty() && queue.called.is_none());
    }

    #[test]
    fn a_handshake_in_progress_does_not_wait_for_new_ones() {
        let scheduler = TlsScheduler::default();
        let mut queue: Vec<(u32, Waiting<'_>)> =
            (0..9).map(|name| (name, Box::pin(scheduler.next(true)) as _)).collect();
        let first = called(&mut queue);
        drop(queue.remove(0));
        assert!(called(&mut queue).is_empty());
        queue.extend((90..92).map(|name| (name, Box::pin(scheduler.next(false)) as _)));
        assert!(called(&mut queue).is_empty(), "a running turn is not preempted");
        drop(first);
        assert_eq!([(); 3].map(|()| pass(&mut queue)), [90, 91, 1]);
    }

    /// A handshake of `n` steps, none of which waits for a peer.
    async fn steps(n: u64, n_taken: &Cell<u64>) -> io::Result<()> {
        let mut n_left = n;
        poll_fn(|cx| {
            n_taken.set(n_taken.get() + 1);
            n_left -= 1;
            cx.waker().wake_by_ref();
            if n_left == 0 { Poll::Ready(Ok(())) } else { Poll::Pending }
        })
        .await
    }

    #[test]
    fn a_trickling_client_does_not_block_another() {
        let run = async || {
            let (scheduler, n_trickled, n_honest) =
                (TlsScheduler::default(), Cell::new(0), Cell::new(0));
            let trickling = (0..3).map(|_| in_turn(&scheduler, steps(300, &n_trickled)));
            let mut before = 0;
            let honest = async {
                in_turn(&scheduler, steps(3, &n_honest)).await.unwrap();
                before = n_trickled.get();
            };
            futures_lite::future::zip(futures_util::future::join_all(trickling), honest).await;
            before
        };
        let executor = glommio::LocalExecutorBuilder::default().spawn(run).unwrap();
        let n_before = executor.join().unwrap();
        assert!(n_before < 30, "{n_before} steps of trickling clients ran before three of another");
    }
}
