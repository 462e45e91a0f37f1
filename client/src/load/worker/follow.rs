//! Partitions that go to other servers while a load runs, and servers that come and go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::Worker;
use crate::error::ClientError;
use crate::load::socket::LoadSocket;
use crate::load::tally::LoadError;
use crate::remote::ClusterView;

/// Interval at which all servers are asked again, while some server lacks a partition that it had.
const LOOK: Duration = Duration::from_millis(20);
/// Longest time for that: everything else of the thread waits meanwhile.
const LOOK_MAX: Duration = Duration::from_millis(250);

impl Worker<'_> {
    /// Goes over to the servers as they are now, if one has not had what it had.
    pub(super) fn follow(&mut self, now: Instant) -> Result<(), ClientError> {
        if !self.strayed || now < self.next_look {
            return Ok(());
        }
        (self.strayed, self.next_look) = (false, now + LOOK);
        let client = self.target.client;
        let mut view = client.view();
        // Another thread may have asked.
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

    /// Switches to other servers, or servers with other shards. Sockets to shards that still exist
    /// stay. Requests in flight over others have failed, and sockets are opened as they are needed.
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
