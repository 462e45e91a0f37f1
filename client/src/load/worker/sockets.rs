//! The sockets of a worker: opened, watched, read, and closed. They follow partitions that move to
//! other servers, and servers that start and stop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lodestore_graph::NodeId;
use rustix::event::epoll;

use super::Worker;
use crate::error::ClientError;
use crate::load::socket::LoadSocket;
use crate::load::tally::{LoadError, Tally};
use crate::remote::ClusterView;
use crate::source::PullKind;

/// Deadline for opening a connection again; all other connections of the thread wait meanwhile.
const RECONNECT_TIMEOUT: Duration = Duration::from_millis(250);
/// Least interval between refreshes of the view while a partition is missing.
const LOOK: Duration = Duration::from_millis(20);
/// Deadline for a refresh of the view; the thread does nothing else meanwhile.
const LOOK_MAX: Duration = Duration::from_millis(250);

impl Worker<'_> {
    pub(super) fn reconnect(&mut self, at: usize) {
        let deadline = Instant::now() + RECONNECT_TIMEOUT;
        let mut connected = self.open(at, deadline);
        if connected.is_err() && self.refresh_server(at, deadline) {
            connected = self.open(at, deadline);
        }
        if let Ok(socket) = connected
            && self.watch(at, &socket).is_ok()
        {
            self.sockets[at] = Some(socket);
        }
    }

    pub(super) fn open(&self, at: usize, deadline: Instant) -> Result<LoadSocket, ClientError> {
        let endpoint = at % self.n_endpoints();
        let server = self.view.routes.endpoints[endpoint].server;
        // Shared memory allows one request in flight.
        let shares = self.target.config.window == 1 && self.view.may_share(server);
        let shares = shares.then_some(self.target.tensor);
        LoadSocket::connect(|| self.view.open(endpoint, deadline), shares, deadline)
    }

    pub(super) fn n_endpoints(&self) -> usize {
        self.view.routes.endpoints.len()
    }

    /// Asks the server of a socket for its current ports. Returns `false` if there is nothing new,
    /// or if the number of its shards has changed; the worker then adopts the new view later.
    fn refresh_server(&mut self, at: usize, deadline: Instant) -> bool {
        let n_endpoints = self.n_endpoints();
        let server = self.view.routes.endpoints[at % n_endpoints].server;
        match self.view.refresh_server(server, deadline) {
            Ok(Some(found)) if found.routes.endpoints.len() == n_endpoints => {
                self.view = found;
                true
            }
            Ok(Some(found)) => {
                self.reshaped = Some(found);
                false
            }
            _ => false,
        }
    }

    pub(super) fn watch(&self, at: usize, socket: &LoadSocket) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(at as u64);
        epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN)
    }

    /// Sends as many bytes as the socket takes, and watches it for writability if some are left.
    pub(super) fn flush(&mut self, at: usize) -> Result<(), ClientError> {
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

    pub(super) fn watch_for(
        &self,
        at: usize,
        events: epoll::EventFlags,
    ) -> Result<(), ClientError> {
        let Some(socket) = &self.sockets[at] else { return Ok(()) };
        let data = epoll::EventData::new_u64(at as u64);
        epoll::modify(&self.epoll, socket, data, events)
            .map_err(|error| ClientError::Poll { source: error.into() })
    }

    pub(super) fn receive(&mut self, at: usize) -> Result<(), ClientError> {
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
            return Ok(());
        }
        // Send acknowledgements of rows at once.
        let is_sent = |socket: &LoadSocket| !socket.has_unsent();
        if self.sockets[at].as_ref().is_none_or(is_sent) { Ok(()) } else { self.flush(at) }
    }

    /// Closes a connection; its requests have failed.
    pub(super) fn break_off(&mut self, at: usize, error: LoadError) {
        let Some(socket) = self.sockets[at].take() else { return };
        for ask in socket.unanswered() {
            if let Some(running) = &mut self.running[ask.slot] {
                running.error.get_or_insert(error);
            }
            self.end_part(ask.slot, Ok(()));
        }
    }

    pub(super) fn give_up_late(&mut self) {
        let now = Instant::now();
        for at in 0..self.sockets.len() {
            if self.sockets[at].as_ref().is_some_and(|socket| socket.is_late(now)) {
                self.break_off(at, LoadError::Late);
            }
        }
    }

    /// Refreshes and adopts the view if a request has found no server with its partition.
    pub(super) fn follow(&mut self, now: Instant) -> Result<(), ClientError> {
        if !self.strayed || now < self.next_look {
            return Ok(());
        }
        (self.strayed, self.next_look) = (false, now + LOOK);
        let client = self.target.client;
        let mut view = client.view();
        // Another thread may have refreshed it.
        if Arc::ptr_eq(&view, &self.known) {
            match client.refresh(view, Instant::now() + LOOK_MAX) {
                Ok(found) => view = found,
                Err(_) => return Ok(()),
            }
        }
        if Arc::ptr_eq(&view, &self.known) {
            return Ok(());
        }
        self.known = Arc::clone(&view);
        self.reshape(view)
    }

    /// Adopts a view with other servers or shards. Sockets to shards that still exist are kept.
    /// Requests in flight on other sockets have failed. New sockets are opened when they are first
    /// needed.
    pub(super) fn reshape(&mut self, view: Arc<ClusterView>) -> Result<(), ClientError> {
        let (n_before, n_now) = (self.n_endpoints(), view.routes.endpoints.len());
        let place = |before: usize| {
            let address = &self.view.routes.endpoints[before].address;
            view.routes.endpoints.iter().position(|endpoint| endpoint.address == *address)
        };
        let places: Vec<Option<usize>> = (0..n_before).map(place).collect();
        let moved = |at: usize| Some(at / n_before * n_now + places[at % n_before]?);
        let mut sockets: Vec<_> = Vec::new();
        sockets.resize_with(self.sockets.len() / n_before * n_now, || None);
        for at in 0..self.sockets.len() {
            match moved(at) {
                Some(now) => sockets[now] = self.sockets[at].take(),
                None => self.break_off(at, LoadError::Broken),
            }
        }
        self.unsent = self.unsent.iter().filter_map(|&at| moved(at)).collect();
        (self.sockets, self.view) = (sockets, view);
        for at in 0..self.sockets.len() {
            let has_unsent = self.sockets[at].as_ref().is_some_and(LoadSocket::has_unsent);
            let room = if has_unsent { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            self.watch_for(at, epoll::EventFlags::IN | room)?;
        }
        Ok(())
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
