//! Admission, refusal and accounting of a shard's connections.

use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures_lite::FutureExt;
use futures_util::future::{AbortHandle, Abortable};
use glommio::TaskQueueHandle;
use glommio::net::TcpStream;
use lodestore_schema::FailureCode;
use rustix::net::{Shutdown, shutdown};
use tracing::{debug, warn};

use super::connections::{ConnectionSlot, IdleClock};
use super::{Shard, spawn_into};
use crate::connection::{Connection, ConnectionError};
use crate::error::failure;
use crate::listen::Arrival;
use crate::stats::count;

impl Shard {
    /// Admits and serves a connection, or refuses it, in its own task.
    pub(super) fn accept(self: &Rc<Self>, arrival: Arrival, sync: TaskQueueHandle) {
        let is_trusted = arrival.source.is_trusted();
        let (stream, socket) = match arrival.socket.try_clone() {
            // glommio's stream only sends to and receives from the descriptor, so it also works for
            // a Unix socket.
            Ok(twin) => (TcpStream::from(socket2::Socket::from(twin)), Rc::new(arrival.socket)),
            Err(error) => {
                count(&self.counters().connections_refused, 1);
                if let Some(untold) = self.log_limit.allow(Instant::now()) {
                    warn!(shard = self.id, %error, untold, "connection closed before admission");
                }
                return;
            }
        };
        let number = self.next_connection.get();
        self.next_connection.set(number + 1);
        self.open.borrow_mut().insert(number, Rc::clone(&socket));
        let (end, ended) = AbortHandle::new_pair();
        if let Some((other, end)) = self.entering.borrow_mut().admit(number, arrival.source, end) {
            count(&self.counters().connections_evicted, 1);
            end.abort();
            if let Some(socket) = self.open.borrow().get(&other) {
                // The connection is not admitted yet, so it has no running request.
                let _ = shutdown(socket, Shutdown::Both);
            }
        }
        self.counters().connections.fetch_add(1, Ordering::Relaxed);
        count(&self.counters().connections_taken, 1);
        let shard = Rc::clone(self);
        let task = async move {
            let enter = shard.admit(number, stream, socket, is_trusted);
            let serve = async {
                // An evicted connection has dropped all its resources.
                let entered = Abortable::new(enter, ended).await.unwrap_or(Ok(None));
                shard.entering.borrow_mut().remove(number);
                match entered? {
                    Some((connection, idle)) => connection.serve(&shard, &idle).await,
                    None => Ok(()),
                }
            };
            // A panic that escapes a task would stop the whole executor.
            let served = AssertUnwindSafe(serve).catch_unwind().await;
            if let Err(reason) = served.unwrap_or(Err(ConnectionError::Panic)) {
                shard.counters().broken(reason.reason());
                debug!(shard = shard.id, %reason, "connection ended");
            }
            shard.entering.borrow_mut().remove(number);
            shard.admitted.leave(number);
            shard.open.borrow_mut().remove(&number);
            shard.counters().connections.fetch_sub(1, Ordering::Relaxed);
        };
        spawn_into(sync, task);
    }

    /// Admits a connection if there is a slot; otherwise refuses it.
    async fn admit(
        &self,
        number: u64,
        stream: TcpStream,
        socket: Rc<OwnedFd>,
        is_trusted: bool,
    ) -> Result<Option<(Connection, Rc<IdleClock>)>, ConnectionError> {
        let policy = if is_trusted { Arc::default() } else { self.plan.auth.policy() };
        let twin = Rc::clone(&socket);
        let mut entered =
            Connection::enter(stream, twin, &policy, is_trusted, &self.handshakes).await?;
        match self.admitted.make_room(Instant::now()) {
            ConnectionSlot::Free => {}
            ConnectionSlot::OfIdle => count(&self.counters().connections_idle_closed, 1),
            ConnectionSlot::None => {
                count(&self.counters().connections_refused, 1);
                let most = self.admitted.most();
                debug!(shard = self.id, "refused a connection: {most} are open");
                self.entering.borrow_mut().mark_refused(number);
                let message = format!("the shard has {most} connections, its limit");
                entered.reject(failure(FailureCode::Overloaded, message)).await?;
                return Ok(None);
            }
        }
        Ok(Some((entered, self.admitted.enter(number, socket))))
    }
}
