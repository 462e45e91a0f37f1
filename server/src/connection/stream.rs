//! The socket of a connection, in the clear or under TLS.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_lite::{AsyncRead, AsyncWrite};
use futures_rustls::server::TlsStream;
use glommio::net::TcpStream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Byte stream of a connection: TCP, Unix, with or without TLS. Under TLS what was written is on
/// its way only once it is flushed.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Returns whether the client has closed its end. Unread requests may precede that: a client that
/// closes does not wait for answers.
pub(super) fn has_left(socket: &OwnedFd) -> bool {
    let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once)).is_ok_and(|n| n > 0) && fds[0].revents().intersects(ended)
}

macro_rules! forward {
    ($stream:expr, $call:ident $(, $argument:expr)*) => {
        match $stream.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).$call($($argument),*),
            Stream::Tls(stream) => Pin::new(stream).$call($($argument),*),
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        forward!(self, poll_read, cx, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        forward!(self, poll_write, cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        forward!(self, poll_write_vectored, cx, parts)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, poll_flush, cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, poll_close, cx)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn who_has_closed_behind_an_unread_request_has_left() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let socket = OwnedFd::from(ours);
        assert!(!has_left(&socket));
        theirs.write_all(b"a request").unwrap();
        assert!(!has_left(&socket), "bytes that wait are no end");
        drop(theirs);
        assert!(has_left(&socket));
    }
}
