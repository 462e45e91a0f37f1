//! The figures of a server, over HTTP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lodestore_client::Address;
use lodestore_server::auth::Token;
use lodestore_server::metrics::ServerFigures;

/// Longest time for a look.
const DEADLINE: Duration = Duration::from_secs(5);
/// Largest answer that is taken: hundreds of shards fit.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Asks the metrics port at `address`.
pub(super) fn fetch(address: &Address, token: Option<&Token>) -> Result<ServerFigures> {
    let answer = ask(address, token).with_context(|| {
        format!("cannot ask {address}; is it the address of a server's --metrics?")
    })?;
    figures(&answer).with_context(|| format!("{address} is no metrics port of a lode server"))
}

fn ask(address: &Address, token: Option<&Token>) -> std::io::Result<Vec<u8>> {
    let deadline = Instant::now() + DEADLINE;
    let (mut stream, address) = connect(address)?;
    stream.set_write_timeout(Some(DEADLINE))?;
    let mut request = format!("GET /status.json HTTP/1.1\r\nHost: {address}\r\n").into_bytes();
    if let Some(token) = token {
        request.extend([b"Authorization: Bearer ", token.as_bytes(), b"\r\n"].concat());
    }
    request.extend(b"\r\n");
    stream.write_all(&request)?;
    let (mut answer, mut bytes) = (Vec::new(), [0; 16 << 10]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || answer.len() > ANSWER_BYTES_MAX {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes)? {
            0 => return Ok(answer),
            n => answer.extend_from_slice(&bytes[..n]),
        }
    }
}

/// Returns the first address that takes the connection. It is named by number: a server without a
/// token answers under few names.
fn connect(address: &Address) -> std::io::Result<(TcpStream, SocketAddr)> {
    let found: Vec<SocketAddr> = address.to_string().to_socket_addrs()?.collect();
    let mut result = Err(std::io::Error::other("the name has no address"));
    for address in found {
        result = TcpStream::connect_timeout(&address, DEADLINE).map(|stream| (stream, address));
        if result.is_ok() {
            break;
        }
    }
    result
}

/// Returns the body of an answer: the server closes the connection behind it.
fn figures(answer: &[u8]) -> Result<ServerFigures> {
    let text = std::str::from_utf8(answer).context("its answer is no text")?;
    let (head, body) = text.split_once("\r\n\r\n").context("its answer is no HTTP")?;
    let status = head.lines().next().unwrap_or_default();
    if status.contains(" 401 ") {
        bail!("it wants a token: --token-file");
    }
    if !(status.starts_with("HTTP/1.") && status.contains(" 200 ")) {
        bail!("it answers `{}`", status.escape_default());
    }
    serde_json::from_str(body).context("its figures cannot be read; it may be of another version")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_others_are_reported() {
        for (answer, told) in [
            (&b"\xff\xfe"[..], "no text"),
            (b"LODESTOR", "no HTTP"),
            (b"HTTP/1.1 401 Unauthorized\r\n\r\n", "--token-file"),
            (b"HTTP/1.1 404 Not Found\r\n\r\n", "404"),
            (b"HTTP/1.1 200 OK\r\n\r\n{}", "another version"),
        ] {
            let error = format!("{:#}", figures(answer).unwrap_err());
            assert!(error.contains(told), "{error}");
        }
    }
}
