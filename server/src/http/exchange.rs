//! One connection: a request, its response, and the wait until the peer has read it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::event::PollFlags;

use super::AccessRules;
use super::answer::answer;
use super::request::{BadRequest, Request};
use crate::limits::{HTTP_HEAD_BYTES_MAX, HTTP_TIMEOUT};
use crate::metrics::Observed;

/// Size of a read, also of unexpected bytes after the request.
const READ_BYTES: usize = 4096;

/// A connection and its stage.
pub(super) struct Exchange {
    stream: TcpStream,
    /// Whether the local address is a loopback address.
    is_local: bool,
    stage: Stage,
    /// When the connection is closed, finished or not.
    pub(super) deadline: Instant,
}

enum Stage {
    /// Receiving the request.
    Reading(Vec<u8>),
    /// Sending the response, of which this many bytes are sent.
    Writing(Vec<u8>, usize),
    /// The response is sent. Waits for the peer to close until the deadline: closing while bytes of
    /// the peer are unread would discard the response.
    Ending,
}

impl Exchange {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let deadline = Instant::now() + HTTP_TIMEOUT;
        let is_local = stream.local_addr()?.ip().to_canonical().is_loopback();
        Ok(Self { stream, is_local, stage: Stage::Reading(Vec::new()), deadline })
    }

    /// Returns the events to poll for.
    pub(super) fn awaits(&self) -> PollFlags {
        match self.stage {
            Stage::Reading(_) | Stage::Ending => PollFlags::IN,
            Stage::Writing(..) => PollFlags::OUT,
        }
    }

    /// Makes progress without blocking; returns `false` when the connection is over.
    pub(super) fn go_on(&mut self, rules: &AccessRules, observed: &Observed) -> bool {
        loop {
            match self.step(rules, observed) {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(is_open)) => return is_open,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
    }

    /// Runs one step; breaks with whether the connection stays open.
    fn step(&mut self, rules: &AccessRules, observed: &Observed) -> io::Result<ControlFlow<bool>> {
        match &mut self.stage {
            Stage::Reading(head) => {
                // A client with the token is not a page of another site.
                let tokens = rules.tokens();
                let asks_host = self.is_local || tokens.is_none();
                let hosts = asks_host.then_some(&*rules.hosts);
                let request = read_request(&mut self.stream, head, hosts)?;
                self.stage = Stage::Writing(answer(request, tokens.as_ref(), observed), 0);
            }
            Stage::Writing(bytes, n_gone) => {
                *n_gone += self.stream.write(&bytes[*n_gone..])?;
                if *n_gone == bytes.len() {
                    self.stage = Stage::Ending;
                    self.stream.shutdown(Shutdown::Write)?;
                }
            }
            Stage::Ending => {
                // One read per turn, so that a peer that sends without end does not starve others.
                let n_bytes = self.stream.read(&mut [0; READ_BYTES])?;
                return Ok(ControlFlow::Break(n_bytes > 0));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Reads until the request is complete or known to be invalid.
fn read_request(
    stream: &mut TcpStream,
    head: &mut Vec<u8>,
    hosts: Option<&[String]>,
) -> io::Result<Result<Request, BadRequest>> {
    loop {
        let mut bytes = [0; READ_BYTES];
        let room = bytes.len().min(HTTP_HEAD_BYTES_MAX + 1 - head.len());
        let n = stream.read(&mut bytes[..room])?;
        if n == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&bytes[..n]);
        if let Some(request) = Request::parse(head, hosts) {
            return Ok(request);
        }
    }
}

impl AsFd for Exchange {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
