//! Admitted connections, of which the longest-idle one yields to a new one.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use rustix::net::{Shutdown, shutdown};

use crate::limits::IDLE_MIN;

/// The admitted connections of a shard, by number.
pub(super) struct ConnectionTable {
    places: RefCell<HashMap<u64, Rc<IdleClock>>>,
    most: usize,
}

/// Time since which a connection has no request.
pub(crate) struct IdleClock {
    since: Cell<Option<Instant>>,
    socket: Rc<OwnedFd>,
}

/// Outcome of the search for a slot for a new connection.
pub(super) enum ConnectionSlot {
    /// A free slot.
    Free,
    /// The slot of an idle connection, which was closed.
    OfIdle,
    /// No slot: no connection has been idle for long enough.
    None,
}

impl ConnectionTable {
    /// Returns a table of `most` slots.
    pub(super) fn new(most: usize) -> Self {
        Self { places: RefCell::default(), most }
    }

    /// Returns the maximum number of connections.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Makes room for one connection, if necessary by closing the one that is idle longest.
    pub(super) fn make_room(&self, now: Instant) -> ConnectionSlot {
        let mut places = self.places.borrow_mut();
        if places.len() < self.most {
            return ConnectionSlot::Free;
        }
        let idle_for = |idle: &IdleClock| Some(now.saturating_duration_since(idle.since.get()?));
        let idlest = places
            .iter()
            .filter_map(|(&number, idle)| idle_for(idle).map(|time| (time, number)))
            .max()
            .filter(|(time, _)| *time >= IDLE_MIN);
        let Some(idle) = idlest.and_then(|(_, number)| places.remove(&number)) else {
            return ConnectionSlot::None;
        };
        // Idle means between two requests: both ends read end-of-file and lose nothing.
        let _ = shutdown(&*idle.socket, Shutdown::Both);
        ConnectionSlot::OfIdle
    }

    /// Admits a connection.
    pub(super) fn enter(&self, number: u64, socket: Rc<OwnedFd>) -> Rc<IdleClock> {
        let idle = Rc::new(IdleClock { since: Cell::new(None), socket });
        self.places.borrow_mut().insert(number, Rc::clone(&idle));
        idle
    }

    /// Removes a connection that has ended, unless it was evicted before.
    pub(super) fn leave(&self, number: u64) {
        self.places.borrow_mut().remove(&number);
    }
}

impl IdleClock {
    /// Starts the idle time: the connection waits for a request.
    pub(crate) fn begin(&self) {
        self.since.set(Some(Instant::now()));
    }

    /// Ends the idle time: a request has arrived.
    pub(crate) fn end(&self) {
        self.since.set(None);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;
    use crate::limits::{CONNECTIONS_PER_SHARD_MAX, connections_per_shard};

    #[test]
    fn connections_leave_half_of_the_files_to_rows() {
        let of = |max_files| connections_per_shard(max_files, 4);
        assert_eq!([0, 7, 64, 1024, 1 << 20, u64::MAX].map(of), [1, 1, 8, 128, 256, 256]);
    }

    #[test]
    fn a_full_shard_closes_its_longest_idle_connection_and_no_busy_one() {
        let (table, now) = (ConnectionTable::new(CONNECTIONS_PER_SHARD_MAX), Instant::now());
        let mut peers = Vec::new();
        for number in 0..CONNECTIONS_PER_SHARD_MAX as u64 {
            assert!(matches!(table.make_room(now), ConnectionSlot::Free));
            let (ours, theirs) = UnixStream::pair().unwrap();
            theirs.set_nonblocking(true).unwrap();
            peers.push(theirs);
            table.enter(number, Rc::new(ours.into()));
        }
        assert!(
            matches!(table.make_room(now + 100 * IDLE_MIN), ConnectionSlot::None),
            "all are busy"
        );
        let set = |number: u64, time| table.places.borrow()[&number].since.set(Some(time));
        set(5, now + Duration::from_secs(1));
        set(9, now);
        set(200, now + Duration::from_secs(2));
        let soon = now + IDLE_MIN - Duration::from_millis(1);
        assert!(matches!(table.make_room(soon), ConnectionSlot::None), "none is idle for long");
        let late = now + IDLE_MIN + Duration::from_secs(1);
        for closed in [9, 5] {
            assert!(matches!(table.make_room(late), ConnectionSlot::OfIdle));
            table.enter(1000 + closed, Rc::new(UnixStream::pair().unwrap().0.into()));
            let end = std::io::Read::read(&mut &peers[closed as usize], &mut [0]);
            assert_eq!(end.unwrap(), 0, "{closed} is closed");
        }
        assert!(
            matches!(table.make_room(late), ConnectionSlot::None),
            "the remaining one is not idle for long enough"
        );
        // The end of an evicted connection does not free the slot of its successor.
        table.leave(9);
        assert_eq!(table.places.borrow().len(), CONNECTIONS_PER_SHARD_MAX);
        table.leave(1009);
        assert!(matches!(table.make_room(late), ConnectionSlot::Free));
    }
}
