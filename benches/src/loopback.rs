//! The physical limit of a pull: the same bytes over the same kind of socket, and nothing else.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;

/// Bytes that the plain peer writes at a time, as a shard does.
const WRITE_BYTES: usize = 256 << 10;

/// A peer that answers `request_bytes` with `reply_bytes`, until its client leaves.
pub struct PlainPeer {
    stream: TcpStream,
    request: Vec<u8>,
    reply: Vec<u8>,
    thread: Option<JoinHandle<()>>,
}

impl PlainPeer {
    /// Starts the peer on a thread of its own and connects to it.
    ///
    /// # Panics
    /// When loopback sockets do not work.
    #[must_use]
    pub fn start(request_bytes: usize, reply_bytes: usize) -> Self {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let address = listener.local_addr().expect("an address");
        let thread = std::thread::spawn(move || answer(&listener, request_bytes, reply_bytes));
        let stream = TcpStream::connect(address).expect("the peer listens");
        stream.set_nodelay(true).expect("TCP");
        let (request, reply) = (vec![1; request_bytes], vec![0; reply_bytes]);
        Self { stream, request, reply, thread: Some(thread) }
    }

    /// Makes one exchange, and returns the reply's bytes.
    ///
    /// # Panics
    /// When the peer has gone.
    pub fn exchange(&mut self) -> &[u8] {
        self.stream.write_all(&self.request).expect("the peer reads");
        self.stream.read_exact(&mut self.reply).expect("the peer answers");
        &self.reply
    }
}

impl Drop for PlainPeer {
    fn drop(&mut self) {
        // Closed or not, the peer's next read ends it.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(listener: &TcpListener, request_bytes: usize, reply_bytes: usize) {
    let Ok((mut stream, _)) = listener.accept() else { return };
    stream.set_nodelay(true).expect("TCP");
    let (mut request, reply) = (vec![0; request_bytes], vec![7; reply_bytes.min(WRITE_BYTES)]);
    while stream.read_exact(&mut request).is_ok() {
        let mut left = reply_bytes;
        while left > 0 {
            let n = left.min(reply.len());
            if stream.write_all(&reply[..n]).is_err() {
                return;
            }
            left -= n;
        }
    }
}
