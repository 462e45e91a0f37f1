//! One thread of a load: its connections, driven by arriving bytes and by the clock.

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

/// Longest wait for anything: answers that are overdue are looked for as often.
const TICK: Duration = Duration::from_millis(50);
/// Events taken at a time.
const EVENTS: usize = 256;

/// A thread's share of a load. Connection `c` has the sockets `c * n_endpoints..` and the slots
/// `c * window..`.
pub(super) struct Worker<'a> {
    target: &'a Target<'a>,
    /// As last described: a server that was started again has other ports.
    view: Arc<ClusterView>,
    /// The client's when this went over to it.
    known: Arc<ClusterView>,
    /// The same with another number of shards, to go over to when nothing is being asked.
    reshaped: Option<Arc<ClusterView>>,
    sockets: Vec<Option<LoadSocket>>,
    /// By slot: the request that is running there.
    running: Vec<Option<Running>>,
    /// Slots that may start a request, the one that is free longest first.
    free: VecDeque<usize>,
    /// By slot: the ids that it asks for.
    slot_ids: Vec<Vec<NodeId>>,
    /// Slots that rest, and until when.
    resting: Vec<(Instant, usize)>,
    /// Requests whose rows are at another server by now, and when they are asked again.
    put_off: Vec<(Instant, PutOff)>,
    /// Time since which a server lacks a partition that it had, until all are asked again.
    strayed: bool,
    next_look: Instant,
    drawer: Drawer,
    words: Words,
    /// In an open loop.
    arrivals: Option<Arrivals>,
    epoll: rustix::fd::OwnedFd,
    tally: Tally,
    /// Start and end of the measured time.
    window: (Instant, Instant),
    /// Sockets with something to send.
    unsent: Vec<usize>,
    ended: Vec<(usize, Result<(), Failure>)>,
    buckets: Vec<Bucket>,
    /// Rows as they must be.
    expected: Vec<u8>,
}

impl<'a> Worker<'a> {
    /// Connects to every shard, once for each connection.
    pub(super) fn connect(
        target: &'a Target<'a>,
        n_connections: usize,
        drawer: Drawer,
        words: Words,
    ) -> Result<Self, ClientError> {
        let failed = |error: rustix::io::Errno| ClientError::Poll { source: error.into() };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let n_slots = n_connections * target.config.window;
        // Connections take turns, whatever their window.
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

    /// Makes requests until the measured time is over, and waits for what is in flight then.
    pub(super) fn run(
        mut self,
        window: (Instant, Instant),
        arrivals: Option<Arrivals>,
    ) -> Result<Tally, ClientError> {
        // Timers to the nanosecond; with the usual slack of 50 us an open loop starts late.
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

    /// Returns when to act even if nothing arrives.
    fn wait_until(&self, now: Instant) -> Instant {
        let arrival = self.arrivals.as_ref().filter(|_| !self.free.is_empty()).map(Arrivals::next);
        let rested = self.resting.iter().map(|&(until, _)| until);
        let again = self.put_off.iter().map(|&(at, _)| at);
        let all = rested.chain(arrival).chain(again).chain([self.window.1, now + TICK]);
        // Once the measured time is over only answers count.
        all.filter(|&at| at > now || now < self.window.1).min().unwrap_or(now + TICK)
    }

    /// Waits until sockets are ready, or until then.
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
        // epoll itself waits for whole milliseconds.
        let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
        poll(&mut fds, Some(&timespec(left))).or_else(failed)?;
        ready(events).or_else(failed)?;
        Ok(())
    }

    fn serve(&mut self, events: &mut Vec<epoll::Event>) -> Result<(), ClientError> {
        for event in events.drain(..) {
            let at = event.data.u64() as usize;
            if at >= self.sockets.len() {
                // A socket that went meanwhile.
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

    /// Counts what will never be sent, and takes the answers that are still to come.
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
        // All answers come, or are late, within the deadline and its grace. What was put off is
        // asked again within it.
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
