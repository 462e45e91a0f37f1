//! One thread of a load: its connections, driven by what comes and by the clock.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lodestore_graph::NodeId;
use lodestore_schema::limits::IDS_PER_PULL_MAX;
use lodestore_schema::{Failure, PullKind as WireKind, Request, RequestBody};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::arrivals::Arrivals;
use super::draw::{Drawer, Words};
use super::socket::{LoadSocket, thread_cpu};
use super::tally::{LoadError, Tally};
use super::{LoadConfig, Target};
use crate::remote::Fleet;
use crate::route::Bucket;
use crate::{Address, ClientError, PullKind};

/// Longest wait for anything: answers that are overdue are looked for as often.
const TICK: Duration = Duration::from_millis(50);
/// After a connection has failed its slots rest for this long.
const REST: Duration = Duration::from_millis(200);
/// Longest time for a connection that is opened again: the others of the thread wait meanwhile.
const RECONNECT_TIMEOUT: Duration = Duration::from_millis(250);
/// Events taken at a time.
const EVENTS: usize = 256;

/// A thread's share of a load. Connection `c` has the sockets `c * n_endpoints..` and the slots
/// `c * window..`.
pub(super) struct Worker<'a> {
    target: &'a Target<'a>,
    /// As last described: a server that was started anew has other ports.
    fleet: Arc<Fleet>,
    /// The same with another number of shards, to go over to when nothing is being asked.
    reshaped: Option<Arc<Fleet>>,
    sockets: Vec<Option<LoadSocket>>,
    /// By slot: the request that is running there.
    running: Vec<Option<Running>>,
    /// Slots that may start a request, the one that is free longest first.
    free: VecDeque<usize>,
    /// Slots that rest, and until when.
    resting: Vec<(Instant, usize)>,
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
    ids: Vec<NodeId>,
    buckets: Vec<Bucket>,
    /// Rows as they must be.
    expected: Vec<u8>,
}

/// A request that is running, over one or several shards.
struct Running {
    kind: PullKind,
    /// When it was to start.
    intended: Instant,
    n_rows: usize,
    /// Shards that have not answered.
    n_open: usize,
    error: Option<LoadError>,
    retry_after: Duration,
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
            fleet: Arc::clone(&target.fleet),
            reshaped: None,
            sockets: Vec::new(),
            running: (0..n_slots).map(|_| None).collect(),
            free: free.collect(),
            resting: Vec::new(),
            drawer,
            words,
            arrivals: None,
            epoll,
            tally: Tally::new((now, now)),
            window: (now, now),
            unsent: Vec::new(),
            ended: Vec::new(),
            ids: Vec::new(),
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

    /// Starts every request whose time has come and that has a slot.
    fn start_due(&mut self, now: Instant) -> Result<(), ClientError> {
        let free = &mut self.free;
        self.resting.retain(|&(until, slot)| {
            if until <= now {
                free.push_back(slot);
            }
            until > now
        });
        while let Some(&slot) = self.free.front() {
            let intended = match &mut self.arrivals {
                None => Instant::now(),
                Some(arrivals) if arrivals.next() <= now => {
                    let intended = arrivals.next();
                    arrivals.advance();
                    self.tally.due(intended);
                    intended
                }
                Some(_) => break,
            };
            self.free.pop_front();
            self.start(slot, intended)?;
            if let Some(fleet) = self.reshaped.take() {
                self.reshape(fleet);
            }
        }
        for at in std::mem::take(&mut self.unsent) {
            self.flush(at)?;
        }
        Ok(())
    }

    /// Asks every shard that owns some of the rows.
    fn start(&mut self, slot: usize, intended: Instant) -> Result<(), ClientError> {
        let target = self.target;
        let LoadConfig { rows, deadline, window, .. } = target.config;
        let mut ids = std::mem::take(&mut self.ids);
        let mut buckets = std::mem::take(&mut self.buckets);
        self.drawer.next(*rows, &mut ids);
        let positions = 0..u32::try_from(ids.len()).unwrap_or(u32::MAX);
        self.fleet.routes.split(target.tensor.into(), &ids, positions, &mut buckets)?;
        let kind = self.draw_kind();
        // One more than there are shards, until all are asked.
        let (n_rows, n_open, retry_after) = (ids.len(), 1, Duration::ZERO);
        self.running[slot] =
            Some(Running { kind, intended, n_rows, n_open, error: None, retry_after });
        let wire_kind = match kind {
            PullKind::Sync => WireKind::Sync,
            PullKind::Vector => WireKind::Vector,
        };
        let body = RequestBody::Pull { tensor: target.tensor, kind: wire_kind };
        let (deadline, graph) = (Some(*deadline), self.fleet.graph);
        let request = Request { deadline, graph, ..Request::new(body) };
        let first_socket = slot / window * self.n_endpoints();
        for (endpoint, bucket) in buckets.iter().enumerate() {
            for ids in bucket.ids.chunks(IDS_PER_PULL_MAX) {
                self.ask(first_socket + endpoint, slot, &request, ids);
            }
        }
        self.tally.sent(intended, Instant::now());
        self.end_part(slot, Ok(()));
        (self.ids, self.buckets) = (ids, buckets);
        Ok(())
    }

    fn ask(&mut self, at: usize, slot: usize, request: &Request, ids: &[NodeId]) {
        if self.sockets[at].is_none() {
            self.reconnect(at);
        }
        let compare = self.target.truth.is_some();
        match (&mut self.sockets[at], &mut self.running[slot]) {
            (Some(socket), Some(running)) => {
                running.n_open += 1;
                socket.ask(slot, request, ids, compare);
                self.unsent.push(at);
            }
            (None, Some(running)) => running.error = Some(LoadError::Connect),
            (_, None) => unreachable!("a slot that starts a request runs it"),
        }
    }

    fn draw_kind(&mut self) -> PullKind {
        match self.words.fraction() < self.target.config.vector_share {
            true => PullKind::Vector,
            false => PullKind::Sync,
        }
    }

    fn reconnect(&mut self, at: usize) {
        let deadline = Instant::now() + RECONNECT_TIMEOUT;
        let mut connected = self.open(at, deadline);
        if connected.is_err() && self.rediscover(at, deadline) {
            connected = self.open(at, deadline);
        }
        if let Ok(socket) = connected
            && self.watch(at, &socket).is_ok()
        {
            self.sockets[at] = Some(socket);
        }
    }

    fn open(&self, at: usize, deadline: Instant) -> Result<LoadSocket, ClientError> {
        LoadSocket::connect(self.address(at), self.fleet.security(), deadline)
    }

    fn n_endpoints(&self) -> usize {
        self.fleet.routes.endpoints.len()
    }

    /// Asks the server of a socket where its shards listen now; `false` when nothing is new, or
    /// there are more or fewer of them: then all sockets get other places later.
    fn rediscover(&mut self, at: usize, deadline: Instant) -> bool {
        let n_endpoints = self.n_endpoints();
        let server = self.fleet.routes.endpoints[at % n_endpoints].server;
        match self.fleet.rediscover(server, deadline) {
            Ok(Some(found)) if found.routes.endpoints.len() == n_endpoints => {
                self.fleet = found;
                true
            }
            Ok(Some(found)) => {
                self.reshaped = Some(found);
                false
            }
            _ => false,
        }
    }

    /// Goes over to servers with other shards: what is under way has failed, and sockets are opened
    /// as they are needed.
    fn reshape(&mut self, fleet: Arc<Fleet>) {
        let n_connections = self.sockets.len() / self.n_endpoints();
        for at in 0..self.sockets.len() {
            self.break_off(at, LoadError::Broken);
        }
        self.unsent.clear();
        self.sockets.clear();
        self.sockets.resize_with(n_connections * fleet.routes.endpoints.len(), || None);
        self.fleet = fleet;
    }

    /// Where a socket leads.
    fn address(&self, at: usize) -> &Address {
        &self.fleet.routes.endpoints[at % self.n_endpoints()].address
    }

    fn watch(&self, at: usize, socket: &LoadSocket) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(at as u64);
        epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN)
    }

    /// Sends what a socket takes, and has its room watched if that is not all.
    fn flush(&mut self, at: usize) -> Result<(), ClientError> {
        let Some(socket) = &mut self.sockets[at] else { return Ok(()) };
        if let Err(error) = socket.flush() {
            self.break_off(at, error);
            return Ok(());
        }
        if socket.has_unsent() {
            self.watch_for(at, epoll::EventFlags::IN | epoll::EventFlags::OUT)?;
        }
        Ok(())
    }

    fn watch_for(&self, at: usize, events: epoll::EventFlags) -> Result<(), ClientError> {
        let Some(socket) = &self.sockets[at] else { return Ok(()) };
        let data = epoll::EventData::new_u64(at as u64);
        epoll::modify(&self.epoll, socket, data, events)
            .map_err(|error| ClientError::Poll { source: error.into() })
    }

    /// When something is to be done even if nothing comes.
    fn wait_until(&self, now: Instant) -> Instant {
        let arrival = self.arrivals.as_ref().filter(|_| !self.free.is_empty()).map(Arrivals::next);
        let rested = self.resting.iter().map(|&(until, _)| until);
        let all = rested.chain(arrival).chain([self.window.1, now + TICK]);
        // Once the measured time is over only answers count.
        all.filter(|&at| at > now || now < self.window.1).min().unwrap_or(now + TICK)
    }

    /// Waits until sockets are ready, or until then.
    fn wait(&self, until: Instant, events: &mut Vec<epoll::Event>) -> Result<(), ClientError> {
        let ready = |events: &mut Vec<epoll::Event>| {
            events.clear();
            epoll::wait(
                &self.epoll,
                spare_capacity(events),
                Some(&Timespec { tv_sec: 0, tv_nsec: 0 }),
            )
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
        let left =
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
        poll(&mut fds, Some(&left)).or_else(failed)?;
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

    fn receive(&mut self, at: usize) -> Result<(), ClientError> {
        let Some(socket) = &mut self.sockets[at] else { return Ok(()) };
        let (target, tally, expected) = (self.target, &mut self.tally, &mut self.expected);
        let mut failed = None;
        let mut check = |ids: &[NodeId], rows: &[u8]| {
            let truth = target.truth.expect("rows are compared where the truth is known");
            expected.resize(rows.len(), 0);
            match truth.pull(&target.config.tensor, ids, expected, PullKind::Vector) {
                Ok(_) => compare(ids, rows, expected, tally),
                Err(error) => failed = Some(error),
            }
        };
        let received = socket.receive(target.row_bytes, &mut check, &mut self.ended);
        if let Some(error) = failed {
            return Err(error);
        }
        for (slot, answer) in std::mem::take(&mut self.ended) {
            self.end_part(slot, answer);
        }
        if let Err(error) = received {
            self.break_off(at, error);
        }
        Ok(())
    }

    /// Gives a connection up; what was asked over it has failed.
    fn break_off(&mut self, at: usize, error: LoadError) {
        let Some(socket) = self.sockets[at].take() else { return };
        for ask in socket.unanswered() {
            if let Some(running) = &mut self.running[ask.slot] {
                running.error.get_or_insert(error);
            }
            self.end_part(ask.slot, Ok(()));
        }
    }

    fn give_up_late(&mut self) {
        let now = Instant::now();
        for at in 0..self.sockets.len() {
            if self.sockets[at].as_ref().is_some_and(|socket| socket.is_late(now)) {
                self.break_off(at, LoadError::Late);
            }
        }
    }

    /// One shard has answered; with the last the request is over.
    fn end_part(&mut self, slot: usize, answer: Result<(), Failure>) {
        let Some(running) = &mut self.running[slot] else { return };
        running.n_open -= 1;
        if let Err(failure) = answer {
            running.retry_after = failure.retry_after;
            running.error.get_or_insert(LoadError::Refused(failure.code));
        }
        if running.n_open > 0 {
            return;
        }
        let Some(done) = self.running[slot].take() else { return };
        let now = Instant::now();
        let rest = match done.error {
            None => {
                let (rows, bytes) = (done.n_rows, done.n_rows * self.target.row_bytes);
                let times = (done.intended, now);
                self.tally.answered(done.kind, times, (rows as u64, bytes as u64));
                Duration::ZERO
            }
            Some(error) => {
                self.tally.failed(done.kind, error, (done.intended, now));
                // Many are refused at once, and must not all come back at once.
                let spread = 1.0 + (slot % 16) as f64 / 16.0;
                if matches!(error, LoadError::Refused(_)) {
                    done.retry_after.mul_f64(spread)
                } else {
                    REST
                }
            }
        };
        if rest.is_zero() {
            self.free.push_back(slot);
        } else {
            self.resting.push((now + rest, slot));
        }
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
        // All answers come, or are late, within the deadline and its grace.
        while self.running.iter().any(Option::is_some) {
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

fn compare(ids: &[NodeId], rows: &[u8], expected: &[u8], tally: &mut Tally) {
    tally.verified_rows += ids.len() as u64;
    if rows == expected {
        return;
    }
    let row_bytes = rows.len() / ids.len();
    let pairs = rows.chunks_exact(row_bytes).zip(expected.chunks_exact(row_bytes));
    for (&id, _) in ids.iter().zip(pairs).filter(|(_, (found, expected))| found != expected) {
        tally.wrong_rows += 1;
        tally.first_wrong.get_or_insert(id);
    }
}
