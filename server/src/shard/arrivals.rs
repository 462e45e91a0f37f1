//! Connections that come to a shard: let in, refused, counted.

use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use futures_lite::FutureExt;
use glommio::TaskQueueHandle;
use glommio::net::TcpStream;
use lodestore_schema::{Failure, FailureCode};
use rustix::net::{Shutdown, shutdown};
use tracing::debug;

use super::Shard;
use crate::connection::{Connection, Ended};
use crate::error::failure;
use crate::guard::Guard;
use crate::limits::{CONNECTIONS_PER_SHARD_MAX, ENTERING_PER_SHARD_MAX, REFUSALS_PER_SHARD_MAX};
use crate::listen::Arrival;
use crate::stats::count;

impl Shard {
    /// Serves a connection in a task of its own, or refuses it.
    pub(super) fn take(self: &Rc<Self>, arrival: Arrival, sync: TaskQueueHandle) {
        let Ok(socket) = arrival.socket.try_clone() else { return };
        // glommio's stream only sends to and receives from the descriptor: a Unix socket serves as
        // well.
        let stream = TcpStream::from(socket2::Socket::from(socket));
        let socket = Rc::new(arrival.socket);
        if self.let_in.get() >= CONNECTIONS_PER_SHARD_MAX {
            self.refuse(stream, socket, arrival.is_trusted);
            return;
        }
        let number = self.next_connection.get();
        self.next_connection.set(number + 1);
        self.open.borrow_mut().insert(number, Rc::clone(&socket));
        self.begin_entry(number);
        self.counters().connections.fetch_add(1, Ordering::Relaxed);
        count(&self.counters().connections_taken, 1);
        let shard = Rc::clone(self);
        let task = async move {
            let serve = shard.let_in_and_serve(number, stream, socket, arrival.is_trusted);
            // One panicking task would stop the whole executor.
            let served = AssertUnwindSafe(serve).catch_unwind().await;
            if let Err(reason) = served.unwrap_or(Err(Ended::Panic)) {
                shard.counters().broken(reason.reason());
                debug!(shard = shard.id, %reason, "connection ended");
            }
            shard.open.borrow_mut().remove(&number);
            shard.counters().connections.fetch_sub(1, Ordering::Relaxed);
        };
        // Without a task queue of its own the executor is ending, and so is the connection.
        if let Ok(task) = glommio::spawn_local_into(task, sync) {
            task.detach();
        }
    }

    async fn let_in_and_serve(
        self: &Rc<Self>,
        number: u64,
        stream: TcpStream,
        socket: Rc<OwnedFd>,
        is_trusted: bool,
    ) -> Result<(), Ended> {
        let open = Guard::default();
        let guard = if is_trusted { &open } else { &*self.plan.guard };
        let entered = Connection::enter(stream, socket, guard, is_trusted, &self.handshakes).await;
        self.entering.borrow_mut().retain(|&entering| entering != number);
        let connection = entered?;
        let _place = LetIn::new(Rc::clone(self));
        if self.let_in.get() > CONNECTIONS_PER_SHARD_MAX {
            count(&self.counters().connections_refused, 1);
            return connection.turn_away(too_many()).await;
        }
        connection.serve(self).await
    }

    /// Notes a connection that is to be let in. One too many ends the oldest of them.
    fn begin_entry(&self, number: u64) {
        let mut entering = self.entering.borrow_mut();
        entering.push_back(number);
        if entering.len() > ENTERING_PER_SHARD_MAX
            && let Some(oldest) = entering.pop_front()
            && let Some(socket) = self.open.borrow().get(&oldest)
        {
            // It has not been let in, so nothing of it is under way.
            let _ = shutdown(socket, Shutdown::Both);
        }
    }

    /// Tells a client that there are too many; under TLS it only sees the end, since a handshake is
    /// what there is no room for.
    fn refuse(self: &Rc<Self>, stream: TcpStream, socket: Rc<OwnedFd>, is_trusted: bool) {
        count(&self.counters().connections_refused, 1);
        debug!(shard = self.id, "connection refused: {CONNECTIONS_PER_SHARD_MAX} are open");
        let is_in_clear = is_trusted || self.plan.guard.tls.is_none();
        if !is_in_clear || self.refusals.get() >= REFUSALS_PER_SHARD_MAX {
            return;
        }
        self.refusals.set(self.refusals.get() + 1);
        let shard = Rc::clone(self);
        let task = async move {
            Connection::refuse(stream, socket, too_many()).await;
            shard.refusals.set(shard.refusals.get() - 1);
        };
        glommio::spawn_local(task).detach();
    }
}

/// A connection that is let in, counted until it ends however that is.
struct LetIn(Rc<Shard>);

impl LetIn {
    fn new(shard: Rc<Shard>) -> Self {
        shard.let_in.set(shard.let_in.get() + 1);
        Self(shard)
    }
}

impl Drop for LetIn {
    fn drop(&mut self) {
        self.0.let_in.set(self.0.let_in.get() - 1);
    }
}

fn too_many() -> Failure {
    let message = format!("the shard has {CONNECTIONS_PER_SHARD_MAX} connections already");
    failure(FailureCode::Overloaded, message)
}
