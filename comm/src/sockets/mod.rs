//! Ranks that are processes of one machine, with a Unix socket for each pair.
//!
//! The process that starts the others leads. It has a socket to each of them, and passes a socket
//! pair to each two of them. No socket has a name, so no other process can connect. When a process
//! dies, the kernel closes its sockets, and its peers read the end immediately. A rank that finds a
//! fault passes it on before it closes its own sockets. So all ranks report the process that died,
//! not one that ended because of it.
//!
//! A process that hangs keeps its sockets. A rank that waits for it sends the others a notice with
//! its rank. A rank that waits for the sender of a notice then reports the hanging process.

mod link;

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};

use crate::collective::Collective;
use crate::error::CollectiveError;
use crate::header::FAULT;
use crate::limits::wait_limit;
use crate::tag::Tag;
use crate::traffic::Traffic;
use link::{Inbound, Link, Outbound};

/// Longest single wait.
const SLICE: Duration = Duration::from_millis(100);

/// A follower sends notices after 1/`NOTICE_PART` of its timeout: half of the leader's timeout.
const NOTICE_PART: u32 = 4;

/// Longest wait until other ranks have read a fault.
const LINGER: Duration = Duration::from_secs(1);

/// One rank of several processes on this machine.
#[derive(Debug)]
pub struct SocketCollective {
    rank: u32,
    /// By rank; none for this rank. Empty after an error.
    links: Vec<Option<Link>>,
    n_ranks: u32,
    timeout: Duration,
    traffic: Traffic,
}

impl SocketCollective {
    /// Returns rank 0. The processes at the other ends of `followers` get the ranks from 1 on, and
    /// a socket to each other. Rank 0 waits at most `timeout` for each.
    pub fn leader(followers: Vec<UnixStream>, timeout: Duration) -> Result<Self, CollectiveError> {
        for (first, to_first) in (1..).zip(&followers) {
            for (second, to_second) in (1..).zip(&followers).skip(first as usize) {
                let (one, other) = UnixStream::pair().map_err(connect("make sockets"))?;
                pass(first, to_first, one.as_fd(), timeout)?;
                pass(second, to_second, other.as_fd(), timeout)?;
            }
        }
        let sockets = [None].into_iter().chain(followers.into_iter().map(Some));
        Self::new(0, sockets.collect(), timeout)
    }

    /// Returns rank `rank` of `n_ranks`, from 1, with the socket `leader` to rank 0. It waits at
    /// most twice `timeout` for others.
    pub fn follower(
        rank: u32,
        n_ranks: u32,
        leader: OwnedFd,
        timeout: Duration,
    ) -> Result<Self, CollectiveError> {
        let timeout = wait_limit(rank, timeout);
        let leader = UnixStream::from(leader);
        leader.set_nonblocking(false).map_err(connect("set up the sockets"))?;
        leader.set_read_timeout(Some(timeout)).map_err(connect("set up the sockets"))?;
        // The leader passes sockets in the order of ranks.
        let passed = (1..n_ranks)
            .map(|other| (other != rank).then(|| receive_socket(&leader, timeout)).transpose())
            .collect::<Result<Vec<_>, _>>()?;
        let mut sockets = vec![Some(leader)];
        sockets.extend(passed);
        Self::new(rank, sockets, timeout)
    }

    fn new(
        rank: u32,
        sockets: Vec<Option<UnixStream>>,
        timeout: Duration,
    ) -> Result<Self, CollectiveError> {
        let n_ranks = sockets.len() as u32;
        let mut links = Vec::with_capacity(sockets.len());
        for socket in sockets {
            let link = socket.map(Link::new).transpose();
            links.push(link.map_err(connect("set up the sockets"))?);
        }
        Ok(Self { rank, links, n_ranks, timeout, traffic: Traffic::default() })
    }

    fn link(&self, rank: u32) -> Result<&Link, CollectiveError> {
        let link = self.links.get(rank as usize).and_then(Option::as_ref);
        link.ok_or(CollectiveError::Gone { rank })
    }

    /// Sends and receives all messages. After a fault, passes it on to the other ranks.
    fn move_messages(
        &self,
        tag: Tag,
        sends: &[(u32, &[u8])],
        receives: &mut [(u32, Vec<u8>)],
    ) -> Result<(), CollectiveError> {
        let mut outbound = Vec::with_capacity(sends.len());
        for &(rank, bytes) in sends {
            outbound.push(Outbound::new(rank, self.link(rank)?, tag.number(), bytes));
        }
        let mut inbound = Vec::with_capacity(receives.len());
        for (rank, bytes) in receives {
            inbound.push(Inbound::new(*rank, self.link(*rank)?, tag, bytes));
        }
        let moved = self.finish(&mut outbound, &mut inbound);
        if let Err(error) = &moved
            && let Some(fault) = error.to_fault()
        {
            self.pass_on(&fault, outbound, inbound);
        }
        moved
    }

    /// Moves bytes while any socket is ready, and waits while none is, until all messages are done.
    fn finish(
        &self,
        outbound: &mut Vec<Outbound<'_>>,
        inbound: &mut Vec<Inbound<'_>>,
    ) -> Result<(), CollectiveError> {
        let mut left = self.timeout;
        loop {
            let mut has_moved = false;
            for message in &mut *inbound {
                has_moved |= message.advance()?;
            }
            for message in &mut *outbound {
                has_moved |= message.advance();
            }
            if has_moved {
                continue;
            }
            if let Some(broken) = outbound.iter().find(|message| message.is_broken) {
                return Err(broken.last_fault());
            }
            outbound.retain(|message| !message.is_done());
            inbound.retain(|message| !message.is_done);
            let Some(rank) = self.suspect(outbound, inbound) else {
                for link in self.links.iter().flatten() {
                    link.retract(self.rank);
                }
                return Ok(());
            };
            if left.is_zero() {
                return Err(CollectiveError::Silent { rank, waited: self.timeout });
            }
            // The leader sends no notice: its own timeout ends first.
            if self.rank > 0 && self.timeout - left >= self.timeout / NOTICE_PART {
                self.notify(rank, outbound);
            }
            wait(outbound, inbound, &mut left);
        }
    }

    /// Returns the rank that blocks these messages: the silent rank, else the one that peers blame.
    /// None if there are no messages.
    fn suspect(&self, outbound: &[Outbound<'_>], inbound: &[Inbound<'_>]) -> Option<u32> {
        let silent = inbound.iter().find(|message| message.suspect == message.rank);
        if let Some(message) = silent.or(inbound.first()) {
            // Two ranks that wait for each other are out of step: blame the other one.
            let suspect = message.suspect;
            return Some(if suspect == self.rank { message.rank } else { suspect });
        }
        outbound.first().map(|message| message.rank)
    }

    /// Sends a notice that this rank waits for `suspect` to each rank to which no message is in
    /// flight.
    fn notify(&self, suspect: u32, outbound: &[Outbound<'_>]) {
        for (rank, link) in (0..).zip(&self.links) {
            let Some(link) = link else { continue };
            if outbound.iter().all(|message| message.rank != rank) {
                link.notify(suspect);
            }
        }
    }

    /// Sends a fault to all ranks, after the messages in flight. It reads arriving messages
    /// meanwhile, so that ranks that send faults to each other do not block.
    fn pass_on(
        &self,
        fault: &[u8],
        mut outbound: Vec<Outbound<'_>>,
        mut inbound: Vec<Inbound<'_>>,
    ) {
        let mut faults = Vec::with_capacity(self.links.len());
        for (rank, link) in (0..).zip(&self.links) {
            if let Some(link) = link {
                faults.push(Outbound::new(rank, link, FAULT, fault));
            }
        }
        let mut left = LINGER;
        loop {
            let mut has_moved = false;
            inbound.retain_mut(|message| match message.advance() {
                Ok(moved) => {
                    has_moved |= moved;
                    !message.is_done
                }
                Err(_) => false,
            });
            let mut send = |message: &mut Outbound<'_>| {
                has_moved |= message.advance();
                !message.is_done() && !message.is_broken
            };
            outbound.retain_mut(&mut send);
            faults.retain_mut(|fault| {
                outbound.iter().any(|message| message.rank == fault.rank) || send(fault)
            });
            if faults.is_empty() || left.is_zero() {
                return;
            }
            if !has_moved {
                let unsent = if outbound.is_empty() { &faults } else { &outbound };
                wait(unsent, &inbound, &mut left);
            }
        }
    }
}

impl Collective for SocketCollective {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn n_ranks(&self) -> u32 {
        self.n_ranks
    }

    fn traffic(&mut self) -> &mut Traffic {
        &mut self.traffic
    }

    fn transfer(
        &mut self,
        tag: Tag,
        sends: &[(u32, &[u8])],
        receives: &mut [(u32, Vec<u8>)],
    ) -> Result<(), CollectiveError> {
        let moved = self.move_messages(tag, sends, receives);
        if moved.is_err() {
            self.links.clear();
        }
        moved
    }
}

/// Waits until a socket is ready, at most one [`SLICE`], and subtracts the wait from `left`. A wait
/// counts for one slice at most: if this process was stopped or the machine slept, others may have
/// been stopped too, and keep the rest of their time.
fn wait(outbound: &[Outbound<'_>], inbound: &[Inbound<'_>], left: &mut Duration) {
    let readable = inbound.iter().map(|message| (message.link, PollFlags::IN));
    let writable = outbound.iter().map(|message| (message.link, PollFlags::OUT));
    let mut polled: Vec<PollFd<'_>> = readable
        .chain(writable)
        .map(|(link, flags)| PollFd::from_borrowed_fd(link.as_fd(), flags))
        .collect();
    let slice = SLICE.min(*left);
    let start = Instant::now();
    let time = Timespec { tv_sec: 0, tv_nsec: slice.as_nanos() as i64 };
    // A signal may interrupt the wait; the elapsed time counts.
    let _ = poll(&mut polled, Some(&time));
    *left = left.saturating_sub(start.elapsed().min(slice));
}

/// Passes a socket to the process of `rank`, at the other end of `socket`. If that process has
/// ended, a later transfer reports it.
fn pass(
    rank: u32,
    socket: &UnixStream,
    passed: BorrowedFd<'_>,
    timeout: Duration,
) -> Result<(), CollectiveError> {
    socket.set_write_timeout(Some(timeout)).map_err(connect("set up the sockets"))?;
    let start = Instant::now();
    let descriptors = [passed];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        match sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL) {
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => return Ok(()),
            // The kernel bounds passed descriptors that no process has received yet.
            Err(Errno::TOOMANYREFS) if start.elapsed() < timeout => {
                sleep(Duration::from_millis(1));
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::TOOMANYREFS) => {
                return Err(CollectiveError::Silent { rank, waited: timeout });
            }
            Err(error) => return Err(connect("pass the sockets")(error.into())),
        }
    }
}

/// Receives a socket to another process from the leader.
fn receive_socket(leader: &UnixStream, timeout: Duration) -> Result<UnixStream, CollectiveError> {
    let failed = connect("receive the sockets");
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut parts = [IoSliceMut::new(&mut byte)];
        match recvmsg(leader, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) if received.bytes == 0 => return Err(CollectiveError::Gone { rank: 0 }),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => {
                return Err(CollectiveError::Silent { rank: 0, waited: timeout });
            }
            Err(error) => return Err(failed(error.into())),
        }
        let socket = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        let none = || io::Error::new(io::ErrorKind::InvalidData, "a message without a socket");
        return socket.map(UnixStream::from).ok_or_else(none).map_err(failed);
    }
}

fn connect(action: &'static str) -> impl FnOnce(io::Error) -> CollectiveError {
    move |source| CollectiveError::Connect { action, source }
}

#[cfg(test)]
mod tests;
