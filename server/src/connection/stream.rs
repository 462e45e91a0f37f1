//! The socket of a connection, with or without TLS, and reads and writes with timeouts.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use futures_rustls::server::TlsStream;
use futures_util::future::Either;
use glommio::net::TcpStream;
use lodestore_schema::limits::CHUNK_BYTES;
use lodestore_schema::{Failure, Reply};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Connection, ConnectionError, RequestError};
use crate::deadline::io_timeout;
use crate::limits::FRAME_TIMEOUT;
use crate::shard::Shard;

/// Size of the buffer that discards the body of a refused request.
const DRAIN_BYTES: usize = 64 << 10;

/// Byte stream of a connection: TCP or Unix, with or without TLS. Under TLS, written bytes are sent
/// only after a flush.
pub(super) type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Returns whether the client has closed its end. Unread requests may precede the close; a client
/// that closes does not wait for their replies.
fn has_left(socket: &OwnedFd) -> bool {
    let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|n| n > 0)
        && fds[0].revents().intersects(ended)
}

impl Connection {
    /// Fails if the client has disconnected. At a stop this end has closed that direction itself.
    pub(super) fn check_present(&self, shard: &Shard) -> Result<(), ConnectionError> {
        if shard.is_ending() || !has_left(&self.socket) {
            return Ok(());
        }
        Err(ConnectionError::Left)
    }

    /// Sends a reply without rows.
    pub(super) async fn reply(&mut self, reply: &Reply) -> Result<(), ConnectionError> {
        let mut frame = std::mem::take(&mut self.head);
        frame.clear();
        reply.append_to(0, &mut frame);
        let written = self.write(&frame).await;
        self.head = frame;
        written
    }

    /// Sends a part of a reply, which the client must read in time.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        let start = Instant::now();
        let stream = &mut self.stream;
        let write = async {
            stream.write_all(bytes).await?;
            stream.flush().await
        };
        io_timeout(self.pace.allowance(), write).await?;
        self.pace.taken(bytes.len(), start.elapsed());
        Ok(())
    }

    /// Reads and discards the body of a refused request, to stay in sync.
    pub(super) async fn drain(&mut self, mut n_bytes: usize) -> Result<(), ConnectionError> {
        let mut bytes = vec![0; DRAIN_BYTES.min(n_bytes)];
        let drain = async {
            while n_bytes > 0 {
                let n = n_bytes.min(bytes.len());
                self.stream.read_exact(&mut bytes[..n]).await?;
                n_bytes -= n;
                glommio::executor().yield_now().await;
            }
            Ok(())
        };
        Ok(io_timeout(FRAME_TIMEOUT, drain).await?)
    }

    /// Sends a reply and its body.
    pub(super) async fn reply_with(
        mut self,
        reply: &Reply,
        body: &[u8],
    ) -> Result<Self, ConnectionError> {
        let mut frame = Vec::new();
        reply.append_to(body.len(), &mut frame);
        self.write(&frame).await?;
        // Each part has its own timeout, for slow readers.
        for part in body.chunks(CHUNK_BYTES) {
            self.write(part).await?;
        }
        Ok(self)
    }

    /// Returns what an admitted request needs. Discards the body of a refused one.
    pub(super) async fn drain_refused<T>(
        &mut self,
        admitted: Result<T, Failure>,
        body_bytes: usize,
    ) -> Result<T, RequestError> {
        if admitted.is_err() {
            self.drain(body_bytes).await?;
        }
        Ok(admitted?)
    }

    /// Reads bytes of a frame, which the client must send in time.
    pub(super) async fn read_in_time(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        io_timeout(FRAME_TIMEOUT, self.stream.read_exact(bytes)).await
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_client_that_closes_behind_an_unread_request_has_disconnected() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let socket = OwnedFd::from(ours);
        assert!(!has_left(&socket));
        theirs.write_all(b"a request").unwrap();
        assert!(!has_left(&socket), "unread bytes are not the end");
        drop(theirs);
        assert!(has_left(&socket));
    }
}
