//! One thread of a load. Arriving bytes and timers drive its connections.

mod requests;
mod sockets;

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lodestore_graph::NodeId;
use lodestore_schema::Failure;
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, epoll, poll};

use super::Target;
use super::arrival_times::Arrivals;
use super::draw::{Drawer, Words};
use super::socket::{LoadSocket, thread_cpu};
use super::tally::Tally;
use crate::error::ClientError;
use crate::remote::ClusterView;
use crate::route::Bucket;
use crate::socket::timespec;
use requests::{PutOff, Running};

/// Longest wait for an event, and the interval of checks for late replies.
const TICK: Duration = Duration::from_millis(50);
/// Most events taken from epoll at once.
const EVENTS: usize = 256;

/// The state of one thread. Connection `c` has the sockets from `c * n_endpoints` and the slots
/// from `c * window`.
pub(super) struct Worker<'a> {
    target: &'a Target<'a>,
    /// The view that the sockets were opened by. Newer than `known` once a restarted server has
    /// described its new ports.
    view: Arc<ClusterView>,
    /// The view of the client that this worker last adopted.
    known: Arc<ClusterView>,
    /// A view with another number of shards, to adopt once the current request has been sent.
    reshaped: Option<Arc<ClusterView>>,
    sockets: Vec<Option<LoadSocket>>,
    /// By slot: its running request.
    running: Vec<Option<Running>>,
    /// Slots that may start a request; the one that has been free for the longest is first.
    free: VecDeque<usize>,
    /// By slot: the ids that its request names.
    slot_ids: Vec<Vec<NodeId>>,
    /// Slots that pause after a failure, and the end of the pause.
    resting: Vec<(Instant, usize)>,
    /// Requests whose partition has moved, and the time to send them again.
    put_off: Vec<(Instant, PutOff)>,
    /// Whether a request found no server with its partition since the last refresh of the view.
    strayed: bool,
    next_look: Instant,
    drawer: Drawer,
    words: Words,
    /// Start times in an open loop; `None` in a closed loop.
    arrivals: Option<Arrivals>,
    epoll: rustix::fd::OwnedFd,
    tally: Tally,
    /// Start and end of the measured time.
    window: (Instant, Instant),
    /// Sockets with bytes to send.
    unsent: Vec<usize>,
    ended: Vec<(usize, Result<(), Failure>)>,
    buckets: Vec<Bucket>,
    /// Buffer for the rows of the truth.
    expected: Vec<u8>,
}

impl<'a> Worker<'a> {
    /// Connects to every shard with each connection.
    pub(super) fn connect(
        target: &'a Target<'a>,
        n_connections: usize,
        drawer: Drawer,
        words: Words,
    ) -> Result<Self, ClientError> {
        let failed = |error: rustix::io::Errno| ClientError::Poll { source: error.into() };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let n_slots = n_connections * target.config.window;
        // Start with one slot of each connection in turn, for any window.
        let free = (0..target.config.window)
            .flat_map(|k| (0..n_connections).map(move |c| c * target.config.window + k));
        let now = Instant::now();
        let mut worker = Self {
            target,
            view: Arc::clone(&target.view),
            known: Arc::clone(&target.view),
            reshaped: None,
            sockets: Vec::new(),
            running: (0..n_slots).map(|_| None).collect(),
            free: free.collect(),
            slot_ids: vec![Vec::new(); n_slots],
            resting: Vec::new(),
            put_off: Vec::new(),
            strayed: false,
            next_look: now,
            drawer,
            words,
            arrivals: None,
            epoll,
            tally: Tally::new((now, now)),
            window: (now, now),
            unsent: Vec::new(),
            ended: Vec::new(),
            buckets: Vec::new(),
            expected: Vec::new(),
        };
        let deadline = Instant::now() + target.config.deadline;
        for at in 0..n_connections * worker.n_endpoints() {
            let socket = worker.open(at, deadline)?;
            worker.watch(at, &socket).map_err(failed)?;
            worker.sockets.push(Some(socket));
        }
        Ok(worker)
    }

    /// Sends requests until the measured time ends, then waits for those in flight.
    pub(super) fn run(
        mut self,
        window: (Instant, Instant),
        arrivals: Option<Arrivals>,
    ) -> Result<Tally, ClientError> {
        // Timers with a resolution of 1 ns: the default slack of 50 us delays the starts of an open
        // loop.
        let _ = rustix::thread::set_current_timer_slack(NonZero::new(1));
        (self.tally, self.window, self.arrivals) = (Tally::new(window), window, arrivals);
        let mut events = Vec::with_capacity(EVENTS);
        let mut cpu_before = None;
        let mut next_look = Instant::now() + TICK;
        loop {
            let now = Instant::now();
            if cpu_before.is_none() && now >= window.0 {
                cpu_before = thread_cpu().ok();
            }
            if now >= window.1 {
                break;
            }
            self.follow(now)?;
            self.start_due(now)?;
            self.wait(self.wait_until(now), &mut events)?;
            self.serve(&mut events)?;
            if Instant::now() >= next_look {
                self.give_up_late();
                next_look = Instant::now() + TICK;
            }
        }
        self.count_cpu(cpu_before);
        self.drain(&mut events)?;
        Ok(self.tally)
    }

    /// Returns the time to act even if no bytes arrive.
    fn wait_until(&self, now: Instant) -> Instant {
        let arrival = self.arrivals.as_ref().filter(|_| !self.free.is_empty()).map(Arrivals::next);
        let rested = self.resting.iter().map(|&(until, _)| until);
        let again = self.put_off.iter().map(|&(at, _)| at);
        let all = rested.chain(arrival).chain(again).chain([self.window.1, now + TICK]);
        // After the measured time only replies matter.
        all.filter(|&at| at > now || now < self.window.1).min().unwrap_or(now + TICK)
    }

    /// Waits until a socket is ready, or until `until`.
    fn wait(&self, until: Instant, events: &mut Vec<epoll::Event>) -> Result<(), ClientError> {
        let ready = |events: &mut Vec<epoll::Event>| {
            events.clear();
            epoll::wait(&self.epoll, spare_capacity(events), Some(&timespec(Duration::ZERO)))
        };
        let failed = |error: rustix::io::Errno| match error {
            rustix::io::Errno::INTR => Ok(0),
            error => Err(ClientError::Poll { source: error.into() }),
        };
        let left = until.saturating_duration_since(Instant::now());
        if ready(events).or_else(failed)? > 0 || left.is_zero() {
            return Ok(());
        }
        // The timeout of epoll_wait has a resolution of milliseconds.
        let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
        poll(&mut fds, Some(&timespec(left))).or_else(failed)?;
        ready(events).or_else(failed)?;
        Ok(())
    }

    fn serve(&mut self, events: &mut Vec<epoll::Event>) -> Result<(), ClientError> {
        for event in events.drain(..) {
            let at = event.data.u64() as usize;
            if at >= self.sockets.len() {
                // This socket has been removed by a switch to another view.
                continue;
            }
            let flags = event.flags;
            if flags.contains(epoll::EventFlags::OUT) {
                self.flush(at)?;
                if self.sockets[at].as_ref().is_some_and(|socket| !socket.has_unsent()) {
                    self.watch_for(at, epoll::EventFlags::IN)?;
                }
            }
            if flags
                .intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR)
            {
                self.receive(at)?;
            }
        }
        Ok(())
    }

    /// Counts due requests that were not sent, and receives the remaining replies.
    fn drain(&mut self, events: &mut Vec<epoll::Event>) -> Result<(), ClientError> {
        self.resting.clear();
        while let Some(arrivals) = &mut self.arrivals
            && arrivals.next() < self.window.1
        {
            let intended = arrivals.next();
            arrivals.advance();
            let kind = self.draw_kind();
            self.tally.due(intended);
            self.tally.never_sent(kind, intended);
        }
        // Every reply arrives or becomes late within the deadline plus its grace, and put-off
        // requests are sent again within the deadline.
        while self.running.iter().any(Option::is_some) || !self.put_off.is_empty() {
            let now = Instant::now();
            self.follow(now)?;
            self.start_put_off(now)?;
            self.wait(Instant::now() + TICK, events)?;
            self.serve(events)?;
            self.give_up_late();
        }
        Ok(())
    }

    fn count_cpu(&mut self, before: Option<Duration>) {
        if let (Some(before), Ok(now)) = (before, thread_cpu()) {
            self.tally.cpu = now.saturating_sub(before);
        }
    }
}
